"""Run a program as its parent; when the program or `matrix` ends, end all processes that it started.

`builders.machine.process` runs this file as a script with the program as arguments, and keeps its standard
input open. The kernel closes that pipe however `matrix` ends, SIGKILL included.

The script is a subreaper (PR_SET_CHILD_SUBREAPER, prctl(2)): a process whose parent ends becomes its
child. So a daemon stays among its descendants, whatever its session and process group. Where a runtime has
a PID namespace, the kernel has ended all processes already.

The script imports nothing of this project and runs without site-packages, so that it starts quickly. Each
build starts it twice, so it does without `signal`, `select` and `contextlib`: a third of its start.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import resource
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # from linux/prctl.h
_SIGKILL, _SIGPIPE, _SIGTERM = 9, 13, 15  # from signal(7)
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
    program = os.fork()
    if program == 0:
        _start(command, libc)
    _thread.start_new_thread(_end_with_matrix, ())
    status = _wait_for(program)
    if not end_descendants(left=_LEFT):
        sys.stderr.write("error: could not end all processes that the program left behind\n")
        return 1
    return -_SIGTERM if status is None else os.waitstatus_to_exitcode(status)


def _end_with_matrix() -> None:
    """Wait until `matrix` has ended, or has closed the pipe to end the program; then end everything."""
    os.read(0, 1)
    end_descendants(left=0.0)


def _start(command: list[str], libc: ctypes.CDLL) -> None:
    """Replace this process with the program, in a new session."""
    try:
        # If this script is killed, the kernel still ends the program.
        libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL)
        os.setsid()  # Ctrl-C in the terminal does not reach the program: matrix ends it in order
        # Standard input is the pipe from matrix.
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Python ignores the signal, and a program inherits that.
        libc.signal(_SIGPIPE, None)
        os.execvp(command[0], command)  # noqa: S606  no shell is needed
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(_NOT_FOUND)


def _wait_for(program: int) -> int | None:
    """Collect children that end until the program is one of them; return its status, or None without it."""
    try:
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == program:
                return status
    except ChildProcessError:
        return None


def _has_children() -> bool:
    """Collect the children that have ended; return whether others are left. Orphans become children."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def descendants() -> list[int]:
    """Return the descendants of this process that still run (proc_pid_stat(5))."""
    children: dict[int, list[int]] = {}
    ended = set()
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  pathlib is slow to import
        try:
            with open(f"/proc/{name}/stat", "rb") as source:  # noqa: PTH123
                state, parent, *_ = source.read().rpartition(b") ")[2].split()
        except OSError:
            continue
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
    for number, seconds in ((None, left), (_SIGTERM, _GRACE), (_SIGKILL, _LAST)):
        until = time.monotonic() + seconds
        signalled: set[int] = set()
        pause = 0.001
        while _has_children():
            for pid in descendants() if number is not None else ():
                # SIGTERM once, because programs may take a second one as a request to end at once.
                if pid not in signalled or number == _SIGKILL:
                    signalled.add(pid)
                    try:  # noqa: SIM105
                        os.kill(pid, number or 0)
                    except (ProcessLookupError, PermissionError):
                        pass
            if time.monotonic() >= until:
                break
            time.sleep(pause)  # the kernel may just be ending a PID namespace
            pause = min(2 * pause, 0.02)
        else:
            return True
    return False


def _exit_like(code: int) -> None:
    if code < 0:
        # The program may have left a core file already; this script must not overwrite it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        ctypes.CDLL(None).signal(-code, None)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    _exit_like(main(sys.argv[1:]))
