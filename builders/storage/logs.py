"""Search logs of any size and content, in bounded memory and in time proportional to their size.

The output of a build is untrusted. On a line of some kilobytes, Python's regular expressions can take hours.
RE2 does not backtrack, so it also searches many lines at once.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import islice
from typing import IO, TYPE_CHECKING, Any

import msgspec
import re2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

_PART = 2**20  # bytes read at once, and the longest line that is searched as a whole
_SHOWN = 240  # characters kept of a line
_BEFORE = 60  # of these before the match, in a longer line
_TAIL = 2**16  # bytes at the end of a log that are searched for its last lines
_MOST_CANDIDATES = 20_000  # lines that may be errors; the rest are ignored
_COLOURS = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


class Sighting(msgspec.Struct, frozen=True):
    """A line that an expression matches."""

    line: int
    """Line number, from 1."""
    text: str
    """The line; if it is long, only the part around the match."""
    values: Mapping[str, str]


@cache
def line_expression(text: str) -> Any:  # noqa: ANN401  re2 has no types
    """Compile an expression for one line; raise `ValueError` if it is invalid or not of linear time."""
    try:
        return re2.compile(f"(?m){text}", _options())
    except re2.error as error:
        reason = error.args[0]
        reason = reason.decode() if isinstance(reason, bytes) else str(reason)
        msg = f"{text!r} is not a valid regular expression: {reason}"
        raise ValueError(msg) from None


def line_filter(texts: Sequence[str]) -> Callable[[bytes], list[int]]:
    """Return a function that returns the indices of those expressions that a part of a log may match."""
    expressions = re2.Filter()
    for text in texts:
        expressions.Add(f"(?m){text}", _options())
    expressions.Compile()
    return lambda data: expressions.Match(data, potential=True) or []


def _options() -> Any:  # noqa: ANN401  re2 has no types
    options = re2.Options()
    options.log_errors = False
    options.never_nl = True
    return options


def parts(source: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield parts of a log that end with a line: the number of the first line, from 1, and valid UTF-8 text.

    Terminal colours are removed. The parts of a line that is longer than one part have the same line number.
    """
    line, kept = 1, b""
    while data := source.read(_PART):
        data = kept + data
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) >= _PART else 0)
        data, kept = data[:end], data[end:]
        yield line, _text(data)
        line += data.count(b"\n")
    yield line, _text(kept)


def _text(data: bytes) -> bytes:
    data = _COLOURS.sub(b"", data) if b"\x1b" in data else data
    return data if data.isascii() else data.decode(errors="replace").encode()


def sightings(part: tuple[int, bytes], expression: Any) -> Iterator[Sighting]:  # noqa: ANN401  re2 has no types
    """Yield the lines of a part that an expression matches; a carriage return also ends a line."""
    first_line, text = part
    lines = text.replace(b"\r", b"\n")  # as long as the text: progress bars use carriage returns
    number, counted, position = first_line, 0, 0
    while position < len(lines) and (match := expression.search(lines, position)):
        start = lines.rfind(b"\n", position, match.start()) + 1 or position
        position = lines.find(b"\n", match.end())
        position = len(lines) if position < 0 else position
        number += text.count(b"\n", counted, start)
        counted = start
        values = {name: value.decode() for name, value in match.groupdict().items() if value is not None}
        yield Sighting(number, _around(lines[start:position], match.start() - start), values)


def _around(line: bytes, position: int) -> str:
    """Return a line; if it is long, only the part around a position."""
    text = line.decode().strip() if len(line) <= 4 * _SHOWN else ""
    if text and len(text) <= _SHOWN:
        return text
    start = max(0, min(position - _BEFORE, len(line) - _SHOWN))
    shown = line[start : start + _SHOWN].decode(errors="ignore").strip()
    return f"{'...' if start else ''}{shown}..."


ERROR = (
    r"(?i:\berror:)|fatal error|\w(?:Error|Exception)\b:|undefined (?:reference|symbol)|cannot find -l"
    r"|command not found|No such file or directory|\bKilled\b"
    r"|No space left|Disk quota exceeded|File too large"
    r"|CMake Error at|^\s*Could not find"  # CMake writes the reason into the lines after the place
)
"""Pattern of a line that may be an error."""
_ERROR = line_expression(ERROR)
NOISE = line_expression(
    r"not a git repository|error: Command '?\[|CalledProcessError|\[WARNING\]|\bnote:"
    r"|Invalid command cmd="  # cotainr, with pip's whole output after it
    r"|^(?:copying|adding|creating|reading|writing|running) "
)
"""Lines that mention an error of another line."""


def error_lines(log: Path, *, start: int = 0, most: int = 8) -> list[str]:
    """Return the first errors in a log, from which later ones often follow, or else its last lines."""
    errors: dict[str, None] = {}
    with log.open("rb") as source:
        source.seek(start)
        candidates = (seen.text for part in parts(source) for seen in sightings(part, _ERROR))
        for text in islice(candidates, _MOST_CANDIDATES):
            if not NOISE.search(text):
                errors[text] = None
                if len(errors) == most:
                    break
        if errors:
            return list(errors)
        end = source.seek(0, 2)
        source.seek(max(start, end - _TAIL))
        lines = source.read().decode(errors="replace").splitlines()
    return [shown for line in lines if (shown := line.strip()[:_SHOWN])][-most:]
