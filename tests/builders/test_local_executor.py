"""The local executor with stand-ins for builds: real processes that use no compiler."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from builders.building.inputs import Limits
from builders.building.jobserver import LINK, Jobserver
from builders.building.plan import Task
from builders.building.records import log_path
from builders.index import Index
from builders.scheduling import local
from builders.scheduling.local import Builds
from builders.storage.io_errors import DiskFullError, explain_any_os_error
from resolver.errors import BuildError, MatrixError
from resolver.indexes import StatedMetadata
from tests.support.recorder import Recorder
from tests.support.tasks import make_recipe, make_task

Build = Callable[[Limits], None]


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for a condition; a build that waits in vain fails."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            msg = "The condition was not met."
            raise BuildError(msg)
        time.sleep(0.01)


@pytest.fixture
def builds_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Builds]:
    """Return the builds of functions, which run in place of `build_wheel` and start in their order."""

    def make(builds: dict[str, Build], limits: Limits, **recipe: object) -> Builds:
        tasks = [make_task(make_recipe("cpu", package=name, **recipe)) for name in builds]

        def build_wheel(task: Task, index: Index, limits: Limits, *_: object, **__: object) -> Path:
            builds[task.pick.name](limits)
            return index.root / task.pick.name

        monkeypatch.setattr(local, "build_wheel", build_wheel)
        # Ready builds of the same length start in the order of their keys.
        for number, task in enumerate(tasks):
            task.__dict__["build_key"] = f"{number:02}{task.build_key[2:]}"
        by_key = {task.build_key: task for task in tasks}
        return Builds(by_key, Index(tmp_path), limits, Recorder())

    return make


def test_build_backends_are_asked_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {task.build_key: task for task in (make_task(make_recipe("cpu", package=name)) for name in "ab")}

    def ask(task: Task, *_: object) -> tuple[StatedMetadata, ...]:
        (tmp_path / task.pick.name).touch()
        until(lambda: (tmp_path / "a").exists() and (tmp_path / "b").exists(), seconds=20)
        return (StatedMetadata(task.pick.name, "1.0", "0" * 64, ("needed",)),)

    monkeypatch.setattr(local, "ask_backend", ask)
    builds = Builds(tasks, Index(tmp_path / "index"), Limits(jobs=2), Recorder(), only_ask=True)
    builds.run()
    assert builds.errors == {}
    assert sorted(one.name for (one,) in builds.stated.values()) == ["a", "b"]
    assert builds.wheels == {}


# Takes permissions from the pipe, and runs a program for each of them and another program, as ninja does.
CLIENT = """
import os, subprocess, sys
pipe = os.open(sys.argv[1], os.O_RDWR)
def start():
    return subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
programs = [start()]
for _ in range(int(sys.argv[2])):
    os.read(pipe, 1)
    programs.append(start())
print("has all", flush=True)
sys.stdin.read()
"""


class Client:
    """A program that holds permissions until it is killed."""

    def __init__(self, pipe: Path, permissions: int) -> None:
        command = [sys.executable, "-c", CLIENT, str(pipe), str(permissions)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def has_all(self, seconds: float) -> bool:
        """Return whether it gets its permissions within some seconds."""
        assert self.process.stdout is not None
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class TestPermissionsOfKilledPrograms:
    def test_only_those_of_running_clients_are_held(self, tmp_path: Path) -> None:
        with closing(Jobserver(tmp_path)) as jobserver:
            os.link(jobserver.path, tmp_path / LINK)
            jobserver.resize(5)
            killed, running = Client(tmp_path / LINK, 3), Client(tmp_path / LINK, 2)
            assert killed.has_all(60)
            assert running.has_all(60)
            jobserver.recount()
            assert jobserver.held == 5
            killed.kill()
            assert jobserver.held == 5
            jobserver.recount()
            assert jobserver.held == 2
            running.kill()

    def test_other_build_gets_them(self, tmp_path: Path, builds_of: Callable[..., Builds]) -> None:
        """Of 4 cores, 2 are shared by two builds; when one of them was killed, the other can have 3."""
        taken = tmp_path / "taken"

        def pipe_of(limits: Limits, name: str) -> Path:
            assert limits.jobserver is not None
            (tmp_path / name).mkdir()
            os.link(limits.jobserver, tmp_path / name / LINK)
            return tmp_path / name / LINK

        def die(limits: Limits) -> None:
            client = Client(pipe_of(limits, "killed"), 2)
            if client.has_all(60):
                client.kill()
                taken.touch()
                os.kill(os.getpid(), signal.SIGKILL)

        def go_on(limits: Limits) -> None:
            until(taken.exists)
            client = Client(pipe_of(limits, "other"), 3)
            has_all = client.has_all(20)
            client.kill()
            if not has_all:
                msg = "The permissions did not come back."
                raise BuildError(msg)

        recipe = {"undeclared": ("ninja",), "memory_per_job": 0.05}
        builds = builds_of({"one": die, "two": go_on}, Limits(jobs=4, memory=64.0), **recipe)
        builds.run(keep_going=True)
        assert [builds.tasks[key].pick.name for key in builds.wheels] == ["two"]
        (error,) = builds.errors.values()
        assert "was killed by signal 9" in error.message


@pytest.mark.slow
def test_job_is_added_when_the_memory_of_another_is_known(builds_of: Callable[..., Builds]) -> None:
    """Of 8 jobs, a build without a record gets as many as commands have ended, beside its first."""

    def build(limits: Limits) -> None:
        assert limits.jobserver is not None
        pipe = os.open(limits.jobserver, os.O_RDWR | os.O_NONBLOCK)
        taken = []

        def takes() -> int:
            if select.select([pipe], [], [], 0)[0]:
                taken.append(os.read(pipe, 1))
            return len(taken)

        time.sleep(2.5)
        before = takes()
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("[1/9] c++ -c a.cpp\n[2/9] c++ -c b.cpp\n")
        until(lambda: takes() == 2)
        time.sleep(2.5)
        if (before, takes()) != (0, 2):
            msg = f"It got {before} jobs, then {takes()}."
            raise BuildError(msg)

    recipe = {"undeclared": ("ninja",), "memory_per_job": 0.2}
    builds = builds_of({"one": build}, Limits(jobs=8, memory=2.0), **recipe)
    (key,) = builds.tasks
    log = log_path(builds.index, "one", key)
    builds.run()
    assert builds.errors == {}


@pytest.mark.slow
def test_second_build_waits_until_the_memory_of_the_first_is_known(
    tmp_path: Path, builds_of: Callable[..., Builds]
) -> None:
    """The estimates of both builds fit, but they may be wrong."""
    started = tmp_path / "started"

    def first(_: Limits) -> None:
        time.sleep(1.5)
        if started.exists():
            msg = "The second build did not wait."
            raise BuildError(msg)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("[1/9] c++ -c a.cpp\n")
        until(started.exists)

    recipe = {"undeclared": ("ninja",), "memory_per_job": 0.5}
    builds = builds_of({"one": first, "two": lambda _: started.touch()}, Limits(jobs=4, memory=1.2), **recipe)
    log = log_path(builds.index, "one", next(iter(builds.tasks)))
    builds.run()
    assert builds.errors == {}


class TestFullDisk:
    def test_run_stops_once(self, tmp_path: Path, builds_of: Callable[..., Builds]) -> None:
        started, ended, third = (tmp_path / name for name in ("started", "ended", "third"))

        def fail(_: Limits) -> None:
            until(started.exists)
            raise DiskFullError(tmp_path, "index", os.strerror(errno.ENOSPC), hint="Free some space.")

        def wait(_: Limits) -> None:
            try:
                started.touch()
                until(lambda: False)
            except KeyboardInterrupt:
                ended.touch()
                raise

        builds = builds_of(
            {"one": fail, "two": wait, "three": lambda _: third.touch()}, Limits(jobs=2), compiles=False
        )
        with pytest.raises(DiskFullError) as caught:
            builds.run(keep_going=True)
        assert str(tmp_path) in caught.value.message
        assert caught.value.hint.startswith("Free some space. Then run the same command again")
        assert not builds.errors  # the message is not repeated
        assert ended.exists()
        assert not third.exists()

    def test_full_disk_elsewhere_is_one(self, tmp_path: Path) -> None:
        error = explain_any_os_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "file")))
        assert isinstance(error, DiskFullError)
        assert error.message.startswith(f"No space left in {tmp_path}: ")

    def test_other_failure_does_not_stop_the_run(self, builds_of: Callable[..., Builds]) -> None:
        def fail(_: Limits) -> None:
            msg = "It failed."
            raise MatrixError(msg)

        builds = builds_of({"one": fail, "two": lambda _: None}, Limits(jobs=1), compiles=False)
        outcome = builds.run(keep_going=True)
        assert (len(outcome.failed), len(outcome.done)) == (1, 1)
