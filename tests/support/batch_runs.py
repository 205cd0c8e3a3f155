"""Runs in a batch system, followed while a test changes the states of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest

from builders.building.task_state import TaskState
from builders.index import Index
from builders.scheduling.batch import Run
from builders.scheduling.slurm import Slurm
from tests.support.recorder import Recorder

Step = Mapping[Any, str] | Callable[[], object]
"""New states of jobs by number, or a function to call."""
Follow = Callable[..., tuple[Run, Recorder]]


class System(Protocol):
    """A stand-in for a batch system."""

    index: Index

    def set(self, states: Any) -> None:
        """Set the states of jobs."""


class Killed(BaseException):
    """A stand-in for a signal that kills the process."""


def kill() -> None:
    raise Killed


def task(name: str, *requires: str, seconds: float = 100.0, **known: Any) -> TaskState:
    return TaskState(
        key=name,
        name=name,
        version="1.0",
        state="to build",
        requires=requires,
        lock="matrix.lock",
        command=("matrix", "farm", "build-one", name, "--lock", "matrix.lock", "--index", "/work/index"),
        seconds=seconds,
        **{"cores": 2, "memory_gib": 4.0, "time_limit": round(3 * seconds), **known},
    )


def run_of(*tasks: TaskState, **options: Any) -> Run:
    return Run(directory="/work", tasks=tasks, **options)


def states(run: Run) -> dict[str, str]:
    return {task.key: task.state for task in run.tasks if task.state != "to build"}


def follower(kind: type[Slurm], system: System, monkeypatch: pytest.MonkeyPatch) -> Follow:
    """Return a function that starts a run or follows the existing run; steps happen between two polls."""

    def go(run: Run | None, *steps: Sequence[Step] | Step) -> tuple[Run, Recorder]:
        waiting = iter(steps)

        def step(*_: object) -> None:
            events = next(waiting, None)
            assert events is not None, "the run has not ended after the last step"
            for event in [events] if callable(events) or isinstance(events, Mapping) else events:
                event() if callable(event) else system.set(event)

        monkeypatch.setattr(kind, "_sleep", step)
        recorder = Recorder()
        executor = kind(system.index, recorder)
        return (executor.start(run) if run else executor.follow()), recorder

    return go
