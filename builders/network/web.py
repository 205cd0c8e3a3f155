"""HTTP sessions for the whole program, with few connections and retries; reasons of failures for messages."""

from __future__ import annotations

import http.client
import io
import math
import threading
import time
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import requests
import urllib3
from requests.adapters import HTTPAdapter
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.util import Retry
from urllib3.util.ssl_ import create_urllib3_context

from builders.constants import CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from ssl import SSLContext

    from urllib3 import BaseHTTPResponse
    from urllib3.connection import HTTPConnection
    from urllib3.connectionpool import HTTPConnectionPool

TIMEOUT = (10, 30)  # seconds to connect, and between two packets
_GRACE = 60.0  # seconds in which a reply may be as slow as it likes
_SLOWEST = 10_000  # bytes per second that a server must send on average after that
_LARGEST_HEAD = 1 << 20  # bytes of headers, also of chunks, and of the replies that announce another (1xx)
BROKEN = "the server's answer is broken"
_BUFFER = 1 << 16  # bytes
_LONGEST_WAIT = 30  # seconds
_loading = threading.Lock()
_first: dict[str, threading.Lock] = {}
_peers: dict[str, str] = {}
"""The address of each host that was connected; empty while nothing has answered."""


class _Watched(io.RawIOBase):
    """The bytes of one reply, headers included; reading ends with `TimeoutError` if they come too slowly.

    A server that sends a byte now and then would otherwise never time out. `left` bytes may still be read.
    """

    def __init__(self, raw: io.RawIOBase) -> None:
        self._raw = raw
        self.has_ended = False
        self.left = math.inf
        self._end = time.monotonic() + _GRACE

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]
        if time.monotonic() > self._end:
            raise TimeoutError(f"fewer than {_SLOWEST} bytes per second")
        if self.left < 0:
            raise http.client.HTTPException(BROKEN)
        size: int | None = self._raw.readinto(buffer)
        self._end += (size or 0) / _SLOWEST
        self.left -= size or 0
        self.has_ended = size == 0
        return size

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket, *args: Any, **options: Any) -> None:  # noqa: ANN401  as in http.client
        super().__init__(sock, *args, **options)
        self._watched = _Watched(self.fp.detach())
        self.fp = io.BufferedReader(self._watched, _BUFFER)

    def begin(self) -> None:
        """Read the headers; `http.client` accepts headers that are cut off, and 1xx replies without end."""
        self._watched.left = _LARGEST_HEAD
        super().begin()
        self._watched.left = math.inf
        if self._watched.has_ended:
            self.close()
            msg = "the headers were cut off"
            raise http.client.RemoteDisconnected(msg)


def allow(response: requests.Response, size: int) -> None:
    """Limit the next part of a body: a server may send sizes of chunks, or trailers, without end."""
    original = response.raw._original_response  # noqa: SLF001  urllib3 has no other way to it
    if isinstance(original, _Response):
        original._watched.left = size + _LARGEST_HEAD  # noqa: SLF001


def _watching(kind: Callable[..., Any], **options: Any) -> HTTPConnection:  # noqa: ANN401
    """Return a connection of a kind whose replies must not be too slow."""
    connection: HTTPConnection = kind(**options)
    connection.response_class = _Response
    vars(connection)["_new_conn"] = partial(_connect, connection, connection._new_conn)  # noqa: SLF001
    return connection


def _connect(connection: HTTPConnection, connect: Callable[[], socket]) -> socket:
    """Connect; only the first connection to a host looks up its address.

    Name servers drop questions that many threads ask at once, and each then waits five seconds. So the others
    wait for the first, and ask themselves only if it fails.
    """
    host = connection._dns_host  # noqa: SLF001  urllib3 has no other way to it
    with _first.setdefault(host, threading.Lock()):
        if host not in _peers:
            _peers[host] = ""
            connected = connect()
            _peers[host] = connected.getpeername()[0]
            return connected
    connection._dns_host = _peers[host] or host  # noqa: SLF001
    try:
        return connect()
    finally:
        connection._dns_host = host  # noqa: SLF001


class _Adapter(HTTPAdapter):
    """Watch replies, and load the certificates once: urllib3 does so for each connection, slowly."""

    def build_connection_pool_key_attributes(  # type: ignore[override]
        self, request: requests.PreparedRequest, verify: bool | str, cert: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        host, pool = super().build_connection_pool_key_attributes(request, verify, cast("None", cert))
        shared = cast("dict[str, Any]", pool)
        if host["scheme"] == "https" and verify:
            bundle = shared.pop("ca_certs", None) or shared.pop("ca_cert_dir", None) or DEFAULT_CA_BUNDLE_PATH
            with _loading:
                shared["ssl_context"] = _context(bundle)
        return cast("dict[str, Any]", host), shared

    def cert_verify(self, conn: HTTPConnectionPool, url: str, verify: bool | str, cert: object) -> None:
        """Check that the certificates exist, which the context has loaded; watch the replies of the pool."""
        super().cert_verify(conn, url, verify, cert)  # type: ignore[no-untyped-call]
        watched = partial(_watching, type(conn).ConnectionCls)
        vars(conn).update(ca_certs=None, ca_cert_dir=None, ConnectionCls=watched)


@cache
def _context(bundle: str) -> SSLContext:
    context = create_urllib3_context()
    if Path(bundle).is_dir():
        context.load_verify_locations(capath=bundle)
    else:
        context.load_verify_locations(bundle)
    return context


def new_session() -> requests.Session:
    """Return a session that retries, with back-off."""
    session = _Session()
    session.headers["User-Agent"] = _program()
    retry = _Retry(
        total=3,
        connect=1,
        read=1,
        backoff_factor=0.5,
        status_forcelist=(429, 500, 502, 503, 504),
        respect_retry_after_header=True,
        raise_on_status=False,
    )
    for scheme in ("https://", "http://"):
        adapter = _Adapter(max_retries=retry, pool_maxsize=CONNECTIONS, pool_block=True)
        session.mount(scheme, adapter)
    return session


class _Session(requests.Session):
    """Read proxies and certificates from the environment once for each host."""

    def __init__(self) -> None:
        super().__init__()
        self._settings: dict[tuple[str, str], dict[str, Any]] = {}

    def merge_environment_settings(  # type: ignore[override]
        self, url: str, _proxies: object, stream: bool | None, *_: object
    ) -> dict[str, Any]:
        parts = urlsplit(url)
        host = (parts.scheme, parts.netloc)
        if host not in self._settings:
            self._settings[host] = dict(super().merge_environment_settings(url, {}, None, None, None))
        return self._settings[host] | {"stream": bool(stream)}

    def get_redirect_target(self, resp: requests.Response) -> str | None:
        """Return the target of a redirect, whose body is not read: it may be endless."""
        target = super().get_redirect_target(resp)
        if target is not None:
            resp.close()
            resp._content, resp._content_consumed = b"", True  # type: ignore[attr-defined]  # noqa: SLF001
        return target


class _Retry(Retry):
    """Wait as long as the server asks, up to a limit."""

    def get_retry_after(self, response: BaseHTTPResponse) -> float | None:
        seconds = super().get_retry_after(response)
        return None if seconds is None else min(seconds, _LONGEST_WAIT)


def failure_reason(error: Exception) -> str:
    """Return why a request failed, in a few words."""
    cause = getattr(error.args[0], "reason", None) if error.args else None  # of urllib3's MaxRetryError
    if isinstance(cause, urllib3.exceptions.NewConnectionError):
        return "no connection"
    aborted = cause or (error.args[0] if error.args else None)
    if isinstance(aborted, urllib3.exceptions.ProtocolError):
        reason = aborted.args[-1]
        if isinstance(reason, http.client.HTTPException) and not isinstance(reason, ConnectionError):
            return BROKEN
    if isinstance(error, requests.Timeout) or isinstance(cause, urllib3.exceptions.TimeoutError):
        return "timeout"
    if isinstance(error, requests.exceptions.SSLError):
        return "its certificate was not accepted"
    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return "too many redirects" if isinstance(error, requests.TooManyRedirects) else str(error)


def _program() -> str:
    try:
        return f"rocm-matrix/{version('rocm-matrix')}"
    except PackageNotFoundError:
        return "rocm-matrix"
