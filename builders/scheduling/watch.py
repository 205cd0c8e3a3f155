"""Watch a build while it runs: the progress that its log shows, and the memory of its processes."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING

from builders.scheduling.memory import repeat, resident_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from resolver.reporter import Change, Reporter

_INTERVAL = 1.0
"""Seconds between two reports."""
_MOST = 2**18
"""Maximum number of new bytes to read since the last report; only the newest matter."""
_COUNT = re.compile(rb"^\[ *(\d{1,9})(?:/(\d{1,9})|(%))\]", re.MULTILINE)
"""Matches the start of ninja's lines (``[12/40]``), and of make's with CMake (``[ 30%]``)."""


def task_names(titles: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each task for a `Reporter`, from its title by build key.

    Tasks with the same title, such as a package for several targets, get the first digits of their keys.

    Examples
    --------
    >>> list(task_names({"12ab34cd56": "apex 1", "78ef90ab12": "apex 1", "34cd56ef78": "triton 3"}).values())
    ['apex 1 (12ab34cd)', 'apex 1 (78ef90ab)', 'triton 3']
    """
    count = Counter(titles.values())
    return {key: f"{title} ({key[:8]})" if count[title] > 1 else title for key, title in titles.items()}


class LogCount:
    """Read the number of finished steps of a build tool from a growing log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0

    def read(self) -> Change:
        """Return the newest count written since the last call; empty if there is none."""
        text = b""
        with suppress(OSError), self._log.open("rb") as source:
            size = source.seek(0, 2)
            start = self._position if self._position <= size else 0  # a new attempt begins a new log
            source.seek(max(start, size - _MOST))
            text = source.read(_MOST)
            end = text.rfind(b"\n") + 1
            self._position = source.tell() - (len(text) - end)
            text = text[:end]
        counts = _COUNT.findall(text)
        if not counts:
            return {}
        done, total, is_percent = counts[-1]
        if is_percent:
            return {"done": float(done), "total": 100.0, "unit": "%"}
        return {"done": float(done), "total": float(total), "unit": ""}


@contextmanager
def watched(reporter: Reporter, log: Path, measured: Callable[[float], None]) -> Iterator[None]:
    """Report the progress in a build's log, and the memory of this process's children, every second.

    The reports also show that the build still runs.

    Parameters
    ----------
    measured
        Called with the memory of the largest process in GiB.
    """
    stop = Event()
    count = LogCount(log)

    def look() -> None:
        sizes = resident_sizes()
        change: Change = {"memory": sum(sizes) / 2**30}
        change |= count.read()
        with suppress(OSError):  # the process that reads the reports may have ended
            measured(max(sizes, default=0) / 2**30)
            reporter.progress(**change)

    thread = Thread(target=repeat, args=(look, _INTERVAL, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
