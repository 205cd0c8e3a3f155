"""Run a program as its parent; when the program or `matrix` ends, end all processes that it started.

`builders.machine.process` runs this file as a script with the program as arguments, and keeps its standard
input open. The kernel closes that pipe however `matrix` ends, SIGKILL included.

The script is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)): a process whose parent ends becomes its
child. So a daemon stays among its descendants, whatever its session and process group. Where a runtime has
a PID namespace, the kernel has ended all processes already.

The script imports nothing of this project and runs without site-packages, so that it starts quickly.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from contextlib import suppress

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
_LEFT = 1.0
"""Seconds to wait for processes left behind, such as a runtime's monitor, to end on their own."""
_GRACE = 6.0
"""Seconds between SIGTERM and SIGKILL."""
_LAST = 20.0
"""Seconds for which SIGKILL is repeated, because processes may keep starting others."""
_NOT_FOUND = 127  # exit code of a shell for a program that it cannot start


def main(command: list[str]) -> int:
    """Run a program; return its exit code, or the negative number of the signal that killed it."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    # A signal between a check for ended children and `select` would be missed; through the pipe it is not.
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    program = os.fork()
    if program == 0:
        _start(command, libc)
    status: int | None = None
    while status is None:
        ready, _, _ = select.select([sys.stdin, reader], [], [])
        if reader in ready:
            os.read(reader, 4096)
        status = _reap(program)
        if sys.stdin in ready:  # matrix has ended, or has closed the pipe to end the program
            break
    ended = end_descendants(left=0.0 if status is None else _LEFT)
    if not ended:
        sys.stderr.write("error: could not end all processes that the program left behind\n")
        return 1
    return -signal.SIGTERM if status is None else os.waitstatus_to_exitcode(status)


def _start(command: list[str], libc: ctypes.CDLL) -> None:
    """Replace this process with the program, in a new session."""
    try:
        # If this script is killed, the kernel still ends the program.
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.setsid()  # Ctrl-C in the terminal does not reach the program: matrix ends it in order
        # Standard input is the pipe from matrix.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Python ignores the signal, and a program inherits that.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.execvp(command[0], command)  # noqa: S606  no shell is needed
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_NOT_FOUND)


def _reap(program: int) -> int | None:
    """Collect all children that have ended; return the status of the program if it is one of them."""
    ended = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == program:
                ended = status
    return ended


def descendants() -> list[int]:
    """Return the descendants of this process that still run (proc_pid_stat(5))."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  pathlib is slow to import
        with suppress(OSError), open(f"/proc/{name}/stat", "rb") as source:  # noqa: PTH123
            state, parent, *_ = source.read().rpartition(b") ")[2].split()
            children.setdefault(int(parent), []).append(int(name))
            if state in (b"Z", b"X"):
                ended.add(int(name))
    below = children.get(os.getpid(), [])
    # `below` grows in this loop, so that it reaches all generations.
    for pid in below:
        below += children.get(pid, [])
    return [pid for pid in below if pid not in ended]


def end_descendants(*, left: float) -> bool:
    """End all descendants, after `left` seconds to end on their own; return whether all have ended."""
    for number, seconds in ((None, left), (signal.SIGTERM, _GRACE), (signal.SIGKILL, _LAST)):
        until = time.monotonic() + seconds
        signalled: set[int] = set()
        while pids := descendants():
            for pid in pids if number is not None else ():
                # SIGTERM once, because programs may take a second one as a request to end at once.
                if pid not in signalled or number == signal.SIGKILL:
                    signalled.add(pid)
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number or 0)
            _reap(0)
            if time.monotonic() >= until:
                break
            time.sleep(0.02)
        else:
            return True
    return False


def _exit_like(code: int) -> None:
    if code < 0:
        # The program may have left a core file already; this script must not overwrite it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _exit_like(main(sys.argv[1:]))
