"""Reading the members of a wheel: each once from end to end, then anywhere, nothing unpacked.

A shared object in a wheel can be larger than memory, its section table stands at its end, and what
that table points to stands before. `Member` therefore keeps the state of the decompressor every few
megabytes while the member is read for its checksum, and goes on from the nearest kept state when a
place is wanted again (the way of zlib's ``examples/zran.c``).
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zipfile
import zlib
from collections import OrderedDict
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOCAL_HEADER = struct.Struct("<4s22xHH")
_LOCAL_MAGIC = b"PK\x03\x04"
_CHUNK = 1 << 16
_BLOCK = 1 << 22  # decompressed bytes between kept states; each state is some 100 kB
_MOST_STATES = 512
_BLOCKS_KEPT = 4

MOST_BYTES = 1 << 36
"""Decompressed bytes of one wheel beyond which it is not read: 64 GiB, ten times the largest known."""
_HIGH_RATIO = 100  # ELF files with unpacked code objects reach 20
_ALWAYS_ALLOWED = 1 << 28


class DamagedError(Exception):
    """What is read contradicts itself; the message says how, without a full stop."""


def check_sizes(archive: zipfile.ZipFile, file_size: int) -> None:
    """Refuse a wheel that would unpack to an absurd size, before anything of it is read.

    Raises
    ------
    DamagedError
        It is a zip bomb, as far as its own directory tells.
    """
    total = sum(info.file_size for info in archive.infolist())
    if total > MOST_BYTES or total > max(_ALWAYS_ALLOWED, _HIGH_RATIO * file_size):
        msg = f"its members would unpack to {total} bytes, from {file_size}"
        raise DamagedError(msg)


class Member(io.RawIOBase):
    """A member of a wheel that can be read from any place.

    Parameters
    ----------
    file
        The wheel, opened for reading in binary.
    info
        The member, as the wheel's directory has it.

    Raises
    ------
    DamagedError
        The member is cut short, is not what its checksum says, or is stored in a way that wheels
        do not use.
    """

    def __init__(self, file: BinaryIO, info: zipfile.ZipInfo) -> None:
        self._file = file
        self.name = info.filename
        self.size = info.file_size
        self._stored = info.compress_type == zipfile.ZIP_STORED
        self._data = _data_offset(file, info)
        self._packed = info.compress_size
        self._states: list[tuple[int, zlib._Decompress]] = []
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._place = 0
        self._length = max(_BLOCK, self.size // _MOST_STATES)
        self.sha256 = self._read_through(info)

    def _read_through(self, info: zipfile.ZipInfo) -> bytes:
        """Read all once: digest, checksum, and the states to go on from."""
        digest, checksum, done = hashlib.sha256(), 0, 0
        for data in self._stored_bytes() if self._stored else self._unpacked_bytes():
            digest.update(data)
            checksum = zlib.crc32(data, checksum)
            done += len(data)
            if done > self.size:
                break
        if done != self.size:
            msg = f"is not of {self.size} bytes as the wheel's directory says"
            raise DamagedError(msg)
        if checksum != info.CRC:
            msg = "is not what its checksum says"
            raise DamagedError(msg)
        return digest.digest()

    def _stored_bytes(self) -> Iterator[bytes]:
        self._file.seek(self._data)
        left = self._packed
        while left > 0 and (data := self._file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data

    def _unpacked_bytes(self) -> Iterator[bytes]:
        """Decompress block by block; a state is kept at the beginning of each block."""
        state = zlib.decompressobj(-zlib.MAX_WBITS)
        fed = 0
        while True:
            self._states.append((self._data + fed, state.copy()))  # what it was fed and has not used, too
            made = 0
            for data, taken in self._feed(state, self._data + fed, self._length):
                fed += taken
                made += len(data)
                yield data
            if made < self._length:
                return

    def _feed(self, state: zlib._Decompress, place: int, most: int) -> Iterator[tuple[bytes, int]]:
        """Decompress at most so many bytes; with each piece comes how much of the file it took."""
        left = most
        end = self._data + self._packed
        try:
            while left > 0 and not state.eof:
                tail, fresh = state.unconsumed_tail, b""
                if not tail:
                    self._file.seek(place)
                    fresh = self._file.read(min(_CHUNK, end - place))
                    place += len(fresh)
                data = state.decompress(tail or fresh, left)
                if not data and not tail and not fresh:
                    return
                left -= len(data)
                yield data, len(fresh)
        except zlib.error as error:
            msg = f"cannot be decompressed ({error})"
            raise DamagedError(msg) from None

    def _block(self, number: int) -> bytes:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        place, kept = self._states[number]
        data = b"".join(piece for piece, _ in self._feed(kept.copy(), place, self._length))
        self._blocks[number] = data
        if len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return data

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that any place can be read."""
        return True

    def tell(self) -> int:
        """Give the place that is read next."""
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place, counted as by `io.IOBase.seek`."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.size}[whence]
        self._place = max(0, origin + offset)
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        """Read so many bytes from the present place, fewer only at the end."""
        left = max(0, self.size - self._place)
        wanted = left if size is None or size < 0 else min(size, left)
        if self._stored:
            self._file.seek(self._data + self._place)
            self._place += wanted
            return self._file.read(wanted)
        pieces = []
        while wanted > 0:
            number, start = divmod(self._place, self._length)
            piece = self._block(number)[start : start + wanted]
            if not piece:
                break
            pieces.append(piece)
            self._place += len(piece)
            wanted -= len(piece)
        return b"".join(pieces)


def _data_offset(file: BinaryIO, info: zipfile.ZipInfo) -> int:
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
    return info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
