"""Runs in a batch system, followed while a test changes the states of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import pytest

from builders.index import Index
from builders.scheduling.batch import Executor, Run, WheelTask
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


def task(name: str, *requires: str, seconds: float = 100.0) -> WheelTask:
    return WheelTask(name, name, "1.0", requires, 2, 4.0, seconds, round(3 * seconds), "matrix.lock")


def run_of(*tasks: WheelTask, **options: Any) -> Run:
    return Run(directory="/work", options=("--index", "/work/index"), tasks=tasks, **options)


def states(run: Run) -> dict[str, str]:
    return {key: result.state for key, result in run.results.items()}


def follower(kind: type[Executor], system: System, monkeypatch: pytest.MonkeyPatch) -> Follow:
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
