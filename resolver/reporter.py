"""The observer through which every layer reports its progress."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal, TypedDict, Unpack

from resolver.model import Conflict

Phase = Literal["waiting", "running", "done", "failed", "skipped"]
"""`waiting`: for another task, for free cores, or in the queue of a batch system."""


class Progress(TypedDict, total=False):
    """The changed values of a task."""

    state: Phase
    expected: float
    """Seconds that it is expected to run; 0 if unknown."""
    done: float
    total: float
    """The finished part of its current step, and the whole step; 0 if unknown."""
    unit: str
    """Unit of `done` and `total`: ``bytes``, ``%``, or a plural such as ``files``."""
    file: str
    """Name of the file that it compiles now."""
    memory: float
    """GiB that it uses now."""
    after: Collection[str]
    """Names of the tasks that must end before it starts."""
    started: float
    step_started: float
    """When the task and its current step began, as `time.monotonic` counts, if before this report."""
    share: float
    """The part of the machine that it uses while it runs, up to 1."""


class Reporter:
    """Receive the progress of resolving, fetching, building, auditing and publishing.

    Every method does nothing by default, so an observer implements only what it shows. A task is something
    that may take longer than a second; without a name it is the one that was started last and still runs.
    """

    def step(self, message: str, task: str = "") -> None:
        """Receive the start of a step, such as ``fetch apex-1.4.0.tar.gz``; more lines are details."""

    def info(self, message: str) -> None:
        """Receive a remark that needs no action."""

    def warning(self, message: str) -> None:
        """Receive a warning, which is shown even in quiet mode."""

    def conflict(self, conflict: Conflict) -> None:
        """Receive a conflict as soon as it is known, before suggestions are searched."""

    def progress(self, task: str = "", **change: Unpack[Progress]) -> None:
        """Receive the changes of a task; may be called by several threads, and often."""

    @contextmanager
    def task(self, name: str, **change: Unpack[Progress]) -> Iterator[None]:
        """Report that a task runs during a ``with`` block, and then whether it failed."""
        self.progress(name, **(change | {"state": "running"}))
        try:
            yield
        except BaseException:
            self.progress(name, state="failed")
            raise
        self.progress(name, state="done")


SILENT = Reporter()
"""Ignores all reports."""
