"""A second process that fetches pages and metadata into the cache.

Python runs one thread of a process at a time, and a first resolution spends more time in Python than in
waiting for servers. So a second process does part of the work, and the cache hands over the results.

The process reads lines of JSON: the arguments of its `IndexClient`, then requests. It replies "ready", and
then the number of each finished request.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from contextlib import suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

import msgspec

from builders.constants import GARBAGE_THRESHOLD
from builders.process import end_python, start_python
from resolver.errors import MatrixError
from resolver.indexes import File

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builders.index_client.client import IndexClient

_START_AT = 6
"""Number of requests after which many more are likely, so that a second process is worth its start."""
_MOST = 16
"""Number of requests that the process handles at once; the other threads of the first process fetch, too."""
_READY = b"ready\n"
_CODE = "from builders.index_client.fetcher import serve; serve()"


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
                    if line == _READY:
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


def serve() -> None:
    """Fetch the pages and metadata that standard input names."""
    from builders.index_client.client import IndexClient

    gc.set_threshold(GARBAGE_THRESHOLD)
    client = IndexClient(**msgspec.json.decode(sys.stdin.buffer.readline()), is_second=True)
    os.write(1, _READY)
    for line in sys.stdin.buffer:
        client.submit(partial(_fetch, client, *msgspec.json.decode(line)))
    os._exit(0)


def _fetch(client: IndexClient, number: int, what: dict[str, Any] | tuple[str, str]) -> None:
    with suppress(MatrixError):  # the first process gets the same error when it tries
        if isinstance(what, dict):
            client.metadata([msgspec.convert(what, File)])
        else:
            client.fetch_page(*what)
    os.write(1, b"%d\n" % number)
