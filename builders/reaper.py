"""Run one program, and end it with everything it started when `matrix` dies or stops waiting for it.

`builders.process` runs this file as a script. The script reads what to start from its standard input, one
line of JSON, and `matrix` keeps the other end of that pipe open. The kernel closes the pipe however
`matrix` ends, SIGKILL included.

The kernel's own means are not enough. PR_SET_PDEATHSIG (prctl(2)) reaches only the program itself, not the
compilers it started, and is lost when a container runtime changes its privileges. ninja gives each compiler
a process group of its own, so only the session identifies them all.

The script imports nothing of this project and runs without site-packages, so that it starts quickly.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

NOT_FOUND = 127
"""Exit code of a program that cannot be started, as in a shell."""
GRACE = 6.0
"""Seconds between SIGTERM and SIGKILL."""
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_UNCATCHABLE = (signal.SIGKILL, signal.SIGSTOP)
_RESET = (*_END, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)


def main() -> None:
    """Start the program and wait; exit as it did."""
    line = sys.stdin.buffer.readline()
    if not line:  # matrix died first
        return
    order = json.loads(line)
    signals = _signal_pipe()
    session = _start(order["command"], cwd=order["cwd"], env=order["env"])
    status = _wait(session, signals)
    if status is None:
        end_session(session)
        _, status = os.waitpid(session, 0)
    _exit_like(status)


def members(session: int) -> list[int]:
    """Return the processes of a session that still run (proc_pid_stat(5))."""
    pids = []
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  pathlib is slow to import
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as source:  # noqa: PTH123
            state, _, _, number, *_ = source.read().rpartition(b") ")[2].split()
            if int(number) == session and state not in (b"Z", b"X"):
                pids.append(int(name))
    return pids


def end_session(session: int, *, grace: float = GRACE) -> None:
    """Send SIGTERM to the processes of a session, and SIGKILL to those that run `grace` seconds later."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in members(session):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process, number)
        until = time.monotonic() + grace
        while members(session) and time.monotonic() < until:
            time.sleep(0.02)


def _signal_pipe() -> int:
    """Return a file descriptor from which the numbers of received signals can be read."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.set_wakeup_fd(writable)
    for number in (*_END, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    return readable


def _start(command: list[str], *, cwd: str | None, env: dict[str, str] | None) -> int:
    """Start the program as the leader of a session of its own; return its process number."""
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _RESET:
            signal.signal(number, signal.SIG_DFL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        if cwd is not None:
            os.chdir(cwd)
        os.execvpe(command[0], command, os.environ if env is None else env)  # noqa: S606  never a shell
    except OSError as error:
        path = cwd if error.filename == cwd else command[0]
        os.write(2, f"{path}: {error.strerror}\n".encode(errors="replace"))
    finally:
        os._exit(NOT_FOUND)


def _wait(session: int, signals: int) -> int | None:
    """Return the status of the program, or None if it is to be ended before."""
    while True:
        ready, _, _ = select.select([0, signals], [], [])
        if 0 in ready or {*os.read(signals, 64)} & {*_END}:
            return None
        pid, status = os.waitpid(session, os.WNOHANG)
        if pid:
            return status


def _exit_like(status: int) -> None:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        sys.exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has dumped its own core
    if -code not in _UNCATCHABLE:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
