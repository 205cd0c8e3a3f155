"""``matrix catalog update`` with a local server that replies like the public sources."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from matrix.cli import main
from matrix.input.facts_file import with_rows
from matrix.maintaining.rocm import MATRIX, read_matrix
from matrix.maintaining.torch_index import pythons_of
from resolver.facts import schema
from resolver.facts.catalog import Catalog, load
from resolver.facts.catalog_files import read_file, row_to_toml
from resolver.indexes import File

Capture = pytest.CaptureFixture[str]
AB = "ab" * 32
SIMPLE = "application/vnd.pypi.simple.v1+json"


@dataclass
class Sources:
    """Pages by path, and the requests for them."""

    pages: dict[str, tuple[str, str]] = field(default_factory=dict)
    requests: list[tuple[str, bool]] = field(default_factory=list)
    """Path, and whether the request was conditional."""
    agents: set[str] = field(default_factory=set)
    stall_at: int = 0
    """Number of the request, from 1, that gets no reply."""
    busy: int = 0
    """Number of requests that get a 503 first."""
    url: str = ""

    def project(self, name: str, files: list[dict[str, Any]]) -> None:
        """Add a project page (PEP 691)."""
        versions = sorted({file["filename"].removesuffix(".tar.gz").rsplit("-")[1] for file in files})
        document = {
            "meta": {"api-version": "1.1"},
            "name": name,
            "versions": versions,
            "files": [
                {"url": f"https://files.invalid/{file['filename']}", "size": 1, **file} for file in files
            ],
        }
        self.pages[f"/simple/{name}/"] = (SIMPLE, json.dumps(document))


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Sources]:
    """Serve pages locally; the index of pip and the mirrors point to them."""
    served = Sources()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            condition = self.headers.get("If-None-Match")
            served.requests.append((self.path, bool(condition)))
            served.agents.add(self.headers["User-Agent"])
            if len(served.requests) == served.stall_at:
                time.sleep(60)
            if served.busy:
                served.busy -= 1
                self.send_response(503)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            kind, text = served.pages.get(self.path, ("", ""))
            body = text.encode()
            tag = f'"{hashlib.sha256(body).hexdigest()[:12]}"'
            code = 404 if not kind else 304 if condition == tag else 200
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("ETag", tag)
            self.send_header("Content-Length", str(len(body) if code == 200 else 0))
            self.end_headers()
            if code == 200:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """Ignore clients that a test killed."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("PIP_INDEX_URL", f"{served.url}/simple")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("matrix.toml").write_text(
        f'[mirrors]\n"https://download.pytorch.org/" = "{served.url}/torch/"\n'
        f'"https://raw.githubusercontent.com/" = "{served.url}/raw/"\n'
    )
    yield served
    server.shutdown()
    server.server_close()


def newest_sdist(catalog: Catalog, name: str) -> schema.Release:
    releases = [release for release in catalog.releases_of(name) if release.sdist]
    return max(releases, key=lambda release: tuple(map(int, release.version.split("."))))


def as_file(release: schema.Release) -> dict[str, Any]:
    assert release.sdist is not None
    return {"filename": release.sdist.file, "hashes": {"sha256": release.sdist.sha256}}


def sdist(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"filename": f"{name}-{version}.tar.gz", "hashes": {"sha256": AB}, **more}


def update(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["catalog", "update", "--format", "json", *arguments]) == code
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


# PyPI.


@pytest.mark.slow
def test_new_release_is_written_only_with_apply(sources: Sources, capsys: Capture, catalog: Catalog) -> None:
    known = [as_file(release) for release in catalog.releases_of("deepspeed") if release.sdist]
    sources.project("deepspeed", [*known, sdist("deepspeed", "99.1.0")])
    shown = update(capsys, "--package", "deepspeed")
    assert shown["written"] == ""
    assert '+version = "99.1.0"' in shown["diff"]
    assert not Path("catalog").exists()
    written = update(capsys, "--package", "deepspeed", "--apply")
    assert written["diff"] == shown["diff"]
    mine = load([Path(written["written"])])
    release = mine.release["deepspeed", "99.1.0", ""]
    assert release.sdist == schema.Sdist("deepspeed-99.1.0.tar.gz", AB)
    assert (release.status, release.backend) == ("documented", newest_sdist(catalog, "deepspeed").backend)


KNOWN = 'status = "documented"\nsource = "s"\n'


def own_package(path: Path, sources: Sources, *rows: str) -> None:
    """Write facts about a package with one release; PyPI has a second release."""
    first = f'version = "1.0"\nsdist = {{ file = "newext-1.0.tar.gz", sha256 = "{AB}" }}\n'
    rows = ('[[package]]\nname = "newext"\ntitle = "t"\npypi = "same"\n', f"[[release]]\n{first}", *rows)
    path.write_text("schema = 1\n" + "".join(f"{row}{KNOWN}" for row in rows))
    sources.project("newext", [sdist("newext", "1.0"), sdist("newext", "1.1")])


@pytest.mark.slow
def test_requirements_of_new_release_are_inferred(sources: Sources, capsys: Capture, tmp_path: Path) -> None:
    facts = tmp_path / "facts.toml"
    own_package(
        facts,
        sources,
        '[[requires]]\nreleases = "==1.0"\non = "torch"\nversions = ["==2.7.*"]\n',
        '[[requires]]\non = "python"\nversions = [">=3.10"]\n',
        '[[recipe]]\nbackend = "rocm"\n',
    )
    update(capsys, "--package", "newext", "--catalog", "facts.toml", "--apply")
    mine = load([facts, Path("catalog/updates.toml")])
    (row,) = [row for row in mine.requires if row.releases == "==1.1"]
    assert (row.on, row.versions, row.status) == ("torch", ("==2.7.*",), "inferred")
    assert "the requirements of 1.1 have not been checked" in row.note


def test_new_release_without_recipe_is_a_remark(sources: Sources, capsys: Capture, tmp_path: Path) -> None:
    own_package(tmp_path / "facts.toml", sources, '[[recipe]]\nbackend = "rocm"\nreleases = "<1.1"\n')
    shown = update(capsys, "--package", "newext", "--catalog", "facts.toml")
    assert shown["rows"] == 0
    assert "no recipe for it" in shown["remarks"][0]


@pytest.mark.slow
def test_changed_hash_and_yanked_release_are_reported(
    sources: Sources, capsys: Capture, catalog: Catalog
) -> None:
    newest = newest_sdist(catalog, "horovod")
    file = as_file(newest) | {"hashes": {"sha256": "cd" * 32}, "yanked": "broken on Mondays"}
    sources.project("horovod", [file])
    shown = update(capsys, "--package", "horovod", "--apply")
    assert any("SHA-256" in remark and "cd" * 32 in remark for remark in shown["remarks"])
    mine = load([Path("catalog/updates.toml")])
    (bad,) = [row for row in mine.known_bad.values() if "yanked" in row.problem]
    assert bad.combination == {"horovod": f"=={newest.version}"}
    assert "broken on Mondays" in bad.problem
    assert mine.release["horovod", newest.version, ""] == catalog.release["horovod", newest.version, ""]
    assert update(capsys, "--package", "horovod")["diff"] == ""


def test_pre_release_yanked_and_foreign_project_are_skipped(
    sources: Sources, capsys: Capture, catalog: Catalog
) -> None:
    files = [as_file(newest_sdist(catalog, "horovod"))]
    sources.project("horovod", [*files, sdist("horovod", "99.0rc1"), sdist("horovod", "98.0", yanked="no")])
    sources.project("apex", [sdist("apex", "99.0")])
    assert update(capsys, "--package", "horovod", "--package", "apex")["diff"] == ""
    assert "/simple/apex/" not in [path for path, _ in sources.requests]


# PyTorch's indexes.


def torch_page(*files: str) -> tuple[str, str]:
    links = (
        f'<a href="{name.replace("+", "%2B")}#sha256={AB}" data-core-metadata="true">{name}</a>'
        for name in files
    )
    return "text/html", f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>"


@pytest.fixture
def torch_index(sources: Sources) -> Sources:
    """Serve an index of ROCm 7.14 with torch, torchvision and their metadata."""
    base = "/torch/whl/rocm7.14"
    wheel = "torch-99.0.0+rocm7.14-cp{0}-cp{0}{1}-manylinux_2_28_x86_64.whl"
    vision = "torchvision-98.0.0+rocm7.14-cp312-cp312-manylinux_2_28_x86_64.whl"
    sources.pages[f"{base}/torch/"] = torch_page(
        wheel.format("312", ""),
        wheel.format("313", ""),
        wheel.format("313", "t"),
        "torch-99.0.0+rocm7.14-cp312-cp312-win_amd64.whl",
        "torch-100.0.0.dev20261101+rocm7.14-cp312-cp312-manylinux_2_28_x86_64.whl",
    )
    sources.pages[f"{base}/torchvision/"] = torch_page(vision)
    text = "Metadata-Version: 2.1\nName: {}\nVersion: {}\n{}"
    needs = 'Requires-Dist: triton-rocm==5.0.0; platform_system == "Linux"\n'
    name = wheel.format("312", "").replace("+", "%2B")
    sources.pages[f"{base}/torch/{name}.metadata"] = (
        "text/plain",
        text.format("torch", "99.0.0+rocm7.14", needs),
    )
    sources.pages[f"{base}/torchvision/{vision.replace('+', '%2B')}.metadata"] = (
        "text/plain",
        text.format("torchvision", "98.0.0+rocm7.14", "Requires-Dist: torch==99.0.0\n"),
    )
    return sources


@pytest.mark.slow
def test_new_torch_is_read_from_wheel_metadata(torch_index: Sources, capsys: Capture) -> None:
    del torch_index
    update(capsys, "--source", "torch", "--apply")
    row = load([Path("catalog/updates.toml")]).torch["99.0.0+rocm7.14"]
    assert row.python == ("3.12", "3.13")
    assert row.glibc == "2.28"
    assert row.triton.startswith("triton-rocm==5.0.0")
    assert (row.torchvision, row.torchaudio) == ("98.0.0+rocm7.14", "")
    assert row.index == "https://download.pytorch.org/whl/rocm7.14"
    assert row.status == "inferred"
    assert "gfx90a" in row.gfx
    assert "has not been checked" in row.note


@pytest.mark.slow
def test_missing_torch_index_is_not_an_error(sources: Sources, capsys: Capture) -> None:
    shown = update(capsys, "--source", "torch")
    assert (shown["rows"], shown["unreachable"]) == (0, [])
    assert any(path.startswith("/torch/whl/") for path, _ in sources.requests)


# AMD's matrix.


def matrix_text(**columns: tuple[str, str]) -> str:
    """Return a matrix like AMD's: titles in the first column, notes, markup and gaps."""
    sink = io.StringIO()
    writer = csv.writer(sink)
    writer.writerow(["ROCm Version", *columns])
    writer.writerow(["      :ref:`Operating systems & kernels <os>`", *("Ubuntu 24.04" for _ in columns)])
    title = "      :doc:`GPU / LLVM target <reference/system-requirements>`"
    for number, target in enumerate(["gfx942 [#mi300-past-60]_", "gfx90a"]):
        cells = (target if target.split()[0] in gfx else "" for gfx, _ in columns.values())
        writer.writerow(["" if number else title, *cells])
    writer.writerow(["      KMD & USER SPACE [#kfd]_", ".. _kfd:", *("" for _ in list(columns)[1:])])
    writer.writerow(["      Tested user space versions", *(drivers for _, drivers in columns.values())])
    return sink.getvalue()


def test_read_matrix_ignores_markup_notes_and_gaps() -> None:
    cells = list(
        read_matrix(
            matrix_text(**{"9.9.1": ("gfx942 gfx90a", "30.10.x, 6.4.x"), "6.0.0": ("gfx90a", "6.0.x")})
        )
    )
    of_gpus = [(name, cell) for name, title, cell in cells if "gpu / llvm" in title and "gfx" in cell]
    assert " ".join(cell for name, cell in of_gpus if name == "9.9.1").split() == ["gfx942", "gfx90a"]
    assert [cell.strip() for name, cell in of_gpus if name == "6.0.0"] == ["gfx90a"]
    assert ("9.9.1", "tested user space versions", "30.10.x, 6.4.x") in cells
    for text in ("", "<html>", "a,b\n1,2\n", "ROCm Version\n"):
        assert not list(read_matrix(text))


@pytest.mark.slow
def test_matrix_adds_releases_and_keeps_driver_table(
    sources: Sources, capsys: Capture, catalog: Catalog
) -> None:
    text = matrix_text(**{"9.9.1": ("gfx90a", "99.10.x, 6.3.x"), "7.1.0": ("gfx90a", "6.3.x")})
    sources.pages["/raw/" + MATRIX.removeprefix("https://raw.githubusercontent.com/")] = ("text/csv", text)
    shown = update(capsys, "--source", "rocm", "--apply")
    mine = load([Path("catalog/updates.toml")])
    assert mine.rocm["9.9.1"].gfx == ("gfx90a",)
    assert mine.driver["99.10"].supports == ("9.9",)
    before, after = catalog.driver["6.3"], mine.driver["6.3"]
    assert set(after.supports) == {*before.supports, "9.9"}
    assert "7.1" not in after.supports
    if "7.1" in before.unsupported:
        assert any("7.1" in remark and "takes precedence" in remark for remark in shown["remarks"])


# Conditional requests and errors.


def test_second_update_sends_conditional_requests(
    sources: Sources, capsys: Capture, catalog: Catalog
) -> None:
    sources.project("horovod", [as_file(newest_sdist(catalog, "horovod"))])
    update(capsys, "--package", "horovod")
    assert main(["catalog", "update", "--package", "horovod"]) == 0
    assert "Pages: 1, unchanged since the last run: 1." in capsys.readouterr().err
    assert sources.requests == [("/simple/horovod/", False), ("/simple/horovod/", True)]
    assert all(agent.startswith("rocm-matrix") for agent in sources.agents)


def test_busy_source_is_retried(sources: Sources, capsys: Capture, catalog: Catalog) -> None:
    sources.project("horovod", [as_file(newest_sdist(catalog, "horovod"))])
    sources.busy = 1
    assert update(capsys, "--package", "horovod")["unreachable"] == []
    assert len(sources.requests) == 2


def test_offline_update_changes_nothing(
    sources: Sources, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("catalog").mkdir()
    mine = Path("catalog/updates.toml")
    mine.write_text("# by hand\nschema = 1\n")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert main(["catalog", "update", "--source", "pypi", "--apply"]) == 3
    message = capsys.readouterr().err
    assert "nothing was changed" in message
    assert message.count("127.0.0.1:9 could not be reached") == 1  # once for all packages
    assert " more)." in message
    assert mine.read_text() == "# by hand\nschema = 1\n"
    assert sources.requests == []


@pytest.mark.slow
def test_unreachable_host_is_tried_once(
    torch_index: Sources, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    del torch_index
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    shown = update(capsys, "--source", "pypi", "--source", "torch", code=3)
    assert "99.0.0+rocm7.14" in shown["diff"]
    assert len({entry.partition(": ")[2] for entry in shown["unreachable"]}) == 1


def test_page_of_no_index_is_reported(sources: Sources, capsys: Capture) -> None:
    sources.pages["/simple/horovod/"] = (SIMPLE, "{}")
    assert main(["catalog", "update", "--package", "horovod"]) == 3
    assert "is not a page of a package index" in capsys.readouterr().err


@pytest.mark.slow
def test_update_keeps_existing_text(sources: Sources, capsys: Capture, catalog: Catalog) -> None:
    known = [as_file(release) for release in catalog.releases_of("deepspeed") if release.sdist]
    sources.project("deepspeed", [*known, sdist("deepspeed", "99.1.0")])
    mine = Path("mine.toml")
    text = '# ours\nschema = 1\n\n[[rocm]] # odd\nversion = "9.9.9"\nstatus = "observed"\nsource = "us"'
    mine.write_text(text)
    update(capsys, "--package", "deepspeed", "-o", "mine.toml", "--apply")
    assert mine.read_text().startswith(text + "\n")
    assert {"9.9.9"} <= load([mine]).rocm.keys()
    mine.write_text("schema = 1\nrocm = 5\n")
    assert main(["catalog", "update", "--package", "deepspeed", "-o", "mine.toml", "--apply"]) == 2
    assert mine.read_text() == "schema = 1\nrocm = 5\n"


def test_output_that_is_not_text_is_reported(sources: Sources, capsys: Capture) -> None:
    Path("mine.toml").write_bytes(b"\x80")
    assert main(["catalog", "update", "--output", "mine.toml"]) == 2
    assert "mine.toml:1: not UTF-8 text" in capsys.readouterr().err
    assert not sources.requests


@pytest.mark.slow
def test_killed_update_continues_from_its_cache(sources: Sources, tmp_path: Path, catalog: Catalog) -> None:
    for name in ("deepspeed", "horovod"):
        known = [as_file(release) for release in catalog.releases_of(name) if release.sdist]
        sources.project(name, [*known, sdist(name, "99.1.0")])
    sources.stall_at = 2
    command = [sys.executable, "-m", "matrix", "catalog", "update", "--apply"]
    command += ["--package", "deepspeed", "--package", "horovod"]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    child = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(sources.requests) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not (tmp_path / "catalog").exists()
    assert (
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode
        == 0
    )
    assert sources.requests[2:] == [("/simple/deepspeed/", True), ("/simple/horovod/", False)]
    mine = load([tmp_path / "catalog"])
    assert ("deepspeed", "99.1.0", "") in mine.release
    assert ("horovod", "99.1.0", "") in mine.release


# Writing rows.


@pytest.mark.slow
def test_shipped_rows_survive_writing_and_reading(catalog: Catalog, tmp_path: Path) -> None:
    path = tmp_path / "all.toml"
    path.write_text(with_rows("", catalog.rows()))
    again = read_file(path)
    for kind in schema.KINDS:
        rows = {row.key(): row_to_toml(row) for row in catalog.of_kind(kind)}
        assert {row.key(): row_to_toml(row) for row in getattr(again, kind)} == rows


def test_wheel_counts_only_for_pythons_that_it_allows() -> None:
    names = {"cp310-cp310": "", "cp311-cp311": ">=3.12", "cp312-cp312": ">=3.10,<3.14", "cp313-cp313t": ""}
    files = [
        File(f"tiny-1.0-{tags}-linux_x86_64.whl", "", requires_python=stated)
        for tags, stated in names.items()
    ]
    assert pythons_of(files) == ("3.10", "3.12")
