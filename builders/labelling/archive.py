"""Writing a zip file whose bytes depend on nothing but what it holds.

`zipfile` cannot take a member over as it was compressed, and what it writes differs a little between
versions of Python; `wheel.wheelfile` keeps every member whole in memory on top of that. So the three
records of a zip file (PKWARE's APPNOTE 4.3.7, 4.3.12 and 4.3.16; with 4.3.14 and 4.3.15 beyond 4 GiB)
are written here: one time for all members, no data descriptors, no extra fields but Zip64's.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import BinaryIO

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_END_64 = struct.Struct("<4sQ2H2I4Q")
_LOCATOR_64 = struct.Struct("<4sIQI")
_DATE = (0 << 9) | (1 << 5) | 1  # 1980-01-01, the oldest day a zip file can hold: no clock comes in
_UNIX = 3
_UTF8 = 0x800
_PLAIN, _ZIP64 = 20, 45  # versions needed to extract: 2.0 for deflate, 4.5
_MOST_16, _MOST_32 = 0xFFFF, 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Entry:
    """A member as the directory of a zip file has it."""

    name: str
    method: int
    """`zipfile.ZIP_STORED` or `zipfile.ZIP_DEFLATED`."""
    crc: int
    size: int
    """Bytes when unpacked."""
    packed: int
    """Bytes in the file."""
    executable: bool = False


class ArchiveWriter:
    """A zip file being written from its beginning to its end.

    Parameters
    ----------
    sink
        Where it is written to.
    """

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink
        self._entries: list[tuple[Entry, int]] = []
        self._place = 0

    def begin(self, entry: Entry) -> None:
        """Begin a member: `Entry.packed` bytes are to be written next, as they are compressed."""
        self._entries.append((entry, self._place))
        name = entry.name.encode()
        large = entry.size >= _MOST_32 or entry.packed >= _MOST_32
        sizes = (_MOST_32, _MOST_32) if large else (entry.packed, entry.size)
        # Of a large member the local header has both sizes in the extra field (APPNOTE 4.5.3).
        extra = struct.pack("<2H2Q", 1, 16, entry.size, entry.packed) if large else b""
        self.write(
            _LOCAL.pack(
                b"PK\x03\x04",
                _ZIP64 if large else _PLAIN,
                _flags(entry),
                entry.method,
                0,
                _DATE,
                entry.crc,
                *sizes,
                len(name),
                len(extra),
            )
        )
        self.write(name + extra)

    def write(self, data: bytes) -> None:
        """Write a piece of the member that was begun last."""
        self._sink.write(data)
        self._place += len(data)

    def add_text(self, name: str, data: bytes) -> None:
        """Write a small member that was made here; stored, so that no version of zlib decides its bytes."""
        entry = Entry(name, zipfile.ZIP_STORED, zlib.crc32(data), len(data), len(data))
        self.begin(entry)
        self.write(data)

    def finish(self) -> None:
        """Write the directory."""
        start = self._place
        for entry, place in self._entries:
            self._central(entry, place)
        length, count = self._place - start, len(self._entries)
        if start >= _MOST_32 or length >= _MOST_32 or count >= _MOST_16:
            place = self._place
            self.write(
                _END_64.pack(
                    b"PK\x06\x06",
                    _END_64.size - 12,
                    _UNIX << 8 | _ZIP64,
                    _ZIP64,
                    0,
                    0,
                    count,
                    count,
                    length,
                    start,
                )
            )
            self.write(_LOCATOR_64.pack(b"PK\x06\x07", 0, place, 1))
        count, length, start = min(count, _MOST_16), min(length, _MOST_32), min(start, _MOST_32)
        self.write(_END.pack(b"PK\x05\x06", 0, 0, count, count, length, start, 0))

    def _central(self, entry: Entry, place: int) -> None:
        values = (entry.size, entry.packed, place)  # in the order of the extra field
        large = [value for value in values if value >= _MOST_32]
        extra = struct.pack(f"<2H{len(large)}Q", 1, 8 * len(large), *large) if large else b""
        size, packed, place = (min(value, _MOST_32) for value in values)
        version = _ZIP64 if large else _PLAIN
        mode = stat.S_IFREG | (0o755 if entry.executable else 0o644)
        name = entry.name.encode()
        self.write(
            _CENTRAL.pack(
                b"PK\x01\x02",
                _UNIX << 8 | version,
                version,
                _flags(entry),
                entry.method,
                0,
                _DATE,
                entry.crc,
                packed,
                size,
                len(name),
                len(extra),
                0,
                0,
                0,
                mode << 16,
                place,
            )
        )
        self.write(name + extra)


def _flags(entry: Entry) -> int:
    return 0 if entry.name.isascii() else _UTF8
