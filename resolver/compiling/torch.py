"""Torch, and what only fits together with each of its wheels.

Published wheels come before what is compiled from source, whatever their versions: nobody compiles
torch for hours unless no wheel will do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.compiling.draft import PAIRED, Clause, allowed_by, covers, line_is, version_in
from resolver.compiling.packages import candidates_of
from resolver.model import Candidate, Fact
from resolver.requirements import exact_requirement
from resolver.versions import allows, join_words, minor

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from resolver.compiling.draft import Draft
    from resolver.facts import schema


def compile_torch(draft: Draft) -> None:
    """Add torch, its triton, torchvision and torchaudio, and all that ties them to one another."""
    rows = _of_backend(draft)
    _variable(draft, "torch", [_published(row) for row in rows])
    companions: dict[str, dict[str, list[schema.Torch]]] = {}
    for row in rows:
        for name, version in _companions(row).items():
            companions.setdefault(name, {}).setdefault(version, []).append(row)
    companions = {name: found for name, found in companions.items() if draft.may_need(name)}
    for name, versions in companions.items():
        _variable(draft, name, [_beside(name, version, torches) for version, torches in versions.items()])
    _needs_of_torch(draft, rows)
    for name, versions in companions.items():
        if name in PAIRED:
            draft.relate(name, "torch", _torch_for(name, versions))
        else:
            draft.relate("torch", name, _companion_clauses(name, rows))


def _of_backend(draft: Draft) -> list[schema.Torch]:
    """Give the wheels for the target's backend, so that no explanation has to speak of the others.

    All of them, if the request names only others, or one of them is installed: then it is a conflict
    that says so.
    """
    rows = list(draft.catalog.torch.values())
    kept = draft.request.preinstalled.installed.get("torch", "") if draft.request.preinstalled else ""
    if kept in draft.catalog.torch and draft.catalog.torch[kept].backend != draft.target.backend:
        return rows
    fitting = [row for row in rows if row.backend == draft.target.backend]
    for wanted in draft.request.requirements:
        if wanted.name in {"torch", *PAIRED} and wanted.specifier is not None:
            named = [row.version if wanted.name == "torch" else getattr(row, wanted.name) for row in fitting]
            if not any(allows([wanted.specifier], version) for version in named if version):
                return rows
    return fitting


def _variable(draft: Draft, name: str, published: Sequence[Candidate]) -> None:
    candidates = [*published, *candidates_of(draft, name)]
    draft.variable(name, candidates, last=lambda one: one.origin == "build")


def _published(row: schema.Torch) -> Candidate:
    fact = Fact.of(row, f"torch {row.version} is published at {row.index}")
    return Candidate("torch", row.version, "distribution", "published", fact, index=row.index)


def _beside(name: str, version: str, torches: Sequence[schema.Torch]) -> Candidate:
    """Give a companion, which stands in the same index as the torch wheel that it goes with."""
    beside = join_words([row.version for row in torches], joiner="and")
    fact = Fact.of(torches[0], f"{name} {version} is published beside torch {beside}", note="")
    return Candidate(name, version, "distribution", "published", fact)


def _needs_of_torch(draft: Draft, rows: Iterable[schema.Torch]) -> None:
    clauses: dict[str, list[Clause]] = {name: [] for name in ("backend", "python", "rocm", "gfx", "glibc")}
    wanted = draft.target.gfx
    for row in rows:
        this = version_in([row.version])

        def say(text: str, row: schema.Torch = row) -> Fact:
            return Fact.of(row, f"torch {row.version} {text}")

        clauses["backend"].append(Clause(this, version_in([row.backend]), say(f"is a {row.backend} build")))
        text = f"is published for Python {join_words(row.python, most=8, joiner='and')}"
        clauses["python"].append(Clause(this, version_in(row.python), say(text)))
        if row.rocm:
            line = minor(row.rocm)
            clauses["rocm"].append(Clause(this, line_is(line), say(f"is built for ROCm {line}")))
        if row.gfx and wanted:
            clauses["gfx"].append(
                Clause(this, covers(row.gfx, wanted), say(f"holds code for {', '.join(row.gfx)}"))
            )
        if row.glibc:
            newer = allowed_by([f">={row.glibc}"])
            clauses["glibc"].append(Clause(this, newer, say(f"needs glibc {row.glibc} or newer")))
    for name, made in clauses.items():
        draft.relate("torch", name, made, when_present=name == "glibc")


def _companions(row: schema.Torch) -> dict[str, str]:
    """Give the exact companions of a torch wheel, by distribution.

    A triton that is required on some Pythons only (torch 2.2 and 2.3 from Python 3.12 on) is left
    to pip, which reads the marker.
    """
    found = {"torchvision": row.torchvision, "torchaudio": row.torchaudio}
    exact = exact_requirement(row.triton)
    if exact is not None:
        found[exact[0]] = exact[1]
    return {name: version for name, version in found.items() if version}


def _companion_clauses(name: str, rows: Iterable[schema.Torch]) -> list[Clause]:
    return [
        Clause(
            version_in([row.version]),
            version_in([version]),
            Fact.of(row, f"torch {row.version} needs {name} {version}"),
        )
        for row in rows
        for version in [_companions(row).get(name)]
        if version
    ]


def _torch_for(name: str, paired: Mapping[str, Sequence[schema.Torch]]) -> list[Clause]:
    clauses = []
    for version, torches in paired.items():
        names = [row.version for row in torches]
        fact = Fact.of(torches[0], f"{name} {version} goes with torch {join_words(names)}", note="")
        clauses.append(Clause(version_in([version]), version_in(names), fact))
    return clauses
