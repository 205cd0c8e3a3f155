"""Editing the headers of METADATA and WHEEL as bytes; what is not edited stays byte for byte.

Both files are e-mail headers (core metadata specification; PEP 427 for WHEEL), METADATA with the
description as the body. Reading and writing them with `email` would refold long lines and reencode
what is not ASCII, so the lines are taken apart here by the same rules: a header ends where a line
begins that does not go on with it, the headers end at the first line that is no header.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = re.compile(rb"([!-9;-~]*):")
"""As `email.feedparser` knows a header: printable ASCII up to a colon."""


@dataclass(frozen=True, slots=True)
class Header:
    """One header, with the lines it goes on in."""

    name: str
    """In lower case; empty for what goes on with no header."""
    raw: bytes
    """All its lines with their ends."""

    @property
    def value(self) -> str:
        """What stands after the colon, unfolded; what is no UTF-8 is kept as surrogates."""
        said = self.raw.partition(b":")[2]
        return (
            b" ".join(line.strip() for line in said.splitlines()).decode("utf-8", "surrogateescape").strip()
        )


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of a file, and all that comes after them."""

    headers: tuple[Header, ...]
    rest: bytes
    """From the blank line on: the description."""

    @classmethod
    def parse(cls, data: bytes) -> Headers:
        """Take a file apart; `render` gives the same bytes."""
        found: list[Header] = []
        place = 0
        for line in data.splitlines(keepends=True):
            header = _HEADER.match(line)
            if line[:1] in {b" ", b"\t"} and found:
                found[-1] = Header(found[-1].name, found[-1].raw + line)
            elif header:
                found.append(Header(header[1].decode().lower(), line))
            else:
                break
            place += len(line)
        return cls(tuple(found), data[place:])

    def render(self) -> bytes:
        """Put the file together again."""
        return b"".join(header.raw for header in self.headers) + self.rest

    def values(self, name: str) -> list[str]:
        """Give the values of all headers of a name, in any case."""
        return [header.value for header in self.headers if header.name == name.lower()]

    def with_values(self, name: str, values: Sequence[str]) -> Headers:
        """Replace all headers of a name by others, which stand where the last one stood.

        Parameters
        ----------
        name
            As it is to be spelled.
        values
            One for each header that is to be there; none removes them.
        """
        count = sum(one.name == name.lower() for one in self.headers)
        none: list[str | None] = [None] * count
        if not none:
            return self.edited(name, [], values)
        return self.edited(name, [*none[:-1], *values[:1]] if values else none, values[1:])

    def edited(self, name: str, values: Sequence[str | None], more: Sequence[str] = ()) -> Headers:
        """Edit the headers of a name one by one; those whose value stays keep their bytes.

        Parameters
        ----------
        name
            As it is to be spelled.
        values
            For each header of that name its value from now on; None removes it.
        more
            Values of further headers, which stand behind the last of that name, or at the end.
        """
        end = self._line_end
        left = iter(values)
        found: list[Header] = []
        place = 0
        for header in self.headers:
            if header.name != name.lower():
                found.append(header)
                continue
            value = next(left)
            if value is not None:
                found.append(header if value == header.value else _header(name, value, end))
            place = len(found)
        place = place if values else len(found)
        if found and more and place == len(found):
            found[-1] = Header(found[-1].name, _ended(found[-1].raw, end))
        added = [_header(name, value, end) for value in more]
        return Headers((*found[:place], *added, *found[place:]), self.rest)

    @property
    def _line_end(self) -> bytes:
        first = self.headers[0].raw if self.headers else b""
        return b"\r\n" if first.endswith(b"\r\n") else b"\n"


def _header(name: str, value: str, end: bytes) -> Header:
    return Header(name.lower(), f"{name}: {value}".encode() + end)


def _ended(raw: bytes, end: bytes) -> bytes:
    return raw if raw.endswith((b"\n", b"\r")) else raw + end
