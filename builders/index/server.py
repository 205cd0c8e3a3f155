"""An HTTP server for an index, for one build or for a whole site.

Any web server can serve the directory as it is. This one also negotiates the format of a page (PEP 691),
serves the metadata of every wheel (PEP 658), answers range and conditional requests, and redirects other
spellings of a name to the normalized one. Werkzeug implements HTTP's semantics, waitress the protocol.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from waitress import wasyncore
from waitress.server import create_server
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotAcceptable, NotFound
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response

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
_LATEST = {
    "application/vnd.pypi.simple.latest+json": _JSON,
    "application/vnd.pypi.simple.latest+html": _HTML,
}
_ONE_YEAR = 365 * 24 * 3600  # seconds; a published wheel never changes
_METADATA = ".metadata"


class _Text:
    """The bytes of a page with their entity tag."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'


class IndexApplication:
    """An index as a WSGI application; it serves only files under ``simple/``.

    Symbolic links are followed within the index; a link that leaves it is not found. The index may change
    while it is served; every response shows its current state.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._pages: dict[tuple[Path, str], tuple[tuple[int, int], _Text]] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        request = Request(environ)
        try:
            response = self._answer(request)
        except HTTPException as error:
            response = Response(f"{error.code} {error.name}\n", error.code, content_type="text/plain")
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.method not in {"GET", "HEAD"}:
            raise MethodNotAllowed(["GET", "HEAD"])
        parts = request.path.strip("/").split("/")
        match parts:
            case [""]:
                return _redirect(request, f"{request.root_path}/simple/")
            case ["simple"] | ["simple", "index.html" | "index.json"]:
                return self._page(request, self._index.simple, parts[1:], slash=len(parts) == 1)
            case ["simple", project, *rest] if len(rest) <= 1:
                name = canonicalize_name(project)
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
        text = self._text(folder, _OFFERED[kind])
        response = Response(text.data, content_type=_LATEST.get(kind, kind))
        response.headers["Vary"] = "Accept"
        response.headers["Cache-Control"] = "no-cache"  # cache, but revalidate
        response.headers["ETag"] = text.etag
        return response.make_conditional(request)

    def _text(self, folder: Path, name: str) -> _Text:
        """Return a page, cached until its file changes.

        Project pages announce metadata files, so they are rebuilt from the JSON page; if that cannot be
        parsed, the file is served as it is.
        """
        source = folder / (JSON_PAGE if folder != self._index.simple else name)
        try:
            stat = source.stat()
            key, state = (folder, name), (stat.st_mtime_ns, stat.st_ino)
            cached = self._pages.get(key)
            if cached is None or cached[0] != state:
                text = _page_text(folder, name, source.read_bytes())
                cached = self._pages[key] = (state, _Text(text))
        except FileNotFoundError:
            return _Text((folder / name).read_bytes())
        return cached[1]

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


def _page_text(folder: Path, name: str, text: bytes) -> bytes:
    page = read_project(text)
    if page is None:
        return text if name == JSON_PAGE else (folder / name).read_bytes()
    if name == JSON_PAGE:
        return with_metadata(page)
    return project_html(page.name, page.files, page.project_status, metadata=True)


def _redirect(request: Request, path: str) -> Response:
    query = f"?{request.query_string.decode()}" if request.query_string else ""
    return redirect(path + query, 301, Response)


@contextmanager
def serving(index: Index, *, host: str = "127.0.0.1", port: int = 0, threads: int = 8) -> Iterator[str]:
    """Serve an index until the block ends; yield its URL, which ends in ``/simple/``.

    Parameters
    ----------
    port
        0 uses a free port.
    threads
        Number of concurrent requests.

    Raises
    ------
    EnvironmentLacksError
        The port is not available.
    """
    listening = listen(host, port)
    with serving_on(listening, index, threads=threads):
        yield address_of(listening)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Listen on a port; connections wait until `serving_on` serves them.

    Raises
    ------
    EnvironmentLacksError
        The port is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        msg = f"Cannot listen on {host}:{port}: {error}."
        hint = "Another program may use that port; choose a different one with --port."
        raise EnvironmentLacksError(msg, hint=hint) from None


def address_of(listening: socket.socket) -> str:
    """Return the URL of the index on a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/simple/"


@contextmanager
def serving_on(listening: socket.socket, index: Index, *, threads: int = 8) -> Iterator[None]:
    """Serve an index on a listening socket until the block ends, then close the socket."""
    channels: dict[int, object] = {}
    server = create_server(
        IndexApplication(index), map=channels, sockets=[listening], threads=threads, ident=None
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Requests in progress use the trigger, so they end first. The server's thread closes all channels,
        # the trigger included; the lock makes it wait until the trigger is pulled. Then its loop ends.
        server.task_dispatcher.shutdown()
        with server.trigger.lock:
            server.trigger.thunks.append(lambda: wasyncore.close_all(channels))
            server.trigger.pull_trigger()
        thread.join(timeout=10)
        listening.close()
