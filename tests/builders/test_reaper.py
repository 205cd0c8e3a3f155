"""Ending a session: all its processes, also those that ignore SIGTERM, and no others."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders import reaper
from builders.reaper import end_session, members

# Starts a child in a process group of its own; the child creates a file once it ignores SIGTERM.
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


def start(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a program under a reaper; end both by closing the reaper's standard input."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps({"command": command, "cwd": None, "env": None}).encode() + b"\n")
    process.stdin.flush()
    return process


def test_reaper_exits_with_the_programs_code() -> None:
    with start(["/bin/sh", "-c", 'echo "$1"; exit 9', "sh", "a b"]) as process:
        assert process.stdout is not None
        assert process.stdout.read() == b"a b\n"
        assert process.wait() == 9


@pytest.mark.parametrize("trap", ["", "trap : TERM; "])
@pytest.mark.parametrize("cause", ["closed", "terminated"])
def test_reaper_ends_program(tmp_path: Path, trap: str, cause: str) -> None:
    pid = tmp_path / "pid"
    code = f"{trap}echo $$ >{pid}.new; mv {pid}.new {pid}; while :; do sleep 0.1; done"
    with start(["/bin/sh", "-c", code]) as process:
        while not pid.exists():
            assert process.poll() is None
            time.sleep(0.01)
        assert process.stdin is not None
        if cause == "closed":
            process.stdin.close()
        else:
            process.terminate()
        assert process.wait(timeout=60) == (-signal.SIGKILL if trap else -signal.SIGTERM)
    assert not Path(f"/proc/{pid.read_text().strip()}").exists()
