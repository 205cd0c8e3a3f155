"""What the payload of a compressed bundle unpacks to, read forward only and never kept as a whole."""

from __future__ import annotations

import sys
import zlib
from typing import BinaryIO, Protocol

from builders.audit.members import DamagedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_CHUNK = 1 << 16
_MOST_AT_ONCE = 1 << 20


class _Decompressor(Protocol):
    """What is used of a decompressor."""

    @property
    def needs_input(self) -> bool: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, most: int, /) -> bytes: ...


class Payload:
    """A compressed payload in a stream.

    Parameters
    ----------
    stream
        Where it stands; readable at any place.
    start, size
        Its place there, in bytes.
    method
        ``zlib`` or ``zstd``.
    promised
        How many bytes it says that it unpacks to; more are refused.
    """

    def __init__(self, stream: BinaryIO, start: int, size: int, method: str, promised: int) -> None:
        self._stream, self._next, self._end = stream, start, start + size
        self._unpack: _Decompressor = _Zlib() if method == "zlib" else zstd.ZstdDecompressor()
        self._promised = promised
        self._kept = b""
        self._place = 0  # of the first kept byte

    def read_at(self, offset: int, size: int) -> bytes:
        """Give the bytes there; what lies before them is forgotten.

        Raises
        ------
        DamagedError
            They cannot be decompressed, or were passed already.
        """
        if offset < self._place:
            msg = "the table of a compressed bundle goes backward"
            raise DamagedError(msg)
        while self._place + len(self._kept) < offset + size:
            more = self._more()
            if not more:
                break
            skipped = max(0, offset - self._place)
            self._kept += more
            dropped = min(skipped, len(self._kept))
            self._kept, self._place = self._kept[dropped:], self._place + dropped
        begin = offset - self._place
        return self._kept[begin : begin + size]

    def finish(self) -> int:
        """Unpack to the end and give the place in the stream where the payload ended."""
        while self._more():
            self._place, self._kept = self._place + len(self._kept), b""
        return self._next - len(self._unpack.unused_data)

    def _more(self) -> bytes:
        if self._unpack.eof:
            return b""
        try:
            data = self._step()
        except (zlib.error, zstd.ZstdError, MemoryError, ValueError) as error:
            msg = f"a bundle cannot be decompressed ({error})"
            raise DamagedError(msg) from None
        if self._place + len(self._kept) + len(data) > self._promised:
            msg = "a compressed bundle unpacks to more than it says"
            raise DamagedError(msg)
        return data

    def _step(self) -> bytes:
        """Unpack until there is something, or nothing more."""
        while True:
            fresh = b""
            hungry = self._unpack.needs_input
            if hungry:
                self._stream.seek(self._next)
                fresh = self._stream.read(min(_CHUNK, self._end - self._next))
                self._next += len(fresh)
            data = self._unpack.decompress(fresh, _MOST_AT_ONCE)
            if data or self._unpack.eof:
                return data
            if hungry and not fresh:
                msg = "a compressed bundle is cut short"
                raise DamagedError(msg)


class _Zlib:
    """zlib's decompressor with the manners of zstd's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj()

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)
