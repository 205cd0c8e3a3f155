"""Unpack the end of a deflated stream without the rest of it.

A stream consists of blocks, which begin at any bit [1]_. A block with its own codes begins with a header that
other bits rarely form: the lengths of its first code must be complete. So each bit at which such a header may
begin is tried. The right ones unpack to the end of the stream.

A block may refer to up to 32 KiB before it, which are not known here. So the blocks are unpacked twice, after
two different texts: what differs is not known.

.. [1] RFC 1951, section 3.2.7
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from zlib_ng import zlib_ng as zlib

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

InflateError = cast("type[Exception]", zlib.error)
_WINDOW = 1 << 15  # bytes
HIGHEST_RATIO = 100
"""Bytes that a compressed byte may have: ELF files with GPU code reach 20."""
_OWN_CODES, _MOST_CODES = 2, 29
"""The type of a block with its own codes, and the highest number of codes beyond the smallest."""
_FIRST = bytes(byte for byte in range(256) if byte >> 1 & 3 == _OWN_CODES and byte >> 3 <= _MOST_CODES)
"""First bytes of a block: its type, and the number of codes for texts."""
_SECOND = bytes(byte for byte in range(256) if byte & 31 <= _MOST_CODES)
"""Second bytes: the number of codes for distances."""
_HEADER = re.compile(b"(?=[%b][%b])" % (re.escape(_FIRST), re.escape(_SECOND)), re.DOTALL)
_LONGEST = 10  # bytes of a header up to the last length of its first code
_STEP = 1 << 13  # bytes that are searched at once
_ALL = 128
_ONE = [0, *(_ALL >> length for length in range(1, 8))]
_SHARES = [a + b + c + d for d in _ONE for c in _ONE for b in _ONE for a in _ONE]
"""The part of all codes that four lengths of three bits each use, in 1/128."""


def known_end(first: bytes, second: bytes, size: int) -> Callable[[int, int], bytes | None]:
    """Return a function that returns a part (start, size) of a file, from two versions of its last bytes.

    It returns None if any byte of the part is not known. `size` is that of the file.
    """
    begin = size - len(first)

    def part(start: int, length: int) -> bytes | None:
        if length < 0 or not 0 <= start - begin <= len(first) - length:
            return None
        place = slice(start - begin, start - begin + length)
        return first[place] if first[place] == second[place] else None

    return part


def unpacked_end(packed: bytes, size: int) -> Callable[[int, int], bytes | None]:
    """Return the end of a file of `size` bytes (see `known_end`) from the last bytes of its deflated form."""
    bits = int.from_bytes(packed, "little")
    shifted = [(bits >> shift).to_bytes(len(packed), "little") for shift in range(8)]
    for start in _headers(shifted):
        data = shifted[start % 8][start // 8 :]
        first = _unpacked(data, bytes(_WINDOW))
        if 0 < len(first) <= size:
            return known_end(first, _unpacked(data, b"\xff" * _WINDOW), size)
    return known_end(b"", b"", size)


def _headers(shifted: list[bytes]) -> Iterator[int]:
    """Yield the bits at which the header of a block may begin; `shifted` is the data at 8 bit offsets."""
    for begin in range(0, len(shifted[0]), _STEP):
        yield from sorted(
            8 * match.start() + shift
            for shift, data in enumerate(shifted)
            for match in _HEADER.finditer(data, begin, begin + _STEP + 1)
            if match.start() < begin + _STEP and _is_complete(data[match.start() : match.start() + _LONGEST])
        )


def _is_complete(header: bytes) -> bool:
    """Return whether the lengths of the first code of a block, in its header, use all codes."""
    bits = int.from_bytes(header, "little")
    count = (bits >> 13 & 15) + 4
    lengths = bits >> 17 & (1 << 3 * count) - 1
    used = 0
    while lengths:
        used += _SHARES[lengths % len(_SHARES)]
        lengths //= len(_SHARES)
    return used == _ALL


def _unpacked(data: bytes, before: bytes) -> bytes:
    """Return what blocks contain after a text; empty if they do not end with the data."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS, zdict=before)
    try:
        text = inflater.decompress(data, HIGHEST_RATIO * len(data))
    except InflateError:
        return b""
    # Bits before the first one were left out, so up to one byte of zeros follows.
    return text if inflater.eof and not inflater.unused_data.strip(b"\0") else b""
