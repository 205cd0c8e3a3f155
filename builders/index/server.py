"""An HTTP server for an index, for one build or for a whole site.

Any web server can serve the directory. This server also negotiates the format of a page (PEP 691),
serves the metadata of every wheel (PEP 658), answers range and conditional requests, and redirects other
spellings of a name to the normalized name. Werkzeug implements HTTP's semantics, waitress the protocol.

No client can lock others out. Only complete requests use a thread, and no thread waits for a client. Idle and
slow connections end after a time limit, or earlier if there are too many, so that a new connection is always
accepted. The memory in use does not grow with the number of requests or the size of files.
"""

from __future__ import annotations

import hashlib
import logging
import os
import resource
import socket
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import InvalidName, canonicalize_name
from waitress import wasyncore
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser, ParsingError
from waitress.server import TcpWSGIServer, create_server
from werkzeug.exceptions import BadRequest, HTTPException, MethodNotAllowed, NotAcceptable, NotFound
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response
from werkzeug.wsgi import wrap_file

from builders.index.pages import (
    JSON_PAGE,
    PAGE,
    is_wheel,
    metadata_of,
    project_html,
    read_project,
    with_metadata,
)
from builders.index.repository import Index
from resolver.errors import EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_JSON = "application/vnd.pypi.simple.v1+json"
_HTML = "application/vnd.pypi.simple.v1+html"
_PLAIN_HTML = "text/html"
_OFFERED = {
    _PLAIN_HTML: PAGE,
    _HTML: PAGE,
    _JSON: JSON_PAGE,
    "application/vnd.pypi.simple.latest+json": JSON_PAGE,
    "application/vnd.pypi.simple.latest+html": PAGE,
}
"""Content types a client may accept; the first is the default."""
_LATEST = {"application/vnd.pypi.simple.latest+json": _JSON, "application/vnd.pypi.simple.latest+html": _HTML}
_ONE_YEAR = 365 * 24 * 3600  # seconds; a published wheel never changes
_METADATA = ".metadata"
_CACHED_PAGES = 32 << 20  # bytes
_THREADS = 8
"""Number of concurrent requests."""
_MOST_CONNECTIONS = 1000
"""Limit on all connections; one client may have half as many."""
_ACCEPTED_AT_ONCE = 50
_RESERVED_FILES = 64
"""Open files besides connections and the files that they send."""
_HEADER_LIMIT = 16 << 10  # bytes
_REQUEST_TIMEOUT = 20.0
"""Seconds in which a client must send a request, from its first byte."""
_IDLE_TIMEOUT = 60.0
"""Seconds in which a client must send another request, or accept more of a response."""
_WAITING = 1.0
"""Seconds after which a connection counts as waiting for its client."""
_TICK = 1.0
"""Seconds between two checks of the time limits."""


class _Pages:
    """The most recently used pages, each with the state of its file: text and entity tag."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pages: OrderedDict[tuple[Path, str], tuple[tuple[int, int], bytes, str]] = OrderedDict()
        self._size = 0

    def get(self, key: tuple[Path, str], state: tuple[int, int]) -> tuple[bytes, str] | None:
        """Return a page if its file has this state."""
        with self._lock:
            cached = self._pages.get(key)
            if cached is None or cached[0] != state:
                return None
            self._pages.move_to_end(key)
            return cached[1:]

    def add(self, key: tuple[Path, str], state: tuple[int, int], text: bytes, etag: str) -> None:
        """Add or replace a page."""
        with self._lock:
            replaced = self._pages.pop(key, None)
            self._pages[key] = state, text, etag
            self._size += len(text) - (len(replaced[1]) if replaced else 0)
            while self._size > _CACHED_PAGES:
                _, (_, oldest, _) = self._pages.popitem(last=False)
                self._size -= len(oldest)


class IndexApplication:
    """An index as a WSGI application; it serves the landing page and files under ``simple/`` as they are now.

    Symbolic links are followed within the index; the reply for a link to a file outside is 404.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pages = _Pages()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except OSError:  # unreadable, or too many open files
            response = Response("503 Service Unavailable\n", 503, content_type="text/plain")
        except HTTPException as error:
            response = Response(f"{error.code} {error.name}\n", error.code, content_type="text/plain")
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            raise MethodNotAllowed(["GET", "HEAD"])
        parts = _parts(request.environ["PATH_INFO"])
        match parts:
            case [""]:
                if landing := self._index.landing():
                    return Response(landing, content_type=_PLAIN_HTML, headers={"Cache-Control": "no-cache"})
                return _redirect(request, f"{request.root_path}/simple/")
            case ["simple"] | ["simple", "index.html" | "index.json"]:
                return self._page(request, self._index.simple, parts[1:], slash=len(parts) == 1)
            case ["simple", project, *rest] if len(rest) <= 1:
                try:
                    name = canonicalize_name(project, validate=True)
                except InvalidName:
                    raise BadRequest from None
                if name != project:
                    return _redirect(
                        request, "/".join([request.root_path, "simple", name, *rest]) + "/" * (not rest)
                    )
                folder = self._index.simple / name
                if not rest or rest[0] in {PAGE, JSON_PAGE}:
                    return self._page(request, folder, rest, slash=not rest)
                return self._file(request, folder, rest[0])
        raise NotFound

    def _contains(self, path: Path) -> bool:
        """Return whether a path is a file in the index, after following links."""
        if not os.path.isfile(path):  # noqa: PTH113  pathlib would take a third of the time of a page
            return False
        if not (os.path.islink(path) or os.path.islink(path.parent)):  # noqa: PTH114
            return True
        roots = {self._index.root.resolve(), self._index.simple.resolve()}
        return not roots.isdisjoint(path.resolve().parents)

    def _page(self, request: Request, folder: Path, page: list[str], *, slash: bool) -> Response:
        for path in (folder / PAGE, folder / JSON_PAGE):
            if not self._contains(path) and (path.name == PAGE or os.path.lexists(path)):
                raise NotFound
        if slash and not request.path.endswith("/"):
            return _redirect(request, f"{request.root_path}{request.path}/")
        if page:
            kind = _JSON if page[0] == JSON_PAGE else _PLAIN_HTML
        elif "Accept" in request.headers:
            kind = request.accept_mimetypes.best_match(_OFFERED) or ""
            if not kind:
                raise NotAcceptable
        else:
            kind = _PLAIN_HTML
        text, etag = self._text(folder, _OFFERED[kind])
        response = Response(text, content_type=_LATEST.get(kind, kind))
        response.headers["Vary"] = "Accept"
        response.headers["Cache-Control"] = "no-cache"  # cache, but revalidate
        response.headers["ETag"] = etag
        return response.make_conditional(request)

    def _text(self, folder: Path, name: str) -> tuple[bytes, str]:
        """Return a page and its entity tag, cached until its file changes.

        Project pages announce metadata files, so they are rebuilt from the JSON page, if that can be parsed.
        """
        source = folder / (JSON_PAGE if folder != self._index.simple else name)
        try:
            stat = source.stat()
            key, state = (folder, name), (stat.st_mtime_ns, stat.st_ino)
            if cached := self._pages.get(key, state):
                return cached
            text = _page_text(folder, name, source.read_bytes())
            self._pages.add(key, state, text, etag := _etag(text))
        except FileNotFoundError:
            text = (folder / name).read_bytes()
            return text, _etag(text)
        return text, etag

    def _file(self, request: Request, folder: Path, name: str) -> Response:
        if name.endswith(_METADATA) and is_wheel(name.removesuffix(_METADATA)):
            return self._metadata(request, folder / name.removesuffix(_METADATA))
        path = folder / name
        if not is_wheel(name) or not self._contains(path):
            raise NotFound
        response = send_file(
            path,
            request.environ,
            mimetype="application/octet-stream",
            conditional=True,
            etag=True,
            max_age=_ONE_YEAR,
        )
        response.cache_control.immutable = True
        if response.status_code == HTTPStatus.PARTIAL_CONTENT:
            _send_from(response, path, request.environ)
        return response

    def _metadata(self, request: Request, wheel: Path) -> Response:
        if not self._contains(wheel):
            raise NotFound
        try:
            text = metadata_of(wheel)
        except (OSError, MatrixError):
            raise NotFound from None
        response = Response(text, content_type="application/octet-stream")
        response.set_etag(hashlib.sha256(text).hexdigest()[:32])
        return response.make_conditional(request)


def _parts(path: str) -> list[str]:
    """Return the parts of a path, which WSGI decodes as Latin-1; raise `BadRequest` if no index has it."""
    try:
        text = path.encode("latin-1").decode()
    except UnicodeDecodeError:
        raise BadRequest from None
    parts = text.strip("/").split("/")
    if not text.startswith("/") or "\\" in text or not text.isprintable() or {".", ".."} & {*parts}:
        raise BadRequest
    return parts


def _send_from(response: Response, path: Path, environ: WSGIEnvironment) -> None:
    """Send a range of a file as a file, so that no thread waits until the client has read it."""
    response.response.close()  # type: ignore[union-attr]
    file = path.open("rb")
    file.seek(response.content_range.start or 0)
    response.response = wrap_file(environ, file)


def _page_text(folder: Path, name: str, text: bytes) -> bytes:
    page = read_project(text)
    if page is None:
        return text if name == JSON_PAGE else (folder / name).read_bytes()
    if name == JSON_PAGE:
        return with_metadata(page)
    return project_html(page.name, page.files, page.project_status, metadata=True)


def _etag(text: bytes) -> str:
    return f'"{hashlib.sha256(text).hexdigest()[:32]}"'


def _redirect(request: Request, path: str) -> Response:
    query = f"?{request.query_string.decode()}" if request.query_string else ""
    return redirect(path + query, 301, Response)


@contextmanager
def serving(index: Index, *, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve an index until the block ends; yield its URL with ``/simple/``. Port 0 is any free port."""
    listening = listen(host, port)
    with serving_on(listening, index):
        yield address_of(listening)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Listen on a port; connections wait until `serving_on` serves them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        msg = f"Cannot listen on {host}:{port}: {error}."
        hint = "Another program may use that port; choose a different port with --port."
        raise EnvironmentLacksError(msg, hint=hint) from None


def address_of(listening: socket.socket) -> str:
    """Return the URL of the index on a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/simple/"


@contextmanager
def serving_on(listening: socket.socket, index: Index) -> Iterator[None]:
    """Serve an index on a listening socket until the block ends, then close the socket."""
    channels: dict[int, object] = {}
    logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a long queue is not a problem
    server = create_server(
        IndexApplication(index),
        map=channels,
        sockets=[listening],
        threads=_THREADS,
        ident=None,
        connection_limit=2 * _MOST_CONNECTIONS,  # `_make_room` has a lower limit, and never stops accepting
        max_request_header_size=_HEADER_LIMIT,
        max_request_body_size=1,  # no body
        log_socket_errors=False,
    )
    server.channel_class = _Connection
    thread = threading.Thread(target=_run, args=(server, channels), daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Requests in progress use the trigger, so they end first. The server's thread closes all channels,
        # the trigger included; the lock makes it wait until the trigger is pulled. Then its loop ends.
        server.task_dispatcher.shutdown()
        with server.trigger.lock:
            server.trigger.thunks.append(lambda: _close(server, channels))
            server.trigger.pull_trigger()
        thread.join(timeout=10)
        listening.close()


def raise_file_limit() -> None:
    """Allow this process to open as many files as the connections may need, up to the user's hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * _MOST_CONNECTIONS + _RESERVED_FILES
    if soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _run(server: TcpWSGIServer, channels: dict[int, object]) -> None:
    """Serve until all channels are closed.

    Connections are closed between two polls only: during a poll, a new one could get the number of the closed
    one, and then its events. waitress accepts one connection in each poll: too few when many others are busy.
    """
    active = server.active_channels
    most = min(_MOST_CONNECTIONS, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _RESERVED_FILES) // 2)
    checked = 0.0
    while channels:
        now = time.time()
        if now >= checked + _TICK:
            checked = now
            for connection in [each for each in active.values() if each.is_overdue(now)]:
                connection.handle_close()
        _make_room(active, most, now)
        count = len(active)
        wasyncore.loop(timeout=_TICK, use_poll=True, map=channels, count=1)
        for _ in range(_ACCEPTED_AT_ONCE):
            if len(active) <= count:
                break
            _make_room(active, most, time.time())
            count = len(active)
            server.handle_accept()


def _close(server: TcpWSGIServer, channels: dict[int, object]) -> None:
    """Close all channels, and the files that connections send."""
    for connection in list(server.active_channels.values()):
        connection.handle_close()
    wasyncore.close_all(channels)


class _RequestParser(HTTPRequestParser):  # type: ignore[misc]
    """A parser that reads one request at a time.

    A client that sends more requests before it has read the response gets only that response, as HTTP allows.
    Otherwise it could use a thread and open files without limit. No installer sends requests this way.
    """

    def received(self, data: bytes) -> int:
        """Parse more of a request; return how many bytes were used. What follows a request is dropped."""
        consumed = int(super().received(data))
        if self.completed and not self.empty and consumed < len(data):
            self.headers["CONNECTION"] = "close"
            return len(data)
        return consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the first line and the headers; waitress lets the `ValueError` of some invalid URLs pass."""
        try:
            super().parse_header(header_plus)
        except ValueError:
            msg = "Invalid URL"
            raise ParsingError(msg) from None


class _Connection(HTTPChannel):  # type: ignore[misc]
    """A connection that measures how long it has waited for its client."""

    parser_class = _RequestParser
    _request_began = 0.0

    def received(self, data: bytes) -> bool:
        """Receive a part of a request, or a whole request."""
        if self.request is None:
            self._request_began = time.time()
        return bool(super().received(data))

    def waits(self, now: float) -> float:
        """Return how many seconds the connection has waited for its client."""
        if self.requests:
            return 0.0
        return now - (self._request_began if self.request is not None else self.last_activity)

    def is_overdue(self, now: float) -> bool:
        """Return whether the client exceeded a time limit."""
        return self.waits(now) > (_REQUEST_TIMEOUT if self.request is not None else _IDLE_TIMEOUT)


def _make_room(active: dict[int, _Connection], most: int, now: float) -> None:
    """Close a connection if the next new one would exceed a limit: `most` in all, half of them for a client.

    It is the one that has waited longest, among those of the client with the most connections.
    """
    half = most // 2
    if len(active) < half:
        return
    clients = Counter(connection.addr[0] for connection in active.values())
    busiest, count = clients.most_common(1)[0]
    if count < half and len(active) < most:
        return

    def uselessness(connection: _Connection) -> tuple[bool, int, float]:
        waits = connection.waits(now)
        return waits > _WAITING, clients[connection.addr[0]], waits

    all_or_its = (each for each in active.values() if count < half or each.addr[0] == busiest)
    max(all_or_its, key=uselessness).handle_close()
