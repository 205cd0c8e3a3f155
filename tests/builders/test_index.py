"""The index: pip reads it, and crashes and concurrent writers do not damage it."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pypi_simple import DistributionPackage, ProjectPage

from builders.index import Index
from builders.index.repository import _Pages
from builders.storage.files import sha256_of
from builders.storage.lease import link_exclusively
from resolver.errors import MatrixError
from tests.support.records import record_of
from tests.support.tiny import tiny_wheel

MakeWheel = Callable[..., Path]
Contents = Callable[[Path], dict[str, bytes]]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index")


def page_of(index: Index, project: str) -> str:
    return (index.simple / project / "index.html").read_text()


def links_of(index: Index, project: str) -> list[DistributionPackage]:
    """Read a project's page as pip does, with an independent reader."""
    base = (index.simple / project).as_uri() + "/"
    return ProjectPage.from_html(project, page_of(index, project), base_url=base).packages


def file_of(link: DistributionPackage) -> Path:
    return Path(unquote(urlsplit(link.url).path))


def json_links_of(index: Index, project: str) -> list[DistributionPackage]:
    """Read a project's JSON page with the same reader."""
    text = (index.simple / project / "index.json").read_text()
    base = (index.simple / project).as_uri() + "/"
    return ProjectPage.from_json_data(json.loads(text), base_url=base).packages


def agree(index: Index, project: str) -> None:
    """Check that both pages and the directory agree."""
    links = links_of(index, project)
    for link, other in zip(links, json_links_of(index, project), strict=True):
        for field in ("filename", "url", "digests", "requires_python", "is_yanked", "yanked_reason"):
            assert getattr(link, field) == getattr(other, field)
        assert other.size == file_of(link).stat().st_size
        assert other.upload_time is not None
    assert [file_of(link) for link in links] == index.wheels(project)
    for link in links:
        assert link.digests == {"sha256": sha256_of(file_of(link))}


def test_publish_writes_the_pages_pip_expects(index: Index, make_wheel: MakeWheel) -> None:
    made = make_wheel(version="1.0+cpu.torch2.13.0", requires_python=">=3.9,<4")
    wheel = index.publish(made, {"build_key": "k"})
    assert wheel == index.simple / "tiny" / made.name
    agree(index, "tiny")
    (link,) = links_of(index, "tiny")
    assert link.filename == made.name
    assert (link.project, link.version) == ("tiny", "1.0+cpu.torch2.13.0")
    assert link.requires_python == ">=3.9,<4"
    page = page_of(index, "tiny")
    assert f'href="tiny-1.0%2Bcpu.torch2.13.0-py3-none-any.whl#sha256={sha256_of(made)}"' in page
    assert 'data-requires-python="&gt;=3.9,&lt;4"' in page
    assert re.findall(r'href="(.*?)"', (index.simple / "index.html").read_text()) == ["tiny/"]


def test_provenance_has_hash_and_size(index: Index, make_wheel: MakeWheel) -> None:
    wheel = index.publish(make_wheel(), {"build_key": "k", "sha256": "not this"})
    (path,) = (index.root / "provenance").iterdir()
    assert path.name == f"{wheel.name}.{sha256_of(wheel)[:16]}.json"
    record = json.loads(path.read_text())
    assert record["build_key"] == "k"
    assert record["sha256"] == sha256_of(wheel)
    assert record["size"] == wheel.stat().st_size


@pytest.mark.slow
def test_publish_same_wheel_twice_is_a_no_op(index: Index, make_wheel: MakeWheel, contents: Contents) -> None:
    made = make_wheel()
    index.publish(made, {"build_key": "k"})
    before = contents(index.root)
    time.sleep(1.1)  # upload times have seconds
    assert index.publish(made, {"build_key": "k"}) == index.simple / "tiny" / made.name
    assert contents(index.root) == before


def test_publish_other_content_same_name_fails(
    index: Index, make_wheel: MakeWheel, contents: Contents
) -> None:
    index.publish(make_wheel(), record_of("first"))
    before = contents(index.root)
    other = make_wheel(files={"tiny.py": b"ANSWER = 43\n"}, folder="other")
    with pytest.raises(MatrixError, match="different content") as caught:
        index.publish(other, record_of("second"))
    assert "build tag" in caught.value.hint
    assert contents(index.root) == before


def test_publish_lost_race_fails(
    index: Index, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two builds of the same lock end at once. The second build publishes while the first build copies."""
    first = make_wheel()
    second = make_wheel(files={"tiny.py": b"ANSWER = 43\n"}, folder="other")
    real = shutil.copyfile

    def copy_slowly(source: Path, target: Path) -> Path:
        monkeypatch.setattr(shutil, "copyfile", real)
        index.publish(second, record_of("second"))
        return real(source, target)

    monkeypatch.setattr(shutil, "copyfile", copy_slowly)
    with pytest.raises(MatrixError, match="different content"):
        index.publish(first, record_of("first"))
    agree(index, "tiny")
    entry = index.find("tiny", "second")
    assert entry is not None
    assert sha256_of(entry.path) == sha256_of(second)


def test_publish_full_disk_leaves_index_unchanged(
    index: Index, make_wheel: MakeWheel, contents: Contents, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.publish(make_wheel(version="1.0"), {})
    before = contents(index.root)

    def fill(_: Path, target: Path) -> None:
        target.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", fill)
    with pytest.raises(OSError, match="No space"):
        index.publish(make_wheel(version="2.0"), {})
    assert contents(index.root) == before


@pytest.mark.parametrize("content", [b"no zip file", b""])
def test_publish_invalid_wheel_fails(
    index: Index, tmp_path: Path, content: bytes, contents: Contents
) -> None:
    file = tmp_path / "tiny-1.0-py3-none-any.whl"
    file.write_bytes(content)
    with pytest.raises(MatrixError):
        index.publish(file, {})
    named_wrong = tmp_path / "tiny.whl"
    named_wrong.write_bytes(content)
    with pytest.raises(MatrixError, match="Invalid wheel filename"):
        index.publish(named_wrong, {})
    assert contents(index.root) == {}


def test_next_build_number(index: Index, make_wheel: MakeWheel) -> None:
    assert index.next_build_number("tiny", "1.0+cpu") is None
    index.publish(make_wheel(version="1.0+cpu"), {})
    assert index.next_build_number("tiny", "1.0+cpu") == 1
    made = make_wheel(version="1.0+cpu")
    index.publish(made.rename(made.with_name("tiny-1.0+cpu-9-py3-none-any.whl")), {})
    assert index.next_build_number("tiny", "1.0+cpu") == 10
    assert index.next_build_number("tiny", "1.0") is None
    assert index.next_build_number("other", "1.0+cpu") is None


def test_find_wheel_by_build_key(index: Index, make_wheel: MakeWheel) -> None:
    assert index.find("tiny", "a") is None
    index.publish(make_wheel(version="1.0"), record_of("a"))
    wheel = index.publish(make_wheel(version="2.0"), record_of("b"))
    entry = index.find("tiny", "b")
    assert entry is not None
    assert entry.path == wheel
    assert index.find("tiny", "c") is None


def test_project_names_are_normalized(index: Index, make_wheel: MakeWheel) -> None:
    wheel = index.publish(make_wheel(name="My_Pkg.Ext"), record_of("k"))
    assert wheel.parent == index.simple / "my-pkg-ext"
    assert index.projects() == ["my-pkg-ext"]
    for spelled in ("my-pkg-ext", "My_Pkg.Ext", "MY.PKG_EXT"):
        assert index.wheels(spelled) == [wheel]
        assert index.find(spelled, "k") is not None
        assert index.next_build_number(spelled, "1.0") == 1
        assert index.refresh(spelled) is False
    assert [path.name for path in index.simple.iterdir() if path.is_dir()] == ["my-pkg-ext"]


def test_refresh_repairs_page_after_crash(index: Index, make_wheel: MakeWheel) -> None:
    index.publish(make_wheel(version="1.0"), record_of("a"))
    before = {path: path.read_bytes() for path in index.simple.rglob("index.*")}
    index.publish(make_wheel(version="2.0", requires_python=">=3.9"), record_of("b"))
    index.publish(make_wheel(name="fresh"), record_of("c"))
    for path in list(index.simple.rglob("index.*")):
        path.write_bytes(before[path]) if path in before else path.unlink()
    assert index.refresh("tiny") is True
    assert index.refresh("fresh") is True
    agree(index, "tiny")
    agree(index, "fresh")
    assert [link.requires_python for link in links_of(index, "tiny")] == [None, ">=3.9"]
    assert re.findall(r'href="(.*?)"', (index.simple / "index.html").read_text()) == ["fresh/", "tiny/"]
    assert index.refresh("tiny") is False


@pytest.mark.parametrize("page", ["tiny/index.html", "index.html"])
def test_refresh_slow_writer_writes_again(
    index: Index, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    """Another publisher publishes between the moments of reading the directory and writing the page."""
    index.publish(make_wheel(version="1.0"), {})
    others = [make_wheel(version="2.0"), make_wheel(name="other")]
    (index.simple / page).unlink()

    rename = _Pages.rename

    def rename_late(pages: _Pages, name: str, to: str) -> bool:
        if pages._path / to == index.simple / page:
            monkeypatch.setattr(_Pages, "rename", rename)
            for other in others:
                index.publish(other, {})
        return rename(pages, name, to)

    monkeypatch.setattr(_Pages, "rename", rename_late)
    index.refresh("tiny")
    assert len(index.wheels("tiny")) == 2
    agree(index, "tiny")
    assert re.findall(r'href="(.*?)"', (index.simple / "index.html").read_text()) == ["other/", "tiny/"]


def test_publish_slow_writer_writes_again(
    index: Index, make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another publisher publishes between the moments of preparing the pages and publishing."""
    others = [make_wheel(version="2.0"), make_wheel(name="other")]

    def link_late(temporary: Path, target: Path) -> bool:
        monkeypatch.setattr("builders.index.repository.link_exclusively", link_exclusively)
        for other in others:
            index.publish(other, {})
        return link_exclusively(temporary, target)

    monkeypatch.setattr("builders.index.repository.link_exclusively", link_late)
    index.publish(make_wheel(version="1.0"), {})
    assert len(index.wheels("tiny")) == 2
    agree(index, "tiny")
    assert re.findall(r'href="(.*?)"', (index.simple / "index.html").read_text()) == ["other/", "tiny/"]


@pytest.mark.parametrize("damage", [b"", b"<html>\n<body>", b"\xff\xfe\x00"])
def test_refresh_repairs_damaged_page(index: Index, make_wheel: MakeWheel, damage: bytes) -> None:
    index.publish(make_wheel(), {})
    pages = [index.simple / "tiny" / "index.html", index.simple / "index.html"]
    before = [page.read_bytes() for page in pages]
    for page in pages:
        page.write_bytes(damage)
    assert index.refresh("tiny") is True
    assert [page.read_bytes() for page in pages] == before


def test_refresh_drops_link_of_missing_wheel(index: Index, make_wheel: MakeWheel) -> None:
    first = index.publish(make_wheel(version="1.0"), {})
    gone = index.publish(make_wheel(version="2.0"), {})
    gone.unlink()
    assert index.refresh("tiny") is True
    agree(index, "tiny")
    first.unlink()
    index.refresh("tiny")
    assert not [path for path in (index.simple / "tiny").iterdir() if path.suffix in {".html", ".json"}]
    assert index.projects() == []
    assert "tiny" not in (index.simple / "index.html").read_text()


@pytest.mark.parametrize(
    "record",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b'{"sha256": null, "requires_python": null}',
    ],
)
def test_damaged_provenance_keeps_page(index: Index, make_wheel: MakeWheel, record: bytes) -> None:
    index.publish(make_wheel(), {"build_key": "k"})
    (path,) = (index.root / "provenance").iterdir()
    path.write_bytes(record)
    index.refresh("tiny")
    agree(index, "tiny")
    assert index.find("tiny", "k") is None


def test_pages_are_independent_of_order_and_path(tmp_path: Path, make_wheel: MakeWheel) -> None:
    made = [make_wheel(version=version) for version in ("1.0", "2.0", "10.0")]
    pages = []
    for number, order in enumerate([made, made[::-1]]):
        index = Index(tmp_path / str(number))
        for wheel in order:
            index.publish(wheel, {})
        pages.append(page_of(index, "tiny"))
    assert pages[0] == pages[1]
    assert str(tmp_path) not in pages[0]


# Publishes each wheel named on a line of its input, and answers each with a line.
PUBLISH = """
import pathlib, sys
from builders.index import Index
index = Index(pathlib.Path(sys.argv[1]))
print("ready", flush=True)
for line in sys.stdin:
    wheel = pathlib.Path(line.strip())
    index.publish(wheel, {"build_key": wheel.name})
    print("published", flush=True)
"""


class Watcher(threading.Thread):
    """Read all pages repeatedly, as clients do, and record states that no client may see."""

    def __init__(self, index: Index) -> None:
        super().__init__(daemon=True)
        self.index = index
        self.enough = threading.Event()
        self.rounds = 0
        self.faults: list[str] = []

    def run(self) -> None:
        while not self.enough.is_set():
            for page in [self.index.simple / "index.html", *self.index.simple.glob("*/index.html")]:
                if page.exists():
                    self.look(page)
            for data in [self.index.simple / "index.json", *self.index.simple.glob("*/index.json")]:
                if data.exists():
                    self.look_at_data(data)
            self.rounds += 1

    def look(self, page: Path) -> None:
        text = page.read_text()
        if not (text.startswith("<!DOCTYPE html>") and text.endswith("</html>\n")):
            self.faults.append(f"{page} is not whole: {text!r}")
        for href in re.findall(r'href="(.*?)"', text):
            if not (page.parent / unquote(href.partition("#")[0])).exists():
                self.faults.append(f"{page} links to {href}, which is not there")

    def look_at_data(self, page: Path) -> None:
        try:
            document = json.loads(page.read_bytes())
        except ValueError:
            self.faults.append(f"{page} is not whole")
            return
        for row in document.get("files", []):
            if not (page.parent / row["filename"]).exists():
                self.faults.append(f"{page} names {row['filename']}, which is not there")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "publishing", "reading"),
    [(1, 6, 1), (2, 6, 1), pytest.param(3, 16, 4, marks=pytest.mark.integration)],
)
def test_concurrent_publishers_some_killed(
    index: Index, make_wheel: MakeWheel, seed: int, publishing: int, reading: int
) -> None:
    chance = random.Random(seed)
    shares: list[list[Path]] = [
        [make_wheel(name="shared", version=f"{number}.{minor}") for minor in range(6)]
        + [make_wheel(name=f"own{number % 3}", version=f"{number}.{minor}") for minor in range(4)]
        for number in range(publishing)
    ]
    watchers = [Watcher(index) for _ in range(reading)]
    command = [sys.executable, "-c", PUBLISH, str(index.root)]
    with ExitStack() as stack:
        publishers: list[subprocess.Popen[str]] = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            for _ in shares
        ]
        threads = []
        for number, (publisher, share) in enumerate(zip(publishers, shares, strict=True)):
            assert publisher.stdout is not None
            assert publisher.stdout.readline() == "ready\n"
            chance.shuffle(share)
            killed_after = (chance.randrange(8), chance.uniform(0, 0.01)) if number % 2 else None
            threads.append(threading.Thread(target=drive, args=(publisher, share, killed_after)))
        for thread in [*watchers, *threads]:
            thread.start()
        for thread in threads:
            thread.join()
    for watcher in watchers:
        watcher.enough.set()
        watcher.join()
        assert watcher.faults == []
        assert watcher.rounds > 1

    assert [publisher.returncode for publisher in publishers] == [0, -9] * (publishing // 2)
    for project in index.projects():
        index.refresh(project)
        agree(index, project)
    there = {wheel.name for project in index.projects() for wheel in index.wheels(project)}
    assert there >= {wheel.name for share in shares[::2] for wheel in share}
    for project in index.projects():
        for entry in index.published(project):
            assert entry.provenance["build_key"] == entry.path.name
            assert entry.provenance["sha256"] == sha256_of(entry.path)


def drive(
    publisher: subprocess.Popen[str], share: list[Path], killed_after: tuple[int, float] | None
) -> None:
    """Feed a publisher; if it is to be killed, kill it a moment after it begins with the next wheel."""
    assert publisher.stdin is not None
    assert publisher.stdout is not None
    for number, wheel in enumerate(share):
        publisher.stdin.write(f"{wheel}\n")
        publisher.stdin.flush()
        if killed_after is not None and number == killed_after[0]:
            time.sleep(killed_after[1])
            publisher.kill()
            break
        publisher.stdout.readline()
    publisher.communicate()


def test_pages_escape_hostile_metadata(index: Index, make_wheel: MakeWheel) -> None:
    index.publish(make_wheel(requires_python='>=3"><script>'), {})
    (link,) = links_of(index, "tiny")
    assert link.requires_python == '>=3"><script>'
    assert "<script>" not in page_of(index, "tiny")


def test_empty_index_has_no_projects(index: Index) -> None:
    nothing: list[Any] = []
    assert index.projects() == nothing
    assert index.wheels("tiny") == nothing
    assert list(index.published("tiny")) == nothing


def test_landing_page_lists_projects_and_keeps_other_pages(tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    index.publish(tiny_wheel(tmp_path, "apex", "1.0"), {})
    page = index.root / "index.html"
    assert b'href="simple/apex/index.html"' in page.read_bytes()
    page.write_text("<p>somebody else's page</p>")
    index.publish(tiny_wheel(tmp_path, "flash-attn", "1.0"), {})
    assert page.read_text() == "<p>somebody else's page</p>"
    page.unlink()
    index.refresh_all()
    assert b"simple/flash-attn/" in page.read_bytes()
