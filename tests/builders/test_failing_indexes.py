"""An index that does not answer, or answers without end, is an error that names it, within a time limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from builders.index_client import IndexClient, client
from builders.network import transport, web
from builders.network.download import Downloads, download
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.indexes import File
from resolver.reporter import Reporter
from tests.support.web_server import web_server

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
PAUSE = 0.02  # seconds
LONGEST = 8.0
"""Seconds of any test on a busy machine; without the limits it would not end."""
Talk = Callable[[socket.socket, threading.Event], None]


def _drip(data: bytes) -> Talk:
    """Send bytes one at a time, and then repeat the last one without end."""

    def talk(connection: socket.socket, stop: threading.Event) -> None:
        for number in range(10**9):
            connection.sendall(data[number : number + 1] or data[-1:])
            if stop.wait(PAUSE):
                return

    return talk


def _flood(head: bytes, data: bytes) -> Talk:
    """Send data without end, as fast as the client reads it."""

    def talk(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(head)
        while not stop.is_set():
            connection.sendall(data)

    return talk


def _once(data: bytes) -> Talk:
    return lambda connection, _: connection.sendall(data)


def _silent(data: bytes) -> Talk:
    """Send data, and then nothing."""

    def talk(connection: socket.socket, stop: threading.Event) -> None:
        connection.sendall(data)
        stop.wait()

    return talk


FAILURES: dict[str, Talk] = {
    "closed": _once(b""),
    "closed in the headers": _once(OK),
    "cut off": _once(OK + b"Content-Length: 1000\r\n\r\n<html>"),
    "cut off in a chunk": _once(OK + b"Transfer-Encoding: chunked\r\n\r\nff\r\n<html>"),
    "no HTTP": _once(b"220 ready\r\n"),
    "silent": _silent(b""),
    "silent in the headers": _silent(OK),
    "silent in the page": _silent(OK + b"Content-Length: 1000\r\n\r\n<html>"),
    "slow headers": _drip(OK + b"X: y"),
    "slow page": _drip(OK + b"Content-Length: 100000\r\n\r\n<html>"),
    "slow chunks": _drip(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 10_000),
    "endless page": _flood(OK + b"\r\n", b"<p>" * 10_000),
    "endless headers": _flood(OK, b"X: y\r\n" * 1000),
    "endless header": _flood(OK, b"y" * 10_000),
    "redirect loop": _once(b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n"),
    "redirect with an endless page": _flood(b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", b"x" * 10_000),
    "redirect to a closed port": _once(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n"
    ),
    "redirect to no URL": _once(b"HTTP/1.1 302 Found\r\nLocation: http://[/\r\nContent-Length: 0\r\n\r\n"),
    "redirect with a port that is no number": _once(
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:99999999/\r\nContent-Length: 0\r\n\r\n"
    ),
    "endless 100 Continue": _flood(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
    "slow 100 Continue": _drip(b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000),
    "negative chunk": _once(OK + b"Transfer-Encoding: chunked\r\n\r\n-5\r\nabcde\r\n0\r\n\r\n"),
    "chunk size that is no number": _once(OK + b"Transfer-Encoding: chunked\r\n\r\n\xb2\r\na\r\n"),
    "huge chunk size": _once(OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 5000 + b"\r\na\r\n"),
    "endless chunk size": _flood(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1" * 10_000),
    "endless trailers": _flood(OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 1000),
    "status that is no number": _once(b"HTTP/1.1 2\xb20 OK\r\nContent-Length: 0\r\n\r\n"),
    "status of 5,000 digits": _once(b"HTTP/1.1 " + b"2" * 5000 + b" OK\r\nContent-Length: 0\r\n\r\n"),
    "retry after 5,000 digits": _once(
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: " + b"9" * 4900 + b"\r\n\r\n"
    ),
    "retry at no date": _once(
        b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nRetry-After: Mon, 99 Foo 99999 99:99:99 GMT\r\n\r\n"
    ),
    "damaged compression": _once(OK + b"Content-Encoding: gzip\r\nContent-Length: 5\r\n\r\nabcde"),
    "error": _once(b"HTTP/1.1 500 Broken\r\nContent-Length: 0\r\n\r\n"),
    "no access": _once(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
}


class Failing:
    """A server that behaves in one way for every connection."""

    def __init__(self, talk: Talk) -> None:
        self.requests = 0
        self._talk = talk
        self._stop = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[connection], daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        self.requests += 1
        with connection:
            try:
                while b"\r\n\r\n" not in connection.recv(1 << 16):
                    pass
                self._talk(connection, self._stop)
            except OSError:
                return

    def close(self) -> None:
        self._stop.set()
        self._socket.close()


@pytest.fixture
def start() -> Iterator[Callable[[Talk], Failing]]:
    servers: list[Failing] = []

    def run(talk: Talk) -> Failing:
        servers.append(Failing(talk))
        return servers[-1]

    yield run
    for server in servers:
        server.close()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten all limits."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(transport, "TIMEOUT", (0.3, 0.3))
    monkeypatch.setattr(web, "_GRACE", 0.3)
    monkeypatch.setattr(transport, "_LONGEST_READ", 0.6)
    monkeypatch.setattr(web._Retry, "sleep", lambda *_: None)
    monkeypatch.setattr(transport, "_LARGEST_PAGE", 10_000_000)


@pytest.mark.parametrize("talk", FAILURES.values(), ids=FAILURES)
def test_failing_index_is_an_error_that_names_it(
    talk: Talk, start: Callable[[Talk], Failing], tmp_path: Path
) -> None:
    server = start(talk)
    source = IndexClient([f"{server.url}/simple"], cache=tmp_path)
    started = time.monotonic()
    for name in ("some-pkg", "other"):
        with pytest.raises(EnvironmentLacksError, match=rf"Cannot fetch the page of {name} .*{server.url}"):
            source.project(name)
    assert time.monotonic() - started < LONGEST


@pytest.mark.parametrize("talk", FAILURES.values(), ids=FAILURES)
@pytest.mark.parametrize(
    ("name", "has_metadata"),
    [
        ("some_pkg-1.0-py3-none-any.whl", True),
        ("some_pkg-1.0-py3-none-any.whl", False),
        pytest.param("some_pkg-1.0.tar.gz", False, marks=pytest.mark.slow),
    ],
)
def test_metadata_on_a_failing_server_is_an_error_that_names_the_file(
    talk: Talk, name: str, start: Callable[[Talk], Failing], tmp_path: Path, *, has_metadata: bool
) -> None:
    server = start(talk)
    file = File(name, f"{server.url}/{name}", index=f"{server.url}/simple", has_metadata=has_metadata)
    started = time.monotonic()
    try:
        said = str(IndexClient([f"{server.url}/simple"], cache=tmp_path).metadata([file]))
    except (EnvironmentLacksError, SourceError) as error:
        said = error.message
    assert name in said or said == "None"  # a file that is too large to be downloaded for its metadata
    assert time.monotonic() - started < LONGEST


def _wheel_of(server: Failing, cache: Path) -> tuple[File, Sequence[Callable[[], object]]]:
    """Return a wheel on a server, and the two ways in which its end is read."""
    source = IndexClient([f"{server.url}/simple"], cache=cache)
    name = "some_pkg-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    file = File(name, f"{server.url}/{name}", index=f"{server.url}/simple")
    return file, (lambda: source.metadata([file]), lambda: source.content(file, None))


@pytest.mark.parametrize(
    "stated",
    [
        "", "bytes", "bytes 0-1/*", "bytes 0-1/\xb2", "bytes a-b/\xb2", "bytes 0-1/" + "9" * 5000,
        "bytes 0-1/3", "bytes 5-6/2", "bytes -1-1/2", "bytes 0-1/-2", "items 0-1/2",
    ],
)  # fmt: skip
def test_broken_range_is_an_error(stated: str, start: Callable[[Talk], Failing], tmp_path: Path) -> None:
    head = b"HTTP/1.1 206 Partial\r\nContent-Length: 2\r\nContent-Range: "
    server = start(_once(head + stated.encode("latin-1") + b"\r\n\r\nPK"))
    file, reads = _wheel_of(server, tmp_path)
    for read in reads:
        with pytest.raises(EnvironmentLacksError, match=f"{file.url}.*the server's answer is broken"):
            read()


@pytest.mark.parametrize("length", ["abc", "\xb2", "-1", "9" * 5000, "1e3"])
def test_broken_length_is_no_internal_error(
    length: str, start: Callable[[Talk], Failing], tmp_path: Path
) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: "
    server = start(_once(head + length.encode("latin-1") + b"\r\n\r\nPK"))
    file, reads = _wheel_of(server, tmp_path)
    for read in reads:
        with pytest.raises((EnvironmentLacksError, SourceError), match=file.name):
            read()


def test_endless_file_ends(start: Callable[[Talk], Failing], tmp_path: Path) -> None:
    server = start(_flood(OK + b"\r\n", b"x" * 100_000))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport.chunks, "__defaults__", (5_000_000,))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path))
        with pytest.raises(EnvironmentLacksError, match=f"{server.url}/f.*more than 5000000 bytes"):
            download(f"{server.url}/f", tmp_path / "f", "", Downloads({}))
    assert not (tmp_path / "f").exists()
    assert server.requests == 1
    assert not list(tmp_path.rglob("downloads/*-f"))


def test_slow_server_is_asked_no_more(start: Callable[[Talk], Failing], tmp_path: Path) -> None:
    server = start(FAILURES["slow page"])
    source = IndexClient([f"{server.url}/simple"], cache=tmp_path)
    for number in range(20):
        with pytest.raises(EnvironmentLacksError, match=r"timeout|too slow"):
            source.project(f"pkg-{number}")
    assert server.requests < 5


def test_slow_server_that_is_fast_enough_is_read(start: Callable[[Talk], Failing], tmp_path: Path) -> None:
    name = "some_pkg-1.0.tar.gz"
    page = f'<a href="{name}">x</a>'.encode()
    server = start(_drip(OK + b"Content-Length: %d\r\n\r\n" % len(page) + page))
    web._GRACE = 60.0  # restored by `_short`
    transport._LONGEST_READ = 60.0
    project = IndexClient([f"{server.url}/simple"], cache=tmp_path).project("some-pkg")
    assert project is not None
    assert [release.version for release in project.releases] == ["1.0"]


@pytest.mark.parametrize("limit", ["_LONGEST_PROJECT", "_LARGEST_PROJECT"])
def test_project_has_a_limit_for_all_its_requests(
    limit: str, start: Callable[[Talk], Failing], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b"no metadata" * 1000

    def talk(connection: socket.socket, _: threading.Event) -> None:
        time.sleep(0.02)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    monkeypatch.setattr(client, limit, {"_LONGEST_PROJECT": 0.2, "_LARGEST_PROJECT": 100_000}[limit])
    server = start(talk)
    source = IndexClient([f"{server.url}/simple"], cache=tmp_path)

    def read(name: str) -> str:
        file = File(name, f"{server.url}/{name}", index=f"{server.url}/simple", has_metadata=True)
        with pytest.raises(SourceError) as caught:
            source.metadata([file])
        return caught.value.message

    messages = [read(f"some_pkg-{number}.0-py3-none-any.whl") for number in range(50)]
    assert "cannot be used" in messages[0]
    assert "No more of some-pkg is read" in messages[-1]
    assert server.requests < 30
    assert "cannot be used" in read("other-1.0-py3-none-any.whl")


class Warnings(Reporter):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warning(self, message: str) -> None:
        self.messages.append(message)


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("position", [0, 1])
def test_missing_directory_of_an_index_is_an_error(tmp_path: Path, position: int, *, offline: bool) -> None:
    there = tmp_path / "there"
    there.mkdir()
    urls = [there.as_uri()]
    urls.insert(position, (tmp_path / "unmounted").as_uri())
    source = IndexClient(urls, cache=tmp_path / "cache", offline=offline)
    for name in ("some-pkg", "other"):
        with pytest.raises(EnvironmentLacksError, match="unmounted is a directory that does not exist"):
            source.project(name)
    (tmp_path / "unmounted").mkdir()
    assert IndexClient(urls, cache=tmp_path / "cache", offline=offline).project("some-pkg") is None


def test_missing_find_links_directory_is_a_warning(tmp_path: Path) -> None:
    reporter = Warnings()
    missing = (tmp_path / "missing").as_uri()
    source = IndexClient([], find_links=[missing], cache=tmp_path / "cache", reporter=reporter)
    assert source.project("some-pkg") is None
    assert source.project("other") is None
    assert reporter.messages == [f"The find-links location {missing} does not exist, and is ignored."]


def test_page_that_is_a_directory_or_unreadable_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "simple" / "some-pkg" / "index.html").mkdir(parents=True)
    with pytest.raises(SourceError, match="some-pkg"):
        IndexClient([(tmp_path / "simple").as_uri()], cache=tmp_path / "cache").project("some-pkg")


def test_name_that_is_too_long_for_a_directory_is_missing(tmp_path: Path) -> None:
    assert IndexClient([tmp_path.as_uri()], cache=tmp_path / "cache").project("a" * 300) is None


@pytest.mark.parametrize("fails", [False, True])
def test_host_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """A name server that many threads ask at once may drop the question, for five seconds each."""
    asked: list[str] = []
    known, wait = socket.getaddrinfo, threading.Barrier(4)

    def look_up(host: str, *rest: Any, **options: Any) -> Any:
        asked.append(host)
        if fails and len(asked) == 1:
            raise socket.gaierror(socket.EAI_AGAIN, "name server does not answer")
        return known("127.0.0.1" if host == "index.example" else host, *rest, **options)

    def fetch() -> None:
        wait.wait()
        session = web.new_session()
        answers.append(session.get(f"http://index.example:{port}/page").text)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(web._Retry, "sleep", lambda *_: None)
    monkeypatch.setattr(web, "_peers", {})
    (tmp_path / "page").write_text("text")
    answers: list[str] = []
    with web_server(tmp_path) as url:
        port = url.rpartition(":")[2]
        threads = [threading.Thread(target=fetch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert answers == ["text"] * 4
    assert asked.count("index.example") == 1 or fails
