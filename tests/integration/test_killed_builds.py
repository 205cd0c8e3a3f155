"""Kill a random process with SIGKILL, fifty times, while ten real C++ extensions of torch are built."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from builders.index import Index
from builders.index.maintenance import check
from builders.storage.files import cache_root
from tests.support.built import matrix
from tests.support.extensions import TORCH, write_extension
from tests.support.projects import write_catalog

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.timeout(3600)]

EXTENSIONS = 10
PARTS = 29
"""Number of source files of each extension that include a header of torch; one more file does not.

A kill loses the objects that are being compiled, half of each on average. So with two compilers,
fifty kills lose fifty objects: a sixth of the 300 objects."""
KILLS = 50
MOST_WORK = 1.3
OPTIONS = ("--jobs", "2", "--compiler-cache", "none")
_TICKS = os.sysconf("SC_CLK_TCK")


class Work:
    """The compilers that run below a directory, and the CPU time that they use."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = {}
        """Seconds by process id and start, because ids are reused."""

    @contextmanager
    def counted(self, directory: Path) -> Iterator[None]:
        ended = threading.Event()

        def count() -> None:
            while not ended.wait(0.05):
                self._look(str(directory).encode())

        thread = threading.Thread(target=count, daemon=True)
        thread.start()
        yield
        ended.set()
        thread.join()

    def _look(self, directory: bytes) -> None:
        for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  called often
            with suppress(OSError):
                stat = Path("/proc", name, "stat").read_bytes()
                if b"(cc1plus)" in stat and directory in Path("/proc", name, "mountinfo").read_bytes():
                    fields = stat.rpartition(b")")[2].split()
                    seconds = (int(fields[11]) + int(fields[12])) / _TICKS
                    self.seconds[name, fields[19].decode()] = seconds

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def descendants(process: int) -> list[int]:
    """Return a process and its descendants."""
    pids = [process]
    for pid in pids:
        with suppress(OSError):
            pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return pids


def check_index(index: Path, *, finished: bool) -> None:
    """Check that every wheel is complete and recorded; the next run updates the pages."""
    if index.joinpath("simple").is_dir():
        findings = {finding.id: finding.message for finding in check(Index(index))}
        if not finished:
            findings.pop("page-wrong", None)
        assert not findings


def test_killed_builds_lose_little(tmp_path: Path) -> None:
    names = [f"killed{number}" for number in range(EXTENSIONS)]
    rows = [write_extension(name, cache_root(), parts=PARTS) for name in names]
    write_catalog(tmp_path / "facts" / "extensions.toml", rows)
    options = [*names, f"torch=={TORCH}", "--backend", "cpu", "--catalog", "facts"]
    resolved = matrix(tmp_path, "resolve", *options)
    assert resolved.returncode == 0, resolved.stderr

    undisturbed, work = tmp_path / "undisturbed", Work()
    started = time.monotonic()
    with work.counted(undisturbed):
        done = matrix(tmp_path, "build-wheels", *OPTIONS, "--index", str(undisturbed))
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr

    index, killed_work = tmp_path / "killed", Work()
    command = [sys.executable, "-m", "matrix", "build-wheels", *OPTIONS, "--keep-going"]
    command += ["--index", str(index)]
    choice = random.Random(2026)
    victims: dict[str, int] = {}
    runs = 0
    with killed_work.counted(index):
        process: subprocess.Popen[bytes] | None = None
        for _ in range(KILLS):
            pause = choice.uniform(0, 1.4 * seconds / KILLS)
            until = time.monotonic() + pause
            while process is None or process.poll() is not None or time.monotonic() < until:
                if process is None or process.poll() is not None:
                    assert process is None or process.returncode, "everything was built before the last kill"
                    process = subprocess.Popen(
                        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )
                    runs += 1
                time.sleep(0.05)
            pid = choice.choice(descendants(process.pid))
            with suppress(OSError):
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                os.kill(pid, signal.SIGKILL)
                victims[name] = victims.get(name, 0) + 1
            check_index(index, finished=False)
        assert process is not None
        process.wait()
        for _ in range(3):  # the next run continues a build that was killed
            runs += 1
            done = matrix(tmp_path, "build-wheels", "--jobs", "2", "--index", str(index))
            if done.returncode == 0:
                break
    assert done.returncode == 0, done.stderr
    check_index(index, finished=True)

    wheels = {path.name: path.read_bytes() for path in undisturbed.glob("simple/*/*.whl")}
    assert len(wheels) == EXTENSIONS
    assert {path.name: path.read_bytes() for path in index.glob("simple/*/*.whl")} == wheels
    assert not list((index / ".matrix" / "builds").iterdir())
    figures = {
        "compile seconds": [round(work.total, 1), round(killed_work.total, 1)],
        "compilations": [len(work.seconds), len(killed_work.seconds)],
        "runs": runs,
        "victims": victims,
        "seconds": round(time.monotonic() - started, 1),
    }
    print(json.dumps(figures))  # noqa: T201  the result of the proof
    assert killed_work.total <= MOST_WORK * work.total, figures
