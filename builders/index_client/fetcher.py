"""A second process fetches pages and metadata into the cache: the side of the first process.

Python runs one thread of a process at a time, and a first resolution spends more time in Python than in
waiting for servers. So a second process does part of the work, and the cache hands over the results.

The second process (`fetcher_process`) reads lines of JSON: the arguments of its `IndexClient`, then
requests. It replies "ready", and then the number of each finished request.
"""

from __future__ import annotations

import threading
import weakref
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from builders.process import end_python, start_python

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.indexes import File

_START_AT = 6
"""Number of requests after which many more are likely, so that it is worth starting a second process."""
_MOST = 16
"""Number of requests that the process handles at once; the other threads of the first process fetch, too."""
READY = b"ready\n"
_CODE = "from builders.index_client.fetcher_process import serve; serve()"


class Fetcher:
    """Fetch pages and metadata in a second process, which starts when many requests are likely.

    Parameters
    ----------
    arguments
        The arguments of its `IndexClient`.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._arguments = arguments
        self._lock = threading.Lock()
        self._number = 0
        self._replies = _Replies()
        self._requests: IO[bytes]

    def fetch(self, what: File | tuple[str, str]) -> bool:
        """Fetch a page or metadata into the cache; return False if the first process must fetch it.

        Parameters
        ----------
        what
            A file to fetch the metadata of, or the index and the name of a project.
        """
        with self._lock:
            self._number += 1
            if self._number == _START_AT:
                self._start()
            reply = self._replies.expect(self._number)
            if reply is None or not self._send([self._number, what]):
                return False
        reply.wait()
        return True

    def stop(self) -> None:
        """Stop using the process."""
        self._replies.end()

    def _start(self) -> None:
        try:
            process = start_python(_CODE)
        except OSError:  # no further process is allowed
            return
        weakref.finalize(self, end_python, process)
        self._requests = cast("IO[bytes]", process.stdin)
        self._send(self._arguments)
        threading.Thread(target=self._replies.read, args=[process.stdout], daemon=True).start()

    def _send(self, message: object) -> bool:
        try:
            self._requests.write(msgspec.json.encode(message) + b"\n")
            self._requests.flush()
        except OSError:
            self._replies.end()
            return False
        return True


class _Replies:
    """The outstanding replies of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: dict[int, threading.Event] = {}
        self._is_ready = False

    def expect(self, number: int) -> threading.Event | None:
        """Return an event that the reply to a request sets; None if the process cannot accept the request."""
        with self._lock:
            if not self._is_ready or len(self._expected) == _MOST:
                return None
            return self._expected.setdefault(number, threading.Event())

    def read(self, replies: IO[bytes]) -> None:
        """Read all replies; runs in a thread."""
        with replies:
            for line in replies:
                with self._lock:
                    if line == READY:
                        self._is_ready = True
                    elif int(line) in self._expected:
                        self._expected.pop(int(line)).set()
        self.end()

    def end(self) -> None:
        """Stop expecting replies, and release all waiting threads."""
        with self._lock:
            self._is_ready = False
            while self._expected:
                self._expected.popitem()[1].set()
