"""Links, pipes and broken wheels in an index neither change other files, nor block, nor break the rest."""

from __future__ import annotations

import errno
import io
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from builders.index import Index
from builders.index.access import directory
from builders.index.maintenance import check, misplaced, unyank, yank
from builders.index.pages import entry_of, is_wheel
from builders.storage.files import sha256_of
from matrix.cli import main
from resolver.errors import MatrixError
from tests.support.errors import has_id
from tests.support.recorder import Recorder
from tests.support.records import provenance_of

MakeWheel = Callable[..., Path]
Contents = Callable[[Path], dict[str, bytes]]

pytestmark = pytest.mark.timeout(60)
KINDS = ("link", "dangling", "pipe", "socket")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the index that all tests copy; the first one creates it."""
    return tmp_path_factory.mktemp("published") / "index"


@pytest.fixture
def index(tmp_path: Path, make_wheel: MakeWheel, published: Path) -> Index:
    if not published.exists():
        for name in ("tiny", "other"):
            Index(published).publish(make_wheel(name, "1.0"), {})
    return Index(shutil.copytree(published, tmp_path / "index"))


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """Return a file of the user, outside the index."""
    path = tmp_path / "home" / "precious"
    path.parent.mkdir()
    path.write_text("precious")
    return path


def put(index: Index, wheel: Path, project: str = "tiny") -> Path:
    """Copy a wheel into an index with a record but without a page, as a killed publisher leaves it."""
    target = index.simple / project / wheel.name
    target.parent.mkdir(exist_ok=True)
    shutil.copy(wheel, target)
    (index.provenance / f"{wheel.name}.{sha256_of(wheel)[:16]}.json").write_text("{}")
    return target


def strange(path: Path, kind: str, precious: Path) -> None:
    """Replace a file with a link, a pipe or a socket."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "dangling":
        path.symlink_to(precious.with_name("new"))
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with socket.socket(socket.AF_UNIX) as listening, pytest.MonkeyPatch.context() as patch:
            patch.chdir(path.parent)  # because the names of sockets must be short
            listening.bind(path.name)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page", ["tiny/index.html", "tiny/index.json", "index.html", "index.json"])
def test_page_is_not_followed(
    index: Index, make_wheel: MakeWheel, precious: Path, kind: str, page: str
) -> None:
    strange(index.simple / page, kind, precious)
    assert {finding.id for finding in check(index)} == {"page-wrong"}
    index.publish(make_wheel("tiny", "2.0"), {})
    assert check(index) == []
    assert len(index.entries("tiny")) == 2
    assert [path.read_text() for path in precious.parent.iterdir()] == ["precious"]


@pytest.mark.parametrize("kind", KINDS)
def test_yank_file_is_not_followed(index: Index, precious: Path, kind: str) -> None:
    strange(index.yanked / "tiny-1.0-py3-none-any.whl", kind, precious)
    assert [finding.id for finding in check(index)] == ["file-irregular"]
    index.refresh_all()
    wheels = index.wheels("tiny")
    yank(index, wheels, "broken")
    unyank(index, wheels)
    assert check(index) == []
    assert [path.read_text() for path in precious.parent.iterdir()] == ["precious"]


@pytest.mark.parametrize("kind", KINDS)
def test_record_is_not_followed(index: Index, make_wheel: MakeWheel, precious: Path, kind: str) -> None:
    (record,) = index.record_paths(index.wheels("tiny")[0])
    strange(record, kind, precious)
    assert provenance_of(index, index.wheels("tiny")[0]) == {}
    assert {finding.id for finding in check(index)} == {
        "file-irregular",
        "wheel-without-record",
        "page-wrong",
    }
    index.publish(make_wheel("tiny", "2.0"), {})
    assert list(index.entries("tiny")) == ["tiny-2.0-py3-none-any.whl"]
    check(index, repair=True)
    index.publish(index.wheels("tiny")[0], {})
    assert check(index) == []
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("place", ["simple/tiny/notes", "simple/notes", "provenance/notes"])
@pytest.mark.parametrize("kind", KINDS)
def test_strange_file_is_found_and_moved(index: Index, precious: Path, kind: str, place: str) -> None:
    strange(index.root / place, kind, precious)
    (finding,) = check(index)
    assert (finding.id, finding.evidence["path"]) == ("file-irregular", place)
    check(index, repair=True)
    assert os.path.lexists(index.state / "damaged" / "notes")
    assert check(index) == []
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("kind", KINDS)
def test_strange_wheel_is_not_opened(
    index: Index, make_wheel: MakeWheel, precious: Path, kind: str, contents: Contents
) -> None:
    wheel = make_wheel("tiny", "2.0")
    strange(index.simple / "tiny" / wheel.name, kind, precious)
    assert [finding.id for finding in check(index)] == ["wheel-irregular"]
    before = contents(index.provenance)
    with pytest.raises(MatrixError, match="is not a file", check=has_id("index-damaged")):
        index.publish(wheel, {})
    assert contents(index.provenance) == before
    index.publish(make_wheel("tiny", "3.0"), {})
    check(index, repair=True)
    assert check(index) == []


@pytest.mark.parametrize("name", ["simple", "simple/tiny", "provenance", ".matrix", ".matrix/yanked"])
def test_linked_directory_is_not_entered(
    index: Index, make_wheel: MakeWheel, tmp_path: Path, contents: Contents, name: str
) -> None:
    """A user who may write to an index cannot make other users write elsewhere."""
    (index.state / "yanked").mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    (index.root / name).rename(elsewhere)
    (index.root / name).symlink_to(elsewhere)
    before = contents(elsewhere)
    findings = check(index)
    assert name in [finding.evidence["path"] for finding in findings]
    assert {finding.id for finding in findings} <= {"folder-irregular", "file-irregular", "page-wrong"}
    for write in (
        lambda: index.publish(make_wheel("tiny", "2.0"), {}),
        lambda: yank(index, [index.simple / "tiny" / "tiny-1.0-py3-none-any.whl"], "broken"),
        lambda: index.refresh("tiny"),
        lambda: check(index, repair=True),
        lambda: main(["index", "list", "--index", str(index.root)]),
    ):
        try:
            write()
        except MatrixError as error:
            assert name in error.message  # noqa: PT017  which of them fail depends on the directory
    assert contents(elsewhere) == before


def test_linked_project_does_not_block_others(index: Index, make_wheel: MakeWheel, tmp_path: Path) -> None:
    (index.simple / "tiny").rename(tmp_path / "elsewhere")
    (index.simple / "tiny").symlink_to(tmp_path / "elsewhere")
    index.publish(make_wheel("other", "2.0"), {})
    assert index.projects() == ["other"]
    assert [finding.id for finding in check(index)] == ["file-irregular"]
    check(index, repair=True)
    assert check(index) == []


def test_exchanged_directory_is_not_entered(index: Index, precious: Path) -> None:
    """A directory is replaced by a link while a file in it is about to be written."""
    with directory(index.root, index.simple / "tiny") as opened:
        (index.simple / "tiny").rename(index.simple / "moved")
        (index.simple / "tiny").symlink_to(precious.parent)
        (opened / "new").write_text("new")
    assert not precious.with_name("new").exists()
    assert (index.simple / "moved" / "new").exists()


def test_errors_name_real_paths(index: Index) -> None:
    missing = pytest.raises(FileNotFoundError, match="index/simple/tiny/missing")
    with missing, directory(index.root, index.simple / "tiny") as opened:
        (opened / "missing").read_bytes()


# Wheels


_ENTRY = b"PK\1\2"  # of a member, in the directory of a zip file
_FIELDS = {"version": (6, "<H"), "flags": (8, "<H"), "method": (10, "<H"), "size": (24, "<I")}


def wheel_of(path: Path, members: dict[str, bytes], **settings: int) -> Path:
    """Write a zip file, with these fields for each member in the central directory."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    data = bytearray(path.read_bytes())
    at = data.find(_ENTRY)
    while at >= 0:
        for setting, value in settings.items():
            offset, form = _FIELDS[setting]
            struct.pack_into(form, data, at + offset, value)
        at = data.find(_ENTRY, at + 4)
    path.write_bytes(data)
    return path


def text_of(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


@cache
def bomb() -> bytes:
    """Return a wheel of 0.5 MB whose METADATA has 100 MB."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("tiny-9.0.dist-info/METADATA", HEAD.encode() + bytes(100 << 20))
    return content.getvalue()


def metadata(text: str = "Metadata-Version: 2.1\nName: tiny\nVersion: 9.0\n") -> dict[str, bytes]:
    return {"tiny.py": b"", "tiny-9.0.dist-info/METADATA": text.encode()}


HEAD = "Metadata-Version: 2.1\nName: tiny\nVersion: 9.0\n"
BAD: dict[str, Callable[[Path], Path]] = {
    "no zip": lambda path: text_of(path, b"no zip"),
    "cut short": lambda path: text_of(path, wheel_of(path, metadata()).read_bytes()[:-30]),
    "no metadata": lambda path: wheel_of(path, {"tiny.py": b""}),
    "bomb": lambda path: text_of(path, bomb()),
    "hidden bomb": lambda path: wheel_of(path, metadata(HEAD + "X" * (50 << 20)), size=100),
    "large": lambda path: wheel_of(path, metadata(HEAD + "X" * (5 << 20))),
    "method": lambda path: wheel_of(path, metadata(), method=99),
    "version": lambda path: wheel_of(path, metadata(), version=99),
    "encrypted": lambda path: wheel_of(path, metadata(), flags=1),
    "patched": lambda path: wheel_of(path, metadata(), flags=0x20),
    "requires": lambda path: wheel_of(path, metadata(f"{HEAD}Requires-Python: {'>=3,' * 10**6}\n")),
}
MISNAMED = {
    "other version": f"{HEAD}".replace("9.0", "8.0"),
    "digits": f"{HEAD}".replace("9.0", "1" * 5000),
    "not ASCII": HEAD.replace("Name: tiny", "Name: tïny"),
    "not ASCII version": HEAD.replace("9.0", "9.٠"),
}
"""Texts of METADATA that do not match the file name."""


def use_around(index: Index, make_wheel: MakeWheel, bad: Path) -> None:
    """Check that an index with a bad wheel names this wheel, and that everything else works."""
    recorder = Recorder()
    again = Index(index.root, recorder)
    again.publish(make_wheel("tiny", "2.0"), {})
    assert list(again.entries("tiny")) == ["tiny-1.0-py3-none-any.whl", "tiny-2.0-py3-none-any.whl"]
    assert [bad.name in warning for warning in recorder.messages] == [True]
    (index.simple / "tiny" / "index.json").unlink()
    (index.simple / "other" / "index.json").unlink()
    assert again.refresh_all() == ["other", "tiny"]
    (finding,) = check(again)
    assert (finding.id, finding.evidence["path"]) == ("wheel-unreadable", f"simple/tiny/{bad.name}")
    (repaired,) = check(again, repair=True)
    assert repaired.evidence["repaired"]
    assert not [finding for finding in check(again) if finding.id != "record-without-wheel"]


@pytest.mark.parametrize("kind", BAD)
def test_bad_wheel_does_not_block_others(
    index: Index, make_wheel: MakeWheel, tmp_path: Path, kind: str
) -> None:
    made = BAD[kind](tmp_path / "tiny-9.0-py3-none-any.whl")
    bad = put(index, made)
    begun = time.monotonic()
    use_around(index, make_wheel, bad)
    assert time.monotonic() - begun < 20


@pytest.mark.parametrize("kind", BAD)
def test_bad_wheel_is_not_published(index: Index, tmp_path: Path, contents: Contents, kind: str) -> None:
    made = BAD[kind](tmp_path / "tiny-9.0-py3-none-any.whl")
    before = contents(index.root)
    with pytest.raises(MatrixError, match=r"tiny-9\.0-py3-none-any\.whl"):
        index.publish(made, {})
    assert contents(index.root) == before


def test_metadata_bomb_takes_little_memory(tmp_path: Path) -> None:
    """The test has more address space than the program needs, but not enough for the bomb."""
    made = BAD["bomb"](tmp_path / "tiny-9.0-py3-none-any.whl")
    code = """
import pathlib, resource, sys
from builders.index.pages import entry_of
from resolver.errors import MatrixError
used = int(pathlib.Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (80 << 20),) * 2)
try:
    entry_of(pathlib.Path(sys.argv[1]))
except MatrixError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(made)], check=True, stdout=subprocess.PIPE, text=True
    )
    assert "METADATA" in done.stdout or "unpack to" in done.stdout


@pytest.mark.parametrize("kind", MISNAMED)
def test_wheel_with_wrong_metadata_is_named(index: Index, tmp_path: Path, kind: str) -> None:
    put(index, wheel_of(tmp_path / "tiny-9.0-py3-none-any.whl", metadata(MISNAMED[kind])))
    index.refresh_all()
    (finding,) = check(index)
    assert finding.id == "wheel-misnamed"
    assert len(finding.message) < 500


NAMES = [
    "tïny-1.0-py3-none-any.whl",
    "tiny-1.0-py3-none-añy.whl",
    "tiny-1.0-py3-none-any\udcff.whl",
    "tiny-1.0-py3-none-a ny.whl",
    'tiny-1.0-py3-none-"><b>.whl',
    "tiny-1.0-py3-none-a\nny.whl",
]


@pytest.mark.parametrize("name", NAMES)
def test_unusual_wheel_name_does_not_block_others(index: Index, make_wheel: MakeWheel, name: str) -> None:
    assert not is_wheel(name)
    made = make_wheel("tiny", "2.0")
    put(index, made.rename(made.with_name(name)))
    index.publish(make_wheel("tiny", "3.0"), {})
    assert len(index.entries("tiny")) == 2
    (finding,) = misplaced(index)
    assert finding.id == "wheel-misnamed"
    finding.message.encode()
    check(index, repair=True)
    assert {finding.id for finding in check(index)} <= {"record-without-wheel"}


@pytest.mark.parametrize("name", ["tïny", "x\udcff", 'a"><b', "a b", "-x"])
def test_unusual_project_name_does_not_block_others(index: Index, make_wheel: MakeWheel, name: str) -> None:
    put(index, make_wheel("tiny", "2.0"), name)
    index.refresh_all()
    index.publish(make_wheel("tiny", "3.0"), {})
    assert index.projects() == ["other", "tiny"]
    assert (index.simple / "index.html").read_text().count("<a ") == 2
    assert "folder-misnamed" in [finding.id for finding in check(index)]
    check(index, repair=True)
    assert "folder-misnamed" not in [finding.id for finding in check(index)]


def test_large_page_is_not_read(index: Index, make_wheel: MakeWheel) -> None:
    page = index.simple / "tiny" / "index.json"
    os.truncate(page, 1 << 36)
    index.publish(make_wheel("tiny", "2.0"), {})
    assert len(index.entries("tiny")) == 2


def test_wheel_without_record_is_not_listed(index: Index, make_wheel: MakeWheel) -> None:
    copied = Path(shutil.copy(make_wheel("tiny", "2.0"), index.simple / "tiny"))
    index.refresh_all()
    assert list(index.entries("tiny")) == ["tiny-1.0-py3-none-any.whl"]
    assert index.wheels_of("tiny", "2.0") == []
    (finding,) = check(index)
    assert finding.id == "wheel-without-record"
    assert "matrix index add" in finding.fix
    index.publish(copied, {})
    assert index.wheels_of("tiny", "2.0") == [copied]
    assert check(index) == []


def test_wheel_with_record_of_other_content_is_not_listed(index: Index, make_wheel: MakeWheel) -> None:
    bad = put(index, make_wheel("tiny", "2.0"))
    shutil.copy(make_wheel("tiny", "2.0", {"tiny.py": b"EVIL = 1\n"}, folder="evil"), bad)
    index.refresh_all()
    assert list(index.entries("tiny")) == ["tiny-1.0-py3-none-any.whl"]
    assert [finding.id for finding in check(index)] == ["wheel-changed"]


# File systems

# Publishes a wheel when a line arrives; the exit code is 1 if the name is taken.
PUBLISH = """
import pathlib, sys
from builders.index import Index
from resolver.errors import NameTakenError
index = Index(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
try:
    index.publish(pathlib.Path(sys.argv[2]), {})
except NameTakenError:
    sys.exit(1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["flock", "hard links"], indirect=True)
def test_one_publisher_wins_on_any_file_system(
    index: Index, make_wheel: MakeWheel, preload: dict[str, str]
) -> None:
    made = [make_wheel("tiny", "2.0", {"n": bytes([n])}, folder=f"made{n}") for n in range(4)]
    commands = [[sys.executable, "-c", PUBLISH, str(index.root), str(wheel)] for wheel in made]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [subprocess.Popen(command, env=preload, **pipes) for command in commands]  # type: ignore[call-overload]
    for process in processes:
        assert process.stdout.readline() == b"ready\n"
    for process in processes:
        process.stdin.write(b"\n")
        process.stdin.flush()
    for process in processes:
        process.communicate(timeout=50)
    assert sorted(process.returncode for process in processes) == [0, 1, 1, 1]
    winner = made[[process.returncode for process in processes].index(0)]
    assert index.entries("tiny")[winner.name].hashes.sha256 == sha256_of(winner)
    assert check(index) == []


@pytest.mark.parametrize("small", ["size=1m"], indirect=True)
def test_read_only_index_can_be_read(
    small: Path, make_wheel: MakeWheel, capsys: pytest.CaptureFixture[str]
) -> None:
    index = ["--index", str(small / "index")]
    assert main(["index", "add", str(make_wheel("tiny", "1.0")), *index]) == 0
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    for action in (["list"], ["check"]):
        assert main(["index", *action, *index]) == 0
    capsys.readouterr()
    writing = [["add", str(make_wheel("tiny", "2.0"))], ["yank", "tiny"], ["remove", "tiny"]]
    for action in writing:
        assert main(["index", *action, *index]) == 3
        error = capsys.readouterr().err
        assert "Read-only file system" in error
        assert str(small / "index") in error


# Publishing fails before the wheel is placed


@pytest.mark.parametrize("page", ["tiny/index.html", "tiny/index.json", "index.html", "index.json"])
def test_publish_with_directory_for_page_places_nothing(
    index: Index, make_wheel: MakeWheel, contents: Contents, page: str
) -> None:
    (index.simple / page).unlink()
    (index.simple / page).mkdir()
    before = contents(index.root)
    with pytest.raises(MatrixError, match="is a directory", check=has_id("index-damaged")):
        index.publish(make_wheel("tiny", "2.0"), {})
    assert contents(index.root) == before


@pytest.mark.parametrize("number", range(6))
def test_publish_with_full_disk_places_nothing(
    index: Index, make_wheel: MakeWheel, contents: Contents, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Flushing fails, as with a quota on NFS, at the wheel, its record, and each page."""
    left = number
    real = os.fsync

    def flush(file: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
        real(file)

    before = contents(index.root)
    monkeypatch.setattr(os, "fsync", flush)
    with pytest.raises(OSError, match="quota") as caught:
        index.publish(make_wheel("new", "2.0"), {})
    assert str(index.root) in str(caught.value.filename)
    assert contents(index.root) == before


@pytest.fixture
def small(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Return a small file system."""
    path = tmp_path / "small"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", request.param, "tmpfs", str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


@pytest.mark.parametrize(
    "small", [*(f"nr_inodes={number}" for number in range(6, 26, 3)), "size=64k", "size=100k"], indirect=True
)
def test_full_file_system_loses_nothing(
    small: Path, make_wheel: MakeWheel, capsys: pytest.CaptureFixture[str]
) -> None:
    index = Index(small / "index")
    published = []
    for number in range(30):
        wheel = make_wheel(f"p{number % 3}", f"{number}.0", {"data": os.urandom(3000)})
        code = main(["index", "add", str(wheel), "--index", str(index.root)])
        output = capsys.readouterr()
        if code:
            assert code == 3
            assert str(index.root) in output.err
            assert "space" in output.err
            break
        published.append(wheel.name)
    else:
        pytest.fail("the file system was never full")
    listed = [name for project in index.projects() for name in index.entries(project)]
    assert sorted(listed) == sorted(published)
    wheels = [path.name for project in index.projects() for path in index.wheels(project)]
    assert sorted(wheels) == sorted(published)
    for project in index.projects():
        for name, entry in index.entries(project).items():
            assert sha256_of(index.simple / project / name) == entry.hashes.sha256
    assert {finding.id for finding in check(index)} <= {"record-without-wheel"}


def test_entry_of_names_damage(tmp_path: Path) -> None:
    made = BAD["method"](tmp_path / "tiny-9.0-py3-none-any.whl")
    with pytest.raises(MatrixError, match="compressed by method 99"):
        entry_of(made)
