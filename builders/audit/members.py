"""Reading the members of a wheel: each once from end to end, then anywhere, nothing unpacked.

A shared object in a wheel can be larger than memory, its section table stands at its end, and what
that table points to stands before. `Member` therefore keeps the state of the decompressor every few
megabytes while the member is read for its checksum, and goes on from the nearest kept state when a
place is wanted again (the way of zlib's ``examples/zran.c``). What is surely wanted can be read in
passing, from a `Passing`. Inflating is what takes the time, so it is left to zlib-ng; digest and
checksum are computed on another thread, since both let go of the interpreter's lock.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from zlib_ng import zlib_ng as zlib

from builders.audit.directory import DamagedError, data_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Executor, Future

__all__ = ["DamagedError", "Member", "Passing"]

_CHUNK = 1 << 16
_BLOCK = 1 << 22  # decompressed bytes between kept states; each state is some 100 kB
_MOST_STATES = 512
_BLOCKS_KEPT = 4
_WORTH_A_THREAD = 1 << 20
_MOST_WAITING = 8  # pieces of at most a block that wait to be hashed
_NotDeflatedError = cast("type[Exception]", zlib.error)


class _State(Protocol):
    """What is used of a decompressor; zlib-ng's own types leave the copying out."""

    @property
    def unconsumed_tail(self) -> bytes: ...
    @property
    def eof(self) -> bool: ...
    def decompress(self, data: bytes, most: int, /) -> bytes: ...
    def copy(self) -> _State: ...


class Passing:
    """The bytes of a member while they pass for the first time; they can be read forward only."""

    def __init__(self, pieces: Iterator[bytes], size: int) -> None:
        self._pieces = pieces
        self._kept = bytearray()
        self._place = 0  # of the first kept byte
        self.size = size

    def read_at(self, offset: int, size: int) -> bytes:
        """Give the bytes there, fewer only at the end; what lies before them is forgotten.

        Raises
        ------
        DamagedError
            They were passed already.
        """
        if offset < self._place:
            msg = "the table of a bundle goes backward"
            raise DamagedError(msg)
        while self._place + len(self._kept) < offset + size:
            self._forget(offset)
            if not self._more():
                break
        self._forget(offset)
        return bytes(self._kept[:size]) if offset == self._place else b""

    def find(self, wanted: bytes, start: int) -> int | None:
        """Find where some bytes next begin, from a place on; None if they do not come."""
        place = max(start, self._place)
        while True:
            self._forget(place)
            at = self._kept.find(wanted, place - self._place) if place >= self._place else -1
            if at >= 0:
                return self._place + at
            place = max(place, self._place + len(self._kept) - len(wanted) + 1)
            if not self._more():
                return None

    def skip_zeros(self, start: int) -> int:
        """Find the next byte that is not zero, from a place on; the end if there is none."""
        place = start
        while data := self.read_at(place, _CHUNK):
            kept = data.lstrip(b"\0")
            place += len(data) - len(kept)
            if kept:
                break
        return place

    def part(self, start: int) -> _Part:
        """Give what begins at a place, counted from there."""
        return _Part(self, start)

    def _forget(self, place: int) -> None:
        dropped = min(max(0, place - self._place), len(self._kept))
        del self._kept[:dropped]
        self._place += dropped

    def _more(self) -> bool:
        piece = next(self._pieces, b"")
        self._kept += piece
        return bool(piece)


class _Part:
    """What passes, counted from a place on."""

    def __init__(self, passing: Passing, start: int) -> None:
        self._passing, self._start = passing, start

    def read_at(self, offset: int, size: int) -> bytes:
        return self._passing.read_at(self._start + offset, size)


class _Sums:
    """Digest and checksum of what passes."""

    def __init__(self, helper: Executor | None) -> None:
        self._helper = helper
        self._waiting: deque[Future[None]] = deque()
        self.digest, self.checksum, self.size = hashlib.sha256(), 0, 0

    def add(self, data: bytes) -> None:
        self.size += len(data)
        if self._helper is None:
            self._take(data)
            return
        self._waiting.append(self._helper.submit(self._take, data))
        if len(self._waiting) > _MOST_WAITING:
            self._waiting.popleft().result()

    def finish(self) -> None:
        while self._waiting:
            self._waiting.popleft().result()

    def _take(self, data: bytes) -> None:
        self.digest.update(data)
        self.checksum = zlib.crc32(data, self.checksum)


class Member(io.RawIOBase):
    """A member of a wheel that can be read from any place.

    Parameters
    ----------
    file
        The wheel, opened for reading in binary.
    info
        The member, as the wheel's directory has it.
    helper
        Computes digest and checksum of a large member, with one thread, so that the pieces are taken
        in order.
    watch
        Reads what it wants in passing; it need not read to the end.

    Raises
    ------
    DamagedError
        The member is cut short, is not what its checksum says, or is stored in a way that wheels
        do not use.
    """

    def __init__(
        self,
        file: BinaryIO,
        info: zipfile.ZipInfo,
        *,
        helper: Executor | None = None,
        watch: Callable[[Passing], object] | None = None,
    ) -> None:
        self._file = file
        self.name = info.filename
        self.size = info.file_size
        self._stored = info.compress_type == zipfile.ZIP_STORED
        self._data = data_offset(file, info)
        self._packed = info.compress_size
        self._states: list[tuple[int, _State]] = []
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        self._place = 0
        self._length = max(_BLOCK, self.size // _MOST_STATES)
        sums = _Sums(helper if self.size >= _WORTH_A_THREAD else None)
        try:
            pieces = self._passing_by(sums)
            if watch is not None:
                watch(Passing(pieces, self.size))
            deque(pieces, maxlen=0)
        finally:
            sums.finish()
        if sums.size != self.size:
            msg = f"is not of {self.size} bytes as the wheel's directory says"
            raise DamagedError(msg)
        if sums.checksum != info.CRC:
            msg = "is not what its checksum says"
            raise DamagedError(msg)
        self.sha256 = sums.digest.digest()

    def _passing_by(self, sums: _Sums) -> Iterator[bytes]:
        """Yield all bytes once, each added to the sums; more than the directory promises are not read."""
        for data in self._stored_bytes() if self._stored else self._unpacked_bytes():
            sums.add(data)
            if sums.size > self.size:
                return
            if data:
                yield data

    def _stored_bytes(self) -> Iterator[bytes]:
        self._file.seek(self._data)
        left = self._packed
        while left > 0 and (data := self._file.read(min(_CHUNK, left))):
            left -= len(data)
            yield data

    def _unpacked_bytes(self) -> Iterator[bytes]:
        """Decompress block by block; a state is kept at the beginning of each block."""
        state = cast("_State", zlib.decompressobj(-zlib.MAX_WBITS))
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

    def _feed(self, state: _State, place: int, most: int) -> Iterator[tuple[bytes, int]]:
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
        except _NotDeflatedError as error:
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
