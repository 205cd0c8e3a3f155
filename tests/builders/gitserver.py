"""git's own server behind a local web server: "smart HTTP", as on GitHub and GitLab."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.wrappers import Request, Response


@dataclass
class Served:
    """A running server and its requests."""

    url: str = ""
    login: tuple[str, str] | None = None
    asked: list[str] = field(default_factory=list)
    """Method and path of each request with the right login."""


@contextmanager
def git_server(root: Path, *, login: tuple[str, str] | None = None) -> Iterator[Served]:
    """Serve the repositories below a directory by ``git http-backend``.

    Parameters
    ----------
    login
        User and password that every request must have.
    """
    served = Served(login=login)

    @Request.application
    def application(request: Request) -> Response:
        authorization = request.authorization
        if login and (
            authorization is None or (authorization.get("username"), authorization.get("password")) != login
        ):
            return Response(status=401, headers={"WWW-Authenticate": 'Basic realm="git"'})
        served.asked.append(f"{request.method} {request.path}")
        return _answer(root, request)

    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Quiet)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(root: Path, request: Request) -> Response:
    """Call the program through CGI (RFC 3875, git-http-backend(1))."""
    env = {
        "PATH": os.environ["PATH"],
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",
        "GIT_CONFIG_VALUE_0": "*",
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "GIT_PROTOCOL": request.headers.get("Git-Protocol", ""),
        "REQUEST_METHOD": request.method,
        "PATH_INFO": request.path,
        "QUERY_STRING": request.query_string.decode(),
        "CONTENT_TYPE": request.content_type or "",
        "HTTP_CONTENT_ENCODING": request.headers.get("Content-Encoding", ""),
    }
    # git http-backend also fails when it refuses a request; its output contains the refusal.
    done = subprocess.run(
        ["git", "http-backend"], input=request.get_data(), env=env, check=False, capture_output=True
    )
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
    return Response(body, status=headers.pop("Status", "200 OK"), headers=headers)


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: object) -> None:
        """Print nothing."""
