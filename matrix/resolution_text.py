"""Resolutions and conflicts as text and JSON, and the last conflict, saved for ``matrix explain``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import msgspec

from builders.cache import cache_root
from builders.files import write_atomic
from matrix.screen import PLAIN, Screen
from resolver.lock import encode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sized

    from matrix.console import Console
    from resolver.model import Conflict, CoreItem, Fact, Resolution, Target


def resolution_json(resolution: Resolution) -> dict[str, Any]:
    """Return a resolution as JSON data."""
    document: dict[str, Any] = msgspec.to_builtins(resolution, enc_hook=encode)
    preinstalled = resolution.request.preinstalled
    if preinstalled:
        picks = {pick.name: pick.version for pick in resolution.picks if pick.origin == "preinstalled"}
        ignored = sorted(preinstalled.installed.keys() - picks.keys() - {"python", "rocm"})
        document["target"]["kept"] = document["request"]["preinstalled"] | {
            "picks": picks,
            "ignored": ignored,
        }
    return document


def conflict_json(conflict: Conflict) -> dict[str, Any]:
    """Return a conflict as JSON data."""
    document: dict[str, Any] = msgspec.to_builtins(conflict, enc_hook=encode)
    if conflict.request.preinstalled:
        document["target"]["kept"] = document["request"]["preinstalled"]
    return document


def resolution_text(
    resolution: Resolution,
    *,
    reasons: bool = True,
    sources: bool = False,
    every: bool = False,
    screen: Screen = PLAIN,
) -> str:
    """Return a resolution as text: the versions, the reasons for each, and the install order.

    Distributions that only package indexes know, and that the request does not name, are counted, or listed
    if `every`.
    """
    others: frozenset[str] = frozenset() if every else names_of_others(resolution)
    listed = [pick for pick in resolution.picks if pick.kind == "platform" or pick.name not in others]
    rows = []
    for pick in listed:
        support = pick.support if pick.verdict == "supported" else f"{pick.support}, at own risk"
        origin = f"alias of {pick.alias_of}" if pick.alias_of else pick.origin
        rows.append([pick.name, pick.key, origin, support])
    lines = [title_of(resolution.target), "", screen.table(rows)]
    if others:
        lines.append(f"  {others_text(others)}")
    if reasons:
        lines += ["", "Why"]
        for pick in listed:
            lines.append(f"  {pick}")
            lines += _reasons(pick.facts, sources=sources)
    preinstalled = {pick.name for pick in resolution.picks if pick.origin == "preinstalled"}
    hidden = preinstalled | others
    groups = [[name for name in group if name not in hidden] for group in resolution.order]
    groups = [group for group in groups if group]
    lines += ["", "Install order"] if groups or preinstalled else []
    lines += [f"  {number}. {', '.join(group)}" for number, group in enumerate(groups, start=1)]
    lines += [f"  Preinstalled: {', '.join(sorted(preinstalled))}"] if preinstalled else []
    return "\n".join(lines)


def names_of_others(resolution: Resolution) -> frozenset[str]:
    """Return the distributions that only package indexes know, and that the request does not name."""
    requested = {requirement.name for requirement in resolution.request.requirements}
    return frozenset(
        pick.name
        for pick in resolution.distributions
        if pick.origin == "published" and pick.files and pick.name not in requested
        if not any(fact.file for fact in pick.facts)
    )


def others_text(others: Sized) -> str:
    """Return how many distributions are not listed."""
    plural = "" if len(others) == 1 else "s"
    return f"and {len(others)} other distribution{plural} from package indexes (-v lists them)"


def _reasons(facts: Iterable[Fact], *, sources: bool) -> list[str]:
    lines = []
    for fact in facts:
        lines.append(f"    - {fact.text} [{fact.status}]")
        if sources:
            lines.append(f"      {fact.source}")
            lines += [f"      note: {fact.note}"] if fact.note else []
    return lines


def conflict_text(conflict: Conflict) -> str:
    """Return a conflict as text: the constraints with their sources, and requests that resolve."""
    lines = [f"There is no resolution. {title_of(conflict.target)}", ""]
    lines += [f"  - {item.text}{first_source(item)}" for item in conflict.core]
    lines.append("")
    if conflict.suggestions:
        import shlex

        lines.append("These requests resolve:")
        lines += [
            f"  - {suggestion.change}: matrix resolve {shlex.join(suggestion.request)}"
            for suggestion in conflict.suggestions
        ]
    else:
        lines.append("No smaller change makes this request resolve.")
    return "\n".join(lines)


def first_source(item: CoreItem) -> str:
    """Return the first source of a fact in brackets. JSON and ``matrix explain`` have all of them."""
    return f" [{item.source.split(' ; ')[0]}]" if item.kind == "fact" else ""


def title_of(target: Target) -> str:
    """Return the heading that names a target."""
    gfx = f", {', '.join(target.gfx)}" if target.gfx else ""
    return f"For {target.site} on {target.date}: {target.backend}{gfx}"


def show_conflict(conflict: Conflict, console: Console, *, as_json: bool) -> None:
    """Print a conflict as the result of a command, and save it for ``matrix explain``."""
    document = conflict_json(conflict)
    _save_conflict(document)
    if as_json:
        console.document(document)
    else:
        console.data(conflict_text(conflict))
        for warning in conflict.warnings:
            console.warning(warning)
        console.info("\nAll sources of these facts: matrix explain")


def _save_conflict(document: dict[str, Any]) -> None:
    """Save the conflict for the working directory. This is a convenience, so errors are ignored."""
    path = _conflict_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"directory": str(Path.cwd()), "conflict": document}))
    except OSError:
        return


def forget_conflict() -> None:
    """Remove the saved conflict of the working directory after a request has resolved."""
    try:
        _conflict_path().unlink(missing_ok=True)
    except OSError:
        return


def last_conflict() -> dict[str, Any] | None:
    """Return the conflict in which the last ``matrix resolve`` of the working directory ended, if any."""
    try:
        saved = json.loads(_conflict_path().read_bytes())
        conflict: dict[str, Any] = saved["conflict"]
        return conflict if saved["directory"] == str(Path.cwd()) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _conflict_path() -> Path:
    return cache_root() / "last" / f"{crc32(os.fsencode(Path.cwd())):08x}.json"
