"""Read a squashfs file system (version 4.0) from its file, without mounting it or starting a program.

Whoever made the image chose each number in it. So every table has a largest size, decompression stops at the
size of a block, a directory is visited once, and a name is one part of a path.

Source of the layout: linux/fs/squashfs/squashfs_fs.h; https://dr-emann.github.io/squashfs/ explains it.
"""

from __future__ import annotations

import lzma
import os
import struct
import sys
import zlib
from functools import lru_cache
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from builders.constants import SQUASHFS_MAGIC
from resolver.errors import EnvironmentLacksError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_SUPERBLOCK = struct.Struct("<4sIIIIHHHHHHQQQQQQQQ")
_DECOMPRESSORS: dict[int, Callable[[], Any]] = {
    1: zlib.decompressobj, 4: lzma.LZMADecompressor, 6: zstd.ZstdDecompressor,
}  # fmt: skip
_COMPRESSIONS = {2: "lzma", 3: "lzo", 5: "lz4"}
"""Those that Python has no module for."""
_UNPACK = (
    "Unpack the image, and name the directory instead: `unsquashfs -d DIR IMAGE` for a squashfs, "
    "`apptainer build --sandbox DIR IMAGE` for a SIF."
)
_INODE = struct.Struct("<HHHHII")
_DIRECTORY = {1: struct.Struct("<IIHHI"), 8: struct.Struct("<IIIIHHI")}
_FILE = {2: struct.Struct("<IIII"), 9: struct.Struct("<QQQIIII")}
_LINK = {3: struct.Struct("<II"), 10: struct.Struct("<II")}
_GROUP, _ENTRY = struct.Struct("<III"), struct.Struct("<HhHH")
_FRAGMENT = struct.Struct("<QII")
_METADATA = 8192  # bytes of a block of metadata
_STORED, _STORED_DATA = 1 << 15, 1 << 24  # flags of a block that is not compressed
_NO_FRAGMENT = 0xFFFFFFFF
_LARGEST_BLOCK = 1 << 20
_MOST_METADATA = 1 << 29  # bytes that are unpacked or read again; 500,000 files need 80 MB
_KEPT_FRAGMENTS = 16  # neighbours share them
_LONGEST_PATH = 4096  # bytes, as in Linux


def is_squashfs(path: Path) -> bool:
    """Return whether a file begins as a squashfs."""
    with path.open("rb") as file:
        return file.read(len(SQUASHFS_MAGIC)) == SQUASHFS_MAGIC


class Entry(NamedTuple):
    """A regular file or a symbolic link."""

    path: str
    """Absolute, in the image."""
    size: int
    """In bytes."""
    link: str
    """The target of a symbolic link."""
    start: int
    """Position of the first block of its content."""
    fragment: int
    """The block in which its end is, with those of other files."""
    offset: int
    """Where its end starts in that block."""
    sizes: tuple[int, int]
    """Where the sizes of its blocks are."""


class Squashfs:
    """A squashfs that starts at a position of a file; each method raises `ValueError` if it is damaged."""

    def __init__(self, file: BinaryIO, start: int) -> None:
        self._file, self._start = file, start
        self._blocks: dict[int, tuple[bytes, int]] = {}
        self._left = _MOST_METADATA
        (
            magic, _, _, self._block_size, self._fragments, kind, _, _, _, major, minor,
            self._root, _, _, _, self._inodes, self._directories, self._fragment_table, _,
        ) = _SUPERBLOCK.unpack(self._at(0, _SUPERBLOCK.size))  # fmt: skip
        if (magic, major, minor) != (SQUASHFS_MAGIC, 4, 0) or not 0 < self._block_size <= _LARGEST_BLOCK:
            msg = "its header is not that of a squashfs of version 4.0"
            raise ValueError(msg)
        if kind not in _DECOMPRESSORS:
            method = _COMPRESSIONS.get(kind, f"method {kind}")
            msg = f"{file.name} is compressed with {method}, and only gzip, xz and zstd can be read."
            raise EnvironmentLacksError(msg, hint=_UNPACK)
        self._decompressor = _DECOMPRESSORS[kind]
        self._fragment_of = lru_cache(_KEPT_FRAGMENTS)(self._fragment)

    def entries(self) -> Iterator[Entry]:
        """Yield the regular files and symbolic links."""
        visited = {self._root}
        waiting = [("", self._root)]
        while waiting:
            folder, reference = waiting.pop()
            for name, child in self._listed(reference):
                path = f"{folder}/{name}"
                kind, fields, rest = self._inode(child)
                if kind in _DIRECTORY:
                    if child in visited or len(path) > _LONGEST_PATH:
                        msg = "a directory of it is in itself or in two others, or has too long a path"
                        raise ValueError(msg)
                    visited.add(child)
                    waiting.append((path, child))
                elif kind in _LINK:
                    if not 0 < fields[1] <= _LONGEST_PATH:
                        msg = f"the target of a link has {fields[1]:,} bytes"
                        raise ValueError(msg)
                    target, _ = self._read(*rest, fields[1])
                    yield Entry(path, 0, os.fsdecode(target), 0, 0, 0, rest)
                elif kind in _FILE:
                    first, *_, fragment, offset, last = fields
                    size = last
                    if kind == 9:  # noqa: PLR2004  the extended form has other fields at the end
                        first, size, _, _, fragment, offset, _ = fields
                    yield Entry(path, size, "", first, fragment, offset, rest)

    def chunks(self, entry: Entry) -> Iterator[bytes | int]:
        """Yield the content of a regular file: bytes, or the length of a part that has only zeros."""
        has_fragment = entry.fragment != _NO_FRAGMENT
        count, left = entry.size // self._block_size, entry.size
        count += bool(left % self._block_size) and not has_fragment
        sizes, _ = self._read(*entry.sizes, 4 * count)
        position = entry.start
        for (size,) in struct.iter_unpack("<I", sizes):
            wanted = min(left, self._block_size)
            data = self._data(position, size) if size else b""
            if size and len(data) != wanted:
                msg = f"{entry.path!r} is cut short"
                raise ValueError(msg)
            position += size & ~_STORED_DATA
            left -= wanted
            yield data if size else wanted
        if has_fragment:
            end = self._fragment_of(entry.fragment)[entry.offset : entry.offset + left]
            if len(end) != left:
                msg = f"{entry.path!r} is cut short"
                raise ValueError(msg)
            yield end

    def _listed(self, reference: int) -> Iterator[tuple[str, int]]:
        """Yield the names in a directory, each with the reference of its inode."""
        kind, fields, _ = self._inode(reference)
        if kind not in _DIRECTORY:
            msg = "a directory of it is something else"
            raise ValueError(msg)
        block, _, size, offset, _ = fields if kind == 1 else (fields[2], 0, fields[1], fields[5], 0)
        # The stored size counts 3 bytes for `.` and `..`, which are not in the listing.
        data, at = self._read(self._directories + block, offset, max(0, size - 3))[0], 0
        while at < len(data):
            count, start, _ = _GROUP.unpack_from(data, at)
            at += _GROUP.size
            # Numbers of entries and lengths of names are stored less one.
            for _ in range(count + 1):
                inode, _, _, length = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size + length + 1
                name = data[at - length - 1 : at]
                if name in {b".", b".."} or b"/" in name or b"\0" in name or at > len(data):
                    msg = f"{name!r} in a directory of it is not a name"
                    raise ValueError(msg)
                yield os.fsdecode(name), start << 16 | inode

    def _inode(self, reference: int) -> tuple[int, tuple[int, ...], tuple[int, int]]:
        """Return the kind of an inode, its own fields, and where what follows them is."""
        block, offset = self._inodes + (reference >> 16), reference & 0xFFFF
        data, place = self._read(block, offset, _INODE.size)
        kind = _INODE.unpack(data)[0]
        layout = _DIRECTORY.get(kind) or _FILE.get(kind) or _LINK.get(kind)
        if layout is None:
            return kind, (), place  # a device, a pipe or a socket
        data, place = self._read(*place, layout.size)
        return kind, layout.unpack(data), place

    def _read(self, block: int, offset: int, size: int) -> tuple[bytes, tuple[int, int]]:
        """Return metadata from an offset in a block on, and the place behind it."""
        self._spend(size)
        parts: list[bytes] = []
        while True:
            data, following = self._block(block)
            part = data[offset : offset + size]
            parts.append(part)
            size -= len(part)
            if not size:
                return b"".join(parts), (block, offset + len(part))
            block, offset = following, 0

    def _block(self, position: int) -> tuple[bytes, int]:
        """Return a block of metadata, and the position of the following one."""
        known = self._blocks.get(position)
        if known is None:
            size = int.from_bytes(self._at(position, 2), "little")
            stored, length = size & _STORED, size & ~_STORED
            data = self._unpacked(self._at(position + 2, length), _METADATA, compressed=not stored)
            self._spend(len(data))
            known = self._blocks[position] = data, position + 2 + length
        return known

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            msg = "its tables are larger than those of any real image"
            raise ValueError(msg)

    def _fragment(self, number: int) -> bytes:
        if number >= self._fragments:
            msg = "a file of it ends in a block that does not exist"
            raise ValueError(msg)
        block, row = divmod(number, _METADATA // _FRAGMENT.size)
        place = int.from_bytes(self._at(self._fragment_table + 8 * block, 8), "little")
        data, _ = self._read(place, row * _FRAGMENT.size, _FRAGMENT.size)
        start, size, _ = _FRAGMENT.unpack(data)
        return self._data(start, size)

    def _data(self, position: int, size: int) -> bytes:
        stored, length = size & _STORED_DATA, size & ~_STORED_DATA
        if length > self._block_size:
            msg = "a block of it is larger than all others"
            raise ValueError(msg)
        return self._unpacked(self._at(position, length), self._block_size, compressed=not stored)

    def _unpacked(self, data: bytes, most: int, *, compressed: bool) -> bytes:
        if compressed:
            decompressor = self._decompressor()
            data = decompressor.decompress(data, most)
            if not decompressor.eof:
                msg = "a block of it is damaged"
                raise ValueError(msg)
        if len(data) > most:
            msg = "a block of it is larger than its header states"
            raise ValueError(msg)
        return data

    def _at(self, position: int, size: int) -> bytes:
        """Return bytes of the file."""
        self._file.seek(self._start + position)
        data = self._file.read(size)
        if len(data) < size:
            msg = "it is cut short"
            raise ValueError(msg)
        return data
