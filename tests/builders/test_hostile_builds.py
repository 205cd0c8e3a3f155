"""Hostile builds change, see and leave no files outside, on this machine and in containers."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import socket
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from builders.building import check as build_check
from builders.building import task
from builders.building.compilation import copy_out
from builders.building.inputs import Limits
from builders.building.plan import Task, local_build_host
from builders.building.task import build_wheel
from builders.containers import runtime, sandbox
from builders.index import Index
from builders.machine import host
from builders.probe.ask import ask as probe_ask
from builders.storage.files import cache_root
from resolver.errors import BuildError
from resolver.facts.schema import Recipe, Sdist
from tests.support.locks import built_pick
from tests.support.recorder import Recorder
from tests.support.records import provenance_of, results_of
from tests.support.tasks import make_resolution

SOURCE = Path(__file__).resolve().parent.parent / "packages" / "hostile"
SECRET = "word-of-the-user"


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for all builds, so that their layers are created once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=["bubblewrap", "namespaces", "none"])
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Isolate builds by one kind of isolation; skip the test if this machine lacks it."""
    return isolated_by(request.param, monkeypatch)


@pytest.fixture(params=["bubblewrap", "namespaces"])
def isolated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Isolate builds completely."""
    return isolated_by(request.param, monkeypatch)


def isolated_by(kind: str, monkeypatch: pytest.MonkeyPatch) -> str:
    if kind == "none":
        monkeypatch.setattr(runtime, "sandbox", lambda: None)
        return kind
    if kind == "bubblewrap" and not shutil.which("bwrap"):
        pytest.skip("bubblewrap is not installed")
    monkeypatch.setattr(sandbox, "KINDS", (kind,))
    if sandbox.sandbox() is None:
        pytest.skip(f"this machine does not allow {kind}")
    return kind


class Attacked:
    """A user with an index, a HOME and a cache, who builds the hostile project."""

    def __init__(self, work: Path) -> None:
        self.work, self.home = work, work / "home"
        self.home.mkdir()
        self.index = Index(work / "index")
        self.steps: list[str] = []

    def task(self, deeds: Mapping[str, Sequence[object]]) -> Task:
        """Pack the project into the cache, and return its task."""
        packed = self.work / "hostile-1.0.tar.gz"
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(SOURCE, arcname="hostile-1.0")
        digest = hashlib.sha256(packed.read_bytes()).hexdigest()
        target = cache_root() / "sources" / digest[:16] / packed.name
        target.parent.mkdir(parents=True, exist_ok=True)
        packed.rename(target)
        pick = built_pick("hostile", wheel_version="1.0+cpu.torch2.13.0", sdist=Sdist(packed.name, digest))
        texts = ["|".join([deed, *map(str, arguments)]) for deed, arguments in deeds.items()]
        recipe = Recipe(
            package="hostile",
            backend="cpu",
            undeclared=("packaging",),
            match_runtime=(),
            environment={"HOSTILE": ";".join(texts)},
            imports=("hostile",),
            status="observed",
            source="test",
        )
        build_host = local_build_host(host.running_python())
        return Task(pick, recipe, build_host, make_resolution(pick, backend="cpu"))

    def build(self, deeds: Mapping[str, Sequence[object]]) -> dict[str, Any]:
        """Build the project; return the report of each deed, and the published wheel."""
        recorder = Recorder()
        wheel = build_wheel(self.task(deeds), self.index, Limits(jobs=1), recorder)
        self.steps = recorder.messages
        (log,) = (self.index.state / "logs").glob("*.log")
        lines = [line.split(" ", 2) for line in log.read_text().splitlines() if line.startswith("@ ")]
        return {name: ast.literal_eval(outcome) for _, name, outcome in lines} | {"wheel": wheel}


@pytest.fixture
def attacked(shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attacked:
    user = Attacked(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))
    monkeypatch.setenv("HOME", str(user.home))
    return user


def answer_in(wheel: Path) -> int:
    with zipfile.ZipFile(wheel) as archive:
        return int(archive.read("hostile/__init__.py").decode().partition("ANSWER = ")[2].split()[0])


@pytest.mark.integration
def test_wheel_is_the_one_checked_whatever_a_daemon_does(
    attacked: Attacked, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []

    def copied(*arguments: Any) -> tuple[Path, str]:
        wheel, sha256 = copy_out(*arguments)
        checked.append(answer_in(wheel))
        return wheel, sha256

    monkeypatch.setattr(task, "copy_out", copied)
    beacon = attacked.work / "beacon"
    outcome = attacked.build({"linger": [beacon], "rewrite": [attacked.index.root]})
    assert outcome["linger"] == outcome["rewrite"] == "started"
    assert [answer_in(outcome["wheel"])] == checked
    before = beacon.read_text() if beacon.exists() else ""
    assert (before != "") == (isolation == "none")
    time.sleep(0.2)
    assert (beacon.read_text() if beacon.exists() else "") == before
    entry = provenance_of(attacked.index, outcome["wheel"])
    assert results_of(entry)["isolation"] == isolation
    warning = "this machine cannot isolate builds: a build can change your files and processes"
    assert (warning in attacked.steps) == (isolation == "none")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the socket of an agent in a directory of its own."""
    with socket.socket(socket.AF_UNIX) as server:
        path = tmp_path / "agent" / "socket"
        path.parent.mkdir()
        server.bind(str(path))
        server.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        yield path


@pytest.mark.integration
@pytest.mark.usefixtures("isolated")
def test_isolated_build_changes_and_sees_nothing_outside(
    attacked: Attacked, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = [attacked.home, attacked.index.root, cache_root()]
    for directory in private:
        directory.mkdir(exist_ok=True)
        (directory / "of-the-user").write_text(SECRET)
    (attacked.home / ".netrc").write_text(f"machine 127.0.0.1 login me password {SECRET}\n")
    monkeypatch.setenv("https_proxy", f"http://me:{SECRET}@127.0.0.1:9")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", f"http://me:{SECRET}@127.0.0.1:9/simple")
    name = f"matrix-{os.getpid()}"
    outside = [path / name for path in (*private, Path("/var"), Path("/dev/shm"), Path("/tmp"))]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen(["sleep", "600"]) as other,
    ):
        deeds: dict[str, Sequence[object]] = {
            "write": outside,
            "read": [*private, *(path / "of-the-user" for path in private)],
            "kill": [other.pid],
            "connect": [server.getsockname()[1], agent],
            "layer": [],
            "secrets": [SECRET[::-1]],
        }
        outcome = attacked.build(deeds)
        assert other.poll() is None
        other.kill()
    assert not [path for path in outside if path.exists()]
    assert "of-the-user" not in str(outcome["read"][:3])
    assert all(str(text).startswith("failed: ") for text in outcome["read"][3:])
    assert outcome["kill"] < 10
    assert all(str(text).startswith("failed: ") for text in outcome["connect"])
    assert "Read-only file system" in outcome["layer"]
    assert outcome["secrets"] == [0]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "link to the directory"])
def test_only_a_regular_file_is_a_wheel(tmp_path: Path, kind: str) -> None:
    out, target, elsewhere = (tmp_path / name for name in ("raw", "wheel", "elsewhere"))
    for directory in (out, target, elsewhere):
        directory.mkdir()
    wheel = out / "x-1.0-py3-none-any.whl"
    (elsewhere / wheel.name).write_text(SECRET)
    if kind == "link":
        wheel.symlink_to(elsewhere / wheel.name)
    elif kind == "pipe":
        os.mkfifo(wheel)
    elif kind == "directory":
        wheel.mkdir()
    else:
        out.rmdir()
        out.symlink_to(elsewhere)
    with pytest.raises(BuildError, match="something other than a file"):
        copy_out("x 1.0", out, target, tmp_path / "log")
    assert list(target.iterdir()) == []


@pytest.mark.usefixtures("isolated")
def test_sandbox_shows_programs_on_path(attacked: Attacked) -> None:
    """A compiler in HOME is used, and its prefix is read-only."""
    prefix = attacked.home / "tools"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "tool").write_text(f'#!/bin/sh\ncat "{prefix}/data"; echo >"{prefix}/data"\n')
    (prefix / "bin" / "tool").chmod(0o755)
    (prefix / "data").write_text("seen\n")
    view = runtime.View(untrusted=True, path=[prefix / "bin"])
    log = attacked.work / "log"
    command = ["/bin/sh", "-c", "tool; ls -A ~"]
    runtime.run_in(runtime.HostRuntime(), command, view, what="One", log=log)
    assert "seen" in log.read_text()
    assert (prefix / "data").read_text() == "seen\n"


@pytest.mark.integration
@pytest.mark.usefixtures("isolated")
def test_paths_of_the_probe_have_no_fixed_names(attacked: Attacked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The package sees them as its working directory and as the prefix of its Python."""
    names: list[set[str]] = []

    def ask(runtime: Any, python: Sequence[str], *rest: Any, folder: Path, **more: Any) -> Any:
        names.append({folder.name, Path(python[0]).parents[1].name})
        return probe_ask(runtime, python, *rest, folder=folder, **more)

    monkeypatch.setattr(build_check, "ask", ask)
    for number in range(2):
        attacked.index = Index(attacked.work / f"index{number}")
        attacked.build({"read": [number]})
    first, second = names
    assert len(first) == len(second) == 2
    assert first.isdisjoint(second)
    assert not [name for name in first | second if "probe" in name or "question" in name]
