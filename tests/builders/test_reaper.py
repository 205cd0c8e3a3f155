"""All processes that a program started end with it, or with the process that started the program."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.machine import reaper

# Starts a daemon that leaves the session and the process group of the program, ignores SIGTERM if requested,
# and touches a file as long as it runs.
DAEMON = """
import os, pathlib, signal, sys, time
beacon, ignores = pathlib.Path(sys.argv[1]), sys.argv[2] == "ignores"
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        if ignores:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            beacon.touch()
            time.sleep(0.02)
    os._exit(0)
os.wait()
while not beacon.exists():
    time.sleep(0.01)
"""
COMMAND = [sys.executable, "-I", "-S", reaper.__file__]


def reaped(*command: str) -> int:
    """Run a program under the reaper, whose input stays open; return its exit code."""
    with subprocess.Popen([*COMMAND, *command], stdin=subprocess.PIPE) as process:
        return process.wait(60)


def is_touched(beacon: Path) -> bool:
    before = beacon.stat().st_mtime_ns
    time.sleep(0.3)
    return beacon.stat().st_mtime_ns != before


@pytest.mark.parametrize("code", [0, 7])
def test_reaper_passes_exit_code_on(code: int) -> None:
    assert reaped("sh", "-c", f"exit {code}") == code


def test_reaper_ends_as_its_program_did() -> None:
    assert reaped("sh", "-c", "kill -9 $$") == -signal.SIGKILL


@pytest.mark.parametrize("manner", ["obeys", pytest.param("ignores", marks=pytest.mark.slow)])
def test_daemon_ends_with_its_program(tmp_path: Path, manner: str) -> None:
    beacon = tmp_path / "beacon"
    assert reaped(sys.executable, "-c", DAEMON, str(beacon), manner) == 0
    assert not is_touched(beacon)


@pytest.mark.slow
@pytest.mark.parametrize("manner", ["obeys", "ignores"])
def test_daemon_and_program_end_with_input(tmp_path: Path, manner: str) -> None:
    beacon = tmp_path / "beacon"
    code = f"{DAEMON}\ntime.sleep(600)"
    with subprocess.Popen([*COMMAND, sys.executable, "-c", code, beacon, manner], stdin=-1) as process:
        while not beacon.exists():
            assert process.poll() is None
            time.sleep(0.01)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait() == -signal.SIGTERM
    assert not is_touched(beacon)


def test_program_cannot_kill_reaper_with_its_group() -> None:
    assert reaped("sh", "-c", "trap : TERM; kill 0; exit 3") == 3


def test_program_sees_no_other_input(tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert reaped("sh", "-c", f"cat >{out}; echo end >>{out}") == 0
    assert out.read_text() == "end\n"


def test_missing_program_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert reaped("/no/such/program") == 127
    assert "/no/such/program: No such file or directory" in capfd.readouterr().err
