"""Read logs of builds, installs and runs: known failures, recognized by lines, audit findings and exit codes.

Known failures are the rows of ``known.toml``. A pattern is a regular expression for one line of a log, in the
syntax of RE2. Most logs match nothing. Text that a pattern requires is found many times faster than a match,
so a pattern is tried only on parts of a log with such text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal

import msgspec
from msgspec.structs import replace

from builders.constants import MODULES, TAKEN_OUT
from builders.findings import Finding
from builders.storage.logs import ERROR, NOISE, Sighting, line_expression, line_filter, parts, sightings
from resolver.errors import UsageError
from resolver.facts.catalog_files import row_to_toml
from resolver.facts.schema import Recipe
from resolver.requirements import normalize_name, required_name
from resolver.versions import satisfies

KILLED = "killed"
"""Id of the failure of a build of which a process was killed by someone else."""
_NO_LINE = 10**12  # sorts failures without a line last
_SHOWN_LINES = 3
_SHOWN_CAUSES = 3  # in the message of a failed build, where the first is nearly always the cause
_KEPT_LINES = 3  # lines kept per pattern: the first ones are the cause, the others follow from them
_KEPT_ERRORS = 50  # lines kept that may be errors; most are known, or follow from a known one
_FATAL = (
    r"(?i:\bfatal:)|NCCL WARN|Invalid argument|\(core dumped\)|\(exitcode: |\[ ?ERROR ?\]|\.sh: line \d+: "
    r"|(?i:\bcannot find )|\bterminate called|\bundeclared |\bunknown (server|option|argument)\b"
)
_UNEXPLAINED = f"{ERROR}|{_FATAL}"
_ERROR = re.compile(r"^[ \t]*(?:\w+\.)*\w+(?:Error|Exception): \S", re.MULTILINE)
"""The last line of a traceback, as people quote it."""
_LOG_NAME = re.compile(r"\.(log|out|err|[oe]\d+)(\.\d+)?$")
_REQUIREMENT = re.compile(
    r"\s*(?:#.*|--?[a-z].*|[\w.-]+\s*(?:\[[\w,. -]*\]\s*)?(?:(?P<operator>[<>=~!]=|[<>@;]).*|#.*)?)"
)
_WORD = re.compile(r"[a-z]{3,}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
Kind = Literal["", "build", "run"]
"""Of a log, or of the logs that have a failure; a build may be an installation; empty: not known, or both."""


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
    kind: Kind = ""
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
    """Specifier of the versions of torch to which the failure applies."""
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
    variables: tuple[str, ...] = ()
    """Variables that prevent it; the rows of sites have their values."""
    draft: dict[Literal["undeclared", "match_runtime", "environment"], tuple[str, ...]] = {}
    """What to add to fields of a drafted recipe; a module among the requirements means its distribution, and
    variables are ``NAME=VALUE``."""


class KnownFailures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """All known failures."""

    schema: Literal[1]
    marks: Mapping[Kind, tuple[str, ...]]
    """Patterns of lines that show the kind of a log. The first kind counts: a run may compile, too."""
    harmless: tuple[str, ...]
    """Patterns of lines that good builds and runs print, too."""
    failures: tuple[Failure, ...] = msgspec.field(name="failure")

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        """All other patterns; few logs need more than some of them compiled."""
        texts = [text for row in self.failures for text in (*row.any, *row.all, *row.none)]
        texts += [_UNEXPLAINED, *(text for marks in self.marks.values() for text in marks)]
        return tuple(dict.fromkeys(texts))

    @cached_property
    def candidates(self) -> Callable[[bytes], list[int]]:
        """Returns the positions of the patterns that a part of a log may match."""
        return line_filter(self.patterns)

    @cached_property
    def silent(self) -> KnownFailures:
        """The failures that a build may have that succeeds."""
        return replace(self, failures=tuple(row for row in self.failures if row.silent))

    @cached_property
    def is_harmless(self) -> Callable[[str], object]:
        """Searches a line for what is harmless."""
        search: Callable[[str], object] = line_expression("|".join(self.harmless)).search
        return search


@cache
def known_failures() -> KnownFailures:
    """Return the shipped failures."""
    return read_known_failures(Path(__file__).with_name("known.toml").read_text(encoding="utf-8"))


def read_known_failures(text: str) -> KnownFailures:
    """Read failures from TOML; raise `ValueError` if it is invalid."""
    return msgspec.toml.decode(text, type=KnownFailures)


def distribution_of(module: str) -> str:
    """Return the requirement that brings a module; mostly its own name."""
    name = normalize_name(module)
    return TAKEN_OUT.get(module) or MODULES.get(name, name)


def fill(text: str, values: dict[str, str]) -> str:
    """Replace the placeholders in a sentence that have a value."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


class DiagnosisContext(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are not in a log; empty or None means unknown."""

    kind: Kind = ""
    package: str = ""
    torch: str = ""
    backend: str = ""
    network: bool | None = None
    kernel_kills: bool | None = None
    exit_code: int | None = None
    """The exit code of the build; negative for a signal."""
    findings: frozenset[str] = frozenset()
    """Ids of audit findings."""
    drafted: Recipe | None = None
    """The recipe, if it was drafted from the source."""
    draft_source: str = ""
    """What `matrix catalog draft` reads to draft it."""


def diagnosed(details: Mapping[str, Any]) -> set[str]:
    """Return the ids of the known failures in the details of an error, or in a build's failure record."""
    return {finding["id"] for finding in details.get("diagnosis", ())}


class Reading(msgspec.Struct, frozen=True):
    """What a log shows."""

    kind: Kind
    findings: list[Finding]
    unknown: list[Finding]
    """Its first errors that no known failure has, each with the most similar known failures."""


def looks_like_log(name: str, head: str) -> bool:
    """Return whether a file is a log, by its name (``x.log``, ``slurm-1.out``, ``job.e1``) or first lines."""
    if "\0" in head or head.startswith("#!"):
        return False
    if _LOG_NAME.search(name) or "Traceback (most recent call last):" in head or _ERROR.search(head):
        return True
    lines = [_REQUIREMENT.fullmatch(line) for line in head.splitlines()]
    if all(lines) and any(line and line["operator"] for line in lines):  # the check below takes 0.2 s
        return False
    known = known_failures()
    tried = {known.patterns[number] for number in known.candidates(head.encode(errors="replace"))}
    return any(line_expression(text).search(head) for text in tried - {_UNEXPLAINED})


def read_log(log: Path, context: DiagnosisContext | None = None) -> Reading:
    """Read a log file, like `read`; raise `UsageError` if it cannot be read."""
    try:
        with log.open("rb") as source:
            return read(source, context)
    except OSError as error:
        msg = f"Cannot read the log {log}: {error.strerror}."
        raise UsageError(msg) from None


def read(
    source: IO[bytes], context: DiagnosisContext | None = None, knowledge: KnownFailures | None = None
) -> Reading:
    """Read a log: decide whether it is of a build or of a run, then look for known failures.

    The most specific failure comes first. The evidence of each has ``cause``, ``text`` (its first lines),
    ``source``, ``status``, ``kind``, ``variables``, whose values sites have, and ``draft``, the lines of the
    drafted recipe that it changes.
    """
    context, knowledge = context or DiagnosisContext(), knowledge or known_failures()
    if context.exit_code == 0 and not context.findings:
        knowledge = knowledge.silent  # whatever else the log contains, the build succeeded
    seen = scan(source, knowledge)
    marked = (kind for kind, texts in knowledge.marks.items() if not seen.keys().isdisjoint(texts))
    context = replace(context, kind=context.kind or next(marked, ""))
    findings = judge(knowledge.failures, seen, context)
    kind = context.kind or next((finding.evidence["kind"] for finding in findings), "")
    return Reading(kind, findings, _unknown(seen, knowledge))


def _unknown(seen: Mapping[str, Sequence[Sighting]], knowledge: KnownFailures) -> list[Finding]:
    texts = {text for row in knowledge.failures for text in row.any}
    numbers = {sighting.line for text in texts for sighting in seen.get(text, ())}
    lines = [
        sighting
        for sighting in seen.get(_UNEXPLAINED, ())
        if sighting.line not in numbers and not NOISE.search(sighting.text)
        if not any(line_expression(text).search(sighting.text) for text in texts)
    ]
    return [_not_known(sighting, knowledge.failures) for sighting in lines[:_SHOWN_LINES]]


def _not_known(sighting: Sighting, failures: Sequence[Failure]) -> Finding:
    """Return the finding for an error of no known failure, with the rows that share most words with it."""
    matcher = SequenceMatcher(b=_WORD.findall(sighting.text.lower()), autojunk=False)
    scores: dict[str, float] = {}
    similar: list[str] = []
    for row in failures:
        least = scores[similar[-1]] if len(similar) == _SHOWN_CAUSES else -1
        for words in _words_of((*row.any, row.message)):
            matcher.set_seq1(words)
            if matcher.quick_ratio() > least:  # an upper bound, found much sooner
                scores[row.id] = max(scores.get(row.id, 0), matcher.ratio())
        if scores.get(row.id, -1) > least:
            similar = sorted([*similar, row.id], key=lambda id_: -scores[id_])[:_SHOWN_CAUSES]
    message = f"Line {sighting.line} fits no known failure: {sighting.text}"
    fix = f"The most similar known failures are {', '.join(similar)}; see docs/reference/diagnosis.md."
    lines = [{"line": sighting.line, "text": sighting.text}]
    return Finding("not-known", "warning", message, fix, {"text": lines, "similar": similar})


@cache
def _words_of(texts: tuple[str, ...]) -> list[list[str]]:
    return [_WORD.findall(text.lower()) for text in texts]


def judge(
    failures: Sequence[Failure], seen: Mapping[str, Sequence[Sighting]], context: DiagnosisContext
) -> list[Finding]:
    """Choose among the known failures, given the matching lines of each pattern.

    1. A failure applies if a line, a finding or the exit code shows it and no known condition excludes it.
       The same line may have another cause in a run than in a build: the kind of the log decides.
    2. Failures that follow from another failure are dropped. General failures are dropped if a specific
       failure applies.
    3. The most specific failure comes first. Among equally specific failures, the first in the log comes
       first. Of failures with the same first line, only one is kept: that for this kind of log, if any.
    """
    lines = {row.id: _lines(row, seen) for row in failures}
    applying = [row for row in failures if _applies(row, lines[row.id], seen, context)]
    numbers = {row.id: {sighting.line for sighting in lines[row.id]} for row in applying}
    others = [row for row in applying if {row.kind, context.kind} == {"build", "run"}]
    explained = {line for row in applying if row not in others for line in numbers[row.id]}
    applying = [row for row in applying if row not in others or not numbers[row.id] <= explained]
    hidden = {name for row in applying for name in row.hides}
    left = [row for row in applying if row.id not in hidden]
    left = [row for row in left if not row.general] or left
    left.sort(
        key=lambda row: (
            -_conditions(row),
            min(numbers[row.id], default=_NO_LINE),
            context.kind not in {"", row.kind},
        )
    )
    chosen: dict[int | str, Failure] = {}  # by the first line
    for row in left:
        chosen.setdefault(min(numbers[row.id]) if numbers[row.id] else row.id, row)
    return [_finding(row, lines[row.id], context) for row in chosen.values()]


def _lines(row: Failure, seen: Mapping[str, Sequence[Sighting]]) -> list[Sighting]:
    sightings = [sighting for text in row.any for sighting in seen.get(text, ())]
    return sorted(sightings, key=lambda sighting: sighting.line)


def _applies(
    row: Failure, lines: list[Sighting], seen: Mapping[str, Sequence[Sighting]], context: DiagnosisContext
) -> bool:
    shown = bool(lines) or bool(set(row.findings) & context.findings) or context.exit_code in row.exit_code
    if not shown:
        return False
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
    if row.torch:
        answers.append(satisfies(context.torch, row.torch) if context.torch else None)
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
    conditions = (row.package, row.torch, row.backend, row.all)
    return sum(map(bool, conditions)) + (row.network is not None) + (row.kernel_kills is not None)


def _finding(row: Failure, lines: list[Sighting], context: DiagnosisContext) -> Finding:
    values = dict(lines[0].values) if lines else {}
    fix = fill(row.fix, values)
    changed = _changed_lines(context.drafted, row, values) if context.drafted else []
    if changed:
        file, written = f"{context.package}.toml", "` and `".join(changed)
        fix = (
            f"In {file}, which `matrix catalog draft {context.draft_source}` writes, make the recipe's line "
            f"`{written}`, and resolve again with `--catalog {file}`."
        )
    unique = dict.fromkeys((sighting.line, sighting.text) for sighting in lines)
    evidence = {
        "cause": fill(row.cause, values),
        "text": [{"line": line, "text": text} for line, text in list(unique)[:_SHOWN_LINES]],
        "source": row.source,
        "status": row.status,
        "kind": row.kind,
        "variables": list(row.variables),
        "draft": changed,
    }
    return Finding(row.id, "error", fill(row.message, values), fix, evidence)


def _changed_lines(recipe: Recipe, row: Failure, values: dict[str, str]) -> list[str]:
    """Return the lines of a recipe, as a catalog has them, that a failure changes; none if it cannot tell."""
    values = {name: distribution_of(text) if name == "module" else text for name, text in values.items()}
    values["version"] = recipe.releases.removeprefix("==")

    def with_more(before: tuple[str, ...], field: Literal["undeclared", "match_runtime"]) -> tuple[str, ...]:
        texts = [fill(text, values) for text in row.draft.get(field, ())]
        names = set(map(required_name, texts))
        return (*(text for text in before if required_name(text) not in names), *texts)

    variables = dict(fill(text, values).split("=", 1) for text in row.draft.get("environment", ()))
    changed = replace(
        recipe,
        undeclared=with_more(recipe.undeclared, "undeclared"),
        match_runtime=with_more(recipe.match_runtime, "match_runtime"),
        environment={**recipe.environment, **variables},
    )
    before = row_to_toml(recipe).splitlines()
    return [line for line in row_to_toml(changed).splitlines() if line not in before]


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
        diagnosis = read_log(log, context).findings
    except UsageError:  # there is no log
        diagnosis = []
    return "\n".join(filter(None, [message, diagnosis_text(diagnosis[:_SHOWN_CAUSES])])), diagnosis


def scan(source: IO[bytes], knowledge: KnownFailures) -> dict[str, list[Sighting]]:
    """Search a log for all patterns; return the first few matching lines of each pattern, by its text."""
    seen: dict[str, list[Sighting]] = {}
    for part in parts(source):
        for text in (knowledge.patterns[number] for number in knowledge.candidates(part[1])):
            missing = (_KEPT_ERRORS if text == _UNEXPLAINED else _KEPT_LINES) - len(seen.get(text, ()))
            found = (
                each
                for each in sightings(part, line_expression(text))
                if not knowledge.is_harmless(each.text)
            )
            seen.setdefault(text, []).extend(islice(found, missing))
    return {text: lines for text, lines in seen.items() if lines}
