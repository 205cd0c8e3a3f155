"""Known failures: the rows of ``known.toml``, validated, with their patterns compiled.

A pattern is a regular expression for one line of a log, in the syntax of RE2, together with literal text that
every matching line contains. Most logs match nothing. Literal text is found many times faster than an
expression, so an expression is tried only on parts of a log with its text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from builders.logs import line_expression
from resolver.errors import CatalogError, UsageError
from resolver.versions import parse_specifier

SHIPPED = Path(__file__).with_name("known.toml")
_IN_ROW = re.compile(r" - at `\$\.failure\[\d+\]`$")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_MINIMUM = 4  # characters of literal text; with fewer, too many lines would be tried
_PLAIN_ESCAPES = re.compile(r"[^\w\s]")  # \. and the like stand for the character itself
_BY_NUMBER = "xuUN0123456789"
_OPTIONAL = "*?{"
_KINDS: dict[str, Literal["close", "bar"]] = {")": "close", "|": "bar"}
_GROUP = re.compile(r"(\?P<\w+>|\?:?)?")


class PatternError(ValueError):
    """A pattern is not usable."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression with its literal text."""

    expression: Any
    """A compiled expression of RE2."""
    plain: bytes
    """UTF-8 text in every line that the expression matches."""


def compile_pattern(text: str) -> Pattern:
    r"""Compile a pattern and find its literal text.

    The expression must contain at least four literal characters in a row outside of brackets, and no ``|``
    outside of them.

    Raises
    ------
    PatternError
        The expression is invalid, or has no such text.

    Examples
    --------
    >>> compile_pattern(r"fatal error: '?oneapi/ccl\.hpp").plain
    b'oneapi/ccl.hpp'
    """
    try:
        expression = line_expression(text)
    except ValueError as error:
        msg = f"{text!r} is not a valid regular expression: {error}"
        raise PatternError(msg) from None
    plain = max(_plain_runs(text), key=len, default="")
    if len(plain) < _MINIMUM:
        msg = f"{text!r} has no {_MINIMUM} consecutive literal characters outside brackets"
        raise PatternError(msg)
    return Pattern(expression, plain.encode())


@dataclass(frozen=True, slots=True)
class _Token:
    """Part of an expression: a literal character, a bracket, a bar, or anything else."""

    kind: Literal["plain", "open", "close", "bar", "other"]
    text: str


def _plain_runs(text: str) -> list[str]:
    """Return the runs of literal characters that every match of a valid expression contains."""
    tokens = list(_tokens(text))
    opaque = _opaque_groups(text, tokens)
    if any(token.text == "(?" for token in tokens):
        msg = f"{text!r} sets flags, but patterns must not set any"
        raise PatternError(msg)
    runs, depth = [""], 0
    for number, token in enumerate(tokens):
        following = tokens[number + 1].text[:1] if number + 1 < len(tokens) else ""
        if number in opaque:
            depth += 1 if token.kind == "open" else -1
            runs.append("")
        elif depth or token.kind in {"open", "close"}:
            continue
        elif token.kind == "plain" and not (following and following in _OPTIONAL):
            runs[-1] += token.text
            if following == "+":  # once or more: the run ends after it
                runs.append("")
        else:
            runs.append("")
    return runs


def _tokens(text: str) -> Iterator[_Token]:
    position = 0
    while position < len(text):
        start, character = position, text[position]
        position += 1
        kind: Literal["plain", "open", "close", "bar", "other"] = "other"
        if character == "\\":
            if text[position] in _BY_NUMBER:
                msg = f"{text!r} refers to a character or group by number; write the character itself"
                raise PatternError(msg)
            position += 1
            if _PLAIN_ESCAPES.match(text[start + 1]):
                yield _Token("plain", text[start + 1])
                continue
        elif character == "[":
            position = _end_of_set(text, position)
        elif character == "(":
            prefix = _GROUP.match(text, position)
            position = prefix.end() if prefix else position
            kind = "open"
        elif character == "{":
            position = text.find("}", position) + 1 or position
        elif character in _KINDS:
            kind = _KINDS[character]
        elif character not in ".^$*+?}":
            kind = "plain"
        yield _Token(kind, text[start:position])


def _opaque_groups(text: str, tokens: list[_Token]) -> set[int]:
    """Return the token numbers of brackets whose text need not be in a match."""
    opaque: set[int] = set()
    open_groups: list[int] = []
    barred: set[int] = set()
    for number, token in enumerate(tokens):
        if token.kind == "open":
            open_groups.append(number)
        elif token.kind == "bar":
            if not open_groups:
                msg = f"{text!r} has alternatives outside of brackets; write two patterns"
                raise PatternError(msg)
            barred.add(open_groups[-1])
        elif token.kind == "close":
            start = open_groups.pop()
            following = tokens[number + 1].text[:1] if number + 1 < len(tokens) else ""
            repeated = following != "" and following in f"{_OPTIONAL}+"
            if start in barred or repeated or tokens[start].text not in {"(", "(?:"} | _named(tokens[start]):
                opaque |= {start, number}
    return opaque


def _named(token: _Token) -> set[str]:
    return {token.text} if token.text.startswith("(?P<") else set()


def _end_of_set(text: str, position: int) -> int:
    """Return the position after the ``]`` of a set whose first character is at `position`."""
    position += text[position] == "^"
    position += text[position] == "]"  # here it is a member
    while text[position] != "]":
        position += 2 if text[position] == "\\" else 1
    return position + 1


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
    hides: tuple[str, ...] = ()
    """Failures that follow from this failure and are not reported with it."""
    silent: bool = False
    """The build succeeds nevertheless, so every condition must be known to be met."""
    general: bool = False
    """Reported only if nothing else is recognized."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    failure: tuple[Failure, ...]


@dataclass(frozen=True)
class Known:
    """All known failures, with their patterns compiled."""

    failures: tuple[Failure, ...]
    patterns: dict[str, Pattern]
    """Every pattern by its text."""


@cache
def known() -> Known:
    """Return the shipped failures."""
    return read_known(SHIPPED.read_text(encoding="utf-8"), str(SHIPPED))


def read_known(text: str, name: str) -> Known:
    """Read failures from TOML: ``schema = 1`` and tables ``[[failure]]`` with the keys of `Failure`.

    Raises
    ------
    CatalogError
        A row is not valid; the message names file and row.
    """
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
    patterns: dict[str, Pattern] = {}
    for row in rows:
        try:
            patterns |= {pattern: compile_pattern(pattern) for pattern in (*row.any, *row.all, *row.none)}
            _check(row, rows, patterns)
        except (PatternError, UsageError) as error:
            raise CatalogError(f"{name}, failure {row.id}: {str(error).rstrip('.')}.") from None
    return Known(rows, patterns)


def _row_of(data: dict[str, object], message: str) -> str:
    """Return the id of the row whose number is in msgspec's message."""
    number = re.search(r"\$\.failure\[(\d+)\]", message)
    rows = data.get("failure")
    if number is None or not isinstance(rows, list) or not isinstance(rows[int(number[1])], dict):
        return ""
    return f", failure {rows[int(number[1])].get('id', f'number {int(number[1]) + 1}')}"


def _check(row: Failure, rows: tuple[Failure, ...], patterns: dict[str, Pattern]) -> None:
    ids = [other.id for other in rows]
    if ids.count(row.id) > 1:
        msg = "the id is not unique"
        raise PatternError(msg)
    if not (row.any or row.findings or row.exit_code):
        msg = "it has none of the keys any, findings or exit-code"
        raise PatternError(msg)
    if unknown := set(row.hides) - set(ids):
        msg = f"it hides unknown failures: {', '.join(sorted(unknown))}"
        raise PatternError(msg)
    for specifier in (row.torch, row.rocm, row.python):
        if specifier:
            parse_specifier(specifier)
    for text in (row.message, row.cause, row.fix):
        if not text.strip():
            msg = "message, cause and fix must not be empty"
            raise PatternError(msg)
        for name in _PLACEHOLDER.findall(text):
            if row.findings or row.exit_code or any(not _has_group(patterns[text], name) for text in row.any):
                msg = f"not every pattern has a group for {{{name}}}: (?P<{name}>...)"
                raise PatternError(msg)


def _has_group(pattern: Pattern, name: str) -> bool:
    return name in pattern.expression.groupindex


def fill(text: str, values: dict[str, str]) -> str:
    """Replace the placeholders in a sentence that have a value."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)
