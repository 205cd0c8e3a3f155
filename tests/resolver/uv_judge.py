"""Resolve a universe with uv, over a local index that serves pages and metadata, but no files."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.resolver.open_universe import GLIBC, Chosen, OpenUniverse
from tests.support.indexes import FakeRelease

_TIMEOUT = 60


class Index(http.server.ThreadingHTTPServer):
    """A server of the indexes of `universe`."""

    daemon_threads = True
    universe: OpenUniverse

    @property
    def url(self) -> str:
        """URL of the index."""
        return f"http://127.0.0.1:{self.server_port}/simple"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Index

    def do_GET(self) -> None:
        kind, _, rest = self.path.strip("/").partition("/")
        body = {"simple": _page, "files": _metadata}[kind](self.server.universe, rest)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/vnd.pypi.simple.v1+json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        """Suppress the log."""


def _page(universe: OpenUniverse, name: str) -> bytes | None:
    """Return the page of a project (PEP 691)."""
    if name not in universe.projects:
        return None
    files = [
        {
            "filename": file.name,
            "url": f"/files/{name}/{version}/{file.name}",
            "hashes": {"sha256": file.sha256},
            "requires-python": file.requires_python or None,
            "core-metadata": True,
            "yanked": False if file.yanked is None else file.yanked,
            "size": file.size,
            **({"upload-time": file.uploaded} if file.uploaded else {}),
        }
        for version, release in universe.projects[name].items()
        for file in release.files(name, version)
    ]
    return json.dumps({"meta": {"api-version": "1.1"}, "name": name, "files": files}).encode()


def _metadata(universe: OpenUniverse, path: str) -> bytes | None:
    """Return the metadata of a file (PEP 658)."""
    name, version, file = path.split("/")
    if not file.endswith(".metadata"):
        return None
    release: FakeRelease = universe.projects[name][version.replace("%21", "!")]
    lines = ["Metadata-Version: 2.3", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Python: {release.requires_python}"] * bool(release.requires_python)
    lines += [f"Provides-Extra: {extra}" for extra in release.extras]
    lines += [f"Requires-Dist: {requirement}" for requirement in release.requires]
    return "\n".join([*lines, ""]).encode()


@contextmanager
def serving() -> Iterator[Index]:
    """Run an index server."""
    with Index(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


def answer_of_uv(index: Index, universe: OpenUniverse, directory: Path) -> Chosen | str:
    """Return the versions that ``uv pip compile`` chooses, or its message if it finds no solution."""
    index.universe = universe
    texts = {"in": universe.requirements, "c": universe.constraints, "o": universe.overrides}
    for name, lines in texts.items():
        (directory / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    command = [
        *("uv", "pip", "compile", "in.txt", "--constraint", "c.txt", "--override", "o.txt"),
        *("--default-index", index.url, "--no-config", "--no-cache", "--no-build", "--quiet"),
        *("--prerelease", "explicit"),
        *("--python", sys.executable, "--no-header", "--no-annotate", "--no-strip-extras"),
        *("--python-version", universe.pythons[0]),
        *("--python-platform", f"x86_64-manylinux_{GLIBC.replace('.', '_')}"),
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_"))}
    environment["NO_PROXY"] = "127.0.0.1"
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    if done.returncode == 1 and "No solution found" in done.stderr:
        return done.stderr
    assert done.returncode == 0, done.stderr
    pins = (line.split("==") for line in done.stdout.splitlines() if line)
    return {name.partition("[")[0]: version for name, version in pins}
