"""What failed: from a log, what the audit found and what was built to causes and cures."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders.diagnosis.known import fill, known
from builders.diagnosis.scanning import scan
from builders.findings import Finding
from resolver.errors import UsageError
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from builders.diagnosis.known import Failure, Known
    from builders.diagnosis.patterns import Pattern
    from builders.diagnosis.scanning import Readable, Sighting

_NEVER = 10**12  # the line of what was seen in no line
_SHOWN_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known about a build besides its log; what is empty or None is not known."""

    package: str = ""
    version: str = ""
    torch: str = ""
    rocm: str = ""
    backend: str = ""
    gfx: tuple[str, ...] = ()
    python: str = ""
    glibc: str = ""
    network: bool | None = None
    """Whether the build was allowed to use the network."""
    exit_code: int | None = None
    """Of the program that built: negative for a signal."""
    findings: frozenset[str] = frozenset()
    """The ids of what the audit found."""


def diagnose(log: Path, context: Context | None = None) -> list[Finding]:
    """Say what failed in a build.

    Parameters
    ----------
    log
        Everything it printed; of any size, and of pip, conda or cotainr as well.
    context
        What else is known about it.

    Returns
    -------
    list
        The failures that were recognised, the most specific first.

    Raises
    ------
    UsageError
        The log cannot be read.
    """
    try:
        with log.open("rb") as source:
            return diagnose_stream(source, context)
    except OSError as error:
        msg = f"The log {log} cannot be read: {error.strerror}."
        raise UsageError(msg) from None


def diagnose_text(lines: Iterable[str], context: Context | None = None) -> list[Finding]:
    """Say what failed, from lines; as `diagnose`."""
    return diagnose_stream(io.BytesIO("\n".join(lines).encode(errors="replace")), context)


def diagnose_stream(
    source: Readable, context: Context | None = None, knowledge: Known | None = None
) -> list[Finding]:
    """Say what failed, from an open log; as `diagnose`."""
    knowledge = knowledge or known()
    seen = scan(source, knowledge.patterns.values())
    return judge(knowledge, seen, context or Context())


def judge(knowledge: Known, seen: Mapping[Pattern, tuple[Sighting, ...]], context: Context) -> list[Finding]:
    """Choose among the failures that are known.

    1. A failure applies when something shows it and nothing that is known speaks against it.
    2. What follows from another one that applies is left out, and what says little if anything says more.
    3. The most specific comes first, then what was seen first; what has the same first line as one before
       it is left out.
    """
    lines = {row.id: _lines(row, knowledge, seen) for row in knowledge.failures}
    applying = [row for row in knowledge.failures if _applies(row, lines[row.id], knowledge, seen, context)]
    hidden = {one for row in applying for one in row.hides}
    left = [row for row in applying if row.id not in hidden]
    left = [row for row in left if not row.general] or left
    first = {row.id: min((one.line for one in lines[row.id]), default=_NEVER) for row in left}
    left.sort(key=lambda row: (-_conditions(row), first[row.id]))
    told: list[Finding] = []
    lines_told: set[int] = set()
    for row in left:
        if first[row.id] not in lines_told:
            told.append(_diagnosis(row, lines[row.id]))
            lines_told |= {first[row.id]} - {_NEVER}
    return told


def _lines(row: Failure, knowledge: Known, seen: Mapping[Pattern, tuple[Sighting, ...]]) -> list[Sighting]:
    found = [one for text in row.any for one in seen.get(knowledge.patterns[text], ())]
    return sorted(found, key=lambda one: one.line)


def _applies(
    row: Failure,
    lines: list[Sighting],
    knowledge: Known,
    seen: Mapping[Pattern, tuple[Sighting, ...]],
    context: Context,
) -> bool:
    shown = bool(lines) or bool(set(row.findings) & context.findings) or context.exit_code in row.exit_code
    if not shown:
        return False
    if context.exit_code == 0 and lines and not row.silent and not context.findings:
        return False  # whatever the log says, the build ended well
    if not all(knowledge.patterns[text] in seen for text in row.all):
        return False
    if any(knowledge.patterns[text] in seen for text in row.none):
        return False
    # Lines of a failed build speak for themselves; for a finding, an exit code or what a good build
    # prints as well, the conditions must be known to hold.
    return _fits(row, context, certain=row.silent or not lines)


def _fits(row: Failure, context: Context, *, certain: bool) -> bool:
    """Tell whether what is known about the build is what a row asks for; certain: all of it must be known."""
    answers: list[bool | None] = []  # None where it is not known
    if row.package:
        answers.append(context.package in row.package if context.package else None)
    versions = ((row.torch, context.torch), (row.rocm, context.rocm), (row.python, context.python))
    for asked, version in versions:
        if asked:
            answers.append(satisfies(version, asked) if version else None)
    if row.backend:
        answers.append(context.backend == row.backend if context.backend else None)
    if row.network is not None:  # no line tells, so it must be known
        answers.append(context.network == row.network)
    return False not in answers and not (certain and None in answers)


def _conditions(row: Failure) -> int:
    """Count what a row asks for: the more, the more specific it is."""
    asked = (row.package, row.torch, row.rocm, row.python, row.backend, row.network is not None, row.all)
    return sum(map(bool, asked))


def _diagnosis(row: Failure, lines: list[Sighting]) -> Finding:
    values = dict(lines[0].values) if lines else {}
    unique = dict.fromkeys((sighting.line, sighting.text) for sighting in lines)
    evidence = {
        "cause": fill(row.cause, values),
        "text": [{"line": line, "text": text} for line, text in list(unique)[:_SHOWN_LINES]],
        "source": row.source,
        "status": row.status,
    }
    return Finding(row.id, "error", fill(row.what, values), fill(row.cure, values), evidence)
