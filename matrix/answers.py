"""A resolution or a conflict as JSON and as text. The JSON keys are a contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matrix.console import table
from matrix.last import keep_conflict
from resolver.lock import make_lock
from resolver.model import is_preinstalled

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matrix.console import Console
    from resolver.model import Conflict, CoreItem, Fact, Request, Resolution, Target

SCHEMA = 1


def target_document(target: Target) -> dict[str, Any]:
    """Give a target as JSON."""
    return {
        "site": target.site,
        "date": target.date.isoformat(),
        "backend": target.backend,
        "gfx": list(target.gfx),
        "driver": target.driver,
        "base_image": target.base_image,
    }


def _asked_for(request: Request) -> dict[str, Any]:
    """Give the target of a request as JSON, with what was to be kept if anything was."""
    document = target_document(request.target)
    if request.keep:
        document["kept"] = {"source": request.keep.source, "installed": dict(request.keep.installed)}
    return document


def _answered_for(resolution: Resolution) -> dict[str, Any]:
    """Give the target of an answer as JSON: with what was kept and what is not known."""
    document = _asked_for(resolution.request)
    if resolution.request.keep:
        kept = {pick.name: pick.version for pick in resolution.picks if is_preinstalled(pick.candidate)}
        unknown = sorted(document["kept"]["installed"].keys() - kept.keys() - {"python", "rocm"})
        document["kept"] |= {"picks": kept, "ignored": unknown}
    return document


def resolution_document(resolution: Resolution) -> dict[str, Any]:
    """Give a resolution as JSON."""
    pinned = {pick.name: pick.wheel_version for pick in make_lock(resolution).pick}
    return {
        "schema": SCHEMA,
        "status": "resolved",
        "target": _answered_for(resolution),
        "picks": [
            {
                "name": pick.name,
                "version": pick.version,
                "variant": pick.candidate.variant,
                "wheel_version": pinned[pick.name],
                "kind": pick.candidate.kind,
                "origin": pick.candidate.origin,
                "support": pick.support,
                "verdict": pick.verdict,
                "facts": [_fact(fact) for fact in pick.facts],
            }
            for pick in resolution.picks
        ],
        "order": [list(group) for group in resolution.order],
        "edges": [
            {
                "from": edge.subject,
                "to": edge.object,
                "kind": edge.kind,
                "declared": edge.declared,
            }
            for edge in resolution.edges
        ],
        "warnings": list(resolution.warnings),
    }


def _fact(fact: Fact) -> dict[str, str]:
    said = {"text": fact.text, "status": fact.status, "source": fact.source}
    said |= {"note": fact.note} if fact.note else {}
    return said | ({"file": fact.file} if fact.file else {})


def conflict_document(conflict: Conflict) -> dict[str, Any]:
    """Give a conflict as JSON."""
    return {
        "schema": SCHEMA,
        "status": "conflict",
        "target": _asked_for(conflict.request),
        "core": core_document(conflict.core),
        "suggestions": [{"change": one.change, "request": list(one.request)} for one in conflict.suggestions],
    }


def resolution_text(resolution: Resolution, *, reasons: bool = True, sources: bool = False) -> str:
    """Give a resolution as text: the set, the reason of each pick, and the install order."""
    rows = []
    for pick in resolution.picks:
        support = pick.support if pick.verdict == "supported" else f"{pick.support}, at own risk"
        rows.append([pick.name, pick.candidate.key, pick.candidate.origin, support])
    lines = [title_of(resolution.request.target), "", table(rows)]
    if reasons:
        lines += ["", "Why"]
        for pick in resolution.picks:
            lines.append(f"  {pick.name} {pick.candidate.key}")
            lines += _reasons(pick.facts, sources=sources)
    kept = {pick.name for pick in resolution.picks if is_preinstalled(pick.candidate)}
    groups = [[name for name in group if name not in kept] for group in resolution.order]
    groups = [group for group in groups if group]
    lines += ["", "Install order"]
    lines += [f"  {number}. {', '.join(group)}" for number, group in enumerate(groups, start=1)]
    lines += [f"  Installed already: {', '.join(sorted(kept))}"] if kept else []
    return "\n".join(lines)


def _reasons(facts: Iterable[Fact], *, sources: bool) -> list[str]:
    lines = []
    for fact in facts:
        lines.append(f"    - {fact.text} [{fact.status}]")
        if sources:
            lines.append(f"      {fact.source}")
            lines += [f"      note: {fact.note}"] if fact.note else []
    return lines


def conflict_text(conflict: Conflict) -> str:
    """Give a conflict as text: what clashes, by which facts, and what would resolve."""
    lines = [f"No set fits. {title_of(conflict.request.target)}", ""]
    lines += [f"  - {item.text}{cited(item)}" for item in conflict.core]
    lines.append("")
    if conflict.suggestions:
        lines.append("These would resolve:")
        lines += [f"  - {one.change}: matrix resolve {_shell(one.request)}" for one in conflict.suggestions]
    else:
        lines.append("No smaller change was found that would resolve.")
    return "\n".join(lines)


def core_document(core: Iterable[CoreItem]) -> list[dict[str, str]]:
    """Give the items of a core as JSON."""
    return [{"text": one.text, "kind": one.kind, "source": one.source} for one in core]


def cited(item: CoreItem) -> str:
    """Name the first place where a fact stands; all of them are in the JSON and in ``matrix explain``."""
    return f" [{item.source.split(' ; ')[0]}]" if item.kind == "fact" else ""


def show_conflict(conflict: Conflict, console: Console, *, as_json: bool) -> None:
    """Print a conflict as the answer of a command, and keep it for ``matrix explain``."""
    document = conflict_document(conflict)
    keep_conflict(document)
    if as_json:
        console.document(document)
    else:
        console.data(conflict_text(conflict))
        console.info("\nAll sources of these facts: matrix explain")


def _shell(arguments: Iterable[str]) -> str:
    import shlex

    return shlex.join(arguments)


def title_of(target: Target) -> str:
    """Say for what something is resolved."""
    gfx = f", {', '.join(target.gfx)}" if target.gfx else ""
    return f"For {target.site} on {target.date}: {target.backend}{gfx}"
