"""One pool of compile jobs for all concurrent builds: GNU make's jobserver protocol with a named pipe.

Each byte in the pipe is the permission to run one job. A client reads a byte before it starts a job and
writes it back afterwards; its first job needs no byte. ninja is a client from 1.13 on, but only if it is
called without ``-j``, which torch and CMake always pass. So a shim comes first on PATH and leaves that option
out.

Sources: GNU make's manual ("POSIX Jobserver Interaction"), ninja's manual ("GNU Jobserver support").
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sys
import termios
from contextlib import suppress
from platform import node
from typing import TYPE_CHECKING

from builders.storage.files import make_directories

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builders.building.plan import Task

_NOT_BY_PATH = ("meson", "scikit-build")
"""Build backends that call their own ninja by its path, or pass the number of jobs in another way."""
LINK = "jobserver"
"""Name of the pipe in the directory of a build."""

_NINJA = f"""#!/bin/sh
# rocm-matrix shim for ninja: share the compile jobs with the other builds
here=${{0%/*}}
real=
IFS=:
for folder in $PATH; do
  if [ "$folder" != "$here" ] && [ -x "$folder/ninja" ]; then
    real=$folder/ninja
    break
  fi
done
unset IFS
if [ -z "$real" ]; then
  echo "ninja: not found" >&2
  exit 127
fi
case $("$real" --version) in
0.* | 1.? | 1.?.* | 1.1[0-2] | 1.1[0-2].*) exec "$real" "$@" ;;
esac
skip=
for word do
  shift
  if [ -n "$skip" ]; then
    skip=
    continue
  fi
  case $word in
  -j) skip=1 ;;
  -j*) ;;
  *) set -- "$@" "$word" ;;
  esac
done
MAKEFLAGS="--jobserver-auth=fifo:${{here%/*}}/{LINK}" exec "$real" "$@"
"""


class Jobserver:
    """The pool: the pipe, and the number of permissions that are in it or held by builds.

    The pipe is created in `directory`, where pipes of killed processes of this machine are removed.
    """

    def __init__(self, directory: Path) -> None:
        make_directories(directory)
        for path in directory.glob(f"{node()}-*"):
            if not _is_open(path):
                path.unlink(missing_ok=True)
        self.path = directory / f"{node()}-{secrets.token_hex(8)}"
        os.mkfifo(self.path, 0o600)
        # Open at both ends: otherwise its bytes are lost whenever no client has it open (fifo(7)).
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._issued = 0

    def fileno(self) -> int:
        """Return the descriptor of the pipe, which is readable while permissions are in it."""
        return self._pipe

    @property
    def held(self) -> int:
        """Number of permissions that builds hold."""
        return self._issued - self._available

    @property
    def _available(self) -> int:
        return int.from_bytes(fcntl.ioctl(self._pipe, termios.FIONREAD, bytes(4)), sys.byteorder)

    def resize(self, jobs: int) -> bool:
        """Issue permissions, or withdraw those not held; return whether at most `jobs` are issued."""
        while self._issued < jobs:
            os.write(self._pipe, b"+")
            self._issued += 1
        with suppress(BlockingIOError):
            while self._issued > jobs:
                os.read(self._pipe, 1)
                self._issued -= 1
        return self._issued <= jobs

    def recount(self) -> None:
        """Count the permissions again: those that killed clients held are lost and can be issued again.

        A client holds a permission for each program that it runs, except for the first. A count while a
        program starts or ends can be wrong by one, so a later count must follow.
        """
        if not os.path.exists("/proc/thread-self/children"):  # noqa: PTH110  a kernel without that file
            return
        running = (_children(pid) for pid in self._clients())
        self._issued = self._available + sum(max(0, number - 1) for number in running)

    def _clients(self) -> Iterator[int]:
        """Yield the processes that have opened the pipe in the directory of a build.

        Its path differs in a container, so the last part of the path and the file itself are compared.
        """
        pipe = os.fstat(self._pipe)
        for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208  pathlib is slow
            with suppress(OSError):  # processes end, and those of other users cannot be read
                files = f"/proc/{name}/fd"
                opened = (f"{files}/{number}" for number in os.listdir(files))  # noqa: PTH208
                pipes = (path for path in opened if os.readlink(path).endswith(f"/{LINK}"))  # noqa: PTH115
                if any(os.path.samestat(os.stat(path), pipe) for path in pipes):  # noqa: PTH116
                    yield int(name)

    def reset(self) -> None:
        """Withdraw all permissions when no build holds any; killed builds have not returned theirs."""
        with suppress(BlockingIOError):
            while os.read(self._pipe, 1024):
                pass
        self._issued = 0

    def close(self) -> None:
        """Remove the pipe."""
        os.close(self._pipe)
        self.path.unlink(missing_ok=True)


def _children(pid: int) -> int:
    """Count the children of a process, with those that have ended but were not waited for."""
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as source:  # noqa: PTH123
        return len(source.read().split())
    return 0


def _is_open(pipe: Path) -> bool:
    """Return whether a process reads a pipe; opening it to write fails otherwise (fifo(7))."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        return error.errno != errno.ENXIO
    return True


def can_join(task: Task) -> bool:
    """Return whether the build of a task calls ninja through PATH, so that the shim applies to it."""
    names = [*task.recipe.declared, *task.recipe.undeclared]
    return (
        task.recipe.compiles is not False
        and any(name.startswith("ninja") for name in names)
        and not any(name.startswith(_NOT_BY_PATH) for name in names)
    )


def join(jobserver: Path, work: Path) -> dict[str, str]:
    """Give the pipe a second name in the directory of a build; return the shims that use it, by program.

    If the file system does not allow that, there are no shims, and the build uses its fixed number of jobs.
    """
    link = work / LINK
    if len(str(link).split()) > 1:  # MAKEFLAGS is split at spaces
        return {}
    try:
        os.link(jobserver, link)
    except OSError:
        return {}
    return {"ninja": _NINJA}
