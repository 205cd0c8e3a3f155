"""Requests to package indexes: credentials, hosts that are down, ranges of files, and remote wheels."""

from __future__ import annotations

import io
import re
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import requests
import requests.auth
import urllib3

from builders.constants import MISSING_CODES
from builders.network.urls import NETWORK_HINT, RequestError, TooLargeReplyError, mirrored, without_password
from builders.network.web import BROKEN, TIMEOUT, allow, failure_reason, new_session
from builders.wheels.wheel import DamagedError
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


_LONG_TAIL = 1 << 19  # bytes; contains the directory and the metadata of almost all wheels
SHORT_TAIL = 1 << 16  # bytes; contains those of most wheels
_LARGEST_RANGE = 1 << 24  # bytes; the directory of torch has 2 MB
_LARGEST_WHOLE = 50_000_000  # bytes of a wheel that is downloaded to read its metadata
_LARGEST_PAGE = 100_000_000  # bytes; that of a project with 10,000 files has 5 MB
_LONGEST_READ = 300.0  # seconds for a page, metadata, or a part of a file
_CHUNK = 1 << 18
_BLOCK = 1 << 15  # bytes
_BEFORE = 2  # blocks
_STEP = 1 << 22  # bytes of a request inside a member that is read as a whole
_MOST_KEPT = 1 << 10  # blocks
_LARGEST_FILE = 1 << 37  # bytes of a wheel or an sdist
_LONGEST_DOWNLOAD = 86_400.0  # seconds for a file
_RANGE = re.compile(r"bytes (?P<first>[0-9]{1,15})-[0-9]{1,15}/(?P<total>[0-9]{1,15})", re.ASCII)


class Transport:
    """Send requests to package indexes; may be used by several threads.

    The user and password in the URLs of `indexes` are used for every file on their host. Every method raises
    `RequestError` if there was no reply, or it is incomplete, too large or too slow. All but `get` and `page`
    also do so if the server does not have the file. If a host cannot be reached, later requests to it fail at
    once.
    """

    def __init__(self, indexes: Iterable[str], mirrors: Mapping[str, str]) -> None:
        self._mirrors = mirrors
        self._session = new_session()
        self._session.auth = self._credentials = _Credentials([*indexes, *mirrors.values()])
        self._down: dict[str, str] = {}

    def get(self, url: str, headers: Mapping[str, str], *, stream: bool = False) -> requests.Response:
        """Return a reply, whatever its status code."""
        url = without_password(mirrored(url, self._mirrors))
        try:
            host = urlsplit(url).netloc
        except ValueError as error:
            raise RequestError(f"its URL is not valid ({error})") from None
        if host in self._down:
            raise RequestError(self._down[host])
        try:
            response = self._session.get(url, headers=dict(headers), timeout=TIMEOUT, stream=stream)
            if response.status_code == requests.codes.unauthorized and self._credentials.ask_keyring(url):
                response.close()
                response = self._session.get(url, headers=dict(headers), timeout=TIMEOUT, stream=stream)
        except requests.RequestException as error:
            reason = failure_reason(error)
            if isinstance(error, requests.ConnectionError | requests.Timeout):
                self._down[host] = reason
            raise RequestError(reason) from None
        except (ValueError, OverflowError) as error:  # of a redirect, or of Retry-After
            raise _broken(error) from None
        return response

    def page(self, url: str, headers: Mapping[str, str]) -> tuple[requests.Response, bytes]:
        """Return a reply, whatever its status code, and its decompressed content."""
        with self.get(url, headers, stream=True) as response:
            return response, self._body(response, url, _LARGEST_PAGE, decode=True)

    def small_file(self, url: str, limit: int) -> bytes:
        """Return a file of at most `limit` bytes."""
        with self.get(url, {"Accept-Encoding": "identity"}, stream=True) as response:
            check_status(response)
            return self._body(response, url, limit)

    def download(self, url: str, limit: int) -> Iterator[bytes]:
        """Yield a file of at most `limit` bytes in chunks."""
        with self.get(url, {"Accept-Encoding": "identity"}, stream=True) as response:
            check_status(response)
            yield from chunks(response, limit)

    def remote_file(self, url: str, tail: int = _LONG_TAIL) -> RemoteFile | None:
        """Return a remote file, of which `tail` bytes at its end are fetched first.

        If the server does not support ranges, all of it is fetched; None if it is too large for that.
        """
        headers = {"Accept-Encoding": "identity", "Range": f"bytes=-{tail}"}
        with self.get(url, headers, stream=True) as response:
            if response.status_code == requests.codes.partial_content:
                stated = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
                end = self._body(response, url, tail)
                if stated is None or int(stated["first"]) + len(end) != int(stated["total"]):
                    raise _broken(response.headers.get("Content-Range"))
                return RemoteFile(self, url, int(stated["total"]), end)
            if response.status_code in {requests.codes.requested_range_not_satisfiable, 501}:
                return self._whole(url, self.download(url, _LARGEST_WHOLE))
            check_status(response)
            if (response.raw.length_remaining or 0) > _LARGEST_WHOLE:
                return None
            return self._whole(url, chunks(response, _LARGEST_WHOLE))

    def _whole(self, url: str, content: Iterable[bytes]) -> RemoteFile | None:
        try:
            data = b"".join(content)
        except TooLargeReplyError:
            return None
        return RemoteFile(self, url, len(data), data, has_ranges=False)

    def read_range(self, url: str, start: int, end: int) -> bytes:
        """Return the bytes from `start` to before `end`."""
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{end - 1}"}
        with self.get(url, headers, stream=True) as response:
            check_status(response)
            if response.status_code != requests.codes.partial_content:
                msg = "the server stopped sending ranges"
                raise RequestError(msg)
            data = self._body(response, url, end - start)
        if len(data) != end - start:
            msg = "the server sent a different range than requested"
            raise RequestError(msg)
        return data

    def _body(self, response: requests.Response, url: str, limit: int, *, decode: bool = False) -> bytes:
        """Return a body that must arrive soon; if it does not, later requests to its host fail at once."""
        try:
            return b"".join(chunks(response, limit, decode=decode, seconds=_LONGEST_READ))
        except RequestError as error:
            if error.is_slow:
                self._down[urlsplit(mirrored(url, self._mirrors)).netloc] = str(error)
            raise


_received = threading.local()


def received() -> int:
    """Return the number of bytes that this thread received in the bodies of replies."""
    return getattr(_received, "bytes", 0)


class RemoteFile(io.RawIOBase):
    """A file on a server whose end is known; other parts are fetched in blocks when they are read.

    `fetched` is how many bytes were fetched. Reading raises `RequestError` if a request fails. Without
    ranges, the tail is the whole file.
    """

    def __init__(
        self, transport: Transport, url: str, size: int, tail: bytes, *, has_ranges: bool = True
    ) -> None:
        self._transport = transport
        self._url = url
        self.size = size
        self.tail = tail
        self.has_ranges = has_ranges
        self.fetched = len(tail)
        self._known = size - len(tail)
        self._first = size % _BLOCK - _BLOCK
        """Blocks are counted from the end, so that the first request has whole blocks."""
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
        """Set the position; raise `DamagedError` if it is before the start of the file."""
        at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if at < 0:
            msg = "its directory points outside the file"
            raise DamagedError(msg)
        self._at = at
        return at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read into a buffer; fetch what is missing, but no more than a real directory has."""
        wanted = min(len(buffer), self.size - self._at)
        if wanted <= 0:
            return 0
        if wanted > _LARGEST_RANGE:
            raise DamagedError(f"its directory would have {wanted} bytes")
        data, start = self.tail, self._known
        if self._at < self._known:
            number = (self._at - self._first) // _BLOCK
            if number not in self._blocks:
                self._fetch(number, wanted)
            data, start = self._blocks[number], self._start(number)
        data = data[self._at - start : self._at - start + wanted]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, number: int, size: int) -> None:
        """Fetch a block, and the following blocks that were requested or belong to the same part.

        Blocks before the known end are fetched with those before them: the metadata is before the directory.
        """
        last, begin = number, self._start(number)
        end = next((end for start, end in self._members if start <= self._at < end), 0)
        most = min(max(min(end, begin + _STEP), self._at + size), self._known)
        while self._start(last + 1) < most and last + 1 not in self._blocks:
            last += 1
        if self._start(last + 1) >= self._known:
            number = max(0, number - _BEFORE)
        begin, stop = self._start(number), min(self._start(last + 1), self._known)
        data = self._transport.read_range(self._url, begin, stop)
        self.fetched += len(data)
        if len(self._blocks) > _MOST_KEPT:
            self._blocks.clear()
        for each in range(number, last + 1):
            self._blocks[each] = data[self._start(each) - begin : self._start(each + 1) - begin]

    def _start(self, number: int) -> int:
        return max(self._first + number * _BLOCK, 0)


class _Credentials(requests.auth.AuthBase):
    """User and password from the URLs of indexes, from netrc, or from keyring if it is installed."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._known: dict[str, tuple[str, str]] = {}
        self._users: dict[str, str] = {}
        self._netrc: dict[str, tuple[str, str] | None] = {}
        for url in urls:
            parts = urlsplit(url)
            host = parts.netloc.rpartition("@")[2]
            if parts.username and parts.password is not None:
                self._known.setdefault(host, (unquote(parts.username), unquote(parts.password)))
            elif parts.username:
                self._users.setdefault(host, unquote(parts.username))

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        url = request.url or ""
        host = urlsplit(url).netloc
        if host not in self._netrc:
            self._netrc[host] = requests.utils.get_netrc_auth(url)
        login = self._known.get(host) or self._netrc[host]
        if login is not None:
            requests.auth.HTTPBasicAuth(*login)(request)
        return request

    def ask_keyring(self, url: str) -> bool:
        """Look for the password of a server that requires a login; return whether keyring has it."""
        host = urlsplit(url).netloc
        if host in self._known:
            return False
        try:
            keyring = import_module("keyring")  # not a dependency, as for pip
        except ImportError:
            return False
        user = self._users.get(host)
        for service in (url, host):
            login = keyring.get_credential(service, user)
            if login is not None and login.password is not None:
                self._known[host] = (login.username or user or "", login.password)
                return True
        return False


def check_status(response: requests.Response) -> None:
    """Raise `RequestError` if the server replied with an error."""
    if not response.ok:
        reason = f"the server replied {response.status_code} {response.reason or ''}".rstrip()
        raise RequestError(reason, response.status_code)


def chunks(
    response: requests.Response,
    limit: int = _LARGEST_FILE,
    *,
    decode: bool = False,
    seconds: float = _LONGEST_DOWNLOAD,
) -> Iterator[bytes]:
    """Yield the body, by default as it was sent: some servers declare .tar.gz as an encoding.

    Raise `RequestError` if the connection was interrupted, or the server exceeds the limit of bytes or
    `seconds`.
    """
    size = 0
    end = time.monotonic() + seconds
    try:
        allow(response, _CHUNK)
        for chunk in response.raw.stream(_CHUNK, decode_content=decode):
            allow(response, _CHUNK)
            size += len(chunk)
            _received.bytes = received() + len(chunk)
            if size > limit:
                raise TooLargeReplyError(f"the server sent more than {limit} bytes")
            if time.monotonic() > end:
                raise RequestError(f"the server took longer than {seconds:g} seconds", is_slow=True)
            yield chunk
    except urllib3.exceptions.ReadTimeoutError:
        msg = "the server stopped sending, or is too slow"
        raise RequestError(msg, is_slow=True) from None
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise RequestError(f"the download was interrupted ({type(error).__name__})") from None
    except ValueError as error:  # a negative size of a chunk
        raise _broken(error) from None


def _broken(what: object) -> RequestError:
    return RequestError(f"{BROKEN} ({shorten(str(what))})")


def request_failed(url: str, error: RequestError) -> SourceError | EnvironmentLacksError:
    """Return the error for a file that could not be fetched."""
    msg = f"{without_password(url)} could not be fetched: {error}."
    if error.status in MISSING_CODES:
        return SourceError(msg, hint="Check the URL.")
    return EnvironmentLacksError(msg, hint=NETWORK_HINT)
