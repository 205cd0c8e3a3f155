"""Ending a session: all its processes, also those that ignore SIGTERM, and no others."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import reaper
from builders.reaper import end_session, members

# Starts a child in its own process group; the child creates a file once it ignores SIGTERM.
IGNORES_SIGTERM = """
import subprocess, sys
child = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
)
subprocess.run([sys.executable, "-c", child, sys.argv[1]], process_group=0)
"""


def test_end_session_kills_process_that_ignores_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", IGNORES_SIGTERM, str(ready)]
    with (
        subprocess.Popen(["sleep", "600"], start_new_session=True) as other,
        subprocess.Popen(command, start_new_session=True) as leader,
    ):
        while not ready.exists():
            assert leader.poll() is None
            time.sleep(0.01)
        assert len(members(leader.pid)) == 2
        end_session(leader.pid, grace=0.2)
        assert leader.wait() == -signal.SIGTERM
        assert members(leader.pid) == []
        assert other.poll() is None
        other.kill()


def test_members_excludes_zombies() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        until = time.monotonic() + 30
        while members(process.pid):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert process.returncode is None


def test_end_session_accepts_a_session_that_is_gone() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        process.wait()
    end_session(process.pid)
    assert members(process.pid) == []


@pytest.mark.slow
@pytest.mark.parametrize("trap", ["", "trap : TERM; "])
def test_reaper_ends_session_when_its_input_ends(tmp_path: Path, trap: str) -> None:
    pid = tmp_path / "pid"
    code = f"{trap}echo $$ >{pid}.new; mv {pid}.new {pid}; while :; do sleep 0.1; done"
    command = [sys.executable, "-I", "-S", reaper.__file__]
    with (
        subprocess.Popen(["/bin/sh", "-c", code], start_new_session=True) as program,
        subprocess.Popen(command, stdin=subprocess.PIPE) as process,
    ):
        while not pid.exists():
            assert program.poll() is None
            time.sleep(0.01)
        process.communicate(str(program.pid).encode())
        assert process.returncode == 0
        assert program.wait(timeout=60) == (-signal.SIGKILL if trap else -signal.SIGTERM)


def test_reaper_without_session_ends_nothing() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", reaper.__file__], input=b"", check=False)
    assert done.returncode == 0
