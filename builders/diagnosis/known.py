"""Known failures: the rows of ``known.toml``, validated, with their patterns compiled.

A pattern is a regular expression for one line of a log, in the syntax of RE2. Most logs match nothing. Text
that a pattern requires is found many times faster than a match, so a pattern is tried only on parts of a log
with such text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from builders.storage.logs import line_expression, line_filter
from resolver.errors import CatalogError, UsageError
from resolver.versions import parse_specifier

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
    """Every pattern, compiled by RE2, by its text."""
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
    """Return a phrase with the id of the row whose number is in msgspec's message; empty without a number."""
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
