"""The server: the right page for each client, ranges, and nothing but the index."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from pypi_simple import PyPISimple
from waitress.trigger import trigger

from builders.index import Index, server
from builders.index.maintenance import yank
from builders.index.server import serving
from resolver.errors import EnvironmentLacksError
from tests.support.tiny import tiny_wheel
from tests.support.waiting import wait_until

MakeWheel = Callable[..., Path]
JSON = "application/vnd.pypi.simple.v1+json"
HTML = "application/vnd.pypi.simple.v1+html"


@pytest.fixture
def index(tmp_path: Path, make_wheel: MakeWheel) -> Index:
    filled = Index(tmp_path / "index")
    filled.publish(make_wheel("My_Pkg.Ext", "1.0+rocm6.4", requires_python=">=3.9"), {"secret": "no"})
    return filled


@pytest.fixture
def address(index: Index) -> Iterator[str]:
    with serving(index) as url:
        yield url


@contextmanager
def connected(address: str, source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """Yield a connection to a server from one of this machine's addresses."""
    where = urlsplit(address)
    pair = (where.hostname or "", where.port or 0)
    with socket.create_connection(pair, timeout=10, source_address=(source, 0)) as client:
        yield client


def get(url: str, accept: str = "", method: str = "GET", **headers: str) -> requests.Response:
    accepted = {"Accept": accept} if accept else {}
    return requests.request(method, url, headers={**accepted, **headers}, timeout=10, allow_redirects=False)


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html", "text/html"),
        ("*/*", "text/html"),
        (HTML, HTML),
        (JSON, JSON),
        ("application/vnd.pypi.simple.latest+json", JSON),
        (f"{JSON}, {HTML};q=0.1, text/html;q=0.01", JSON),  # as pip asks
        (f"text/html;q=0.9, {JSON};q=0.1", "text/html"),
    ],
)
@pytest.mark.parametrize("page", ["", "my-pkg-ext/"])
def test_server_negotiates_page_format(address: str, accept: str, kind: str, page: str) -> None:
    answer = get(address + page, accept)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].partition(";")[0] == kind
    assert answer.headers["Vary"] == "Accept"
    if kind == JSON:
        assert answer.json()["meta"]["api-version"] == "1.1"
    else:
        assert answer.text.startswith("<!DOCTYPE html>")


def test_server_unknown_format_gives_406(address: str) -> None:
    assert get(address, "image/png").status_code == 406


def test_html_and_json_pages_agree(address: str, index: Index) -> None:
    with PyPISimple(address) as client:
        pages = [client.get_project_page("my-pkg-ext", accept=accept) for accept in (HTML, JSON)]
        (wheel,) = index.wheels("my-pkg-ext")
        for page in pages:
            (link,) = page.packages
            assert link.filename == wheel.name
            assert link.version == "1.0+rocm6.4"
            assert link.requires_python == ">=3.9"
            assert link.has_metadata is True
            assert requests.get(link.url, timeout=10).content == wheel.read_bytes()
        assert pages[0].packages[0].metadata_digests == pages[1].packages[0].metadata_digests
        text = client.get_package_metadata_bytes(pages[0].packages[0], verify=True)
    with zipfile.ZipFile(wheel) as archive:
        assert text == archive.read("My_Pkg.Ext-1.0+rocm6.4.dist-info/METADATA")


def test_server_shows_changes_at_once(address: str, index: Index, make_wheel: MakeWheel) -> None:
    first = get(f"{address}my-pkg-ext/", JSON)
    assert get(f"{address}my-pkg-ext/", JSON, **{"If-None-Match": first.headers["ETag"]}).status_code == 304
    wheel = index.publish(make_wheel("My_Pkg.Ext", "2.0"), {})
    second = get(f"{address}my-pkg-ext/", JSON, **{"If-None-Match": first.headers["ETag"]})
    assert second.json()["versions"] == ["1.0+rocm6.4", "2.0"]
    yank(index, [wheel], "broken")
    assert [row.get("yanked") for row in get(f"{address}my-pkg-ext/", JSON).json()["files"]] == [
        None,
        "broken",
    ]
    assert get(f"{address}new/").status_code == 404
    index.publish(make_wheel("new"), {})
    assert get(f"{address}new/").status_code == 200


def test_server_answers_range_requests(address: str, index: Index) -> None:
    (wheel,) = index.wheels("my-pkg-ext")
    url = f"{address}my-pkg-ext/{wheel.name}"
    data = wheel.read_bytes()
    whole = get(url)
    assert (whole.status_code, whole.content) == (200, data)
    assert "immutable" in whole.headers["Cache-Control"]
    part = get(url, Range="bytes=10-19")
    assert (part.status_code, part.content) == (206, data[10:20])
    assert part.headers["Content-Range"] == f"bytes 10-19/{len(data)}"
    assert get(url, Range="bytes=-5").content == data[-5:]
    assert get(url, Range=f"bytes={len(data)}-").status_code == 416
    assert get(url, **{"If-None-Match": whole.headers["ETag"]}).status_code == 304
    head = get(url, method="HEAD")
    assert (head.content, head.headers["Content-Length"]) == (b"", str(len(data)))


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("My_Pkg.Ext/", "/simple/my-pkg-ext/"),
        ("my-pkg-ext", "/simple/my-pkg-ext/"),
        ("MY.PKG.EXT", "/simple/my-pkg-ext/"),
    ],
)
def test_server_redirects_to_normalized_name(address: str, path: str, to: str) -> None:
    session = requests.Session()
    prepared = session.prepare_request(requests.Request("GET", address))
    prepared.url = address + path
    answer = session.send(prepared, allow_redirects=False, timeout=10)
    assert answer.status_code == 301
    assert answer.headers["Location"].endswith(to)


def test_server_root_is_landing_page_or_leads_to_projects(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.publish(tiny_wheel(tmp_path, "apex", "1.0"), {})
    with serving(index) as url:
        root = url.removesuffix("simple/")
        answer = requests.get(root, timeout=10)
        assert answer.content == (index.root / "index.html").read_bytes()
        assert answer.headers["Content-Type"].startswith("text/html")
        (index.root / "index.html").write_text("<p>somebody else's page</p>")
        assert requests.get(root, timeout=10).url == url


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("../provenance/", 400),
        ("../.matrix/", 400),
        ("..%2fprovenance%2f", 400),
        ("my-pkg-ext/..%2f..%2f..%2fsecret.whl", 400),
        ("my-pkg-ext/../../secret-1.0-py3-none-any.whl", 400),
        ("my-pkg-ext/.tmp-half.whl", 404),
        ("my-pkg-ext/none-1.0-py3-none-any.whl", 404),
        ("my-pkg-ext/none-1.0-py3-none-any.whl.metadata", 404),
        ("my-pkg-ext/a/b", 404),
        ("%00", 400),
        ("my-pkg-ext/%00", 400),
        ("my-pkg-ext/%0d%0aX: y", 400),
        ("my-pkg-ext/%ff", 400),
        ("my-pkg-ext/..%5csecret.whl", 400),
        ("%2e%2e%2e/", 400),
        ("-/", 400),
        ("a%20b/", 400),
        ("%zz/", 400),
        ("none/", 404),
        ("n" * 5000, 404),
        ("my-pkg-ext/" + "n" * 5000 + "-1.0-py3-none-any.whl", 404),
    ],
)
def test_server_serves_only_simple(address: str, index: Index, path: str, status: int) -> None:
    for directory in (index.root, index.simple / "my-pkg-ext"):
        (directory / "secret-1.0-py3-none-any.whl").write_bytes(b"secret")
        (directory / ".tmp-half.whl").write_bytes(b"secret")
    session = requests.Session()
    prepared = session.prepare_request(requests.Request("GET", address))
    prepared.url = address + path
    answer = session.send(prepared, timeout=10)
    assert answer.status_code == status
    assert b"secret" not in answer.content
    assert get(address).status_code == 200


@pytest.mark.parametrize(
    "line",
    [
        b"GET simple/ HTTP/1.1",
        b"GET /simple/../.matrix/ HTTP/1.1",
        b"GET /simple/my-pkg-ext/../../provenance/ HTTP/1.1",
        b"GET /simple/\xff\xfe HTTP/1.1",
        b"GET * HTTP/1.1",
        b"GET /simple/ HTTP/9.99",
        b"GET\t/simple/ HTTP/1.1",
        b"\x00\x01\x02",
        b"get /simple/ HTTP/1.1",
        b"GET http://[::1/simple/ HTTP/1.1",
    ],
)
def test_server_malformed_request_gives_400(address: str, line: bytes) -> None:
    with connected(address) as client:
        client.sendall(line + b"\r\nHost: x\r\n\r\n")
        assert client.recv(100).split()[1] == b"400"
    assert get(address).status_code == 200


def test_server_refuses_bodies_and_large_headers(address: str) -> None:
    assert requests.post(address, data=b"x", timeout=10).status_code == 413
    assert requests.post(address, data=iter([b"x"]), timeout=10).status_code == 413
    assert get(address, **{"X-Long": "x" * 100_000}).status_code == 431


def test_unreadable_page_gives_503_and_no_traceback(
    index: Index, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError

    with serving(index) as url:
        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert get(url).status_code == 503
    assert "Traceback" not in capfd.readouterr().err


def test_server_link_out_of_index_gives_404(address: str, index: Index, make_wheel: MakeWheel) -> None:
    """Links to a wheel (and its metadata), to a page and to a whole directory are tested."""
    outside = make_wheel("outside", "1.0")
    folder, name = index.simple / "my-pkg-ext", "evil-1.0-py3-none-any.whl"
    (folder / name).symlink_to(outside)
    (index.simple / "folder").symlink_to(outside.parent)
    (outside.parent / "index.html").write_text("outside")
    (index.simple / "page").mkdir()
    (index.simple / "page" / "index.html").symlink_to(outside.parent / "index.html")
    for path in (
        f"my-pkg-ext/{name}",
        f"my-pkg-ext/{name}.metadata",
        f"folder/{outside.name}",
        f"folder/{outside.name}.metadata",
        "folder/",
        "page/",
    ):
        assert get(address + path).status_code == 404, path


def test_server_follows_links_within_index(address: str, index: Index) -> None:
    (wheel,) = index.wheels("my-pkg-ext")
    other = wheel.with_name("other-1.0-py3-none-any.whl")
    other.symlink_to(wheel.name)
    assert get(f"{address}my-pkg-ext/{other.name}").content == wheel.read_bytes()


def test_server_index_root_may_be_a_link(index: Index, tmp_path: Path) -> None:
    index.root.rename(tmp_path / "elsewhere")
    index.root.symlink_to(tmp_path / "elsewhere")
    (wheel,) = index.wheels("my-pkg-ext")
    with serving(index) as url:
        assert get(f"{url}my-pkg-ext/").status_code == 200
        assert get(f"{url}my-pkg-ext/{wheel.name.replace('+', '%2B')}").content == wheel.read_bytes()


def test_server_rejects_writes(address: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert get(address, method=method).status_code == 405


def test_server_port_in_use_fails(index: Index, address: str) -> None:
    port = int(address.split(":")[2].partition("/")[0])
    with pytest.raises(EnvironmentLacksError, match=f"127.0.0.1:{port}"), serving(index, port=port):
        pass


def test_server_stops_with_its_block(index: Index) -> None:
    with serving(index) as url:
        assert get(url).status_code == 200
    with pytest.raises(requests.ConnectionError):
        get(url)


def test_server_stops_during_request(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads wake the server's loop slowly, so that the request's thread and the stopping one overlap."""
    pull, pulled = trigger._physical_pull, threading.Event()

    def pull_slowly(self: trigger) -> None:
        pulled.set()
        time.sleep(0.05)
        pull(self)

    monkeypatch.setattr(trigger, "_physical_pull", pull_slowly)
    for _ in range(3):
        pulled.clear()
        with serving(index) as url, ThreadPoolExecutor(1) as client:
            answer = client.submit(get, url)
            assert pulled.wait(timeout=10)
        assert answer.result().status_code == 200


def is_open(client: socket.socket) -> bool:
    """Return whether the connection is still open; read the data that the server has sent."""
    client.setblocking(False)
    try:
        while client.recv(1 << 20):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False
    return False


def closed(client: socket.socket) -> bool:
    """Return whether the server closes the connection within ten seconds; read the data it sends before."""
    client.settimeout(10)
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


REQUEST = "GET /simple/{} HTTP/1.1\r\nHost: x\r\n{}\r\n"


@pytest.fixture
def big(index: Index) -> str:
    """Return the path of a large wheel, which is sparse."""
    name = "big-1.0-py3-none-any.whl"
    with (index.simple / "my-pkg-ext" / name).open("wb") as file:
        file.truncate(1 << 30)
    return f"my-pkg-ext/{name}"


@pytest.mark.parametrize(
    ("header", "times"),
    [("", 1), ("Range: bytes=1-999999999\r\n", 1), ("", 50)],
    ids=["file", "range", "pipelined"],
)
def test_clients_that_do_not_read_do_not_block_others(
    address: str, big: str, index: Index, header: str, times: int
) -> None:
    """There are more such clients than threads."""
    with ExitStack() as stack:
        clients = [stack.enter_context(connected(address)) for _ in range(20)]
        for client in clients:
            client.sendall(REQUEST.format(big, header).encode() * times)
        for client in clients:
            assert client.recv(8).startswith(b"HTTP/1.1")
        assert get(address).status_code == 200
        (wheel,) = set(index.wheels("my-pkg-ext")) - {index.simple / big}
        assert get(f"{address}my-pkg-ext/{wheel.name}", Range="bytes=3-9").content == wheel.read_bytes()[3:10]


def test_pipelined_requests_close_the_connection(address: str) -> None:
    with connected(address) as client:
        client.sendall(REQUEST.format("", "").encode() * 50)
        assert closed(client)


def test_idle_connections_do_not_lock_others_out(address: str) -> None:
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connected(address))
        assert get(address).status_code == 200


@pytest.mark.parametrize("sent", [b"", b"GET /simple/ HT", REQUEST.format("", "").encode()])
def test_connections_above_the_limit_are_closed(
    index: Index, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """One client opens too many connections; another keeps its connection, and a third can connect."""
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 20)
    with serving(index) as url, ExitStack() as stack:
        other = stack.enter_context(connected(url, "127.0.0.2"))
        greedy = [stack.enter_context(connected(url)) for _ in range(50)]
        for client in greedy:
            with suppress(OSError):
                client.sendall(sent)
        third = stack.enter_context(connected(url, "127.0.0.3"))
        wait_until(lambda: sum(map(is_open, greedy)) <= 10)
        for client in (other, third):
            client.sendall(REQUEST.format("", "").encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_many_clients_above_the_limit_do_not_lock_others_out(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 20)
    with serving(index) as url, ExitStack() as stack:
        for number in range(2, 60):
            stack.enter_context(connected(url, f"127.0.0.{number}"))
        assert get(url).status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("stall", ["nothing sent", "half a request", "nothing read"])
def test_stalled_connection_is_closed_in_time(
    index: Index, big: str, stall: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("_REQUEST_TIMEOUT", 0.3), ("_IDLE_TIMEOUT", 0.6), ("_TICK", 0.1)):
        monkeypatch.setattr(server, name, seconds)
    with serving(index) as url, connected(url) as client:
        if stall == "half a request":
            began = time.monotonic()
            with suppress(OSError):
                for byte in b"GET /simple/ HTTP/1.1" * 100:
                    client.sendall(bytes([byte]))  # each byte is activity
                    time.sleep(0.05)
            assert time.monotonic() - began < 10
        elif stall == "nothing read":
            client.sendall(REQUEST.format(big, "").encode())
            time.sleep(1.5)
        assert closed(client)


def test_pages_beyond_the_cache_are_right(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_CACHED_PAGES", 1)
    with serving(index) as url:
        for _ in range(2):
            assert b"my-pkg-ext" in get(url).content
            assert b"1.0" in get(f"{url}my-pkg-ext/").content


@pytest.mark.integration
@pytest.mark.parametrize("version", ["22.3", "newest"])
def test_pip_installs_from_server_metadata(address: str, tmp_path: Path, version: str) -> None:
    """The test runs the oldest supported pip and the newest pip."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    requirement = "pip" if version == "newest" else f"pip=={version}"
    subprocess.run([*pip, "install", "-U", requirement], check=True, capture_output=True)
    command = [*pip, "install", "--index-url", address, "my-pkg-ext==1.0+rocm6.4"]
    done = subprocess.run(
        [*command, "--report", str(tmp_path / "report.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (item,) = json.loads((tmp_path / "report.json").read_text())["install"]
    assert item["download_info"]["url"].startswith(address)
    pip.remove("-q")
    shown = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True, text=True)
    assert "1.0+rocm6.4" in {row["version"] for row in json.loads(shown.stdout)}


def test_metadata_hash_matches_metadata(index: Index, address: str) -> None:
    (wheel,) = index.wheels("my-pkg-ext")
    digest = get(f"{address}my-pkg-ext/", JSON).json()["files"][0]["core-metadata"]["sha256"]
    text = get(f"{address}my-pkg-ext/{wheel.name}.metadata").content
    assert hashlib.sha256(text).hexdigest() == digest
