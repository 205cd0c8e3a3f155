"""Package indexes over HTTP: the page shapes of real indexes, the cache, and faults."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import Retry

from builders.index import Index
from builders.index.server import serving
from builders.index_client import IndexClient
from resolver.errors import EnvironmentLacksError
from resolver.indexes import File, PackageIndexes, Project
from resolver.reporter import Reporter

MakeWheel = Callable[..., Path]
JSON = "application/vnd.pypi.simple.v1+json"
HTML = "text/html"


class Server(http.server.ThreadingHTTPServer):
    """An index whose replies a test chooses.

    Attributes
    ----------
    pages
        Path to the content type and the body of its reply, or to a function that sends one.
    requests
        Path and headers of each request.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.pages: dict[str, tuple[str, bytes] | Callable[[Handler], None]] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.ranges = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def json(self, path: str, document: object) -> None:
        self.pages[path] = (JSON, json.dumps(document).encode())

    def html(self, path: str, *lines: str) -> None:
        text = "\n".join(["<!DOCTYPE html>", "<html><body>", *lines, "</body></html>"])
        self.pages[path] = (HTML, text.encode())

    def file(self, path: str, data: bytes) -> None:
        self.pages[path] = ("application/octet-stream", data)

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.requests]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        page = self.server.pages.get(self.path)
        if page is None:
            self.reply(404)
        elif callable(page):
            page(self)
        else:
            self.send(*page)

    def send(self, kind: str, body: bytes) -> None:
        wanted = self.headers.get("Range", "").removeprefix("bytes=")
        if not wanted or not self.server.ranges:
            self.reply(200, body, **{"Content-Type": kind})
            return
        first, _, last = wanted.partition("-")
        start = int(first) if first else max(0, len(body) - int(last))
        end = min(int(last) + 1, len(body)) if first else len(body)
        where = f"bytes {start}-{end - 1}/{len(body)}"
        self.reply(206, body[start:end], **{"Content-Type": kind, "Content-Range": where})

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Ignore the message."""


class Warnings(Reporter):
    def __init__(self) -> None:
        self.messages: list[str] = []

    def warning(self, message: str) -> None:
        self.messages.append(message)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Retry without waiting, and without the netrc of this machine."""
    monkeypatch.setattr(Retry, "get_backoff_time", lambda _: 0)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Callable[..., IndexClient]:
    """Return a function that makes a client of the server's index; all share a cache."""

    def make(*indexes: str, **options: Any) -> IndexClient:
        return IndexClient(indexes or [f"{server.url}/simple/"], cache=tmp_path / "shared", **options)

    return make


MakeClient = Callable[..., IndexClient]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def found(project: Project | None) -> Project:
    assert project is not None
    return project


def versions(project: Project | None) -> list[str]:
    return [release.version for release in found(project).releases]


def files(project: Project | None, version: str = "") -> list[File]:
    releases = found(project).releases
    return list(next(release for release in releases if release.version == version or not version).files)


PYPI = {
    "meta": {"_last-serial": 1, "api-version": "1.4"},
    "name": "some-pkg",
    "project-status": {"status": "archived"},
    "versions": ["0.9", "1.0", "1.10", "1.9"],
    "files": [
        {
            "core-metadata": False,
            "data-dist-info-metadata": False,
            "filename": "some_pkg-0.9.tar.gz",
            "hashes": {"sha256": "aa" * 32},
            "requires-python": None,
            "size": 10,
            "upload-time": "2020-01-02T03:04:05.678901Z",
            "url": "https://files.example/09/some_pkg-0.9.tar.gz",
            "yanked": "broken",
        },
        {
            "core-metadata": {"sha256": "cc" * 32},
            "data-dist-info-metadata": {"sha256": "cc" * 32},
            "filename": "some_pkg-1.10-py3-none-any.whl",
            "hashes": {"sha256": "BB" * 32},
            "requires-python": ">=3.9",
            "size": 20,
            "upload-time": "2021-01-02T03:04:05Z",
            "url": "https://files.example/10/some_pkg-1.10-py3-none-any.whl",
            "yanked": False,
        },
        {"filename": "some-pkg-1.9.zip", "url": "https://files.example/some-pkg-1.9.zip", "hashes": {}},
        {"filename": "some_pkg-1.10.tar.gz", "url": "../../f/some_pkg-1.10.tar.gz", "hashes": {}},
        {"filename": "some_pkg-1.0.win32-py2.4.exe", "url": "x", "hashes": {}},
        {"filename": "some_pkg-1.0-py2.7.egg", "url": "x", "hashes": {}},
        {"filename": "some_pkg-not.a.version.tar.gz", "url": "x", "hashes": {}},
        {"filename": "other-2.0.tar.gz", "url": "x", "hashes": {}},
        {"filename": "some_pkg-3.0-any.whl", "url": "x", "hashes": {}},
    ],
}


def test_json_page_has_all_facts(server: Server, client: MakeClient) -> None:
    server.json("/simple/some-pkg/", PYPI)
    project = client().project("Some.Pkg")
    assert found(project).name == "some-pkg"
    assert found(project).status == "archived"
    assert versions(project) == ["1.10", "1.9", "0.9"]
    wheel, sdist = files(project, "1.10")
    assert wheel == File(
        name="some_pkg-1.10-py3-none-any.whl",
        url="https://files.example/10/some_pkg-1.10-py3-none-any.whl",
        sha256="bb" * 32,
        size=20,
        index=f"{server.url}/simple",
        requires_python=">=3.9",
        uploaded="2021-01-02T03:04:05Z",
        has_metadata=True,
        metadata_sha256="cc" * 32,
    )
    assert sdist.url == f"{server.url}/f/some_pkg-1.10.tar.gz"
    (old,) = files(project, "0.9")
    assert (old.yanked, old.size, old.has_metadata) == ("broken", 10, False)
    (accept,) = {headers["Accept"] for _, headers in server.requests}
    assert accept.startswith(JSON)


def test_quarantined_project_offers_no_files(server: Server, client: MakeClient) -> None:
    server.json("/simple/some-pkg/", PYPI | {"project-status": {"status": "quarantined"}})
    project = client().project("some-pkg")
    assert (found(project).status, versions(project)) == ("quarantined", [])


def test_devpi_page_without_sizes(server: Server, client: MakeClient) -> None:
    file = {
        "filename": "some_pkg-1.0-py3-none-any.whl",
        "url": "../../+f/0a1/some_pkg-1.0-py3-none-any.whl#sha256=ff",
        "hashes": {"sha256": "ff" * 32, "md5": "1"},
        "requires-python": "",
        "yanked": None,
    }
    server.json("/simple/some-pkg/", {"meta": {"api-version": "1.0"}, "name": "some-pkg", "files": [file]})
    (wheel,) = files(client().project("some-pkg"))
    assert wheel.url == f"{server.url}/+f/0a1/some_pkg-1.0-py3-none-any.whl"
    assert (wheel.sha256, wheel.size, wheel.uploaded, wheel.yanked) == ("ff" * 32, 0, "", None)


def pytorch_link(name: str, *attributes: str) -> str:
    path = f"/whl/rocm6.4/{name.replace('+', '%2B')}#sha256={'ab' * 32}"
    return f'    <a href="{" ".join([path + chr(34), *attributes])}>{name}</a><br/>'


def test_pytorch_page(server: Server, client: MakeClient) -> None:
    metadata = f'data-dist-info-metadata="sha256={"cd" * 32}" data-core-metadata="sha256={"cd" * 32}"'
    names = [f"torch-2.{minor}.1+rocm6.4-cp312-cp312-manylinux_2_28_x86_64.whl" for minor in (8, 9)]
    server.html(
        "/whl/rocm6.4/torch/", "<h1>Links for torch</h1>", *(pytorch_link(n, metadata) for n in names)
    )
    project = client(f"{server.url}/whl/rocm6.4").project("torch")
    assert versions(project) == ["2.9.1+rocm6.4", "2.8.1+rocm6.4"]
    (wheel,) = files(project, "2.9.1+rocm6.4")
    assert wheel.name == names[1]
    assert wheel.url == f"{server.url}/whl/rocm6.4/{names[1].replace('+', '%2B')}"
    assert (wheel.sha256, wheel.metadata_sha256, wheel.has_metadata) == ("ab" * 32, "cd" * 32, True)


def test_plain_directory_listing(server: Server, client: MakeClient) -> None:
    server.html(
        "/rocm/torch/",
        '<h1>Index of /rocm/torch/</h1><hr><pre><a href="../">../</a>',
        '<a href="torch-2.9.1%2Brocm7.0-cp312-cp312-linux_x86_64.whl">torch-2.9.1+roc..&gt;</a> 9-Nov',
        '<a href="?C=N;O=D">Name</a></pre>',
    )
    (wheel,) = files(client(f"{server.url}/rocm/").project("torch"))
    assert wheel.name == "torch-2.9.1+rocm7.0-cp312-cp312-linux_x86_64.whl"
    assert wheel.url == f"{server.url}/rocm/torch/torch-2.9.1%2Brocm7.0-cp312-cp312-linux_x86_64.whl"
    assert not wheel.sha256


@pytest.mark.parametrize(
    "link",
    [
        "<a href='{url}' data-requires-python='>=3.9' data-yanked=''>{name}</a>",
        '<A HREF="{url}" data-requires-python=">=3.9" data-yanked>{name}</A>',
        '<a data-requires-python="&gt;=3.9" data-yanked="" href="{url}">{name}</a>',
        '<!-- <a href="x-1.zip"> --><a href="{url}" data-yanked="" data-requires-python=">=3.9">{name}</a>',
        '<a href="{url}" data-yanked="" rel="internal" data-requires-python="&gt;=3.9">{name}</a>',
    ],
)
def test_html_may_be_written_in_any_way(server: Server, client: MakeClient, link: str) -> None:
    name = "some_pkg-1.0-py3-none-any.whl"
    server.html("/simple/some-pkg/", link.format(url=f"../../f/{name}#sha256={'ab' * 32}", name=name))
    (wheel,) = files(client().project("some-pkg"))
    assert wheel == File(
        name, f"{server.url}/f/{name}", "ab" * 32, 0, f"{server.url}/simple", ">=3.9", "", yanked=""
    )


def test_html_status_and_upload_time(server: Server, client: MakeClient) -> None:
    server.html(
        "/simple/some-pkg/",
        '<meta name="pypi:project-status" content="deprecated">',
        '<a href="some_pkg-1.0.tar.gz" data-upload-time="2020-01-02T03:04:05Z">some_pkg-1.0.tar.gz</a>',
    )
    project = client().project("some-pkg")
    assert found(project).status == "deprecated"
    assert files(project)[0].uploaded == "2020-01-02T03:04:05Z"


@pytest.mark.parametrize("over_http", [True, False])
def test_own_index(tmp_path: Path, make_wheel: MakeWheel, client: MakeClient, *, over_http: bool) -> None:
    index = Index(tmp_path / "index")
    index.publish(make_wheel("My_Pkg.Ext", "1.0+rocm6.4", requires_python=">=3.9"), {"secret": "no"})
    with serving(index) as url:
        indexes = client(url if over_http else index.simple.as_uri())
        project = indexes.project("my-pkg-ext")
        (wheel,) = files(project)
        assert versions(project) == ["1.0+rocm6.4"]
        assert wheel.requires_python == ">=3.9"
        assert wheel.uploaded
        metadata = indexes.metadata([wheel])
    assert metadata is not None
    assert (metadata.name, metadata.requires_python) == ("my-pkg-ext", ">=3.9")
    assert metadata.source == ("its metadata file" if over_http else "its wheel")


def test_directory_is_read_again_when_it_changes(
    tmp_path: Path, make_wheel: MakeWheel, client: MakeClient
) -> None:
    index = Index(tmp_path / "index")
    index.publish(make_wheel("tiny", "1.0"), {})
    assert versions(client(index.simple.as_uri()).project("tiny")) == ["1.0"]
    index.publish(make_wheel("tiny", "1.1"), {})
    assert versions(client(index.simple.as_uri(), offline=True).project("tiny")) == ["1.1", "1.0"]
    assert client(index.simple.as_uri()).project("other") is None


def page(*names: str, **more: Any) -> dict[str, Any]:
    return {"files": [{"filename": name, "url": f"/f/{name}", "hashes": {}, **more} for name in names]}


def test_indexes_are_merged_and_first_wins(server: Server, client: MakeClient) -> None:
    server.json("/one/pkg/", page("pkg-2.0.tar.gz", "pkg-1.0-py3-none-any.whl", size=1))
    server.json("/two/pkg/", page("pkg-1.0-py3-none-any.whl", "pkg-1.0.0.tar.gz", "pkg-1.5.zip", size=2))
    indexes = client(f"{server.url}/one", f"{server.url}/none/", f"{server.url}/two/")
    assert indexes.urls == tuple(f"{server.url}/{name}" for name in ("one", "none", "two"))
    project = indexes.project("pkg")
    assert versions(project) == ["2.0", "1.5", "1.0"]
    assert [(file.name, file.size) for file in files(project, "1.0")] == [
        ("pkg-1.0-py3-none-any.whl", 1),
        ("pkg-1.0.0.tar.gz", 2),
    ]
    assert indexes.project("nowhere") is None


def test_find_links(server: Server, client: MakeClient, tmp_path: Path, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("torch_scatter", "2.1")
    server.html(
        "/whl/torch-2.9.html",
        '<a href="torch-2.9/torch_scatter-2.2%2Bpt29-cp312-cp312-linux_x86_64.whl">torch_scatter</a>',
        '<a href="torch-2.9/torch-geometric-2.6.tar.gz">torch_geometric</a>',
    )
    links = [wheel.parent.as_uri(), f"{server.url}/whl/torch-2.9.html", (tmp_path / "missing").as_uri()]
    indexes = client(f"{server.url}/simple", find_links=links)
    assert versions(indexes.project("torch-scatter")) == ["2.2+pt29", "2.1"]
    assert versions(indexes.project("torch-geometric")) == ["2.6"]
    assert files(indexes.project("torch-scatter"), "2.1")[0].url == wheel.as_uri()
    assert server.paths.count("/whl/torch-2.9.html") == 1
    assert isinstance(indexes, IndexClient)
    metadata = client(find_links=links, offline=True).metadata(files(indexes.project("torch-scatter"), "2.1"))
    assert metadata is not None


# Cache


def test_fresh_page_needs_no_request(server: Server, client: MakeClient) -> None:
    server.json("/simple/some-pkg/", PYPI)
    assert not client().is_cached("some-pkg")
    first = client().project("some-pkg")
    second = client().project("some-pkg")
    assert client().is_cached("Some_Pkg")
    assert versions(first) == versions(second)
    assert files(first) == files(second)
    assert client().project("missing") is None
    assert client().project("missing") is None
    assert server.paths == ["/simple/some-pkg/", "/simple/missing/"]


def test_old_page_is_requested_again(server: Server, client: MakeClient) -> None:
    server.json("/simple/some-pkg/", page("some-pkg-1.0.tar.gz"))
    client().project("some-pkg")
    server.json("/simple/some-pkg/", page("some-pkg-1.1.tar.gz"))
    assert versions(client(fresh_for=0).project("some-pkg")) == ["1.1"]
    assert "If-None-Match" not in server.requests[-1][1]


def test_unchanged_page_is_fresh_again(server: Server, client: MakeClient, tmp_path: Path) -> None:
    def conditional(request: Handler) -> None:
        if (
            request.headers.get("If-None-Match") == '"x"'
            and request.headers.get("If-Modified-Since") == "then"
        ):
            request.reply(304)
            return
        body = json.dumps(PYPI).encode()
        request.reply(200, body, **{"Content-Type": JSON, "ETag": '"x"', "Last-Modified": "then"})

    server.pages["/simple/some-pkg/"] = conditional
    expected = versions(client().project("some-pkg"))
    (stored,) = tmp_path.rglob("some-pkg.msgpack")
    os.utime(stored, (1, 1))
    assert not client().is_cached("some-pkg")
    assert versions(client().project("some-pkg")) == expected
    assert client().is_cached("some-pkg")
    assert len(server.requests) == 2


def test_offline_uses_old_pages_and_warns_once(server: Server, client: MakeClient, tmp_path: Path) -> None:
    server.json("/simple/some-pkg/", PYPI)
    client().project("some-pkg")
    client().project("missing")
    for stored in tmp_path.rglob("*.msgpack"):
        os.utime(stored, (0, 0))
    reporter = Warnings()
    indexes = client(offline=True, reporter=reporter)
    assert indexes.is_cached("some-pkg")
    assert not indexes.is_cached("other")
    assert versions(indexes.project("some-pkg"))
    assert indexes.project("missing") is None
    assert [message.partition(",")[0] for message in reporter.messages] == [
        "--offline uses pages of package indexes from the cache"
    ]
    assert "1970-01-01" in reporter.messages[0]
    with pytest.raises(
        EnvironmentLacksError, match=f"project other on {server.url}/simple is not in the cache"
    ):
        indexes.project("other")
    with pytest.raises(EnvironmentLacksError, match=r"some_pkg-0\.9\.tar\.gz .* is not in the cache"):
        indexes.metadata(files(indexes.project("some-pkg"), "0.9"))
    assert len(server.requests) == 2


@pytest.mark.parametrize("damage", [b"", b"\x93", b"not a page", b"\x90" * 10])
def test_damaged_cache_counts_as_missing(
    server: Server, client: MakeClient, tmp_path: Path, damage: bytes
) -> None:
    server.json("/simple/some-pkg/", PYPI)
    expected = versions(client().project("some-pkg"))
    (stored,) = tmp_path.rglob("some-pkg.msgpack")
    stored.write_bytes(damage)
    assert versions(client().project("some-pkg")) == expected
    assert len(server.requests) == 2


def test_threads_share_one_request(server: Server, client: MakeClient) -> None:
    server.json("/simple/some-pkg/", PYPI)
    indexes: PackageIndexes = client()
    done: list[str] = []
    threads = [
        threading.Thread(target=lambda: done.extend(versions(indexes.project("some-pkg")))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 8 * 3
    assert server.paths == ["/simple/some-pkg/"]
