"""Diagnose builds that failed or whose wheel is empty: known failures, recognized in logs and findings.

Known failures are the rows of ``known.toml``. A pattern is a regular expression for one line of a log, in the
syntax of RE2. Most logs match nothing. Text that a pattern requires is found many times faster than a match,
so a pattern is tried only on parts of a log with such text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from builders.findings import Finding
from builders.storage.logs import Sighting, line_expression, line_filter, parts, sightings
from resolver.errors import CatalogError, UsageError
from resolver.versions import parse_specifier, satisfies

OUT_OF_MEMORY = "out-of-memory"
"""Id of the failure that more memory, or fewer compile jobs, can prevent."""
KILLED = "killed"
"""Id of the failure of a build of which a process was killed by someone else."""
_NO_LINE = 10**12  # sorts failures without a line last
_SHOWN_LINES = 3
_SHOWN_CAUSES = 3  # in the message of a failed build; the first is nearly always the cause
_KEPT_LINES = 3  # lines kept per pattern: the first ones are the cause, the others follow from them

SHIPPED = Path(__file__).with_name("known.toml")
_IN_ROW = re.compile(r" - at `\$\.failure\[\d+\]`$")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    """A known failure: how to recognize it, what happened, why, and what to do.

    A line of the log (``any``), a finding of the audit or the exit code is enough to recognize it. All other
    keys are further conditions.
    """

    id: str
    message: str
    """What happened, in one sentence. ``{name}`` is replaced with the text of the group of that name."""
    cause: str
    fix: str
    source: str
    """The source of this knowledge; several are separated by `` ; ``."""
    status: Literal["documented", "observed", "inferred"]
    """Observed: a real log has these lines; most failures were provoked."""
    any: tuple[str, ...] = ()
    """Patterns, one of which must match a line."""
    findings: tuple[str, ...] = ()
    """Ids of audit findings."""
    exit_code: tuple[int, ...] = ()
    """Exit codes of the build; a signal is negative."""
    all: tuple[str, ...] = ()
    """Patterns that must all match, each in any line."""
    none: tuple[str, ...] = ()
    """Patterns that must not match."""
    package: tuple[str, ...] = ()
    torch: str = ""
    rocm: str = ""
    python: str = ""
    """Specifiers of the versions of torch, ROCm and Python to which the failure applies."""
    backend: Literal["", "rocm", "cpu"] = ""
    network: bool | None = None
    """Whether the build may use the network."""
    kernel_kills: bool | None = None
    """Whether the kernel killed a process for lack of memory during the build."""
    hides: tuple[str, ...] = ()
    """Failures that follow from this failure and are not reported with it."""
    silent: bool = False
    """The build succeeds nevertheless, so every condition must be known to be met."""
    general: bool = False
    """Reported only if nothing else is recognized."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    failure: tuple[Failure, ...]


class KnownFailures(msgspec.Struct, frozen=True):
    """All known failures, with their patterns compiled."""

    failures: tuple[Failure, ...]
    patterns: dict[str, Any]
    """Compiled by RE2, by text."""
    candidates: Callable[[bytes], list[int]]
    """Returns the positions of the patterns that a part of a log may match."""


@cache
def known_failures() -> KnownFailures:
    """Return the shipped failures."""
    return read_known_failures(SHIPPED.read_text(encoding="utf-8"), str(SHIPPED))


def read_known_failures(text: str, name: str) -> KnownFailures:
    """Read failures from TOML: ``schema = 1`` and tables ``[[failure]]`` with the keys of `Failure`."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        msg = f"{name} is not valid TOML: {error}."
        raise CatalogError(msg) from None
    try:
        rows = msgspec.convert(data, _File).failure
    except msgspec.ValidationError as error:
        problem = _IN_ROW.sub("", str(error))
        raise CatalogError(f"{name}{_row_of(data, str(error))}: {problem}.") from None
    patterns: dict[str, Any] = {}
    for row in rows:
        try:
            patterns |= {pattern: line_expression(pattern) for pattern in (*row.any, *row.all, *row.none)}
            _check(row, rows, patterns)
        except (ValueError, UsageError) as error:
            raise CatalogError(f"{name}, failure {row.id}: {str(error).rstrip('.')}.") from None
    candidates = line_filter([*patterns])
    for number in candidates(b""):
        msg = f"{name}: the pattern {[*patterns][number]!r} requires no text, so every line would be tried."
        raise CatalogError(msg)
    return KnownFailures(rows, patterns, candidates)


def _row_of(data: dict[str, object], message: str) -> str:
    number = re.search(r"\$\.failure\[(\d+)\]", message)
    rows = data.get("failure")
    if number is None or not isinstance(rows, list) or not isinstance(rows[int(number[1])], dict):
        return ""
    return f", failure {rows[int(number[1])].get('id', f'number {int(number[1]) + 1}')}"


def _check(row: Failure, rows: tuple[Failure, ...], patterns: dict[str, Any]) -> None:
    ids = [other.id for other in rows]
    if ids.count(row.id) > 1:
        msg = "the id is not unique"
        raise ValueError(msg)
    if not (row.any or row.findings or row.exit_code):
        msg = "it has none of the keys any, findings or exit-code"
        raise ValueError(msg)
    if unknown := set(row.hides) - set(ids):
        msg = f"it hides unknown failures: {', '.join(sorted(unknown))}"
        raise ValueError(msg)
    for specifier in (row.torch, row.rocm, row.python):
        if specifier:
            parse_specifier(specifier)
    for text in (row.message, row.cause, row.fix):
        if not text.strip():
            msg = "message, cause and fix must not be empty"
            raise ValueError(msg)
        for name in _PLACEHOLDER.findall(text):
            if (
                row.findings
                or row.exit_code
                or any(name not in patterns[text].groupindex for text in row.any)
            ):
                msg = f"not every pattern has a group for {{{name}}}: (?P<{name}>...)"
                raise ValueError(msg)


def fill(text: str, values: dict[str, str]) -> str:
    """Replace the placeholders in a sentence that have a value."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


class DiagnosisContext(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a build that are not in its log; empty or None means unknown."""

    package: str = ""
    torch: str = ""
    rocm: str = ""
    backend: str = ""
    python: str = ""
    network: bool | None = None
    kernel_kills: bool | None = None
    exit_code: int | None = None
    """The exit code of the build; negative for a signal."""
    findings: frozenset[str] = frozenset()
    """Ids of audit findings."""


def diagnosed(details: Mapping[str, Any]) -> set[str]:
    """Return the ids of the known failures in the details of an error, or in a build's failure record."""
    return {finding["id"] for finding in details.get("diagnosis", ())}


def diagnose(log: Path, context: DiagnosisContext | None = None) -> list[Finding]:
    """Return the failures recognized in a log of a build, pip, conda or cotainr, most specific first.

    The evidence of each finding has ``cause``, ``text`` (its first lines), ``source`` and ``status``.
    """
    try:
        with log.open("rb") as source:
            return diagnose_stream(source, context)
    except OSError as error:
        msg = f"Cannot read the log {log}: {error.strerror}."
        raise UsageError(msg) from None


def diagnose_stream(
    source: IO[bytes], context: DiagnosisContext | None = None, knowledge: KnownFailures | None = None
) -> list[Finding]:
    """Diagnose an open log, like `diagnose`."""
    knowledge = knowledge or known_failures()
    return judge(knowledge.failures, scan(source, knowledge), context or DiagnosisContext())


def judge(
    failures: Sequence[Failure], seen: Mapping[str, Sequence[Sighting]], context: DiagnosisContext
) -> list[Finding]:
    """Choose among the known failures, given the matching lines of each pattern.

    1. A failure applies if a line, a finding or the exit code shows it and no known condition excludes it.
    2. Failures that follow from another failure are dropped. General failures are dropped if a specific
       failure applies.
    3. The most specific failure comes first. Among equally specific failures, the first in the log comes
       first. Of failures with the same first line, only the first is kept.
    """
    lines = {row.id: _lines(row, seen) for row in failures}
    applying = [row for row in failures if _applies(row, lines[row.id], seen, context)]
    hidden = {name for row in applying for name in row.hides}
    left = [row for row in applying if row.id not in hidden]
    left = [row for row in left if not row.general] or left
    first = {row.id: min((sighting.line for sighting in lines[row.id]), default=_NO_LINE) for row in left}
    left.sort(key=lambda row: (-_conditions(row), first[row.id]))
    findings: list[Finding] = []
    reported: set[int] = set()
    for row in left:
        if first[row.id] not in reported:
            findings.append(_finding(row, lines[row.id]))
            reported |= {first[row.id]} - {_NO_LINE}
    return findings


def _lines(row: Failure, seen: Mapping[str, Sequence[Sighting]]) -> list[Sighting]:
    sightings = [sighting for text in row.any for sighting in seen.get(text, ())]
    return sorted(sightings, key=lambda sighting: sighting.line)


def _applies(
    row: Failure, lines: list[Sighting], seen: Mapping[str, Sequence[Sighting]], context: DiagnosisContext
) -> bool:
    shown = bool(lines) or bool(set(row.findings) & context.findings) or context.exit_code in row.exit_code
    if not shown:
        return False
    if context.exit_code == 0 and lines and not row.silent and not context.findings:
        return False  # whatever the log contains, the build succeeded
    if not all(text in seen for text in row.all) or any(text in seen for text in row.none):
        return False
    # The lines of a failed build are enough. For a finding, an exit code, or lines that a good build also
    # prints, the conditions must be known to be met.
    return _fits(row, context, certain=row.silent or not lines)


def _fits(row: Failure, context: DiagnosisContext, *, certain: bool) -> bool:
    """Return whether no condition of a row is violated; if `certain`, whether all are known to be met."""
    answers: list[bool | None] = []  # None if unknown
    if row.package:
        answers.append(context.package in row.package if context.package else None)
    versions = ((row.torch, context.torch), (row.rocm, context.rocm), (row.python, context.python))
    for specifier, version in versions:
        if specifier:
            answers.append(satisfies(version, specifier) if version else None)
    if row.backend:
        answers.append(context.backend == row.backend if context.backend else None)
    # No line shows whether the build may use the network, or who killed a process, so it must be known.
    if row.network is not None:
        answers.append(context.network == row.network)
    if row.kernel_kills is not None:
        answers.append(context.kernel_kills == row.kernel_kills)
    return False not in answers and not (certain and None in answers)


def _conditions(row: Failure) -> int:
    """Count the conditions of a row: the more conditions, the more specific the row."""
    conditions = (row.package, row.torch, row.rocm, row.python, row.backend, row.all)
    return sum(map(bool, conditions)) + (row.network is not None) + (row.kernel_kills is not None)


def _finding(row: Failure, lines: list[Sighting]) -> Finding:
    values = dict(lines[0].values) if lines else {}
    unique = dict.fromkeys((sighting.line, sighting.text) for sighting in lines)
    evidence = {
        "cause": fill(row.cause, values),
        "text": [{"line": line, "text": text} for line, text in list(unique)[:_SHOWN_LINES]],
        "source": row.source,
        "status": row.status,
    }
    return Finding(row.id, "error", fill(row.message, values), fill(row.fix, values), evidence)


def diagnosis_text(diagnosis: Sequence[Finding], *, sources: bool = False) -> str:
    """Return a diagnosis as text, optionally with the sources of the known failures."""
    return "\n\n".join(_text(finding, sources=sources) for finding in diagnosis)


def _text(finding: Finding, *, sources: bool) -> str:
    evidence = finding.evidence
    lines = [f"What happened: {finding.message}", f"Why: {evidence['cause']}", f"What to do: {finding.fix}"]
    lines += [f"  line {line['line']}: {line['text']}" for line in evidence["text"]]
    if sources:
        lines.append(f"  source ({evidence['status']}): {evidence['source']} [{finding.id}]")
    return "\n".join(lines)


def explain_failure(message: str, log: Path, context: DiagnosisContext) -> tuple[str, list[Finding]]:
    """Return the message of a failed build with the causes that its log shows, and the diagnosis itself."""
    try:
        diagnosis = diagnose(log, context)
    except UsageError:  # there is no log
        diagnosis = []
    return "\n".join(filter(None, [message, diagnosis_text(diagnosis[:_SHOWN_CAUSES])])), diagnosis


def scan(source: IO[bytes], knowledge: KnownFailures) -> dict[str, list[Sighting]]:
    """Search a log for all patterns; return the first few matching lines of each pattern, by its text."""
    patterns = [*knowledge.patterns.items()]
    seen: dict[str, list[Sighting]] = {}
    for part in parts(source):
        for text, expression in (patterns[number] for number in knowledge.candidates(part[1])):
            missing = _KEPT_LINES - len(seen.get(text, ()))
            if missing:
                seen.setdefault(text, []).extend(islice(sightings(part, expression), missing))
    return {text: lines for text, lines in seen.items() if lines}
