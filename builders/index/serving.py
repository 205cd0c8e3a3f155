"""Serving an index over HTTP, for one build or for a whole site.

Any web server can serve the directory as it is. This one does more: it answers each client with the
page it reads best (PEP 691), in a form that also offers the metadata of every wheel (PEP 658), which
it takes out of the wheel; it knows ranges and entity tags, and leads other spellings of a name to the
normalised one. Werkzeug speaks HTTP's rules, waitress its bytes.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from waitress import wasyncore
from waitress.server import create_server
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotAcceptable, NotFound
from werkzeug.utils import redirect, send_file
from werkzeug.wrappers import Request, Response

from builders.index.entries import is_wheel, metadata_of
from builders.index.pages import JSON_PAGE, PAGE, project_html, read_project, with_metadata
from resolver.errors import EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path
    from wsgiref.types import StartResponse, WSGIEnvironment

    from builders.index.store import Index

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
"""Content types a client may ask for; the first is what one gets that does not say."""
_LATEST = {
    "application/vnd.pypi.simple.latest+json": _JSON,
    "application/vnd.pypi.simple.latest+html": _HTML,
}
_FOREVER = 365 * 24 * 3600  # seconds; a wheel never changes under its name
_METADATA = ".metadata"


class _Text:
    """A page as it is sent, with its entity tag."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'


class IndexApplication:
    """The index as a WSGI application; only what lies under ``simple/`` can be had.

    A link may lead to another place in the index; where it leads out, nothing is there.

    Parameters
    ----------
    index
        What is served. It may change meanwhile; every answer is of that moment.
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
                return _moved(request, f"{request.root_path}/simple/")
            case ["simple"] | ["simple", "index.html" | "index.json"]:
                return self._page(request, self._index.simple, parts[1:], slash=len(parts) == 1)
            case ["simple", project, *rest] if len(rest) <= 1:
                name = canonicalize_name(project)
                if name != project:
                    return _moved(
                        request, "/".join([request.root_path, "simple", name, *rest]) + "/" * (not rest)
                    )
                folder = self._index.simple / name
                if not rest or rest[0] in {PAGE, JSON_PAGE}:
                    return self._page(request, folder, rest, slash=not rest)
                return self._file(request, folder, rest[0])
        raise NotFound

    def _holds(self, path: Path) -> bool:
        """Tell whether a path is a file of the index, wherever links lead."""
        if not os.path.isfile(path):  # noqa: PTH113  with the next line a third of the time of a page
            return False
        if not (os.path.islink(path) or os.path.islink(path.parent)):  # noqa: PTH114
            return True
        roots = {self._index.root.resolve(), self._index.simple.resolve()}
        return not roots.isdisjoint(path.resolve().parents)

    def _page(self, request: Request, folder: Path, named: list[str], *, slash: bool) -> Response:
        for path in (folder / PAGE, folder / JSON_PAGE):
            if not self._holds(path) and (path.name == PAGE or os.path.lexists(path)):
                raise NotFound
        if slash and not request.path.endswith("/"):
            return _moved(request, f"{request.root_path}{request.path}/")
        if named:
            kind = _JSON if named[0] == JSON_PAGE else _PLAIN_HTML
        elif "Accept" in request.headers:
            kind = request.accept_mimetypes.best_match(_OFFERED) or ""
            if not kind:
                raise NotAcceptable
        else:
            kind = _PLAIN_HTML
        text = self._text(folder, _OFFERED[kind])
        response = Response(text.data, content_type=_LATEST.get(kind, kind))
        response.headers["Vary"] = "Accept"
        response.headers["Cache-Control"] = "no-cache"  # may be kept, but is asked for again
        response.headers["ETag"] = text.etag
        return response.make_conditional(request)

    def _text(self, folder: Path, name: str) -> _Text:
        """Give a page, made anew only when its file changed.

        Project pages offer the metadata, so they are made from what the index remembers; the file is
        given as it is where that cannot be read.
        """
        source = folder / (JSON_PAGE if folder != self._index.simple else name)
        try:
            said = source.stat()
            key, now = (folder, name), (said.st_mtime_ns, said.st_ino)
            known = self._pages.get(key)
            if known is None or known[0] != now:
                text = _page_text(folder, name, source.read_bytes())
                known = self._pages[key] = (now, _Text(text))
        except FileNotFoundError:
            return _Text((folder / name).read_bytes())
        return known[1]

    def _file(self, request: Request, folder: Path, name: str) -> Response:
        if name.endswith(_METADATA) and is_wheel(name.removesuffix(_METADATA)):
            return self._metadata(request, folder / name.removesuffix(_METADATA))
        path = folder / name
        if not is_wheel(name) or not self._holds(path):
            raise NotFound
        response = send_file(
            path,
            request.environ,
            mimetype="application/octet-stream",
            conditional=True,
            etag=True,
            max_age=_FOREVER,
        )
        response.cache_control.immutable = True
        return response

    def _metadata(self, request: Request, wheel: Path) -> Response:
        if not self._holds(wheel):
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


def _moved(request: Request, path: str) -> Response:
    query = f"?{request.query_string.decode()}" if request.query_string else ""
    return redirect(path + query, 301, Response)


@contextmanager
def serving(index: Index, *, host: str = "127.0.0.1", port: int = 0, threads: int = 8) -> Iterator[str]:
    """Serve an index until the block ends; gives its address, which ends in ``/simple/``.

    Parameters
    ----------
    host, port
        Where to listen; port 0 takes any that is free.
    threads
        How many requests are answered at once.

    Raises
    ------
    EnvironmentLacksError
        The port cannot be had.
    """
    listening = listen(host, port)
    with serving_on(listening, index, threads=threads):
        yield address_of(listening)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Take a port; who connects before anything serves there waits.

    Raises
    ------
    EnvironmentLacksError
        The port cannot be had.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        msg = f"Cannot listen on {host}:{port}: {error}."
        hint = "Another program may use that port; choose one with --port."
        raise EnvironmentLacksError(msg, hint=hint) from None


def address_of(listening: socket.socket) -> str:
    """Give the address of the index on a port."""
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/simple/"


@contextmanager
def serving_on(listening: socket.socket, index: Index, *, threads: int = 8) -> Iterator[None]:
    """Serve an index on a port until the block ends, which gives the port back.

    Parameters
    ----------
    threads
        How many requests are answered at once.
    """
    channels: dict[int, object] = {}
    server = create_server(
        IndexApplication(index), map=channels, sockets=[listening], threads=threads, ident=None
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        # In the server's own thread: its loop ends when nothing is open any more.
        server.trigger.pull_trigger(lambda: wasyncore.close_all(channels))
        thread.join(timeout=10)
        server.task_dispatcher.shutdown()
        listening.close()
