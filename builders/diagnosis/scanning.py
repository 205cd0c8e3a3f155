"""Finding the lines of a log that match, in bounded memory, however long the log and its lines are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from builders.diagnosis.patterns import Pattern

_PIECE = 2**20  # bytes read at once; also the longest line that is looked at whole
_MOST = 3  # lines kept for a pattern: the first ones are the cause, the rest follows from them
_SHOWN = 240  # characters of a line that are kept
_BEFORE = 60  # of them before the match, in a line that is longer
_COLOURS = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")


class Readable(Protocol):
    """What a log is read from."""

    def read(self, size: int, /) -> bytes:
        """Give at most that many bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Sighting:
    """A line that a pattern matches."""

    line: int
    """Counted from 1."""
    text: str
    """The line, or the part of a long one around the match."""
    values: Mapping[str, str]
    """What the named groups of the expression matched."""


def scan(source: Readable, patterns: Iterable[Pattern]) -> dict[Pattern, tuple[Sighting, ...]]:
    """Look for patterns in a log.

    Parameters
    ----------
    source
        The log as bytes; what is not UTF-8 in it is replaced, terminal colours are taken out.
    patterns
        What to look for.

    Returns
    -------
    dict
        The patterns that were seen, each with the first few lines.
    """
    wanted = list(patterns)
    seen: dict[Pattern, list[Sighting]] = {}
    for first_line, piece in _pieces(source):
        for pattern in wanted:
            if len(seen.get(pattern, ())) < _MOST and pattern.plain in piece:
                found = seen.setdefault(pattern, [])
                found += _in_piece(pattern, piece, first_line, _MOST - len(found))
    return {pattern: tuple(found) for pattern, found in seen.items() if found}


def _pieces(source: Readable) -> Iterator[tuple[int, bytes]]:
    """Give the log in pieces that end at the end of a line, each with the number of its first line.

    A line longer than a piece is given in several pieces with the same number.
    """
    line, kept = 1, b""
    while piece := source.read(_PIECE):
        piece = kept + piece
        end = piece.rfind(b"\n") + 1 or (len(piece) if len(piece) >= _PIECE else 0)
        piece, kept = piece[:end], piece[end:]
        yield line, _COLOURS.sub(b"", piece) if b"\x1b" in piece else piece
        line += piece.count(b"\n")
    yield line, _COLOURS.sub(b"", kept)


def _in_piece(pattern: Pattern, piece: bytes, first_line: int, most: int) -> list[Sighting]:
    found: list[Sighting] = []
    position = piece.find(pattern.plain)
    while position >= 0 and len(found) < most:
        start, end = _line_around(piece, position)
        text = piece[start:end].decode(errors="replace")
        match = pattern.expression.search(text)
        if match:
            values = {name: value for name, value in match.groupdict().items() if value is not None}
            number = first_line + piece.count(b"\n", 0, start)
            found.append(Sighting(number, _around(text, match.start()), values))
        position = piece.find(pattern.plain, end)
    return found


def _line_around(piece: bytes, position: int) -> tuple[int, int]:
    """Give where a line begins and ends; a progress bar's carriage returns begin lines, too."""
    start, end = piece.rfind(b"\n", 0, position) + 1, piece.find(b"\n", position)
    end = len(piece) if end < 0 else end
    start = max(start, piece.rfind(b"\r", start, position) + 1)
    returned = piece.find(b"\r", position, end)
    return start, end if returned < 0 else returned


def _around(text: str, position: int) -> str:
    if len(text.strip()) <= _SHOWN:
        return text.strip()
    start = max(0, min(position - _BEFORE, len(text) - _SHOWN))
    return f"{'...' if start else ''}{text[start : start + _SHOWN].strip()}..."
