"""A pattern for one line of a log: a regular expression, and plain text that is in every line it matches.

Most lines of a log match nothing. Looking for plain text in a megabyte at once is many times faster than
trying a hundred expressions on each line, so an expression is tried only on lines that have its text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LEAST = 4  # characters of plain text; with less too many lines would have to be tried
_PLAIN_ESCAPES = re.compile(r"[^\w\s]")  # \. and the like mean the character itself
_BY_NUMBER = "xuUN0123456789"
_OPTIONAL = ("*", "?", "{")


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


def _plain_runs(text: str) -> list[str]:
    """Give the runs of characters that every match has, from an expression that compiles."""
    runs, run, depth, position = [], "", 0, 0
    while position < len(text):
        character = text[position]
        position += 1
        plain = ""
        if character == "\\":
            if text[position] in _BY_NUMBER:
                msg = f"{text!r} has a character or group by its number; write the character itself"
                raise PatternError(msg)
            plain = text[position] if _PLAIN_ESCAPES.match(text[position]) else ""
            position += 1
        elif character == "[":
            position = _end_of_set(text, position)
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and not depth:
            msg = f"{text!r} has alternatives outside of brackets: write two patterns"
            raise PatternError(msg)
        elif character not in "|.^$*+?{}":
            plain = character
        if character == "{":
            position = text.find("}", position) + 1 or position
        if plain and not depth and text[position : position + 1] not in _OPTIONAL:
            run += plain
        else:
            runs.append(run)
            run = ""
        if text[position : position + 1] == "+":  # once or more: the run may not go on behind it
            runs.append(run)
            run = ""
    return [*runs, run]


def _end_of_set(text: str, position: int) -> int:
    """Give the position behind the ``]`` of a set whose first character is at the position."""
    position += text[position] == "^"
    position += 1  # a ] here is a member
    while text[position] != "]":
        position += 2 if text[position] == "\\" else 1
    return position + 1
