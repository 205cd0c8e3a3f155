"""Sources whose build script computes what they require: the lock has it before anything is compiled.

Two patterns of strangers: requirements.txt is read at run time (fairscale 0.4.13), and a variable of the
environment adds a requirement (auto-round 0.1).
"""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import pytest

import matrix
from builders.index import Index
from builders.storage.files import sha256_of
from matrix.cli import main
from resolver.lock import read_lock
from resolver.model import INCOMPLETE
from tests.support.recorder import Recorder
from tests.support.tiny import tiny_index

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
Capture = pytest.CaptureFixture[str]

FROM_FILE = """
import setuptools
def fetch_requirements():
    with open("requirements.txt") as f:
        return f.read().strip().split("\\n")
setuptools.setup(name="reads-file", version="1.0", py_modules=[], install_requires=fetch_requirements())
"""
FROM_VARIABLE = """
import os
from setuptools import setup
BUILD_CUDA_EXT = int(os.environ.get("BUILD_CUDA_EXT", "0")) == 1
requirements = []
if not BUILD_CUDA_EXT:
    requirements.append("needed>=1")
setup(name="reads-variable", version="1.0", py_modules=[], install_requires=requirements)
"""
LACKS_FILE = """
from setuptools import setup
setup(name="lacks-file", version=open("version.txt").read(), py_modules=[])
"""
OTHER_NAME = "from setuptools import setup\nsetup(name='other', version='1.0', py_modules=[])\n"
CHANGES = """
import sys
from setuptools import setup
late = ["needed"] if "bdist_wheel" in sys.argv else []
setup(name="changes-late", version="1.0", py_modules=[], install_requires=late)
"""


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for all builds of the module, so that their layer is created once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def links(tmp_path: Path, shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an index with two releases of ``needed``."""
    root = tiny_index(tmp_path / "links", {"needed": [("1.0", ()), ("2.0", ())]})
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", (root / "simple").as_uri())
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    monkeypatch.chdir(tmp_path)
    return root


def write_sdist(links: Path, name: str, script: str, requirements: str = "") -> None:
    info = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    top = f"{name.replace('-', '_')}-1.0"
    path = links / "simple" / name / f"{top}.tar.gz"
    path.parent.mkdir()
    with tarfile.open(path, "w:gz") as archive:
        for file, text in (("PKG-INFO", info), ("setup.py", script), ("requirements.txt", requirements)):
            member = tarfile.TarInfo(f"{top}/{file}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    link = f'<a href="{path.name}#sha256={sha256_of(path)}">{path.name}</a>'
    (path.parent / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")


def resolve(capsys: Capture, *requirements: str) -> str:
    assert main(["resolve", *requirements, "--backend", "cpu"]) == 0
    return capsys.readouterr().out


def published() -> list[str]:
    return Index(Path("index")).projects() if Path("index").exists() else []


@pytest.mark.parametrize(
    ("name", "script", "requirements"),
    [("reads-file", FROM_FILE, "needed>=2\n"), ("reads-variable", FROM_VARIABLE, "")],
)
def test_lock_is_completed_before_the_build(
    name: str, script: str, requirements: str, links: Path, capsys: Capture
) -> None:
    write_sdist(links, name, script, requirements)
    assert "incomplete: 1 source" in resolve(capsys, name)
    lock = read_lock(Path("matrix.lock"))
    assert lock.incomplete == (name,)
    assert [note.id for note in lock.notes] == [INCOMPLETE]
    assert not lock.version_of("needed"), "resolving runs no code"
    assert main(["farm", "fetch"]) == 0
    assert "needed (new) -> 2.0" in capsys.readouterr().err
    lock = read_lock(Path("matrix.lock"))
    assert (lock.incomplete, lock.version_of("needed"), published()) == ((), "2.0", [])
    assert INCOMPLETE not in [note.id for note in lock.notes]
    text = Path("matrix.lock").read_text()
    assert main(["build-wheels"]) == 0
    assert published() == [name]
    assert Path("matrix.lock").read_text() == text
    assert "incomplete" not in resolve(capsys, name)
    assert Path("matrix.lock").read_text() == text, "the same request has the same answer"
    resolve(capsys, name, "needed<3")
    assert read_lock(Path("matrix.lock")).incomplete == (name,), "another request may have another answer"
    assert main(["build-wheels"]) == 0
    assert read_lock(Path("matrix.lock")).incomplete == (), "the wheel in the index states it"


def test_source_whose_requirements_are_locked_changes_no_version(links: Path, capsys: Capture) -> None:
    write_sdist(links, "reads-file", FROM_FILE, "needed\n")
    resolve(capsys, "reads-file", "needed<2")
    assert main(["build-wheels"]) == 0
    assert "The requirements of reads-file are in the lock." in capsys.readouterr().err
    lock = read_lock(Path("matrix.lock"))
    assert (lock.incomplete, lock.version_of("needed")) == ((), "1.0")


def test_every_way_to_build_asks_first(links: Path, capsys: Capture) -> None:
    write_sdist(links, "reads-file", FROM_FILE, "needed>=2\n")
    resolve(capsys, "reads-file")
    resolution = read_lock(Path("matrix.lock"))
    messages = Recorder()
    matrix.build(resolution, Index(Path("index")), reporter=messages)
    assert any("needed (new) -> 2.0" in message for message in messages.messages)
    shutil.rmtree("index")
    assert main(["farm", "plan", "--format", "json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    assert main(["farm", "build-one", task["key"]]) == 0
    lock = read_lock(Path("matrix.lock"))
    assert (lock.incomplete, lock.version_of("needed"), published()) == ((), "2.0", ["reads-file"])


def test_conflict_stops_before_the_build(links: Path, capsys: Capture) -> None:
    write_sdist(links, "reads-file", FROM_FILE, "needed>=2\n")
    resolve(capsys, "reads-file", "needed<2")
    text = Path("matrix.lock").read_text()
    assert main(["build-wheels"]) == 1
    output = capsys.readouterr().out
    assert "reads-file 1.0 requires needed>=2" in output
    assert "you asked for needed<2" in output
    assert (published(), Path("matrix.lock").read_text()) == ([], text)


@pytest.mark.parametrize(
    ("name", "script", "message"),
    [
        (
            "lacks-file",
            LACKS_FILE,
            "Asking the build backend of lacks-file 1.0+cpu.notorch for its metadata failed",
        ),
        (
            "named-otherwise",
            OTHER_NAME,
            "The build backend of named-otherwise 1.0+cpu.notorch states the name other.",
        ),
    ],
)
def test_script_that_fails_stops_before_the_build(
    name: str, script: str, message: str, links: Path, capsys: Capture
) -> None:
    write_sdist(links, name, script)
    resolve(capsys, name)
    text = Path("matrix.lock").read_text()
    assert main(["build-wheels"]) == 1
    assert message in capsys.readouterr().err
    assert (published(), Path("matrix.lock").read_text()) == ([], text)
    assert main(["explain", name]) == 0
    assert message in " ".join(capsys.readouterr().out.split())


def test_metadata_that_the_build_changes_are_an_error(links: Path, capsys: Capture) -> None:
    write_sdist(links, "changes-late", CHANGES)
    resolve(capsys, "changes-late")
    assert main(["build-wheels"]) == 1
    error = " ".join(capsys.readouterr().err.split())
    assert "changed during its build: before, it required nothing; after, needed" in error
    assert published() == []


def test_interrupted_command_leaves_a_whole_lock(
    links: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sdist(links, "reads-file", FROM_FILE, "needed\n")
    resolve(capsys, "reads-file")
    text = Path("matrix.lock").read_text()

    def interrupt(self: Path, target: Path) -> None:
        if target.name == "matrix.lock":
            raise KeyboardInterrupt
        original(self, target)

    original = Path.replace
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", interrupt)
        assert main(["farm", "fetch"]) == 130
    assert (Path("matrix.lock").read_text(), published()) == (text, [])
    assert main(["farm", "fetch"]) == 0
    lock = read_lock(Path("matrix.lock"))
    assert (lock.incomplete, lock.version_of("needed")) == ((), "2.0")
