"""Read archives of GPU code (``.kpack``), which hold the code of shared objects outside of them.

A header has the offset of a table of contents (MessagePack) at the end of the file. The table has a number
for the code of each shared object and architecture. The code with a number is a part of the file, or a zstd
frame in one list of frames. The layout is that of AMD's writer [1]_. No archive of AMD was at hand, so
unknown keys are ignored, and an unknown compression leaves the names in the table.

.. [1] https://github.com/ROCm/rocm-systems, ``shared/kpack``, and https://github.com/stellaraccident/rocm-kpack
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import msgspec

from builders.audit.gpu_code import CodeObject, CodeProblem, code_object_name
from builders.wheels.wheel import DamagedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from builders.audit.elf import Budget
    from builders.wheels.wheel import Content

ARCHIVE = ".kpack"
"""Suffix of the archives."""
STRAY_FIX = "Remove the file, or choose another release (TheRock issue 7081: hipErrorInvalidImage)."
_XNACK = re.compile(r":xnack[+-]")
_MAGIC = b"KPAK"
_HEADER = 16
_VERSION = 1
_LARGEST_TABLE = 1 << 26  # bytes; a hundred per shared object and architecture
_MOST_OBJECTS = 100_000
_MOST_PROBLEMS = 20
_START = 64  # bytes of a code object that its ELF header needs
_ENTRY_TIME = 30_000  # nanoseconds; see `Budget`


class _ArchiveEntry(msgspec.Struct):
    ordinal: int
    original_size: int = 0


class _ArchivePart(msgspec.Struct):
    offset: int
    size: int


class _ArchiveTable(msgspec.Struct):
    toc: dict[str, dict[str, _ArchiveEntry]]
    compression_scheme: str = "none"
    blobs: list[_ArchivePart] = []
    zstd_offset: int = 0
    zstd_size: int = 0


def read_archive(data: Content, budget: Budget) -> tuple[list[CodeObject], list[CodeProblem]]:
    """Return the code objects of an archive, and the problems of single objects.

    Raise `DamagedError` if the header or the table of contents is damaged, or has an unknown version.
    """
    table, start = _read_table(data)
    entries = [(path, name, entry) for path, targets in table.toc.items() for name, entry in targets.items()]
    budget.spend(_ENTRY_TIME * (len(entries) + 1))
    parts = _parts(table, data, len(entries), start)
    objects: list[CodeObject] = []
    problems: list[CodeProblem] = []
    for path, name, entry in entries:
        architecture, *features = name.split(":")
        compression = "zstd" if parts is not None and table.compression_scheme != "none" else ""
        wrong = ""
        if parts is not None and 0 <= entry.ordinal < len(parts):
            wrong = _disagreement(name, _first_bytes(data, *parts[entry.ordinal], compression))
        elif parts is not None:
            wrong = "is not in the archive"
        if wrong and len(problems) < _MOST_PROBLEMS:
            text = f"the code of {path} for {name} {wrong}"
            problems.append(CodeProblem("object-disagrees", text, start))
        objects.append(
            CodeObject(architecture, tuple(sorted(features)), start, entry.original_size, compression)
        )
    if parts is None:
        text = f"the compression {table.compression_scheme!r} is not known, so only the names were read"
        problems.append(CodeProblem("names-only", text, start))
    return objects, problems


def stray_archives(paths: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the archives for one setting of XNACK, each with the archive for both settings beside it.

    The HIP runtime may read the first instead of the second, and then no kernel runs.
    """
    for path in sorted(paths):
        both = _XNACK.sub("", path)
        if path.endswith(ARCHIVE) and both != path and both in paths:
            yield path, both


def _read_table(data: Content) -> tuple[_ArchiveTable, int]:
    """Return the table of contents, and its offset."""
    header = bytes(data[:_HEADER])
    if len(header) < _HEADER or header[:4] != _MAGIC:
        msg = "it does not begin with the header of a .kpack archive"
        raise DamagedError(msg)
    version, start = int.from_bytes(header[4:8], "little"), int.from_bytes(header[8:], "little")
    if version != _VERSION:
        msg = f"it has the unknown version {version}"
        raise DamagedError(msg)
    if not _HEADER <= start < len(data) or len(data) - start > _LARGEST_TABLE:
        msg = f"its table of contents at {start} is not in the file, or too large"
        raise DamagedError(msg)
    try:
        table = msgspec.msgpack.decode(bytes(data[start : len(data)]), type=_ArchiveTable)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"its table of contents cannot be read ({error})"
        raise DamagedError(msg) from None
    if sum(map(len, table.toc.values())) > _MOST_OBJECTS:
        msg = f"it has more than {_MOST_OBJECTS} code objects"
        raise DamagedError(msg)
    return table, start


def _parts(table: _ArchiveTable, data: Content, count: int, end: int) -> list[tuple[int, int]] | None:
    """Return position and size of each code object by its number; None if the compression is not known."""
    if table.compression_scheme == "none":
        return [(blob.offset, blob.size) for blob in table.blobs if 0 <= blob.offset <= end - blob.size]
    if table.compression_scheme != "zstd-per-kernel":
        return None
    return list(_frames(data, table.zstd_offset, count, min(end, table.zstd_offset + table.zstd_size)))


def _frames(data: Content, at: int, count: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield position and size of each zstd frame of a list, as far as the list reaches."""
    at += 4  # the number of frames
    for _ in range(count):
        size = int.from_bytes(bytes(data[at : at + 4]), "little") if 0 <= at <= end - 4 else 0
        if not 0 < size <= end - at - 4:
            return
        yield at + 4, size
        at += 4 + size


def _first_bytes(data: Content, at: int, size: int, compression: str) -> bytes:
    part = bytes(data[at : at + min(size, 1 << 16)])
    if not compression:
        return part[:_START]
    try:
        return zstd.ZstdDecompressor().decompress(part, _START)
    except zstd.ZstdError:
        return b""


def _disagreement(name: str, start: bytes) -> str:
    """Compare the name of an entry with the ELF header of its code; return the difference as a clause."""
    actual = code_object_name(memoryview(start))
    if actual is None:
        return "is not an AMDGPU code object"
    architecture, *features = name.split(":")
    expected = ":".join([architecture, *sorted(features)])
    return "" if actual == expected else f"is for {actual}"
