"""Read what strangers made in a child process with limits of its memory, CPU time and files."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import warnings
from contextlib import suppress
from traceback import format_tb
from typing import TYPE_CHECKING, NoReturn, TypeVar

from builders.machine.process import end_with_parent
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Callable

    _Result = TypeVar("_Result")

MEMORY = 2 << 30
"""Bytes of memory, in addition to what this process has; mapped files do not count."""
LARGEST_FILE = 1 << 36
"""Bytes of a file that the child writes."""


def limited(read: Callable[[], _Result], what: str, seconds: int) -> _Result:
    """Return what a function returns in a child process, or raise the error that it raises there.

    `what` is what it reads, and `seconds` the most CPU time that this can take. Raise `EnvironmentLacksError`
    if it reaches a limit.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # The only other thread draws the progress; the child needs no lock of it.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        _answer(read, writer, seconds)
    os.close(writer)
    try:
        with open(reader, "rb") as answers:  # noqa: PTH123  a descriptor
            # Before it is waited for: a child whose answer fills the pipe ends only when the answer is read.
            answer = answers.read()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        _, status = os.waitpid(child, 0)
    if status == 0:
        is_result, result = pickle.loads(answer)  # noqa: S301  what this program wrote in the child
        if is_result:
            return result  # type: ignore[no-any-return]
        if not isinstance(result, MemoryError):
            raise result
    why = "it takes more memory than any real one of its size"
    if os.WIFSIGNALED(status):
        end = signal.Signals(os.WTERMSIG(status))
        is_slow = end == signal.SIGXCPU
        why = (
            f"it takes more than {seconds} s of CPU time" if is_slow else f"its reader ended with {end.name}"
        )
    msg = f"Cannot read {what}: {why}."
    raise EnvironmentLacksError(msg, hint="It may be damaged, or made to harm. Copy or download it again.")


def _answer(read: Callable[[], object], writer: int, seconds: int) -> NoReturn:
    """Call a function with limits, write its result or error, and end this process."""
    code = 1
    with suppress(BaseException):
        end_with_parent()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        used = _data_size()
        for limit, most in (
            (resource.RLIMIT_DATA, used + MEMORY),
            (resource.RLIMIT_CPU, seconds),
            (resource.RLIMIT_FSIZE, LARGEST_FILE),
            (resource.RLIMIT_CORE, 0),
        ):
            # Only root may raise a hard limit, so a lower one stays.
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
        try:
            answer = pickle.dumps((True, read()))
        except Exception as error:  # noqa: BLE001  the parent raises it
            error.add_note("".join(format_tb(error.__traceback__)))
            answer = pickle.dumps((False, error))
        with open(writer, "wb") as sink:
            sink.write(answer)
        code = 0
    # Not `sys.exit`, which would run the exit handlers of the parent and write its buffers a second time.
    os._exit(code)


def _data_size() -> int:
    """Return the private memory of this process in bytes, as RLIMIT_DATA counts it (getrlimit(2))."""
    with open("/proc/self/status", encoding="ascii") as lines:  # noqa: PTH123
        rows = dict(line.split(":", 1) for line in lines)
    return int(rows["VmData"].split()[0]) << 10
