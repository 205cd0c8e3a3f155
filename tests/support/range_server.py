"""An HTTP server of a directory, which supports ranges and counts the bytes of wheels that it sends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote


class RangeServer(ThreadingHTTPServer):
    """Serve a directory on a free port."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.sent = 0
        """Bytes of wheels."""
        self.url = f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: RangeServer

    def do_GET(self) -> None:
        path = self.server.root / unquote(self.path).strip("/")
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return
        size = path.stat().st_size
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        self.send_response(206 if "Range" in self.headers else 200)
        self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("Content-Type", "text/html" if path.suffix == ".html" else "application/zip")
        self.end_headers()
        if path.suffix == ".whl":
            self.server.sent += end - start  # before the client has it, and looks at this number
        with path.open("rb") as file:
            file.seek(start)
            self.wfile.write(file.read(end - start))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving(root: Path) -> Iterator[RangeServer]:
    """Serve a directory while the context is open."""
    with RangeServer(root) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()
