"""Starting programs: one place for their environment, their log and their failure."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections import deque
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING

from builders import watcher
from resolver.errors import CommandError, EnvironmentLacksError, TooSlowError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import FrameType

_KEPT_VARIABLES = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
"""What a build may see of the caller's environment; PYTHONPATH, CFLAGS and the like it may not."""

_TELLING = re.compile(
    r"(?i:\berror:)|fatal error|\w(Error|Exception)\b:|undefined (reference|symbol)|cannot find -l"
    r"|command not found|No such file or directory|No space left|\bKilled\b"
)
_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_NOT_FOUND = 127  # what a shell answers for a program that it cannot start
_SIGNALLED = 128  # what a shell adds to the number of a signal
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_WIDEST = 240  # characters of a line that are shown
_NOISE = re.compile(
    r"not a git repository|error: Command '?\[|CalledProcessError|\[WARNING\]|\bnote:"
    r"|^(copying|adding|creating|reading|writing|running) "
)


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Give the environment for a build: what it needs of the caller's, then what the recipe sets."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    kept.setdefault("LANG", "C.UTF-8")
    return kept | {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"} | dict(extra or {})


def run(
    command: Sequence[str],
    *,
    what: str,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """Run a program with everything it prints going to a log.

    Parameters
    ----------
    command
        Program and arguments; no shell is involved.
    what
        What it is for, as the beginning of a sentence, such as ``"Building deepspeed 0.19.8"``.
    log
        File that the output is appended to.
    env
        The whole environment; the caller's when None.
    timeout
        Seconds after which it is stopped; None gives it all the time it wants.

    Raises
    ------
    CommandError
        It failed; the error names the log and the lines that tell most.
    TooSlowError
        It was stopped after `timeout`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        sink.write(f"$ {' '.join(command)}\n".encode())
        sink.flush()
        start = sink.tell()
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                start_new_session=True,
                preexec_fn=_end_with_parent,  # noqa: PLW1509  no threads are running here
            )
        except OSError as error:
            lines = [f"{command[0]}: {error.strerror}"]
            raise CommandError(what, code=_NOT_FOUND, log=log, lines=lines) from None
        try:
            with _watched(process.pid):
                code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            _end(process)
            lines = telling_lines(log, start=start)
            raise TooSlowError(what, code=-signal.SIGTERM, log=log, lines=lines) from None
        except BaseException:
            _end(process)
            raise
    if code:
        raise CommandError(what, code=code, log=log, lines=telling_lines(log, start=start))


@contextmanager
def _watched(session: int) -> Iterator[None]:
    """Have what was started ended if this process is killed meanwhile."""
    command = [sys.executable, "-I", "-S", watcher.__file__, str(session)]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as beside:
        try:
            yield
        finally:
            beside.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a program and all that it started: a compiler left behind would go on writing."""
    watcher.end_session(process.pid)
    process.wait()


def run_in_foreground(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    beside: AbstractContextManager[object] | None = None,
) -> int:
    """Run a program in the program's place: with its terminal, its stdin and its signals.

    It stays in the same process group, so that job control and Ctrl-C reach it as if the shell had
    started it. Signals that were sent to this process alone are passed on.

    Parameters
    ----------
    env
        The whole environment.
    beside
        Entered when the program has been started, and left when it has ended. It may start threads; a
        process that already has some must not be forked by hand.

    Returns
    -------
    int
        Its exit code, or 128 and the number of the signal that killed it, as a shell says it.

    Raises
    ------
    EnvironmentLacksError
        It cannot be started.
    """
    try:
        process = subprocess.Popen(command, env=env, preexec_fn=_end_with_parent)  # noqa: PLW1509  no threads yet
    except OSError as error:
        msg = f"{command[0]} cannot be started: {error.strerror}."
        raise EnvironmentLacksError(msg, hint="Load or install it, or name it with its path.") from None
    try:
        with _signals_go_to(process), ExitStack() as held:
            with _signals_blocked():
                held.enter_context(beside or nullcontext())
            code = process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    return _SIGNALLED - code if code < 0 else code


@contextmanager
def _signals_go_to(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Pass signals on to a program; an interrupt from the terminal has reached it already."""

    def pass_on(number: int, _: FrameType | None) -> None:
        if number != signal.SIGINT or not _is_before_terminal():
            process.send_signal(number)

    before = [(number, signal.signal(number, pass_on)) for number in _PASSED_ON]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Keep signals from the threads that are started meanwhile.

    A signal that another thread takes would not wake this one from its waiting (signal(7)).
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _is_before_terminal() -> bool:
    """Tell whether this process group is the one that the terminal sends its signals to (tcgetpgrp(3))."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _end_with_parent() -> None:
    """Ask the kernel to end this process when the program dies, even by SIGKILL (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def output_of(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Give what a program prints, or an empty text if it cannot be run."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, env=env).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def bytes_of(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> bytes | None:
    """Give what a program prints, as it is, or None if it fails."""
    try:
        return subprocess.run(command, check=True, capture_output=True, env=env).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def end_of(log: Path) -> int:
    """Give the length of a log in bytes, from where `said_since` reads what is still to come."""
    return log.stat().st_size if log.exists() else 0


def said_since(log: Path, start: int) -> str:
    """Give what was added to a log since `end_of` gave a length."""
    with log.open("rb") as source:
        source.seek(start)
        return source.read().decode(errors="replace")


def telling_lines(log: Path, *, start: int = 0, most: int = 8) -> list[str]:
    """Choose the lines of a log that say why something failed.

    The first errors a compiler reports come before the cascade that follows from them; without
    any such line the last ones are given.
    """
    telling: list[str] = []
    last: deque[str] = deque(maxlen=most)
    with log.open("rb") as source:
        source.seek(start)
        for raw in source:
            line = raw.decode(errors="replace").strip()
            if not line:
                continue
            line = line[:_WIDEST]
            last.append(line)
            if (
                len(telling) < most
                and _TELLING.search(line)
                and not _NOISE.search(line)
                and line not in telling
            ):
                telling.append(line)
    return telling or list(last)
