"""Package indexes over HTTP: the page shapes of real indexes, the cache, and faults."""

from __future__ import annotations

import base64
import errno
import hashlib
import http.server
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import Retry

from builders.index import Index
from builders.index_client import IndexClient, pages
from builders.network import transport
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError
from resolver.indexes import File, Metadata, PackageIndexes, Project
from resolver.reporter import Reporter
from tests.support.web_server import web_server

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
        self.connections: set[Any] = set()
        self.most_connections = 0

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections.add(request)
        self.most_connections = max(self.most_connections, len(self.connections))
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""

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
        ranges = self.headers.get("Range", "").removeprefix("bytes=")
        if not ranges or not self.server.ranges:
            self.reply(200, body, **{"Content-Type": kind})
            return
        if not body:  # no range of it can be sent (RFC 9110, 15.5.17)
            self.reply(416, b"", **{"Content-Range": "bytes */0"})
            return
        first, _, last = ranges.partition("-")
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


@pytest.mark.parametrize("form", ["json", "html"])
def test_quarantined_project_offers_no_files(server: Server, client: MakeClient, form: str) -> None:
    if form == "json":
        server.json("/simple/some-pkg/", PYPI | {"project-status": {"status": "quarantined"}})
    else:
        status = '<meta name="pypi:project-status" content="quarantined">'
        server.html("/simple/some-pkg/", status, '<a href="some_pkg-1.0.tar.gz">some_pkg-1.0.tar.gz</a>')
    assert versions(client().project("some-pkg")) == []


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
        '<a href="{url}" data-yanked data-requires-python="&gt;=3.9">{name}</a>',
        '<a href="{url}"\n data-yanked=""\n data-requires-python="&gt;=3.9">{name}</a>',
        '<a\n href="{url}" data-yanked="" data-requires-python="&gt;=3.9">{name}</a>',
    ],
)
def test_html_may_be_written_in_any_way(server: Server, client: MakeClient, link: str) -> None:
    name = "some_pkg-1.0-py3-none-any.whl"
    server.html("/simple/some-pkg/", link.format(url=f"../../f/{name}#sha256={'ab' * 32}", name=name))
    (wheel,) = files(client().project("some-pkg"))
    assert wheel == File(
        name, f"{server.url}/f/{name}", "ab" * 32, 0, f"{server.url}/simple", ">=3.9", "", yanked=""
    )


def test_html_upload_time(server: Server, client: MakeClient) -> None:
    server.html(
        "/simple/some-pkg/",
        '<a href="some_pkg-1.0.tar.gz" data-upload-time="2020-01-02T03:04:05Z">some_pkg-1.0.tar.gz</a>',
    )
    assert files(client().project("some-pkg"))[0].uploaded == "2020-01-02T03:04:05Z"


@pytest.mark.parametrize("over_http", [True, False])
def test_own_index(tmp_path: Path, make_wheel: MakeWheel, client: MakeClient, *, over_http: bool) -> None:
    index = Index(tmp_path / "index")
    index.publish(make_wheel("My_Pkg.Ext", "1.0+rocm6.4", requires_python=">=3.9"), {"secret": "no"})
    with web_server(index.root) as url:
        indexes = client(f"{url}/simple/" if over_http else index.simple.as_uri())
        project = indexes.project("my-pkg-ext")
        (wheel,) = files(project)
        assert versions(project) == ["1.0+rocm6.4"]
        assert wheel.requires_python == ">=3.9"
        assert bool(wheel.uploaded) is not over_http  # only the JSON page has times
        metadata = indexes.metadata([wheel])
    assert metadata is not None
    assert (metadata.name, metadata.requires_python) == ("my-pkg-ext", ">=3.9")
    assert metadata.source == "its wheel"


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


OURS = "pkg-1.0+cpu.torch2.9.1-py3-none-any.whl"


@pytest.mark.parametrize(
    ("pages", "found", "asked"),
    [
        ({"one": ["pkg-1.0.tar.gz"], "two": ["pkg-2.0.tar.gz"]}, ["1.0"], "one"),
        ({"two": ["pkg-1.0.tar.gz"], "three": ["pkg-2.0.tar.gz"]}, ["1.0"], "two"),
        ({"three": ["pkg-2.0.tar.gz"]}, ["2.0"], "three"),
        (
            {"one": [OURS], "two": ["pkg-1.0.tar.gz"], "three": ["pkg-2.0.tar.gz"]},
            ["1.0+cpu.torch2.9.1", "1.0"],
            "two",
        ),
        ({"one": [OURS, "pkg-0.1.zip"], "two": ["pkg-1.0.tar.gz"]}, ["1.0+cpu.torch2.9.1", "0.1"], "one"),
        ({"one": ["pkg-0.1-cp312-cp312-win_amd64.whl"], "two": ["pkg-1.0.tar.gz"]}, ["0.1"], "one"),
        ({"one": ["other-1.0.zip"], "two": ["pkg-1.0.tar.gz"]}, [], "one"),
        ({"one": [], "two": ["pkg-1.0.tar.gz"]}, [], "one"),
    ],
    ids=["first", "second", "third", "our wheels", "ours and others", "windows", "names", "empty"],
)
@pytest.mark.parametrize("offline", [True, False])
def test_project_belongs_to_the_first_index_that_has_it(
    pages: dict[str, list[str]],
    found: list[str],
    asked: str,
    server: Server,
    client: MakeClient,
    *,
    offline: bool,
) -> None:
    names = ["one", "two", "three"]
    for name, listed in pages.items():
        server.json(f"/{name}/pkg/", page(*listed))
    urls = [f"{server.url}/{name}" for name in names]
    indexes = client(*urls)
    assert not indexes.is_cached("pkg")
    project = indexes.project("pkg")
    assert versions(project) == found
    assert client(*urls).is_cached("pkg")
    assert server.paths == [f"/{name}/pkg/" for name in names[: names.index(asked) + 1]]
    if offline:
        assert versions(client(*urls, offline=True).project("pkg")) == found
    everything = client(*urls, strategy="unsafe-best-match").project("pkg")
    assert len(versions(everything)) == len(
        {version for listed in pages.values() for version in listed} - {"other-1.0.zip"}
    )


def test_indexes_are_merged_and_first_wins(server: Server, client: MakeClient) -> None:
    server.json("/one/pkg/", page("pkg-2.0.tar.gz", "pkg-1.0-py3-none-any.whl", size=1))
    server.json("/two/pkg/", page("pkg-1.0-py3-none-any.whl", "pkg-1.0.0.tar.gz", "pkg-1.5.zip", size=2))
    urls = f"{server.url}/one", f"{server.url}/none/", f"{server.url}/two/"
    indexes = client(*urls, strategy="unsafe-best-match")
    assert indexes.urls == tuple(f"{server.url}/{name}" for name in ("one", "none", "two"))
    project = indexes.project("pkg")
    assert versions(project) == ["2.0", "1.5", "1.0"]
    assert [(file.name, file.size) for file in files(project, "1.0")] == [
        ("pkg-1.0-py3-none-any.whl", 1),
        ("pkg-1.0.0.tar.gz", 2),
    ]
    assert indexes.project("nowhere") is None


@pytest.mark.parametrize(("other", "day"), [("a" * 64, "2026-09-10"), ("b" * 64, "")], ids=["same", "other"])
def test_upload_time_of_the_same_file_on_another_index_counts(
    server: Server, client: MakeClient, other: str, day: str
) -> None:
    """A mirror without times hid that a file is newer than the day of a request."""
    name = "pkg-1.0-py3-none-any.whl"
    server.json("/mirror/pkg/", page(name, hashes={"sha256": "a" * 64}))
    uploaded = {"upload-time": "2026-09-10T00:40:36.301667Z"}
    server.json("/two/pkg/", page(name, hashes={"sha256": other}, **uploaded))
    urls = f"{server.url}/mirror", f"{server.url}/two/"
    (file,) = files(client(*urls, strategy="unsafe-best-match").project("pkg"), "1.0")
    assert (file.index, file.uploaded[:10]) == (f"{server.url}/mirror", day)


def test_indexes_are_asked_at_the_same_time(server: Server, client: MakeClient) -> None:
    barrier = threading.Barrier(3, timeout=10)

    def reply(request: Handler) -> None:
        barrier.wait()
        request.reply(404)

    names = ("one", "two", "three")
    server.pages = {f"/{name}/pkg/": reply for name in names}
    urls = (f"{server.url}/{name}" for name in names)
    assert client(*urls, strategy="unsafe-best-match").project("pkg") is None
    assert len(server.paths) == 3


def test_one_index_alone(server: Server, client: MakeClient) -> None:
    server.json("/one/pkg/", page("pkg-2.0.tar.gz"))
    server.json("/two/pkg/", page("pkg-1.0.tar.gz"))
    server.json("/three/pkg/", page("pkg-3.0.tar.gz"))
    indexes = client(f"{server.url}/one", f"{server.url}/two", strategy="unsafe-best-match")
    assert versions(indexes.project("pkg")) == ["2.0", "1.0"]
    two = indexes.at(f"{server.url}/two/")
    assert two.urls == (f"{server.url}/two",)
    assert versions(two.project("pkg")) == ["1.0"]
    assert versions(indexes.at(f"{server.url}/three").project("pkg")) == ["3.0"]
    assert versions(indexes.project("pkg")) == ["2.0", "1.0"]
    assert sorted(server.paths) == ["/one/pkg/", "/three/pkg/", "/two/pkg/"]


def test_a_page_of_amd_that_the_catalog_names_is_a_list_of_files(server: Server, client: MakeClient) -> None:
    page = "/repo.radeon.com/rocm/manylinux/rocm-rel-6.4"
    name = "tensorflow_rocm-2.18.1-cp312-cp312-manylinux_2_28_x86_64.whl"
    server.html(page, f'<a href="rocm-rel-6.4/{name}">{name}</a>')
    alone = client(f"{server.url}/simple").at(f"{server.url}{page}/")
    assert versions(alone.project("tensorflow-rocm")) == ["2.18.1"]


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


def test_unchanged_page_is_fresh_again(
    server: Server, client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    (stored,) = tmp_path.rglob("some-pkg.jsonl")
    os.utime(stored, (1, 1))
    assert not client().is_cached("some-pkg")
    assert versions(client().project("some-pkg")) == expected
    assert client().is_cached("some-pkg")
    assert len(server.requests) == 2
    monkeypatch.setattr(os, "utime", lambda _: (_ for _ in ()).throw(PermissionError))
    assert versions(client(fresh_for=0).project("some-pkg")) == expected


def test_offline_uses_old_pages_and_warns_once(server: Server, client: MakeClient, tmp_path: Path) -> None:
    server.json("/simple/some-pkg/", PYPI)
    client().project("some-pkg")
    client().project("missing")
    for stored in tmp_path.rglob("*.jsonl"):
        os.utime(stored, (0, 0))
    reporter = Warnings()
    indexes = client(offline=True, reporter=reporter)
    assert indexes.is_cached("some-pkg")
    assert indexes.is_cached("other")  # it is not requested either
    assert versions(indexes.project("some-pkg"))
    assert indexes.project("missing") is None
    assert [message.partition(".")[0] for message in reporter.messages] == [
        "--offline uses cached pages of package indexes"
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
    (stored,) = tmp_path.rglob("some-pkg.jsonl")
    stored.write_bytes(damage)
    assert versions(client().project("some-pkg")) == expected
    assert len(server.requests) == 2


def test_cache_that_is_not_writable(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    names = [f"pkg-{minor}.0-py3-none-any.whl" for minor in range(2000)]
    server.json("/simple/pkg/", page(*names))
    wheel = file_of(server, wheel_of(CORE))
    indexes = IndexClient([f"{server.url}/simple"], cache=tmp_path / "file")
    assert files(indexes.project("pkg"), "0.0")[0].name == names[0]
    assert indexes.metadata([wheel]) == EXPECTED


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


def test_wheels_for_other_systems_are_left_out(server: Server, client: MakeClient) -> None:
    names = [
        "pkg-1.0-cp312-cp312-win_amd64.whl",
        "pkg-1.0-cp312-cp312-macosx_10_9_x86_64.macosx_11_0_arm64.whl",
        "pkg-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
        "pkg-0.9-cp312-cp312-win32.whl",
    ]
    server.json("/simple/pkg/", page(*names))
    server.html("/other/pkg/", *(f'<a href="{name}">{name}</a>' for name in names))
    for index in ("simple", "other"):
        project = client(f"{server.url}/{index}").project("pkg")
        assert versions(project) == ["1.0", "0.9"]
        assert [file.name for file in files(project, "1.0")] == [names[2]]
        assert files(project, "0.9") == []


def test_wheels_for_other_machines_are_kept_only_if_no_wheel_is_for_ours(
    server: Server, client: MakeClient
) -> None:
    ours = "pkg-3.0-cp312-cp312-manylinux_2_28_x86_64.whl"
    others = [
        "cp312-cp312-manylinux_2_28_aarch64",
        "cp312-cp312-musllinux_1_2_x86_64",
        "cp312-cp312-linux_i686",
    ]
    names = [f"pkg-{version}-{tags}.whl" for version in ("3.0", "2.0", "1.0") for tags in others]
    pure = "pkg-2.0.0-py3-none-any.whl"  # the same version as 2.0
    sdists = ["pkg-3.0.tar.gz", "pkg-1.0.tar.gz"]
    server.json("/simple/pkg/", page(*names, *sdists, pure, ours))
    project = client(f"{server.url}/simple").project("pkg")
    found = {version: [file.name for file in files(project, version)] for version in versions(project)}
    assert found == {
        "3.0": [ours, sdists[0]],
        "2.0": [pure],
        "1.0": [*sorted(names[6:]), sdists[1]],
    }


# Metadata


CORE = """Metadata-Version: 2.4
Name: Some_Pkg
Version: 1.0
Summary: A summary
  that is folded
Author: Jörg
License: A licence
        of many lines: yes
Requires-Python: >=3.9,
        <4
Requires-Dist: numpy>=1.20
Requires-Dist: torch (>=2,<3) ; extra == "gpu"
Requires-Dist: not a requirement!
Provides-Extra: gpu
Provides-Extra: Big_Models

Requires-Dist: not-this

body
"""
EXPECTED = Metadata(
    name="some-pkg",
    version="1.0",
    requires=("numpy>=1.20", 'torch (>=2,<3) ; extra == "gpu"', "not a requirement!"),
    extras=("gpu", "big-models"),
    requires_python=">=3.9, <4",
    source="its wheel",
)


def wheel_of(metadata: str, name: str = "some_pkg-1.0", members: int = 1, filler: int = 10) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(members):
            archive.writestr(f"some_pkg/{number}.bin", os.urandom(filler))
        archive.writestr(f"{name}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}.dist-info/RECORD", "")
    return content.getvalue()


def sdist_of(metadata: str | None, top: str = "some_pkg-1.0", **more: str) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        members = {"setup.py": "raise SystemExit", "some_pkg.egg-info/PKG-INFO": "Name: wrong", **more}
        if metadata is not None:
            members["PKG-INFO"] = metadata
        for path, text in members.items():
            info = tarfile.TarInfo(f"{top}/{path}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return content.getvalue()


def file_of(server: Server, data: bytes, name: str = "some_pkg-1.0-py3-none-any.whl", **more: Any) -> File:
    """Serve a file, and return its entry on an index."""
    server.file(f"/f/{name}", data)
    return File(name, f"{server.url}/f/{name}", sha256(data), index=f"{server.url}/simple", **more)


def test_metadata_file_is_preferred(server: Server, client: MakeClient) -> None:
    text = CORE.encode()
    server.file("/f/some_pkg-1.0-py3-none-any.whl.metadata", text)
    wheel = file_of(server, b"", has_metadata=True, metadata_sha256=sha256(text))
    sdist = file_of(server, b"", "some_pkg-1.0.tar.gz")
    metadata = client().metadata([sdist, wheel])
    assert metadata is not None
    assert (metadata.source, metadata.requires) == ("its metadata file", EXPECTED.requires)
    assert client(offline=True).metadata([sdist, wheel]) == metadata
    assert server.paths == ["/f/some_pkg-1.0-py3-none-any.whl.metadata"]


def test_wheel_is_read_by_ranges(server: Server, client: MakeClient) -> None:
    data = wheel_of(CORE, members=40, filler=20_000)
    assert client().metadata([file_of(server, data)]) == EXPECTED
    assert client().metadata([file_of(server, data)]) == EXPECTED
    (headers,) = [headers for _, headers in server.requests]
    assert headers["Range"] == f"bytes=-{transport._LONG_TAIL}"


def test_metadata_at_the_start_of_a_large_wheel(server: Server, client: MakeClient) -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("some_pkg-1.0.dist-info/METADATA", CORE)
        for number in range(2000):
            archive.writestr(f"some_pkg/{'long' * 20}{number}", os.urandom(300))
    sent: list[int] = []
    data = content.getvalue()
    wheel = file_of(server, data)
    page = server.pages["/f/some_pkg-1.0-py3-none-any.whl"]
    assert not callable(page)
    kind, body = page

    def counted(request: Handler) -> None:
        sent.append(1)
        request.send(kind, body)

    server.pages["/f/some_pkg-1.0-py3-none-any.whl"] = counted
    assert client().metadata([wheel]) == EXPECTED
    assert 2 <= len(sent) <= 4
    assert all("Range" in headers for _, headers in server.requests)


def test_server_without_ranges_sends_small_wheel(server: Server, client: MakeClient) -> None:
    server.ranges = False
    assert client().metadata([file_of(server, wheel_of(CORE))]) == EXPECTED
    assert len(server.requests) == 1


def test_large_wheel_without_ranges_has_no_metadata(
    server: Server, client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ranges = False
    monkeypatch.setattr(transport, "_LARGEST_WHOLE", 100)
    assert client().metadata([file_of(server, wheel_of(CORE))]) is None


@pytest.mark.parametrize("status", [416, 501])
def test_server_that_rejects_ranges_sends_whole_wheel(
    server: Server, client: MakeClient, status: int
) -> None:
    wheel = file_of(server, wheel_of(CORE))
    _, data = server.pages["/f/some_pkg-1.0-py3-none-any.whl"]  # type: ignore[misc]

    def reply(request: Handler) -> None:
        if "Range" in request.headers:
            request.reply(status)
        else:
            request.reply(200, data)

    server.pages["/f/some_pkg-1.0-py3-none-any.whl"] = reply
    assert client().metadata([wheel]) == EXPECTED


@pytest.mark.parametrize("ending", [".tar.gz", ".zip"])
def test_static_sdist(server: Server, client: MakeClient, ending: str) -> None:
    data = sdist_of(CORE)
    if ending == ".zip":
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("some_pkg-1.0/PKG-INFO", CORE)
        data = content.getvalue()
    metadata = client().metadata([file_of(server, data, f"some_pkg-1.0{ending}")])
    assert metadata is not None
    assert (metadata.source, metadata.requires, metadata.dynamic) == ("its sdist", EXPECTED.requires, False)


@pytest.mark.parametrize(
    "text",
    [
        CORE.replace("2.4", "2.1"),
        CORE.replace("Name:", "Dynamic: Requires-Dist\nName:"),
        CORE.replace("Name:", "Dynamic: provides-extra\nName:"),
        CORE.replace("Name:", "Dynamic: requires-python\nName:"),
    ],
)
def test_metadata_of_dynamic_sdist_is_marked(server: Server, client: MakeClient, text: str) -> None:
    sdist = file_of(server, sdist_of(text), "some_pkg-1.0.tar.gz")
    for _ in range(2):
        metadata = client().metadata([sdist])
        assert metadata is not None
        assert metadata.dynamic
        assert metadata.requires == EXPECTED.requires
    assert len(server.requests) == 1


LEGACY = "Metadata-Version: 1.2\nName: some-pkg\nVersion: 1.0\nProvides-Extra: gpu\n"
REQUIRES_TXT = """six>=1
old; python_version < "3" or os_name == "nt"

[:python_version < "3.8" or sys_platform == "win32"]
importlib_metadata

[Big_Models]
torch[extra]>=2

[gpu:platform_machine == "x86_64" or platform_machine == "aarch64"]
# a comment
cupy @ https://example.org/cupy-1.0.tar.gz ; python_version >= "3.8"
"""


@pytest.mark.parametrize("where", ["some_pkg.egg-info", "src/some.pkg.egg-info"])
@pytest.mark.parametrize("first", [False, True])
def test_requires_txt_of_setuptools(server: Server, client: MakeClient, where: str, *, first: bool) -> None:
    path = f"{where}/requires.txt"
    more = {path: REQUIRES_TXT, "other.egg-info/requires.txt": "wrong"}
    data = sdist_of(None if first else LEGACY, **more, **({"PKG-INFO": LEGACY} if first else {}))
    sdist = file_of(server, data, "some_pkg-1.0.tar.gz")
    metadata = client().metadata([sdist])
    assert metadata is not None
    assert metadata.dynamic
    assert metadata.extras == ("gpu", "big-models")
    assert metadata.requires == (
        "six>=1",
        'old; python_version < "3" or os_name == "nt"',
        'importlib_metadata; python_version < "3.8" or sys_platform == "win32"',
        'torch[extra]>=2; extra == "big-models"',
        (
            'cupy @ https://example.org/cupy-1.0.tar.gz ; python_version >= "3.8" and '
            '(platform_machine == "x86_64" or platform_machine == "aarch64") and extra == "gpu"'
        ),
    )


@pytest.mark.parametrize("metadata_version", ["2.1", "2.4"])
def test_requires_dist_is_preferred_to_requires_txt(
    server: Server, client: MakeClient, metadata_version: str
) -> None:
    data = sdist_of(CORE.replace("2.4", metadata_version), **{"some_pkg.egg-info/requires.txt": "six"})
    metadata = client().metadata([file_of(server, data, "some_pkg-1.0.tar.gz")])
    assert metadata is not None
    assert metadata.requires == EXPECTED.requires


def test_static_sdist_without_requirements_has_none(server: Server, client: MakeClient) -> None:
    data = sdist_of(LEGACY.replace("1.2", "2.2"), **{"some_pkg.egg-info/requires.txt": "six"})
    metadata = client().metadata([file_of(server, data, "some_pkg-1.0.tar.gz")])
    assert metadata is not None
    assert metadata.requires == ()


@pytest.mark.parametrize("text", ["six ==", "[:python_version <]\nsix", "six\n[a:b]\nseven"])
def test_invalid_requires_txt_is_an_error(server: Server, client: MakeClient, text: str) -> None:
    data = sdist_of(LEGACY, **{"some_pkg.egg-info/requires.txt": text})
    with pytest.raises(SourceError, match=r"requires.txt has an invalid requirement or marker"):
        client().metadata([file_of(server, data, "some_pkg-1.0.tar.gz")])


LISTED = """# for this backend
-r common.txt
--extra-index-url https://example.org/rocm
numba == 0.61.2; python_version > '3.9'  # a comment
wide \\
  >=2
"""


@pytest.mark.parametrize(("path", "other"), [("requirements/", ""), ("requirements-", "requirements-")])
def test_requirements_file_of_a_backend_replaces_those_of_an_sdist(
    server: Server, client: MakeClient, path: str, other: str
) -> None:
    """Read vLLM's layouts of 0.5 to 0.7 and since 0.8; requirements of extras stay those of PKG-INFO."""
    text = LEGACY.replace("1.2", "2.1") + "Requires-Dist: xformers\nRequires-Dist: cupy; extra == 'gpu'\n"
    files = {
        f"{path}rocm.txt": LISTED.replace("common", f"{other}common"),
        f"{path}common.txt": "regex # why\nsix>=1",
        f"{path}cuda.txt": "xformers",
    }
    sdist = file_of(server, sdist_of(text, **files), "some_pkg-1.0.tar.gz")
    listed = client().metadata([sdist], "requirements?rocm.txt")
    assert listed is not None
    assert listed.dynamic
    assert listed.source == f"{path}rocm.txt in its sdist"
    expected = ("regex", "six>=1", 'numba==0.61.2; python_version > "3.9"', "wide>=2")
    assert listed.requires == (*expected, "cupy; extra == 'gpu'")
    assert client(offline=True).metadata([sdist], "requirements?rocm.txt") == listed
    for glob in ("", "requirements?xpu.txt"):
        plain = client().metadata([sdist], glob)
        assert plain is not None
        assert plain.requires[0] == "xformers"


@pytest.mark.parametrize("text", ["six ==", "git+https://example.org/six.git", "-r rocm.txt\n!"])
def test_invalid_requirements_file_of_a_backend_is_an_error(
    server: Server, client: MakeClient, text: str
) -> None:
    sdist = file_of(server, sdist_of(LEGACY, **{"requirements/rocm.txt": text}), "some_pkg-1.0.tar.gz")
    with pytest.raises(SourceError, match=r"requirements/rocm.txt has an invalid requirement"):
        client().metadata([sdist], "requirements/rocm.txt")


def test_dynamic_field_that_does_not_matter(server: Server, client: MakeClient) -> None:
    text = CORE.replace("Name:", "Dynamic: License-File\nName:")
    metadata = client().metadata([file_of(server, sdist_of(text), "some_pkg-1.0.tar.gz")])
    assert metadata is not None


def test_sdist_without_metadata(server: Server, client: MakeClient) -> None:
    sdist = file_of(server, sdist_of(None), "some_pkg-1.0.tar.gz")
    assert client().metadata([sdist]) is None
    assert client().metadata([]) is None


def test_metadata_that_could_not_be_used_is_the_same_offline(server: Server, client: MakeClient) -> None:
    """What is wrong with a release is repeated without network; with network, it is read again."""
    broken = sdist_of(LEGACY, **{"some_pkg.egg-info/requires.txt": "six ==", "a": "broken"})
    missing = File("some_pkg-1.0-py3-none-any.whl", f"{server.url}/f/missing", "0" * 64, index=server.url)
    for file in (file_of(server, broken, "some_pkg-1.0.tar.gz"), missing):
        errors = []
        for offline in (False, True):
            with pytest.raises(SourceError) as caught:
                client(offline=offline).metadata([file])
            errors.append((caught.value.message, caught.value.hint, str(caught.value.__cause__)))
        assert errors[0] == errors[1]
        assert file.name not in errors[0][2]
    without = file_of(server, sdist_of(None), "some_pkg-1.0.tar.gz")
    assert [client(offline=offline).metadata([without]) for offline in (False, True)] == [None, None]
    sent = len(server.requests)
    assert client().metadata([without]) is None
    assert len(server.requests) > sent
    unread = file_of(server, sdist_of(None, b="unread"), "some_pkg-1.0.tar.gz")
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        client(offline=True).metadata([unread])


# Faults


def fails(client: IndexClient, kind: type[MatrixError], *words: str) -> MatrixError:
    with pytest.raises(kind) as caught:
        client.project("some-pkg")
    for word in ("some-pkg", *client.urls, *words):
        assert word in caught.value.message
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("status", [401, 403, 500, 503])
def test_error_status_names_index_and_project(server: Server, client: MakeClient, status: int) -> None:
    server.pages["/simple/some-pkg/"] = lambda request: request.reply(status)
    fails(client(), EnvironmentLacksError, f"{status} ")
    assert len(server.requests) == (4 if status >= 500 else 1)
    assert not client().is_cached("some-pkg")


def test_gone_project_is_not_there(server: Server, client: MakeClient) -> None:
    server.pages["/simple/some-pkg/"] = lambda request: request.reply(410)
    assert client().project("some-pkg") is None


def test_pytorch_hides_missing_projects(
    client: MakeClient, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr("builders.index_client.client.PYTORCH_HOST", "127.0.0.1")
    server.pages["/simple/some-pkg/"] = lambda request: request.reply(403)
    assert client().project("some-pkg") is None


def test_temporary_error_is_tried_again(server: Server, client: MakeClient) -> None:
    def reply(request: Handler) -> None:
        if len(server.requests) < 3:
            request.reply(503)
        else:
            request.send(JSON, json.dumps(PYPI).encode())

    server.pages["/simple/some-pkg/"] = reply
    assert versions(client().project("some-pkg"))


def test_host_that_is_down_is_asked_once(client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    down = client("http://127.0.0.1:1/simple")
    error = fails(down, EnvironmentLacksError, "no connection")
    assert "--offline" not in error.hint
    monkeypatch.setattr("requests.Session.get", lambda *_, **__: pytest.fail("was asked again"))
    with pytest.raises(EnvironmentLacksError, match="other"):
        down.project("other")


def test_slow_index_is_a_timeout(server: Server, client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "TIMEOUT", (1, 0.05))
    server.pages["/simple/some-pkg/"] = lambda _: time.sleep(0.3)
    fails(client(), EnvironmentLacksError, "timeout")


def test_old_page_is_not_used_when_the_index_fails(server: Server, client: MakeClient) -> None:
    server.json("/simple/some-pkg/", PYPI)
    client().project("some-pkg")
    server.pages["/simple/some-pkg/"] = lambda request: request.reply(500)
    error = fails(client(fresh_for=0), EnvironmentLacksError, "500")
    assert "--offline" in error.hint
    assert client(offline=True).project("some-pkg") is not None


@pytest.mark.parametrize(
    ("kind", "body", "reason"),
    [
        ("image/png", b"x", "image/png"),
        ("", b"x", "missing"),
        (JSON, b"{", "not valid JSON"),
        (JSON, b"[]", "not valid JSON"),
        (JSON, b'{"files": [{"filename": 1}]}', "not valid JSON"),
        (JSON, b"\xff", "not valid JSON"),
        (JSON, b'{"meta": {"api-version": "2.0"}, "files": []}', "version 2.0"),
        (HTML, b'<meta name="pypi:repository-version" content="2.0">', "version 2.0"),
    ],
)
def test_broken_page_is_an_error(
    server: Server, client: MakeClient, kind: str, body: bytes, reason: str
) -> None:
    server.pages["/simple/some-pkg/"] = (kind, body)
    fails(client(), SourceError, reason)
    assert not client().is_cached("some-pkg")


def test_html_that_is_not_html_has_no_files(server: Server, client: MakeClient) -> None:
    server.pages["/simple/some-pkg/"] = (HTML, b"\xff\xfe<a href")
    assert versions(client().project("some-pkg")) == []


def test_redirect_is_followed(server: Server, client: MakeClient) -> None:
    server.pages["/simple/some-pkg/"] = lambda request: request.reply(301, Location="/moved/some-pkg/")
    server.json("/moved/some-pkg/", {"files": [{"filename": "some-pkg-1.0.zip", "url": "some-pkg-1.0.zip"}]})
    (sdist,) = files(client().project("some-pkg"))
    assert sdist.url == f"{server.url}/moved/some-pkg/some-pkg-1.0.zip"
    assert sdist.index == f"{server.url}/simple"


def test_endless_redirect_is_an_error(server: Server, client: MakeClient) -> None:
    server.pages["/simple/some-pkg/"] = lambda request: request.reply(301, Location="/simple/some-pkg/")
    fails(client(), EnvironmentLacksError, "too many redirects")


def broken(client: IndexClient, file: File, *words: str) -> SourceError:
    with pytest.raises(SourceError) as caught:
        client.metadata([file])
    for word in (file.name, "some-pkg", file.index, *words):
        assert word in caught.value.message
    assert caught.value.hint
    return caught.value


def test_wrong_hash_of_metadata_file(server: Server, client: MakeClient, tmp_path: Path) -> None:
    server.file("/f/some_pkg-1.0-py3-none-any.whl.metadata", CORE.encode())
    wheel = file_of(server, b"", has_metadata=True, metadata_sha256="ab" * 32)
    for offline in (False, True):
        broken(client(offline=offline), wheel, "ab" * 32, sha256(CORE.encode()))
    for path in tmp_path.rglob("*.msgpack"):
        assert b"Requires-Dist" not in path.read_bytes()
        assert EXPECTED.requires[0].encode() not in path.read_bytes()


def test_wrong_hash_of_sdist(server: Server, client: MakeClient) -> None:
    sdist = file_of(server, sdist_of(CORE), "some_pkg-1.0.tar.gz")
    server.file("/f/some_pkg-1.0.tar.gz", sdist_of(CORE + "x"))
    broken(client(), sdist, sdist.sha256)


@pytest.mark.parametrize(
    "text",
    [
        CORE.replace("Version: 1.0", "Version: 1.1"),
        CORE.replace("Some_Pkg", "other"),
        CORE.replace("Version: 1.0", "Version: one"),
        CORE.replace("Version: 1.0\n", ""),
        CORE.replace("Version: 1.0\n", "Version: 1.0\n" + "Requires-Dist: x\n" * 5_001),
        CORE.replace("Version: 1.0\n", "Version: 1.0\n" + "Provides-Extra: x\n" * 5_001),
        "",
        "\n\n",
    ],
)
@pytest.mark.parametrize("kind", ["metadata", "wheel", "sdist"])
def test_metadata_that_contradicts_the_file(server: Server, client: MakeClient, text: str, kind: str) -> None:
    if kind == "metadata":
        server.file("/f/some_pkg-1.0-py3-none-any.whl.metadata", text.encode())
        broken(client(), file_of(server, b"", has_metadata=True), "its metadata file")
    elif kind == "wheel":
        broken(client(), file_of(server, wheel_of(text)), "its wheel")
    else:
        broken(client(), file_of(server, sdist_of(text), "some_pkg-1.0.tar.gz"), "its sdist")


@pytest.mark.parametrize(
    "data", [b"", b"PK\3\4", b"x" * 200_000, wheel_of(CORE)[:-30]], ids=["empty", "signature", "text", "cut"]
)
def test_damaged_wheel(server: Server, client: MakeClient, data: bytes) -> None:
    broken(client(), file_of(server, data))


@pytest.mark.parametrize(
    "data", [b"", b"\x1f\x8bxx", sdist_of(CORE)[:100]], ids=["empty", "signature", "cut"]
)
def test_damaged_sdist(server: Server, client: MakeClient, data: bytes) -> None:
    broken(client(), file_of(server, data, "some_pkg-1.0.tar.gz"))


def test_missing_file_is_an_error(server: Server, client: MakeClient) -> None:
    for name in ("some_pkg-1.0-py3-none-any.whl", "some_pkg-1.0.tar.gz"):
        file = file_of(server, b"", name, has_metadata=True)
        del server.pages[f"/f/{name}"]
        broken(client(), file, "404")


def test_announced_metadata_file_is_missing(server: Server, client: MakeClient) -> None:
    assert client().metadata([file_of(server, wheel_of(CORE), has_metadata=True)]) == EXPECTED


@pytest.mark.parametrize("status", [403, 500])
def test_error_for_a_file_is_not_a_broken_file(server: Server, client: MakeClient, status: int) -> None:
    wheel = file_of(server, b"", has_metadata=True)
    server.pages["/f/some_pkg-1.0-py3-none-any.whl.metadata"] = lambda request: request.reply(status)
    with pytest.raises(EnvironmentLacksError, match=f"some_pkg-1.0-py3-none-any.whl .*{status}"):
        client().metadata([wheel])


def test_wrong_hash_of_a_whole_wheel(server: Server, client: MakeClient) -> None:
    server.ranges = False
    wheel = file_of(server, wheel_of(CORE))
    server.file("/f/some_pkg-1.0-py3-none-any.whl", wheel_of(CORE.replace("numpy", "evil")))
    broken(client(), wheel, wheel.sha256)


def test_missing_local_file_is_an_error(client: MakeClient, tmp_path: Path) -> None:
    name = "some_pkg-1.0-py3-none-any.whl"
    broken(client(), File(name, (tmp_path / name).as_uri(), index="file:///some"), "No such file")


def test_full_disk_is_not_a_broken_file(
    server: Server, client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(EnvironmentLacksError, match="No space left"):
        client().metadata([file_of(server, sdist_of(CORE), "some_pkg-1.0.tar.gz")])


def test_interrupted_download(server: Server, client: MakeClient) -> None:
    def cut(request: Handler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000")
        request.end_headers()
        request.wfile.write(b"x")
        request.close_connection = True

    wheel = file_of(server, b"", has_metadata=True)
    server.pages["/f/some_pkg-1.0-py3-none-any.whl.metadata"] = cut
    with pytest.raises(EnvironmentLacksError, match="interrupted"):
        client().metadata([wheel])
    server.pages["/simple/some-pkg/"] = cut
    fails(client(), EnvironmentLacksError)


# Credentials and mirrors


def protected(server: Server, login: str) -> None:
    def reply(request: Handler) -> None:
        expected = f"Basic {base64.b64encode(login.encode()).decode()}"
        if request.headers.get("Authorization") == expected:
            request.send(JSON, json.dumps(PYPI).encode())
        else:
            request.reply(401)

    server.pages["/simple/some-pkg/"] = reply


def test_password_in_url_is_used_and_hidden(server: Server, client: MakeClient, tmp_path: Path) -> None:
    protected(server, "me:hun/ter2")
    url = server.url.replace("//", "//me:hun%2Fter2@") + "/simple/"
    indexes = client(url)
    assert indexes.urls == (f"{server.url}/simple",)
    wheel = files(indexes.project("some-pkg"))[0]
    assert wheel.index == f"{server.url}/simple"
    protected(server, "me:other")
    error = fails(client(url, fresh_for=0), EnvironmentLacksError, "401")
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (error.message, error.hint, str(list(tmp_path.rglob("*"))), str(stored)):
        assert "ter2" not in text


def test_netrc_is_used(server: Server, client: MakeClient, tmp_path: Path) -> None:
    protected(server, "me:secret")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    assert versions(client().project("some-pkg"))


@pytest.mark.parametrize("user", ["", "me@"])
def test_keyring_is_asked_after_401(
    server: Server, client: MakeClient, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    class Credential:
        username, password = "me", "secret"

    class Keyring:
        @staticmethod
        def get_credential(_service: str, name: str | None) -> Credential:
            assert name == (user.rstrip("@") or None)
            return Credential()

    monkeypatch.setitem(sys.modules, "keyring", Keyring)
    protected(server, "me:secret")
    assert versions(client(server.url.replace("//", f"//{user}") + "/simple").project("some-pkg"))
    assert len(server.requests) == 2


def test_mirror_replaces_index_and_files(server: Server, client: MakeClient) -> None:
    server.json("/mirror/some-pkg/", page("some-pkg-1.0.tar.gz"))
    server.file("/files/f/some-pkg-1.0.tar.gz", sdist_of(CORE))
    indexes = client(
        "https://index.example/simple/",
        mirrors={
            "https://index.example/simple": f"{server.url}/mirror",
            f"{server.url}/f": f"{server.url}/files/f",
        },
    )
    sdists = files(indexes.project("some-pkg"))
    assert sdists[0].index == "https://index.example/simple"
    assert indexes.metadata(sdists) is not None


# Threads and processes


def test_pool_works_in_parallel_and_ignores_errors(client: MakeClient) -> None:
    indexes = client()
    barrier = threading.Barrier(17, timeout=10)

    def fail() -> None:
        barrier.wait()
        raise ValueError

    for _ in range(16):
        indexes.submit(fail)
    barrier.wait()
    done = threading.Event()
    indexes.submit(done.set)
    assert done.wait(10)
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "package indexes")


_READER = """
import sys
from pathlib import Path
from builders.index_client import IndexClient

url, cache = sys.argv[1:]
while True:
    project = IndexClient([url], cache=Path(cache), fresh_for=0).project("some-pkg")
    assert [release.version for release in project.releases] == ["1.10", "1.9", "0.9"]
    assert [len(release.files) for release in project.releases] == [2, 1, 1]
    print("read", flush=True)
"""


def test_processes_share_a_cache_and_may_be_killed(server: Server, tmp_path: Path) -> None:
    server.json("/simple/some-pkg/", PYPI)
    command = [sys.executable, "-c", _READER, f"{server.url}/simple", str(tmp_path / "shared")]
    for count in (2, 1):
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
        for reader in readers:
            assert reader.stdout is not None
            for _ in range(20):
                assert reader.stdout.readline() == b"read\n"
        for reader in readers:
            reader.send_signal(signal.SIGKILL)
            reader.wait()
            assert reader.stdout is not None
            reader.stdout.close()
            assert reader.returncode == -signal.SIGKILL
    offline = IndexClient([f"{server.url}/simple"], cache=tmp_path / "shared", offline=True)
    assert versions(offline.project("some-pkg")) == ["1.10", "1.9", "0.9"]


def test_page_replaced_by_another_process(server: Server, client: MakeClient) -> None:
    names = [f"pkg-{minor}.0-py3-none-any.whl" for minor in range(2000)]
    server.json("/simple/pkg/", page(*names))
    project = found(client().project("pkg"))
    server.json("/simple/pkg/", page(*names[1:]))
    client(fresh_for=0).project("pkg")
    assert [file.name for file in files(project, "1.0")] == [names[1]]
    assert files(project, "0.0") == []
    assert files(project, "1999.0")[0].name == names[1999]


def test_cached_page_has_the_files_of_the_page(server: Server, client: MakeClient, tmp_path: Path) -> None:
    sizes = itertools.cycle([1, 30, 2, 1600, 1])
    names = [f"pkg-{minor}.0-py3-none-linux_{tag}.whl" for minor in range(30) for tag in range(next(sizes))]
    server.json("/simple/pkg/", page(*names))
    (tmp_path / "file").touch()
    unstored = IndexClient([f"{server.url}/simple"], cache=tmp_path / "file" / "cache").project("pkg")
    expected = [(release.version, release.files) for release in found(unstored).releases]
    client().project("pkg")
    for step in (1, -1, 7):
        releases = found(client().project("pkg")).releases
        assert len(releases) == 30
        looked_at = {number * step % 30: releases[number * step % 30].files for number in range(30)}
        found_now = [(release.version, looked_at[number]) for number, release in enumerate(releases)]
        assert found_now == expected


@pytest.mark.parametrize("damage", ["gone", "zeros"])
def test_page_that_is_damaged_while_it_is_used(
    server: Server, client: MakeClient, tmp_path: Path, damage: str
) -> None:
    names = [f"pkg-{minor}.0-py3-none-any.whl" for minor in range(2000)]
    server.json("/simple/pkg/", page(*names))
    project = client().project("pkg")
    (stored,) = tmp_path.rglob("pkg.jsonl")
    if damage == "gone":
        stored.unlink()
    else:  # as after a power failure: pages are not flushed to disk
        with stored.open("r+b") as content:
            content.seek(100_000)
            content.write(bytes(stored.stat().st_size - 100_000))
    with pytest.raises(EnvironmentLacksError, match=f"{stored} in the cache .* cannot be read"):
        files(project, "0.0")
    assert files(client().project("pkg"), "0.0")[0].name == names[0]


LINK = b'<a href="/files/a-1.0.tar.gz#sha256=00">a-1.0.tar.gz</a><br>\n'
HIDDEN = b'<!-- <a href="/files/a-2.0.tar.gz">a-2.0.tar.gz</a> -->\n'


@pytest.mark.parametrize("page", [LINK + b"<!--SERIAL 1-->", HIDDEN + LINK, LINK + HIDDEN])
def test_comment_is_no_link(page: bytes) -> None:
    releases = pages.releases(page, HTML, "https://index.example/simple/a/", "a")
    assert [version for version, _ in releases] == ["1.0"]


# Many projects at once


MANY = [f"pkg-{number}" for number in range(40)]


@pytest.fixture
def many(server: Server, make_wheel: MakeWheel) -> Server:
    """Return the server with many projects, whose pages take a moment."""
    for name in MANY:
        file = make_wheel(name.replace("-", "_"), "1.0")
        server.file(f"/files/{file.name}", file.read_bytes())
        body = f'<a href="/files/{file.name}">{file.name}</a>'.encode()

        def send(handler: Handler, body: bytes = body) -> None:
            time.sleep(0.05)
            handler.send(HTML, body)

        server.pages[f"/simple/{name}/"] = send
    return server


def read_all(source: IndexClient) -> dict[str, Metadata | MatrixError | None]:
    """Read all projects in threads as a search does."""
    answers: dict[str, Metadata | MatrixError | None] = {}

    def read(name: str) -> None:
        try:
            answers[name] = source.metadata(files(source.project(name)))
        except MatrixError as error:
            answers[name] = error

    threads = [threading.Thread(target=source.submit, args=[lambda name=name: read(name)]) for name in MANY]
    for thread in threads:
        thread.start()
    until = time.monotonic() + 60
    while len(answers) < len(MANY) and time.monotonic() < until:
        time.sleep(0.01)
    return answers


def all_versions(answers: Mapping[str, Metadata | MatrixError | None]) -> dict[str, str]:
    return {name: getattr(answer, "version", str(answer)) for name, answer in answers.items()}


def test_many_projects_are_read_at_once_with_one_request_for_each_page(
    many: Server, client: MakeClient
) -> None:
    source = client()
    assert all_versions(read_all(source)) == dict.fromkeys(MANY, "1.0")
    pages = [path for path in many.paths if path.startswith("/simple/")]
    assert sorted(pages) == sorted(f"/simple/{name}/" for name in MANY)
    assert 1 < many.most_connections <= 16


def test_many_projects_are_read_without_a_cache(many: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    source = IndexClient([f"{many.url}/simple/"], cache=tmp_path / "file" / "cache")
    assert all_versions(read_all(source)) == dict.fromkeys(MANY, "1.0")


def test_broken_pages_among_many_projects_are_errors_of_their_projects(
    many: Server, client: MakeClient
) -> None:
    for name in MANY[20:]:
        many.pages[f"/simple/{name}/"] = ("image/png", b"")
    answers = read_all(client())
    assert all(isinstance(answers[name], Metadata) for name in MANY[:20])
    for name in MANY[20:]:
        error = answers[name]
        assert isinstance(error, SourceError)
        assert f"The page of {name} on " in error.message


_GOOD = {"filename": "tiny-1.0-py3-none-any.whl", "url": "tiny-1.0-py3-none-any.whl"}


@pytest.mark.parametrize(
    "bad",
    [
        {"filename": f"tiny-{'1' * 5000}-py3-none-any.whl", "url": "x"},
        {"filename": "tiny-abc-py3-none-any.whl", "url": "x"},
        {"filename": "tiny-2.0.whl", "url": "x"},
        {"filename": 5, "url": "x"},
        {"filename": "tiny-2.0-py3-none-any.whl"},
        {"filename": "tiny-2.0-py3-none-any.whl", "url": None},
        {"filename": "tiny-2.0-py3-none-any.whl", "url": "x", "hashes": []},
        {"filename": "tiny-2.0-py3-none-any.whl", "url": "x", "size": "big"},
        {"filename": "", "url": ""},
        "text",
        None,
    ],
)
def test_bad_file_of_json_page_is_skipped(bad: object) -> None:
    for rows in ([bad, _GOOD, bad], [_GOOD, bad]):
        content = json.dumps({"meta": {"api-version": "1.0"}, "files": rows}).encode()
        url = "https://i.example/tiny/"
        releases = pages.releases(content, "application/vnd.pypi.simple.v1+json", url, "tiny")
        files_by_version = {version: pages.files(rows, url, "") for version, rows in releases}
        (file,) = files_by_version.pop("1.0")
        assert file.url == "https://i.example/tiny/tiny-1.0-py3-none-any.whl"
        assert not any(files_by_version.values())


@pytest.mark.parametrize(
    "name", [f"tiny-{'1' * 5000}-py3-none-any.whl", "tiny-abc.tar.gz", "tiny-&#9999999999;.zip"]
)
def test_bad_file_of_html_page_is_skipped(name: str) -> None:
    links = [f'<a href="{link}">{link}</a>' for link in (name, _GOOD["url"], name)]
    content = f"<html><body>{''.join(links)}</body></html>".encode()
    releases = pages.releases(content, "text/html", "https://i.example/tiny/", "tiny")
    assert [version for version, _ in releases] == ["1.0"]


def test_skipped_files_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    bad = {"filename": "tiny-abc-py3-none-any.whl", "url": "x"}
    content = json.dumps({"files": [bad, _GOOD, bad, {}]}).encode()
    with caplog.at_level("INFO"):
        pages.releases(content, "application/json", "https://i.example/tiny/", "tiny")
    assert [record.getMessage() for record in caplog.records] == [
        "Skipped a file that is not described as PEP 691 requires, 1 times: a JSON page",
        "Skipped a file that has an invalid version, 2 times: tiny",
    ]


def test_link_with_malformed_host_does_not_hide_others() -> None:
    links = [{"filename": "tiny-2.0-py3-none-any.whl", "url": "//[bad/tiny-2.0-py3-none-any.whl"}, _GOOD]
    content = json.dumps({"files": links}).encode()
    ((_, rows),) = pages.releases(content, "application/json", "https://i.example/", "")
    assert [file.name for file in pages.files(rows, "https://i.example/", "")] == [
        "tiny-1.0-py3-none-any.whl",
        "tiny-2.0-py3-none-any.whl",
    ]


@pytest.mark.parametrize("digest", ["z" * 64, "0" * 63 + "\n", "${TOKEN}", "-", "ａ" * 64])
@pytest.mark.parametrize("form", ["html", "json"])
def test_hash_that_is_not_hexadecimal_counts_as_unknown(form: str, digest: str) -> None:
    name, url = "tiny-1.0-py3-none-any.whl", "https://i.example/tiny/"
    if form == "json":
        row = {"filename": name, "url": name, "hashes": {"sha256": digest}}
        content = json.dumps({"meta": {"api-version": "1.0"}, "name": "tiny", "files": [row]}).encode()
        kind = "application/vnd.pypi.simple.v1+json"
    else:
        content, kind = f'<a href="{name}#sha256={digest}&x=1">{name}</a>\n'.encode(), "text/html"
    ((_, rows),) = pages.releases(content, kind, url, "tiny")
    (file,) = pages.files(rows, url, "")
    assert (file.name, file.sha256) == (name, "")
