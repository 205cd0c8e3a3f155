"""The directory of a wheel: its sizes and places, looked at before any member is read.

Layouts: PKWARE's ``APPNOTE.TXT``. The `zipfile` of the standard library reads a directory of any size
into memory and believes where members lie; anybody can have made the wheel.
"""

from __future__ import annotations

import struct
import zipfile
from itertools import pairwise
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_ELSEWHERE = 0xFFFFFFFF  # the real value stands in the record for large archives
_UTF_8 = 0x800  # flag of a member's name
_END = struct.Struct("<4s4H2LH")
_END_MAGIC = b"PK\x05\x06"
_END64_LOCATOR = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LONGEST_COMMENT = 1 << 16
_LARGEST_DIRECTORY = 1 << 24  # torch's, of 14 000 members, has 2 MB; read, this much takes some 300 MB

MOST_BYTES = 1 << 36
"""Decompressed bytes of one wheel beyond which it is not read: 64 GiB, ten times the largest known."""
_HIGH_RATIO = 100  # ELF files with unpacked code objects reach 20
_ALWAYS_ALLOWED = 1 << 28


class DamagedError(Exception):
    """What is read contradicts itself; the message says how, without a full stop."""


def check_directory(file: BinaryIO, size: int) -> None:
    """Refuse a wheel whose directory would fill the memory, before it is read.

    Parameters
    ----------
    file
        The wheel, opened for reading in binary.
    size
        Its bytes.

    Raises
    ------
    DamagedError
        Its directory is larger than that of any real wheel.
    """
    file.seek(max(0, size - _END.size - _LONGEST_COMMENT))
    tail = file.read(_END.size + _LONGEST_COMMENT)
    at = tail.rfind(_END_MAGIC)
    if at < 0 or at + _END.size > len(tail):
        return  # zipfile has words for it
    said = [_END.unpack_from(tail, at)[5]]
    if at >= _END64_LOCATOR.size:
        magic, _, place, _ = _END64_LOCATOR.unpack_from(tail, at - _END64_LOCATOR.size)
        end64 = size - len(tail) + at - _END64_LOCATOR.size - _END64.size
        if magic == b"PK\x06\x07":
            for each in (place, end64):  # zipfile looks before the locator, others where it points
                file.seek(min(max(0, each), size))
                record = file.read(_END64.size)
                if len(record) == _END64.size and record.startswith(b"PK\x06\x06"):
                    said.append(_END64.unpack(record)[8])
    largest = max((each for each in said if each != _ELSEWHERE), default=0)
    if largest > _LARGEST_DIRECTORY:
        msg = f"its directory would have {largest} bytes"
        raise DamagedError(msg)


def check_sizes(archive: zipfile.ZipFile, file_size: int) -> None:
    """Refuse a wheel that would unpack to an absurd size, before anything of it is read.

    Raises
    ------
    DamagedError
        It is a zip bomb, as far as its own directory tells, or a member has no name.
    """
    if not all(info.filename for info in archive.infolist()):
        msg = "a member has no name"
        raise DamagedError(msg)
    total = sum(info.file_size for info in archive.infolist())
    if total > MOST_BYTES or total > max(_ALWAYS_ALLOWED, _HIGH_RATIO * file_size):
        msg = f"its members would unpack to {total} bytes, from {file_size}"
        raise DamagedError(msg)


def overlapping(members: Sequence[zipfile.ZipInfo]) -> Iterator[tuple[str, str]]:
    """Yield each two members of which one begins inside the other.

    Only a bomb, or a wheel that shows different readers different files, has them.
    """
    places = sorted(members, key=lambda info: info.header_offset)
    for one, other in pairwise(places):
        least = one.header_offset + 30 + len(one.filename.encode()) + one.compress_size
        if other.header_offset < least:
            yield one.filename, other.filename


def data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    """Find where a member's bytes begin: after its local header, which has lengths of its own."""
    if info.flag_bits & 1:
        msg = "is encrypted"
        raise DamagedError(msg)
    if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
        msg = f"is compressed by method {info.compress_type}; wheels are stored or deflated"
        raise DamagedError(msg)
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER.size)
    if len(header) < _LOCAL_HEADER.size or not header.startswith(_LOCAL_MAGIC):
        msg = "has no local header"
        raise DamagedError(msg)
    _, name, extra = _LOCAL_HEADER.unpack(header)
    encoding = "utf-8" if info.flag_bits & _UTF_8 else "cp437"
    if file.read(int(name)).decode(encoding, "replace") != info.orig_filename:
        msg = "is called otherwise in its local header"
        raise DamagedError(msg)
    return info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
