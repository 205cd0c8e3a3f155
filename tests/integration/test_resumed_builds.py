"""Builds that are killed and continued: real C++ extensions of torch, compiled with ninja."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.building.directory import finished_commands
from builders.storage.files import cache_root
from tests.support.built import matrix, running_below
from tests.support.extensions import TORCH, compilations, write_extension
from tests.support.projects import write_catalog

pytestmark = pytest.mark.integration

PARTS = 5
OBJECTS = PARTS + 1


def resolve(work: Path, *names: str) -> None:
    done = matrix(
        work, "resolve", *names, f"torch=={TORCH}", "--backend", "cpu", "--catalog", "facts", "--no-prebuilt"
    )
    assert done.returncode == 0, done.stderr


def wait_for_outputs(process: subprocess.Popen[str], index: Path, number: int) -> Path:
    """Wait until ninja has finished a number of outputs; return the directory of the build."""
    until = time.monotonic() + 300
    while True:
        for directory in (index / ".matrix" / "builds").glob("*"):
            if finished_commands(directory) >= number:
                return directory
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def wait_for_end_below(index: Path) -> None:
    until = time.monotonic() + 30
    while running_below(index):
        assert time.monotonic() < until, "the build is still running"
        time.sleep(0.05)


def log_of(index: Path) -> Path:
    (log,) = (index / ".matrix" / "logs").glob("*.log")
    return log


def test_killed_build_compiles_only_the_rest(tmp_path: Path) -> None:
    write_catalog(
        tmp_path / "facts" / "extensions.toml", [write_extension("resumed", cache_root(), parts=PARTS)]
    )
    resolve(tmp_path, "resumed")
    index = tmp_path / "killed"
    command = [
        sys.executable,
        "-m",
        "matrix",
        "build-wheels",
        "--compiler-cache",
        "none",
        "--jobs",
        "1",
        "--index",
        str(index),
    ]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, text=True) as process:
        directory = wait_for_outputs(process, index, OBJECTS * 2 // 3)
        process.send_signal(signal.SIGKILL)
    wait_for_end_below(index)
    before, finished = compilations(log_of(index).read_text()), finished_commands(directory)
    assert OBJECTS * 2 // 3 <= finished < OBJECTS
    continued = matrix(
        tmp_path, "build-wheels", "--compiler-cache", "none", "--jobs", "1", "--index", str(index)
    )
    assert continued.returncode == 0, continued.stderr
    assert f"continue an interrupted build: {finished} commands already finished" in continued.stderr
    after = compilations(log_of(index).read_text())
    assert (after - before).total() == OBJECTS - finished
    assert set(after.values()) == {1}
    assert not list((index / ".matrix" / "builds").iterdir())

    undisturbed = matrix(
        tmp_path,
        "build-wheels",
        "--compiler-cache",
        "none",
        "--jobs",
        "2",
        "--index",
        str(tmp_path / "undisturbed"),
    )
    assert undisturbed.returncode == 0, undisturbed.stderr
    assert "ccache" not in log_of(tmp_path / "undisturbed").read_text()  # torch itself would call ccache
    wheels = [next(root.glob("simple/*/*.whl")) for root in (index, tmp_path / "undisturbed")]
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
