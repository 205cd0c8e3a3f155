"""Remote wheels: only the blocks that are used are fetched."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from builders.constants import MISSING_CODES
from builders.network.transport import RequestError
from builders.network.urls import NETWORK_HINT, without_password
from resolver.errors import EnvironmentLacksError, SourceError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from builders.network.transport import Transport

_BLOCK = 1 << 15  # bytes
_TAIL = 1 << 16  # bytes; holds the directory and the metadata of most wheels
_STEP = 1 << 22  # bytes of a request inside a member that is read as a whole
_MOST_KEPT = 1 << 10  # blocks


class RemoteWheel(io.RawIOBase):
    """A file on a server, read in blocks, some of which are cached.

    Attributes
    ----------
    size
        Bytes of the file.
    fetched
        Bytes that were fetched.

    Raise `EnvironmentLacksError` if the server cannot be reached; `SourceError` if the server does not have
    the file; `UnsupportedOperation` if the server sends no ranges of a file that is too large to be fetched.
    """

    def __init__(self, transport: Transport, url: str) -> None:
        self._url = url
        try:
            remote = transport.remote_file(url, _TAIL)
        except RequestError as error:
            raise request_failed(url, error) from None
        if remote is None:
            msg = f"{without_password(url)} can only be fetched as a whole, and is too large for that."
            raise io.UnsupportedOperation(msg)
        self._whole = isinstance(remote, io.BytesIO)
        self._file = remote.detach() if isinstance(remote, io.BufferedReader) else remote
        self.size = self._file.seek(0, io.SEEK_END)
        self.fetched = self.size if self._whole else min(self.size, _TAIL)
        self._known = self.size - self.fetched
        # Blocks are counted from the end, so that the first request has whole blocks.
        self._first = self.size % _BLOCK - _BLOCK
        self._members: list[tuple[int, int]] = []
        self._blocks: dict[int, bytes] = {}
        self._at = 0

    def expect(self, members: Iterable[tuple[int, int]]) -> None:
        """Announce the parts (start, end) that will be read completely, so that fewer requests are needed."""
        self._members = sorted(members)

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Set the position without fetching data."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer; fetch the block if it is missing."""
        if self._at >= self.size:
            return 0
        number = (self._at - self._first) // _BLOCK
        if number not in self._blocks:
            self._fetch(number, len(buffer))
        offset = self._at - self._start(number)
        data = self._blocks[number][offset : offset + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, number: int, size: int) -> None:
        """Fetch a block, and the following blocks that were requested or belong to the same part."""
        start, last = self._start(number), number
        end = next((end for begin, end in self._members if begin <= self._at < end), 0)
        most = max(min(end, start + _STEP), min(self._at + size, self.size))
        while self._start(last + 1) < most and last + 1 not in self._blocks:
            last += 1
        stop = self._start(last + 1)
        try:
            self._file.seek(start)
            data = b""
            while len(data) < stop - start:  # a read ends at the part that was fetched first
                data += self._file.read(stop - start - len(data)) or b""
        except RequestError as error:
            raise request_failed(self._url, error) from None
        if not self._whole:
            self.fetched += max(0, min(stop, self._known) - start)
        if len(self._blocks) > _MOST_KEPT:
            self._blocks.clear()
        for each in range(number, last + 1):
            self._blocks[each] = data[self._start(each) - start : self._start(each + 1) - start]

    def _start(self, number: int) -> int:
        return max(self._first + number * _BLOCK, 0)


def request_failed(url: str, error: RequestError) -> SourceError | EnvironmentLacksError:
    """Return the error for a file that could not be fetched."""
    msg = f"{without_password(url)} could not be fetched: {error}."
    if error.status in MISSING_CODES:
        return SourceError(msg, hint="Check the URL.")
    return EnvironmentLacksError(msg, hint=NETWORK_HINT)
