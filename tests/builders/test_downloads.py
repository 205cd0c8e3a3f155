"""Files of a lock: downloaded once, in parallel, continued after an interruption, checked by hash."""

from __future__ import annotations

import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.network.download import Downloads
from builders.sources.fetch import fetch_file, fetch_published
from builders.sources.source import obtain
from builders.storage.files import cache_root, cached_file
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.schema import Sdist
from resolver.indexes import File
from tests.support.errors import has_id
from tests.support.locks import locked_pick
from tests.support.tasks import make_distribution
from tests.support.tiny import tiny_wheel

DATA = bytes(range(256)) * 8000
DIGEST = hashlib.sha256(DATA).hexdigest()
NAME = "big-1.0-py3-none-any.whl"


class FileServer:
    """A server of files on the loopback interface that can break connections."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {NAME: DATA}
        self.cuts: list[int] = []
        """Number of bytes after which each of the next replies ends."""
        self.ranges: list[str] = []
        """The Range header of every request."""
        self.sends_ranges = True
        self.status = 200
        self.together = 0
        self.most_together = 0
        self.slow = threading.Event()
        self.slow.set()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def file(self, name: str = NAME, sha256: str | None = None) -> File:
        digest = hashlib.sha256(self.files.get(name, b"")).hexdigest() if sha256 is None else sha256
        url = f"http://127.0.0.1:{self.server.server_port}/{name}"
        return File(name, url, sha256=digest, index="https://index.example/simple")

    def close(self) -> None:
        self.slow.set()
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        outer, lock = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with lock:
                    outer.together += 1
                    outer.most_together = max(outer.most_together, outer.together)
                try:
                    outer.slow.wait(0.2)
                    self.reply()
                finally:
                    with lock:
                        outer.together -= 1

            def reply(self) -> None:
                asked = self.headers.get("Range", "")
                outer.ranges.append(asked)
                data = outer.files.get(self.path.strip("/"))
                if data is None or outer.status != 200:
                    self.send_error(404 if data is None else outer.status)
                    return
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and outer.sends_ranges else 0
                if start >= len(data):
                    self.send_error(416)
                    return
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                cut = outer.cuts.pop(0) if outer.cuts else len(data)
                self.wfile.write(data[start : start + cut])

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = FileServer()
    yield running
    running.close()


def fetch(file: File, *, offline: bool = False) -> bool:
    return fetch_file(file, Downloads({}), offline=offline)


def parts() -> list[Path]:
    return list((cache_root() / "downloads").iterdir())


def test_file_is_downloaded_once_and_read_only(server: FileServer) -> None:
    file = server.file()
    assert fetch(file)
    assert cached_file(file).read_bytes() == DATA
    assert cached_file(file).stat().st_mode & 0o222 == 0
    assert not fetch(file)
    assert not fetch(file, offline=True)
    assert len(server.ranges) == 1
    assert parts() == []


def test_broken_connection_is_continued(server: FileServer) -> None:
    server.cuts = [100_000, 200_000]
    assert fetch(server.file())
    assert cached_file(server.file()).read_bytes() == DATA
    assert server.ranges == ["", "bytes=100000-", "bytes=300000-"]


def test_later_run_continues_download(server: FileServer) -> None:
    server.cuts = [100_000, 0]
    with pytest.raises(EnvironmentLacksError, match="interrupted"):
        fetch(server.file())
    assert not cached_file(server.file()).exists()
    assert [path.stat().st_size for path in parts()] == [100_000]
    assert fetch(server.file())
    assert cached_file(server.file()).read_bytes() == DATA
    assert server.ranges[-1] == "bytes=100000-"
    assert parts() == []


def test_server_without_ranges_sends_whole_file(server: FileServer) -> None:
    server.cuts, server.sends_ranges = [100_000], False
    assert fetch(server.file())
    assert cached_file(server.file()).read_bytes() == DATA


@pytest.mark.parametrize("old", [b"another file", b"x" * len(DATA)])
def test_partial_download_of_another_file_is_replaced(server: FileServer, old: bytes) -> None:
    server.cuts = [100_000, 0]
    with pytest.raises(EnvironmentLacksError):
        fetch(server.file())
    (part,) = parts()
    part.write_bytes(old)
    assert fetch(server.file())
    assert cached_file(server.file()).read_bytes() == DATA


def test_wrong_hash_is_an_error_and_nothing_is_kept(server: FileServer) -> None:
    file = server.file(sha256="0" * 64)
    with pytest.raises(MatrixError, match="does not have the pinned hash", check=has_id("hash-mismatch")):
        fetch(file)
    assert not cached_file(file).exists()
    assert list(cached_file(file).parent.glob("*")) == parts() == []


def test_damaged_cached_file_is_found(server: FileServer) -> None:
    file = server.file()
    fetch(file)
    cached_file(file).chmod(0o644)
    cached_file(file).write_bytes(b"damaged")
    with pytest.raises(MatrixError, check=has_id("hash-mismatch")):
        fetch(file, offline=True)
    assert fetch(file)
    assert cached_file(file).read_bytes() == DATA


def test_file_without_hash_is_never_continued(server: FileServer) -> None:
    server.cuts = [100_000, 0]
    file = server.file(sha256="")
    with pytest.raises(EnvironmentLacksError):
        fetch(file)
    assert fetch(file)
    assert server.ranges[-1] == ""
    result = fetch_published([locked_pick("big", "1.0", file)], mirrors={}, offline=True)
    assert [item.state for item in result.sources] == ["cached"]
    warning = f"No index publishes a SHA-256 of {NAME}, so no hash was compared."
    assert result.warnings == [f"{warning} Use an index that publishes hashes."]


@pytest.mark.parametrize(
    ("status", "error"), [(404, SourceError), (403, EnvironmentLacksError), (503, EnvironmentLacksError)]
)
def test_error_of_server_is_reported(
    server: FileServer, status: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib3.util.retry.Retry.get_backoff_time", lambda _: 0)
    server.status = status
    with pytest.raises(error, match=f"replied {status}"):
        fetch(server.file())
    assert parts() == []


def picks_of(server: FileServer, names: Sequence[str]) -> list[File]:
    for name in names:
        server.files[name] = name.encode()
    return [server.file(name) for name in names]


@pytest.mark.slow
def test_files_are_fetched_together_and_failures_do_not_stop_others(server: FileServer) -> None:
    names = [f"p{number}-1.0-py3-none-any.whl" for number in range(40)]
    files = picks_of(server, names)
    del server.files[names[3]]
    server.slow.clear()
    picks = [locked_pick(f"p{number}", "1.0", file) for number, file in enumerate(files)]
    result = fetch_published(picks, mirrors={})
    assert [item.name for item in result.sources] == [pick.name for pick in picks if pick.name != "p3"]
    assert [item.name for item in result.missing] == ["p3"]
    assert "replied 404" in result.missing[0].message
    assert 2 <= server.most_together <= 16


def test_unreachable_host_is_missing_network(server: FileServer) -> None:
    server.close()
    files = [server.file() for _ in range(3)]
    picks = [locked_pick(f"p{number}", "1.0", file) for number, file in enumerate(files)]
    result = fetch_published(picks, mirrors={})
    assert [item.exit_code for item in result.missing] == [3, 3, 3]
    assert "no connection" in result.missing[0].message


def test_mirror_replaces_url_of_file(server: FileServer, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA)
    file = File(NAME, f"https://files.invalid/a/{NAME}", sha256=DIGEST)
    result = fetch_published(
        [locked_pick("big", "1.0", file)], mirrors={"https://files.invalid/a": tmp_path.as_uri()}
    )
    assert [item.state for item in result.sources] == ["fetched"]
    assert server.ranges == []


def test_stopped_download_is_continued(server: FileServer) -> None:
    downloads = Downloads({})
    downloads.stop.set()
    with pytest.raises(CancelledError):
        fetch_file(server.file(), downloads)
    assert fetch(server.file())


def test_sdist_of_lock_needs_no_index_page(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    file = server.file()
    pick = make_distribution("big", sdist=Sdist(NAME, DIGEST), files=(file,))
    assert obtain(pick).path.read_bytes() == DATA


def test_two_processes_download_one_file(server: FileServer) -> None:
    server.slow.clear()
    results: list[bool] = []
    threads = [threading.Thread(target=lambda: results.append(fetch(server.file()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(results) == 4
    assert len(server.ranges) == 1
    assert cached_file(server.file()).read_bytes() == DATA
    assert parts() == []


METADATA = """\
Metadata-Version: 2.1
Name: tiny
Version: 1.0
Requires-Python: >=3.9
Requires-Dist: sympy>=1
"""
OTHER_METADATA = {
    "requirement": ("sympy", "evil", ["evil>=1 in the metadata file", "sympy>=1 in the wheel"]),
    "no requirement": ("Requires-Dist: sympy>=1\n", "", ["nothing in the metadata file", "sympy>=1"]),
    "one more": ("sympy>=1", "sympy>=1\nRequires-Dist: evil", ["evil in the metadata file, nothing in the"]),
    "marker": ("sympy>=1", "sympy>=1; extra == 'x'", ["extra", "sympy>=1 in the wheel"]),
    "Python": (">=3.9", ">=3.8", ["Requires-Python: >=3.8 in the metadata file, >=3.9 in the wheel"]),
    "version": ("Version: 1.0", "Version: 2.0", ["its metadata file belongs to tiny 2.0"]),
    "name": ("tiny", "other", ["its metadata file belongs to other 1.0"]),
    "nothing": (METADATA, "Summary: x\n", ["its metadata file has no name"]),
}
"""Changes of the metadata, and parts of the error."""


def _served_wheel(server: FileServer, folder: Path, served: str | None, *, hashed: bool) -> File:
    wheel = tiny_wheel(folder, "tiny", "1.0")
    with zipfile.ZipFile(wheel) as old:
        members = {name: old.read(name) for name in old.namelist()}
    members["tiny-1.0.dist-info/METADATA"] = METADATA.encode()
    with zipfile.ZipFile(wheel, "w") as new:
        for name, content in members.items():
            new.writestr(name, content)
    server.files[wheel.name] = wheel.read_bytes()
    if served is not None:
        server.files[f"{wheel.name}.metadata"] = served.encode()
    digest = hashlib.sha256((served or "").encode()).hexdigest() if hashed else ""
    return replace(server.file(wheel.name), has_metadata=True, metadata_sha256=digest)


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize(("old", "new", "parts"), OTHER_METADATA.values(), ids=OTHER_METADATA)
def test_wheel_with_other_metadata_than_its_index_serves_is_an_error(
    server: FileServer, *, old: str, new: str, parts: list[str], hashed: bool, tmp_path: Path
) -> None:
    file = _served_wheel(server, tmp_path, METADATA.replace(old, new), hashed=hashed)
    with pytest.raises(SourceError) as caught:
        fetch_file(file, Downloads({}))
    for part in (f"{file.name} and {file.url}.metadata differ", *parts):
        assert part in caught.value.message
    assert not cached_file(file).exists()


@pytest.mark.parametrize("hashed", [False, True])
@pytest.mark.parametrize(
    "served",
    [METADATA, METADATA.replace("sympy>=1", "Sympy >= 1").replace("-Version: 2.1", "-Version: 2.2"), None],
    ids=["same", "another spelling", "announced, but missing"],
)  # fmt: skip
def test_wheel_with_the_metadata_that_its_index_serves_is_used(
    server: FileServer, served: str | None, hashed: bool, tmp_path: Path
) -> None:
    file = _served_wheel(server, tmp_path, served, hashed=hashed)
    assert fetch_file(file, Downloads({}))
    assert cached_file(file).exists()
    asked = len(server.ranges)
    assert not fetch_file(file, Downloads({}))
    assert len(server.ranges) == asked
    assert asked == (1 if served == METADATA and hashed else 2)
