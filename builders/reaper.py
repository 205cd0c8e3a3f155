"""End the processes of a session: on request, or as a script when `matrix` dies.

`builders.process` runs this file as a script beside each program. It reads the number of the program's
session from its standard input and then waits for the end of that input, which `matrix` holds open. The
kernel closes the pipe however `matrix` ends, SIGKILL included.

The kernel's own means are not enough. PR_SET_PDEATHSIG (prctl(2)) reaches only the program itself, not the
compilers it started, and is lost when a container runtime changes its privileges. ninja gives each compiler
its own process group, so only the session identifies them all.

The script imports nothing of this project and runs without site-packages, so that it starts quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

_GRACE = 6.0
"""Seconds between SIGTERM and SIGKILL."""


def main() -> None:
    """Wait for the end of standard input, then end the session that it names."""
    session = sys.stdin.read()
    if session:  # else matrix died before it started the program
        end_session(int(session))


def members(session: int) -> list[int]:
    """Return the processes of a session that still run (proc_pid_stat(5))."""
    pids = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  pathlib is slow to import
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as source:  # noqa: PTH123
            state, _, _, number, *_ = source.read().rpartition(b") ")[2].split()
            if int(number) == session and state not in (b"Z", b"X"):
                pids.append(int(name))
    return pids


def end_session(session: int, *, grace: float = _GRACE) -> None:
    """Send SIGTERM to the processes of a session, and SIGKILL to those that run `grace` seconds later."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in members(session):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        until = time.monotonic() + grace
        while members(session) and time.monotonic() < until:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
