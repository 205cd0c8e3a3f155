"""The failures that are known: rows of ``known.toml``, read, checked and compiled once."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.diagnosis.patterns import PatternError, compile_pattern
from resolver.errors import CatalogError, UsageError
from resolver.versions import parse_specifier

if TYPE_CHECKING:
    from builders.diagnosis.patterns import Pattern

SHIPPED = Path(__file__).with_name("known.toml")
_PLACE = re.compile(r"\{(\w+)\}")


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    """A failure that is known: how it shows, what it is, what to do.

    It is recognised by a line of the log (``any``), a finding of the audit or the exit code; any one of
    them is enough. Everything else narrows that down.
    """

    id: str
    what: str
    """What failed, in one sentence. ``{name}`` stands for what the group of that name matched."""
    cause: str
    cure: str
    """What to do about it."""
    source: str
    """Where it is known from; several are parted by `` ; ``."""
    status: Literal["documented", "observed", "inferred"]
    """Observed: somebody's real log has these lines, most of them made by provoking the failure."""
    any: tuple[str, ...] = ()
    """Patterns for a line."""
    findings: tuple[str, ...] = ()
    """Findings of the audit."""
    exit_code: tuple[int, ...] = ()
    """Of the program that built; a signal is negative."""
    all: tuple[str, ...] = ()
    """Patterns that must have been seen, too, each in any line."""
    none: tuple[str, ...] = ()
    """Patterns that must not have been seen."""
    package: tuple[str, ...] = ()
    torch: str = ""
    rocm: str = ""
    python: str = ""
    """What the versions of these must be; a specifier."""
    backend: Literal["", "rocm", "cpu"] = ""
    network: bool | None = None
    """Whether the build was allowed to use the network."""
    hides: tuple[str, ...] = ()
    """Failures that follow from this one and need not be told besides."""
    silent: bool = False
    """The build ends well all the same. What it needs to be told apart must then be known for certain."""
    general: bool = False
    """Says little; told only when nothing else is recognised."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal[1]
    failure: tuple[Failure, ...]


@dataclass(frozen=True)
class Known:
    """All failures that are known, with their patterns compiled."""

    failures: tuple[Failure, ...]
    patterns: dict[str, Pattern]
    """Every pattern of every failure, by its text."""


@cache
def known() -> Known:
    """Give the failures that the program ships with."""
    return read_known(SHIPPED.read_text(encoding="utf-8"), str(SHIPPED))


def read_known(text: str, name: str) -> Known:
    """Read failures.

    Parameters
    ----------
    text
        TOML: ``schema = 1`` and tables ``[[failure]]``, whose keys are those of `Failure`.
    name
        The file, for messages.

    Raises
    ------
    CatalogError
        With the file, the row and what is wrong with it.
    """
    try:
        data = tomllib.loads(text)
    except ValueError as error:
        msg = f"{name} is not valid TOML: {error}."
        raise CatalogError(msg) from None
    try:
        rows = msgspec.convert(data, _File).failure
    except msgspec.ValidationError as error:
        raise CatalogError(f"{name}{_row_of(data, str(error))}: {error}.") from None
    patterns: dict[str, Pattern] = {}
    for row in rows:
        try:
            patterns |= {one: compile_pattern(one) for one in (*row.any, *row.all, *row.none)}
            _check(row, rows, patterns)
        except (PatternError, UsageError) as error:
            raise CatalogError(f"{name}, failure {row.id}: {str(error).rstrip('.')}.") from None
    return Known(rows, patterns)


def _row_of(data: dict[str, object], said: str) -> str:
    """Name the row that msgspec's message gives the number of."""
    number = re.search(r"\$\.failure\[(\d+)\]", said)
    rows = data.get("failure")
    if number is None or not isinstance(rows, list) or not isinstance(rows[int(number[1])], dict):
        return ""
    return f", failure {rows[int(number[1])].get('id', f'number {int(number[1]) + 1}')}"


def _check(row: Failure, rows: tuple[Failure, ...], patterns: dict[str, Pattern]) -> None:
    """See that a row can be used.

    Raises
    ------
    PatternError, UsageError
        It cannot.
    """
    ids = [one.id for one in rows]
    if ids.count(row.id) > 1:
        msg = "the id is there twice"
        raise PatternError(msg)
    if not (row.any or row.findings or row.exit_code):
        msg = "it can never be recognised: any, findings or exit-code must be given"
        raise PatternError(msg)
    if unknown := set(row.hides) - set(ids):
        msg = f"it hides {', '.join(sorted(unknown))}, which is no failure"
        raise PatternError(msg)
    for specifier in (row.torch, row.rocm, row.python):
        if specifier:
            parse_specifier(specifier)
    for text in (row.what, row.cause, row.cure):
        if not text.strip():
            msg = "what, cause and cure must say something"
            raise PatternError(msg)
        for place in _PLACE.findall(text):
            if row.findings or row.exit_code or any(not _has_group(patterns[one], place) for one in row.any):
                msg = f"{{{place}}} has no group of that name in every way that it is recognised"
                raise PatternError(msg)


def _has_group(pattern: Pattern, name: str) -> bool:
    return name in pattern.expression.groupindex


def fill(text: str, values: dict[str, str]) -> str:
    """Write what was matched into a sentence; nothing else in braces is touched."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), text)
