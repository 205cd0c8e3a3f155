"""A directory in which `matrix` built the real DeepSpeed, and a function to run `matrix`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.containers.sandbox import BUILD

LABELLED = "0.19.8+cpu.torch2.13.0"


@dataclass(frozen=True)
class Built:
    """A directory in which deepspeed was resolved and built for the CPU."""

    work: Path
    output: str
    log: Path
    """The log of the successful build; other tests build into the same index and fail on purpose."""
    killed: tuple[str, ...]
    """Files that a killed build left in the index."""

    @property
    def index(self) -> Path:
        return self.work / "index"

    @property
    def wheel(self) -> Path:
        (wheel,) = (self.index / "simple" / "deepspeed").glob("*.whl")
        return wheel

    def matrix(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return matrix(self.work, *arguments)


def kill_build(work: Path, index: Path) -> tuple[str, ...]:
    """Start a build, kill it as soon as it compiles, and return its files outside of ``.matrix``."""
    command = [sys.executable, "-m", "matrix", "build-wheels", "--index", str(index)]
    with (work / "killed.txt").open("w") as output:
        process = subprocess.Popen(command, cwd=work, stderr=output, stdout=output, start_new_session=True)
    wait_until_it_compiles(process, index)
    assert process.poll() is None, (work / "killed.txt").read_text()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return tuple(path.name for path in index.iterdir() if path.name != ".matrix")


def wait_until_it_compiles(process: subprocess.Popen[Any], index: Path) -> None:
    """Wait for the directory that setuptools creates first; at most five minutes."""
    deadline = time.monotonic() + 300
    while not list(index.glob(".matrix/builds/*/build/source/*/build")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def running_below(directory: Path) -> list[str]:
    """Return the command lines of processes that work in a directory, or in one of its build directories."""
    commands = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            current = (process / "cwd").readlink()
            builds = current.is_relative_to(BUILD) and str(directory) in (process / "mountinfo").read_text()
            if builds or current.is_relative_to(directory):
                commands.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return commands


def matrix(work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a directory."""
    command = [sys.executable, "-m", "matrix", *arguments]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
