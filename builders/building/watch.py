"""Watch a build while it runs: the progress that its log shows, its processes, and their memory.

ninja writes a count when a command has finished, so the log shows nothing while the first file compiles.
Until then, the number of compile commands is that in ``build.ninja``. torch writes this file and runs ninja
once for each extension of a setup.py, so the counts of consecutive runs are added.

Memory is sampled for all descendants of this process several times a second, because users can rarely create
control groups. Shared pages count several times, so the sum is an upper bound.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections import Counter
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from builders.machine.reaper import descendants
from builders.storage.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from resolver.reporter import Progress, Reporter


_INTERVAL = 1.0
"""Seconds between two reports."""
_MOST = 2**18
"""New bytes to read at most; only the newest matter."""
_COUNT = re.compile(rb"^\[ *(\d{1,9})(?:/(\d{1,9})|(%))\]", re.MULTILINE)
"""Matches the start of ninja's lines (``[12/40]``), and of make's with CMake (``[ 30%]``)."""

_COMPILE = re.compile(rb"^build [^\n]*?: *\w*compile", re.MULTILINE | re.IGNORECASE)
"""Matches a statement of ``build.ninja`` that compiles a file, as torch, CMake and meson name their rules."""
_LARGEST = 2**26
"""Bytes of ``build.ninja`` to read at most."""
_CONFIGURES = "/CMakeFiles/"
"""CMake compiles the small programs of its checks below this directory."""
_SOURCE = re.compile(rb"(?:\S*/)?([\w.+-]{1,100}\.(?:c|cc|cpp|cxx|cu|hip|f90|f))")

_GIB = 2**30
_SAMPLE_INTERVAL = 0.3
"""Seconds between two samples."""
_LARGEST_SHARE = 0.02
"""Fraction of the time that sampling may take on a machine with thousands of processes."""
_PAGE = resource.getpagesize()


class MemoryMeter:
    """Measure the peak memory in GiB of everything this process starts during a ``with`` block.

    `total` is the largest sum over all processes, `largest` the largest process: what one compile job needs.
    """

    def __init__(self) -> None:
        self.total = self.largest = 0.0
        self._stop = Event()
        self._thread = Thread(target=self._sample, daemon=True)
        self._before = _largest_child()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Add the kernel's record of processes that ended between two samples."""
        self._stop.set()
        self._thread.join()
        after = _largest_child()
        if after > self._before or not self.largest:
            self.largest = max(self.largest, after)
        self.total = max(self.total, self.largest)

    def _sample(self) -> None:
        def look() -> None:
            sizes = resident_sizes(started())
            self.total = max(self.total, sum(sizes) / _GIB)
            self.largest = max(self.largest, max(sizes, default=0) / _GIB)

        look()
        repeat(look, _SAMPLE_INTERVAL, self._stop)


def repeat(look: Callable[[], None], interval: float, stop: Event) -> None:
    """Call a function every `interval` seconds until the event is set, and less often if it takes long."""
    pause = interval
    while not stop.wait(pause):
        before = time.monotonic()
        look()
        pause = max(interval, (time.monotonic() - before) / _LARGEST_SHARE)


def started() -> list[int]:
    """Return what `descendants` does, without reading every process of the machine.

    The kernel may leave out children while another one ends (proc(5)), so it is for samples only. Some
    kernels have no such file.
    """
    if not os.path.exists("/proc/thread-self/children"):  # noqa: PTH110  called often
        return descendants()
    below = [os.getpid()]
    for process in below:
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208
                with open(f"/proc/{process}/task/{thread}/children", "rb") as source:  # noqa: PTH123
                    below += map(int, source.read().split())
    return below[1:]


def _largest_child() -> float:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def resident_sizes(processes: Iterable[int]) -> list[int]:
    """Return the resident memory in bytes of each process that has not ended (proc_pid_statm(5))."""
    sizes = []
    for process in processes:
        with suppress(OSError), open(f"/proc/{process}/statm", "rb") as source:  # noqa: PTH123  called often
            sizes.append(int(source.read().split()[1]) * _PAGE)
    return sizes


def proportional_size(processes: Iterable[int]) -> int:
    """Return the memory of processes in bytes; shared pages count once (smaps_rollup in proc(5))."""
    size = 0
    for process in processes:
        with suppress(OSError), open(f"/proc/{process}/smaps_rollup", "rb") as source:  # noqa: PTH123
            size += sum(int(line.split()[1]) * 1024 for line in source if line.startswith(b"Pss:"))
    return size


def kernel_kills() -> int | None:
    """Count the processes killed for lack of memory since the machine started; None if unknown."""
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


def task_names(titles: Mapping[str, str]) -> dict[str, str]:
    """Return the name of each task for a `Reporter`, from its title by build key.

    Examples
    --------
    >>> list(task_names({"12ab34cd56": "apex 1", "78ef90ab12": "apex 1", "34cd56ef78": "triton 3"}).values())
    ['apex 1 (12ab34cd)', 'apex 1 (78ef90ab)', 'triton 3']
    """
    count = Counter(titles.values())
    return {key: f"{title} ({key[:8]})" if count[title] > 1 else title for key, title in titles.items()}


def last_step(log: Path, task: str) -> tuple[float, str] | None:
    """Return the newest step of a task in the log of a job, and the second of the job in which it began."""
    text = b""
    with suppress(OSError), log.open("rb") as source:
        source.seek(max(0, source.seek(0, 2) - _MOST))
        text = source.read()
    step = r"(?: \(about [^)]*\))?: (?!done in |failed after )(.*(?:\n {13}.*)*)"
    pattern = rf"^ +([\d.]+) s  {re.escape(task)}{step}"
    steps = re.findall(pattern, text.decode(errors="replace"), re.MULTILINE)
    return (float(steps[-1][0]), re.sub(r"\n +", "\n", steps[-1][1])) if steps else None


class LogCount:
    """Count the finished commands of a build tool that writes to a growing log."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = 0
        self._before = 0
        """Commands of the runs of ninja that have ended."""
        self._run = 0, 0
        """Finished and all commands of the newest run."""

    def read(self) -> Progress:
        """Return the count after what was written since the last call; empty if that has no count."""
        counts = self._new_counts()
        for number, of, is_percent in counts:
            if not is_percent:
                self._count(int(number), int(of))
        if not counts:
            return {}
        if counts[-1][2]:
            return {"done": float(counts[-1][0]), "total": 100.0, "unit": "%"}
        done, total = self._run
        return {"done": float(self._before + done), "total": float(self._before + total), "unit": ""}

    def begun(self, ninja: int) -> Progress:
        """Return the count of a process of ninja that compiles; empty if the log has its count."""
        done, total = self._run
        commands = _compile_commands(ninja) if done == total else 0
        if not commands:
            return {}
        before = float(self._before + total)
        return {"done": before, "total": before + commands, "unit": ""}

    def _count(self, done: int, total: int) -> None:
        before, of = self._run
        if done <= before == of:  # the last run has finished all of its commands
            self._before += of
        self._run = done, total

    def _new_counts(self) -> list[tuple[bytes, bytes, bytes]]:
        text = b""
        with suppress(OSError), self._log.open("rb") as source:
            size = source.seek(0, 2)
            if self._position > size:  # a new attempt begins a new log
                self._position, self._before, self._run = 0, 0, (0, 0)
            source.seek(max(self._position, size - _MOST))
            text = source.read(_MOST)
            # The rest is a line that is still being written; it is read the next time.
            end = text.rfind(b"\n") + 1
            self._position = source.tell() - (len(text) - end)
            text = text[:end]
        return _COUNT.findall(text)


def compiling(processes: Iterable[int]) -> tuple[str, int]:
    """Return a file that is compiled now, empty if none, and the process of ninja, else 0."""
    file, ninja = "", 0
    for process in processes:
        with suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as source:  # noqa: PTH123  called often
            words = source.read().split(b"\0")
            if os.path.basename(words[0]) in {b"ninja", b"ninja-build"}:  # noqa: PTH119
                ninja = ninja or process
            elif not file and b"-c" in words:
                names = [found[1] for word in words if (found := _SOURCE.fullmatch(word))]
                file = names[0].decode() if names else ""
    return file, ninja


def _compile_commands(ninja: int) -> int:
    """Return the number of compile commands in the file of a process of ninja, which a build can change."""
    directory = f"/proc/{ninja}/cwd"
    with suppress(OSError):
        if _CONFIGURES not in os.readlink(directory):  # noqa: PTH115
            with os.fdopen(open_regular(f"{directory}/build.ninja"), "rb") as source:
                return sum(1 for _ in _COMPILE.finditer(source.read(_LARGEST)))
    return 0


@contextmanager
def watched(reporter: Reporter, log: Path, measured: Callable[[float], None]) -> Iterator[None]:
    """Report the progress of a build every second, and the GiB of its largest process to `measured`."""
    stop = Event()
    count = LogCount(log)

    def look() -> None:
        processes = started()
        sizes = resident_sizes(processes)
        file, ninja = compiling(processes)
        change: Progress = {"memory": sum(sizes) / 2**30, "file": file}
        change |= count.read()
        if file and ninja:
            change |= count.begun(ninja)
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
