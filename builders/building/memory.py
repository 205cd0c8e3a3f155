"""Measure the memory of a build, and recognize processes that the kernel killed for lack of memory.

The measurement samples all descendants of this process several times a second, because users can
rarely create control groups. Shared pages count several times, so the sum is an upper bound.
"""

from __future__ import annotations

import resource
import time
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from builders.machine.reaper import descendants

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_GIB = 2**30
_INTERVAL = 0.3
"""Seconds between two samples."""
_LARGEST_SHARE = 0.02
"""Fraction of the time that sampling may take on a machine with thousands of processes."""
_PAGE = resource.getpagesize()


class MemoryMeter:
    """Measure the peak memory of everything this process starts during a ``with`` block.

    Attributes
    ----------
    total
        Largest sum over all processes, in GiB.
    largest
        Largest single process, in GiB: the memory that one compile job needs.
    """

    def __init__(self) -> None:
        self.total = self.largest = 0.0
        self._stop = Event()
        self._thread = Thread(target=self._sample, daemon=True)
        self._before = _largest_child()

    def __enter__(self) -> Self:
        """Start measuring."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and add the kernel's record of processes that ended between two samples."""
        self._stop.set()
        self._thread.join()
        after = _largest_child()
        if after > self._before or not self.largest:
            self.largest = max(self.largest, after)
        self.total = max(self.total, self.largest)

    def _sample(self) -> None:
        def look() -> None:
            sizes = resident_sizes(descendants())
            self.total = max(self.total, sum(sizes) / _GIB)
            self.largest = max(self.largest, max(sizes, default=0) / _GIB)

        look()
        repeat(look, _INTERVAL, self._stop)


def repeat(look: Callable[[], None], interval: float, stop: Event) -> None:
    """Call a function regularly until the event is set, and less often if it takes long.

    Parameters
    ----------
    interval
        Minimum number of seconds between two calls, and before the first call.
    """
    pause = interval
    while not stop.wait(pause):
        before = time.monotonic()
        look()
        pause = max(interval, (time.monotonic() - before) / _LARGEST_SHARE)


def _largest_child() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def resident_sizes(processes: Iterable[int]) -> list[int]:
    """Return the resident memory of each process in bytes."""
    return [_resident(process) for process in processes]


def _resident(process: int) -> int:
    """Return the resident memory of a process in bytes (proc_pid_statm(5)); 0 if it has ended."""
    with suppress(OSError), open(f"/proc/{process}/statm", "rb") as source:  # noqa: PTH123  called often
        return int(source.read().split()[1]) * _PAGE
    return 0


def proportional_size(processes: Iterable[int]) -> int:
    """Return the memory of processes in bytes; shared pages count once (smaps_rollup in proc(5))."""
    size = 0
    for process in processes:
        with suppress(OSError), open(f"/proc/{process}/smaps_rollup", "rb") as source:  # noqa: PTH123
            size += sum(int(line.split()[1]) * 1024 for line in source if line.startswith(b"Pss:"))
    return size


def kernel_kills() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since the machine started.

    Limits of control groups, such as those of Slurm's jobs, count too. None means that it is not known.
    """
    with suppress(OSError), open("/proc/vmstat", encoding="ascii") as source:  # noqa: PTH123
        for line in source:
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return None


def kernel_killed_since(before: int | None) -> bool | None:
    """Return whether `kernel_kills` has grown; None if it is not known."""
    now = kernel_kills()
    return None if now is None or before is None else now > before
