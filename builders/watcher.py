"""Nothing that a program has started outlives it, however it ends and whatever ended `matrix`.

Run as a script it waits beside a program for `matrix` to die, even by SIGKILL. The kernel can tell only
the program itself of that (prctl(2), PR_SET_PDEATHSIG), and not the compilers that it has started: they
would go on writing into a directory that the next run builds in. ninja gives each compiler a process
group of its own, so it is the session by which they are found.

The script is run by path, without this package and without site-packages, so that it starts quickly.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress

_GRACE = 6.0
"""Seconds between asking and killing; the shell before a container's runtime takes five of them."""


def members(session: int) -> list[int]:
    """Give the processes of a session that still run, as proc_pid_stat(5) tells them."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  pathlib is slow to import
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as source:  # noqa: PTH123
            state, _, _, of, *_ = source.read().rpartition(b") ")[2].split()
            if int(of) == session and state not in (b"Z", b"X"):
                found.append(int(name))
    return found


def end_session(session: int, *, grace: float = _GRACE) -> None:
    """End all processes of a session: ask them to, and kill those that have not done so in time.

    Parameters
    ----------
    session
        Its number, which is the process number of the program that it began with.
    grace
        Seconds they are given.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in members(session):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        until = time.monotonic() + grace
        while members(session) and time.monotonic() < until:
            time.sleep(0.02)


if __name__ == "__main__":
    sys.stdin.buffer.read()  # ends when nobody holds the other end any more
    end_session(int(sys.argv[1]))
