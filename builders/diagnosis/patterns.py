"""A pattern for one line of a log: a regular expression, and plain text that is in every line it matches.

Most lines of a log match nothing. Looking for plain text in a megabyte at once is many times faster than
trying a hundred expressions on each line, so an expression is tried only on lines that have its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEAST = 4  # characters of plain text; with less too many lines would have to be tried
_PLAIN_ESCAPES = re.compile(r"[^\w\s]")  # \. and the like mean the character itself
_BY_NUMBER = "xuUN0123456789"
_OPTIONAL = "*?{"
_KINDS: dict[str, Literal["close", "bar"]] = {")": "close", "|": "bar"}
_GROUP = re.compile(r"(\?P<\w+>|\?P=\w+|\?P?[<>=!:#]*)?")


class PatternError(ValueError):
    """A pattern cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An expression with its plain text."""

    expression: re.Pattern[str]
    plain: bytes
    """UTF-8 text that is in every line that the expression matches."""


def compile_pattern(text: str) -> Pattern:
    r"""Compile a pattern and find its plain text.

    Parameters
    ----------
    text
        A regular expression that is searched for in one line. It needs a run of at least four plain
        characters outside of brackets, and no ``|`` outside of them.

    Raises
    ------
    PatternError
        It is no regular expression, or has no such text.

    Examples
    --------
    >>> compile_pattern(r"fatal error: '?oneapi/ccl\.hpp").plain
    b'oneapi/ccl.hpp'
    """
    try:
        expression = re.compile(text)
    except re.error as error:
        msg = f"{text!r} is no regular expression: {error}"
        raise PatternError(msg) from None
    if expression.flags & (re.IGNORECASE | re.VERBOSE):
        msg = f"{text!r} sets flags; patterns are matched as they are written"
        raise PatternError(msg)
    plain = max(_plain_runs(text), key=len, default="")
    if len(plain) < _LEAST:
        msg = f"{text!r} has no {_LEAST} plain characters in a row outside of brackets"
        raise PatternError(msg)
    return Pattern(expression, plain.encode())


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of an expression: a plain character, a bracket, a bar, or anything else."""

    kind: Literal["plain", "open", "close", "bar", "other"]
    text: str


def _plain_runs(text: str) -> list[str]:
    """Give the runs of characters that every match has, from an expression that compiles."""
    tokens = list(_tokens(text))
    opaque = _opaque_groups(text, tokens)
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
            if following == "+":  # once or more: the run may not go on behind it
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
                msg = f"{text!r} has a character or group by its number; write the character itself"
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
    """Give the brackets, by their number, of the groups whose text need not be in a match."""
    opaque: set[int] = set()
    open_groups: list[int] = []
    barred: set[int] = set()
    for number, token in enumerate(tokens):
        if token.kind == "open":
            open_groups.append(number)
        elif token.kind == "bar":
            if not open_groups:
                msg = f"{text!r} has alternatives outside of brackets: write two patterns"
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
    """Give the position behind the ``]`` of a set whose first character is at the position."""
    position += text[position] == "^"
    position += text[position] == "]"  # there it is a member
    while text[position] != "]":
        position += 2 if text[position] == "\\" else 1
    return position + 1
