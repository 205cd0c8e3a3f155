"""git's own server behind a local web server: "smart HTTP", as on GitHub and GitLab."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Served:
    """A running server and its requests."""

    root: Path
    login: tuple[str, str] | None = None
    url: str = ""
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
    served = Served(root, login)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, served)) as server:
        served.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield served
        server.shutdown()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, served: Served, *given: Any) -> None:
        self.served = served
        super().__init__(*given)

    def do_GET(self) -> None:
        """Call the program through CGI (RFC 3875, git-http-backend(1))."""
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        login = base64.b64encode(":".join(self.served.login or ()).encode()).decode()
        if login and self.headers.get("Authorization") != f"Basic {login}":
            self._send("401 Unauthorized", {"WWW-Authenticate": 'Basic realm="git"'}, b"")
            return
        path, _, query = self.path.partition("?")
        self.served.asked.append(f"{self.command} {path}")
        env = {
            "PATH": os.environ["PATH"],
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_PROJECT_ROOT": str(self.served.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        # git http-backend also fails when it refuses a request; its output contains the refusal.
        done = subprocess.run(["git", "http-backend"], input=body, env=env, check=False, capture_output=True)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._send(headers.pop("Status", "200 OK"), headers, answer)

    do_POST = do_GET  # noqa: N815  the name that BaseHTTPRequestHandler calls

    def _send(self, status: str, headers: dict[str, str], body: bytes) -> None:
        self.send_response(int(status.split(maxsplit=1)[0]))
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""
