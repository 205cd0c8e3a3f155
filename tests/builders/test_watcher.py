"""The end of a session: all of it, the polite and the deaf, and nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from builders.watcher import end_session, members

if TYPE_CHECKING:
    from pathlib import Path

# Starts a child in a process group of its own; the child says when it no longer hears SIGTERM.
DEAF = """
import subprocess, sys
child = (
    "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
    "pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
)
subprocess.run([sys.executable, "-c", child, sys.argv[1]], process_group=0)
"""


def test_the_deaf_is_killed_and_other_sessions_are_left_alone(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command = [sys.executable, "-c", DEAF, str(ready)]
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


def test_what_has_ended_but_was_not_waited_for_is_no_member() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        until = time.monotonic() + 30
        while members(process.pid):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert process.returncode is None


def test_a_session_that_is_gone_is_no_error() -> None:
    with subprocess.Popen(["true"], start_new_session=True) as process:
        process.wait()
    end_session(process.pid)
    assert members(process.pid) == []
