"""Fetching an sdist returns the pinned file or an error, whatever happens to network, disk or archive."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pypi_simple
import pytest

from builders.sources.source import fetch_sdist, index_url, unpack_sdist
from builders.storage.files import TEMPORARY_PREFIX, cache_root
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError
from resolver.facts.schema import Sdist
from tests.support.errors import has_id

FILE = "tiny-1.0.tar.gz"
SECRET = "hunter2"


class LocalIndex:
    """A package index on the loopback interface that can fail like real ones."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.gone: set[str] = set()
        """Files that the page lists but the server does not have."""
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        self.page_type = "text/html"
        self.short = False
        """Whether a file ends before its Content-Length."""
        self.go_on = threading.Event()
        """The second half of a file is sent after this is set."""
        self.go_on.set()
        self.half_sent = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.server.server_port}/simple/"

    def add(self, data: bytes, file: str = FILE) -> Sdist:
        """Serve a file and return its pin."""
        self.files[file] = data
        return Sdist(file, hashlib.sha256(data).hexdigest())

    def close(self) -> None:
        self.go_on.set()
        self.server.shutdown()
        self.server.server_close()

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        index = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.asked.append(self.path)
                kind, _, name = self.path.strip("/").rpartition("/")
                if (kind, name) == ("simple", "tiny"):
                    links = [f'<a href="../../files/{quote(file)}">{file}</a>' for file in index.files]
                    self.answer(f"<html>{''.join(links)}</html>".encode(), index.page_type)
                elif kind == "files" and name in index.files and name not in index.gone:
                    self.answer(index.files[name], "application/octet-stream", **index.headers)
                else:
                    self.send_error(404)

            def answer(self, data: bytes, kind: str, **headers: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()
                half = len(data) // 2
                self.wfile.write(data[:half])
                if kind != index.page_type:
                    index.half_sent.set()
                    index.go_on.wait()
                    if index.short:
                        return
                self.wfile.write(data[half:])

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        return Handler


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalIndex]:
    local = LocalIndex()
    monkeypatch.setenv("PIP_INDEX_URL", local.url())
    yield local
    local.close()


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def path_of(pin: Sdist) -> Path:
    return cache_root() / "sources" / pin.sha256[:16] / pin.file


def cached() -> list[Path]:
    """Return all files of the cache except temporary ones."""
    every = (cache_root() / "sources").rglob("*")
    return [path for path in every if path.is_file() and not path.name.startswith(TEMPORARY_PREFIX)]


DATA = bytes(range(256)) * 4000


def test_file_is_downloaded_once(index: LocalIndex) -> None:
    index.add(b"another", "tiny-0.9.tar.gz")
    pin = index.add(DATA)
    path = fetch_sdist("tiny", pin)
    assert path == path_of(pin)
    assert path.read_bytes() == DATA
    assert index.asked == ["/simple/tiny/", f"/files/{FILE}"]
    assert fetch_sdist("tiny", pin) == path
    assert fetch_sdist("tiny", pin, offline=True) == path
    assert len(index.asked) == 2
    assert cached() == [path]


def test_file_with_wrong_hash_is_not_kept(index: LocalIndex) -> None:
    pin = index.add(DATA)
    index.add(b"something else")
    with pytest.raises(MatrixError, check=has_id("hash-mismatch")) as caught:
        fetch_sdist("tiny", pin)
    assert cached() == []
    for text in (FILE, pin.sha256, hashlib.sha256(b"something else").hexdigest(), "127.0.0.1"):
        assert text in caught.value.message
    assert not path_of(pin).exists()

    index.add(DATA)
    assert fetch_sdist("tiny", pin).read_bytes() == DATA


def test_damaged_cached_file_is_removed(index: LocalIndex) -> None:
    pin = index.add(DATA)
    path = fetch_sdist("tiny", pin)
    path.write_bytes(DATA[:-1])
    with pytest.raises(MatrixError, match="from the cache", check=has_id("hash-mismatch")):
        fetch_sdist("tiny", pin, offline=True)
    assert not path.exists()
    assert fetch_sdist("tiny", pin).read_bytes() == DATA


def test_offline_without_cached_file_is_an_error(index: LocalIndex) -> None:
    with pytest.raises(EnvironmentLacksError, match=FILE) as caught:
        fetch_sdist("tiny", index.add(DATA), offline=True)
    assert caught.value.exit_code == 3
    assert "--offline" in caught.value.hint
    assert index.asked == []


def test_unreachable_index_is_an_error(closed_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{closed_port}/simple/")
    with pytest.raises(EnvironmentLacksError, match=f"127.0.0.1:{closed_port}") as caught:
        fetch_sdist("tiny", Sdist(FILE, "0" * 64))
    assert caught.value.exit_code == 3
    assert "network" in caught.value.hint
    assert cached() == []


def test_missing_project_or_file_is_an_error(index: LocalIndex) -> None:
    pin = index.add(DATA)
    with pytest.raises(SourceError, match="no project other"):
        fetch_sdist("other", pin)
    with pytest.raises(SourceError, match=r"does not have tiny-2\.0\.tar\.gz"):
        fetch_sdist("tiny", Sdist("tiny-2.0.tar.gz", pin.sha256))
    assert cached() == []


def test_listed_file_that_is_gone_is_an_error(index: LocalIndex) -> None:
    pin = index.add(DATA)
    index.gone.add(FILE)
    with pytest.raises(SourceError, match=FILE):
        fetch_sdist("tiny", pin)
    assert cached() == []


def test_answer_that_is_not_an_index_page_is_an_error(index: LocalIndex) -> None:
    index.page_type = "application/pdf"
    with pytest.raises(MatrixError, match=r"127\.0\.0\.1"):
        fetch_sdist("tiny", index.add(DATA))


def test_interrupted_download_leaves_nothing(index: LocalIndex) -> None:
    pin = index.add(DATA)
    index.short = True
    with pytest.raises(MatrixError, match=FILE) as caught:
        fetch_sdist("tiny", pin)
    assert "not reachable" not in caught.value.message  # the index was reached, then the connection ended
    assert cached() == []
    index.short = False
    assert fetch_sdist("tiny", pin).read_bytes() == DATA


def test_content_encoding_is_not_decoded(index: LocalIndex) -> None:
    """Apache's ``AddEncoding x-gzip .gz`` adds an encoding to archives; decoding would change the file."""
    pin = index.add(gzip.compress(DATA))
    index.headers = {"Content_Encoding": "gzip"}
    assert fetch_sdist("tiny", pin).read_bytes() == index.files[FILE]


@pytest.mark.parametrize("failure", ["closed port", "project", "file", "gone", "mismatch", "short", "page"])
def test_errors_hide_password(
    index: LocalIndex, closed_port: int, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    pin = index.add(DATA)
    url = index.url(f"user:{SECRET}@")
    if failure == "closed port":
        url = f"http://user:{SECRET}@127.0.0.1:{closed_port}/simple/"
    elif failure == "file":
        pin = Sdist("tiny-2.0.tar.gz", pin.sha256)
    elif failure == "gone":
        index.gone.add(FILE)
    elif failure == "mismatch":
        pin = Sdist(FILE, "0" * 64)
    elif failure == "page":
        index.page_type = "application/pdf"
    index.short = failure == "short"
    monkeypatch.setenv("PIP_INDEX_URL", url)
    with pytest.raises(MatrixError) as caught:
        fetch_sdist("other" if failure == "project" else "tiny", pin)
    assert "127.0.0.1" in caught.value.message
    assert SECRET not in caught.value.message + caught.value.hint


FETCH = """
import sys
from builders.sources.source import fetch_sdist
from resolver.facts.schema import Sdist
fetch_sdist("tiny", Sdist(*sys.argv[1:]))
"""


@pytest.mark.slow
def test_killed_download_leaves_no_file(index: LocalIndex) -> None:
    pin = index.add(DATA)
    index.go_on.clear()
    with subprocess.Popen([sys.executable, "-c", FETCH, pin.file, pin.sha256]) as fetcher:
        assert index.half_sent.wait(60)
        fetcher.kill()
    assert fetcher.returncode == -signal.SIGKILL
    assert cached() == []
    index.go_on.set()
    assert fetch_sdist("tiny", pin).read_bytes() == DATA


@pytest.mark.parametrize(
    "origin", ["the environment", "the user's file", "the file that PIP_CONFIG_FILE names"]
)
def test_index_is_the_one_pip_is_configured_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    url = "http://127.0.0.1:1/mirror/simple"
    config = tmp_path / "pip" / "pip.conf"
    config.parent.mkdir()
    config.write_text(f"[global]\nindex-url = {url}\n")
    for name in ("PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    if origin == "the environment":
        monkeypatch.setenv("PIP_INDEX_URL", f" {url} ")
    elif origin == "the user's file":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    else:
        monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    assert index_url() == url


def test_index_without_configuration_is_public_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    assert index_url() == pypi_simple.PYPI_SIMPLE_ENDPOINT


# Unpacking


Member = tuple[str, bytes | None, str]
"""Path, content, and for special files type and link target (``"2 ../outside"``)."""


@pytest.fixture
def pack(tmp_path: Path) -> Callable[..., Path]:
    def make(*members: Member) -> Path:
        path = tmp_path / FILE
        with tarfile.open(path, "w:gz") as archive:
            for name, content, special in members:
                member = tarfile.TarInfo(name)
                if special:
                    kind, _, member.linkname = special.partition(" ")
                    member.type = kind.encode()
                member.size = len(content or b"")
                archive.addfile(member, io.BytesIO(content or b""))
        return path

    return make


GOOD: Member = ("tiny-1.0/setup.py", b"print(1)\n", "")


def test_sdist_is_unpacked(pack: Callable[..., Path], tmp_path: Path) -> None:
    link: Member = ("tiny-1.0/link.py", None, "2 setup.py")
    top = unpack_sdist(pack(GOOD, ("tiny-1.0/a/b.c", b"int b;", ""), link), tmp_path / "out")
    assert top == tmp_path / "out" / "tiny-1.0"
    files = {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*") if path.is_file()}
    assert files == {"setup.py": b"print(1)\n", "a/b.c": b"int b;", "link.py": b"print(1)\n"}


@pytest.mark.parametrize(
    "hostile",
    [
        [("../escaped", b"x", "")],
        [("tiny-1.0/../../escaped", b"x", "")],
        [("{root}/escaped", b"x", "")],
        [("tiny-1.0/link", None, "2 ../../escaped")],
        [("tiny-1.0/link", None, "2 {root}/escaped")],
        [("tiny-1.0/link", None, "2 ../.."), ("tiny-1.0/link/escaped", b"x", "")],
        [("tiny-1.0/link", None, "1 ../escaped")],
        [("tiny-1.0/null", None, "3")],
        [("tiny-1.0/pipe", None, "6")],
    ],
    ids=[
        "up",
        "up inside",
        "absolute",
        "link up",
        "link absolute",
        "through link",
        "hard link",
        "device",
        "pipe",
    ],
)
def test_member_outside_of_target_is_rejected(
    pack: Callable[..., Path], tmp_path: Path, hostile: list[Member]
) -> None:
    root = str(tmp_path)
    members = [(name.format(root=root), data, what.format(root=root)) for name, data, what in hostile]
    archive = pack(GOOD, *members)
    with pytest.raises(SourceError, match=r"tiny-1\.0\.tar\.gz"):
        unpack_sdist(archive, tmp_path / "out")
    assert {path.name for path in tmp_path.iterdir()} <= {FILE, "out"}
    for path in (tmp_path / "out").rglob("*"):
        assert path.is_file() or path.is_dir()
        assert path.resolve().is_relative_to(tmp_path / "out")


BROKEN: dict[str, tuple[list[Member], str, str]] = {
    "hard link to nothing": ([("tiny-1.0/l", None, "1 tiny-1.0/none")], "tiny-1.0/l", "not in the archive"),
    "hard link to itself": ([("tiny-1.0/l", None, "1 tiny-1.0/l")], "tiny-1.0/l", "not in the archive"),
    "hard link to a directory": (
        [("tiny-1.0/a/b", b"", ""), ("tiny-1.0/l", None, "1 tiny-1.0/a")],
        "tiny-1.0/l",
        "not in the archive",
    ),
    "file over a directory": (
        [("tiny-1.0/a/b", b"", ""), ("tiny-1.0/a", b"", "")],
        "tiny-1.0/a",
        "Is a directory",
    ),
    "link over a directory": (
        [("tiny-1.0/a/b", b"", ""), ("tiny-1.0/a", None, "2 setup.py")],
        "tiny-1.0/a",
        "Is a directory",
    ),
    "directory over a file": (
        [("tiny-1.0/a", b"", ""), ("tiny-1.0/a/b", b"", "")],
        "tiny-1.0/a/b",
        "Not a directory",
    ),
    "file over the top": ([("tiny-1.0", b"", "")], "tiny-1.0", "Is a directory"),
    "long name": ([("tiny-1.0/" + "n" * 300, b"", "")], "tiny-1.0/nnnnn", "File name too long"),
    "long link": ([("tiny-1.0/l", None, "2 " + "n" * 5000)], "tiny-1.0/l", "File name too long"),
    "deep path": ([("tiny-1.0/" + "n/" * 3000 + "n", b"", "")], "tiny-1.0/n/n", "too many directories"),
    "circular link": (
        [("tiny-1.0/l", None, "2 l"), ("tiny-1.0/l/x", b"", "")],
        "tiny-1.0/l/x",
        "File exists",
    ),
    "no name": ([("", b"", "")], "", "Is a directory"),
    "outside": ([("../escaped", b"", "")], "../escaped", "outside of the source"),
    "link to outside": ([("tiny-1.0/l", None, "2 ../../escaped")], "tiny-1.0/l", "outside of the source"),
}


@pytest.mark.parametrize(("members", "member", "reason"), BROKEN.values(), ids=BROKEN)
def test_broken_member_is_named(
    pack: Callable[..., Path], tmp_path: Path, members: list[Member], member: str, reason: str
) -> None:
    with pytest.raises(SourceError) as caught:
        unpack_sdist(pack(GOOD, *members), tmp_path / "out")
    message = caught.value.message
    assert FILE in message
    assert member in message
    assert reason in message
    assert str(tmp_path) not in message
    assert nothing_left(tmp_path / "out")


@pytest.mark.parametrize(
    "headers",
    [
        {"mtime": "1e300"},
        {"mtime": "nan"},
        {"path": "tiny-1.0/a\0b"},
        {"size": "99999999999999999999"},
        {"GNU.sparse.map": "a,b"},
    ],
)
def test_invalid_header_is_an_error(tmp_path: Path, headers: dict[str, str]) -> None:
    archive = tmp_path / FILE
    with tarfile.open(archive, "w:gz") as sink:
        member = tarfile.TarInfo("tiny-1.0/setup.py")
        member.pax_headers = headers
        sink.addfile(member)
    with pytest.raises(SourceError, match=r"Cannot unpack tiny-1\.0\.tar\.gz"):
        unpack_sdist(archive, tmp_path / "out")
    assert nothing_left(tmp_path / "out")


def test_truncated_archive_is_an_error(pack: Callable[..., Path], tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(100_000)
    archive = pack(GOOD, ("tiny-1.0/noise", noise, ""))
    whole = archive.read_bytes()
    for number, length in enumerate([0, 1, 40, 50_000, len(whole) - 200]):
        archive.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"tiny-1\.0\.tar\.gz") as caught:
            unpack_sdist(archive, tmp_path / str(number))
        assert str(archive) in caught.value.hint


def test_damaged_archive_is_an_error(pack: Callable[..., Path], tmp_path: Path) -> None:
    text = "".join(f"line {n} of the text\n" for n in range(50_000)).encode()
    archive = pack(GOOD, ("tiny-1.0/text", text, ""))
    whole = archive.read_bytes()
    survived = 0
    for number in range(20):
        damaged = bytearray(whole)
        at = random.Random(number).randrange(len(whole) // 4, len(whole) // 2)
        damaged[at : at + 4] = b"\xff\xff\xff\xff"
        archive.write_bytes(damaged)
        with suppress(SourceError):
            unpack_sdist(archive, tmp_path / str(number))
            survived += 1
    assert survived < 20


@pytest.mark.parametrize(
    ("members", "count"),
    [
        ([GOOD, ("tiny-2.0/setup.py", b"", "")], "2 top-level"),
        ([("setup.py", b"", "")], "no top directory"),
        ([], "0 top-level"),
    ],
)
def test_sdist_has_exactly_one_top_directory(
    pack: Callable[..., Path], tmp_path: Path, members: list[Member], count: str
) -> None:
    with pytest.raises(SourceError, match=f"not an sdist: it has {count}"):
        unpack_sdist(pack(*members), tmp_path / "out")


def nothing_left(directory: Path) -> bool:
    return not directory.exists() or not list(directory.iterdir())


def test_zip_archive_of_an_old_release_is_unpacked(tmp_path: Path) -> None:
    archive = tmp_path / "tiny-1.0.zip"
    with zipfile.ZipFile(archive, "w") as sink:
        sink.writestr("tiny-1.0/setup.py", "print()")
    assert (unpack_sdist(archive, tmp_path / "out") / "setup.py").read_text() == "print()"


@pytest.mark.parametrize("member", ["../escaped", "/escaped", "a/../../escaped", "a" + "/b" * 300])
def test_zip_archive_with_a_path_outside_is_refused(tmp_path: Path, member: str) -> None:
    archive = tmp_path / "tiny-1.0.zip"
    with zipfile.ZipFile(archive, "w") as sink:
        sink.writestr("tiny-1.0/setup.py", "")
        sink.writestr(member, "")
    with pytest.raises(SourceError, match=r"outside of the source|too many directories"):
        unpack_sdist(archive, tmp_path / "out")
    assert nothing_left(tmp_path / "out")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("content", [b"PK\3\4", b"PK\3\4" + b"x" * 100])
def test_damaged_zip_archive_is_an_error(tmp_path: Path, content: bytes) -> None:
    archive = tmp_path / "tiny-1.0.zip"
    archive.write_bytes(content)
    with pytest.raises(SourceError, match="Cannot unpack"):
        unpack_sdist(archive, tmp_path / "out")


@pytest.mark.parametrize("file", ["../escaped", "a/b.tar.gz", "", ".."])
def test_pin_must_be_a_file_name(index: LocalIndex, file: str) -> None:
    with pytest.raises(SourceError, match="not a file name"):
        fetch_sdist("tiny", Sdist(file, "0" * 64))
    assert index.asked == []


def test_full_disk_is_not_reported_as_damage(pack: Callable[..., Path], tmp_path: Path) -> None:
    archive = pack(GOOD, ("tiny-1.0/large", random.Random(1).randbytes(500_000), ""))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(EnvironmentLacksError, match=r"No space left in .*File too large") as caught:
            unpack_sdist(archive, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ".tmp-" not in caught.value.message
    assert nothing_left(tmp_path / "out")
    assert (unpack_sdist(archive, tmp_path / "out") / "large").stat().st_size == 500_000


def test_download_to_full_disk_leaves_nothing(index: LocalIndex) -> None:
    pin = index.add(DATA)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(EnvironmentLacksError, match="No space left in the cache") as caught:
            fetch_sdist("tiny", pin)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert not [path for path in (cache_root() / "sources").rglob("*") if path.is_file()]


# Mirrors


def test_mirrors_apply_to_index_and_files(index: LocalIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = index.add(DATA)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple/")
    mirrors = {"https://index.invalid/": index.url().removesuffix("simple/")}
    assert fetch_sdist("tiny", pin, mirrors=mirrors).read_bytes() == DATA


def test_mirror_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, gone = "tiny_name-1.0.tar.gz", "tiny_name-2.0.tar.gz"
    pin = Sdist(file, hashlib.sha256(DATA).hexdigest())
    page = tmp_path / "mirror" / "simple" / "tiny-name" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="https://files.invalid/a b/{file}">{file}</a><a href="{gone}">{gone}</a>')
    (tmp_path / "mirror" / "a b").mkdir()
    (tmp_path / "mirror" / "a b" / file).write_bytes(DATA)
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple/")
    root = f"{(tmp_path / 'mirror').as_uri()}/"
    mirrors = {"https://index.invalid/": root, "https://files.invalid/": root}
    assert fetch_sdist("Tiny.Name", pin, mirrors=mirrors).read_bytes() == DATA
    with pytest.raises(SourceError, match="no project other"):
        fetch_sdist("other", Sdist("other-1.tar.gz", "0" * 64), mirrors=mirrors)
    with pytest.raises(SourceError, match="does not exist"):
        fetch_sdist("tiny-name", Sdist(gone, "0" * 64), mirrors=mirrors)
