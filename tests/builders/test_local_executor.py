"""The local executor with stand-ins for builds: real processes that use no compiler."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.build_inputs import Limits
from builders.index import Index
from builders.io_errors import DiskFullError, explain_any_os_error
from builders.plan import Task
from builders.scheduling import local
from builders.scheduling.local import Builds
from resolver.errors import BuildError, MatrixError
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
        rank = {task.build_key: number for number, task in enumerate(tasks)}
        by_key = {task.build_key: task for task in tasks}
        return Builds(by_key, Index(tmp_path), limits, Recorder(), rank=rank)

    return make


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
