"""Start programs in a clean environment, log their output, report their failures, and end them.

Nothing that `run` starts outlives `matrix`, however `matrix` ends: see `builders.machine.reaper`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from builders.machine import reaper
from builders.storage.files import make_directories
from resolver.errors import CommandError, TooSlowError
from resolver.texts import masked

_log = logging.getLogger(__name__)

_PASSED_VARIABLES = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ", "USER", "XDG_CACHE_HOME",
)  # fmt: skip
"""Variables of the caller that programs get. They must not get PYTHONPATH, CFLAGS and the like."""
_NETWORK_VARIABLES = (
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
"""Additional variables for programs that use the network; the URL of a proxy may contain a password."""

_PR_SET_PDEATHSIG = 1  # from linux/prctl.h
_NOT_FOUND = 127  # exit code of a shell for a program that it cannot start
_LONGEST_QUERY = 60.0
"""Seconds after which a program whose output is read is stopped."""


def clean_environment(extra: Mapping[str, str] | None = None, *, network: bool = False) -> dict[str, str]:
    """Return the environment of a program; with `network`, also proxies and certificates."""
    names = (*_PASSED_VARIABLES, *(_NETWORK_VARIABLES if network else ()))
    passed = {name: os.environ[name] for name in names if name in os.environ}
    passed.setdefault("LANG", "C.UTF-8")
    return passed | {"PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"} | dict(extra or {})


def run(
    command: Sequence[str],
    *,
    what: str,
    log: Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> None:
    """Run a program without a shell, and append its output to a log.

    `what` begins a sentence, such as ``"Building deepspeed 0.19.8"``. `env` is the whole environment; by
    default the caller's.

    Raise `CommandError` if it failed or cannot be started, and `TooSlowError` after `timeout` seconds; the
    error names the log and shows its most important lines.
    """
    _log.debug("%s: %s (output: %s)", what, shlex.join(command), log)
    make_directories(log.parent)
    with log.open("ab") as sink:
        sink.write(f"$ {masked(' '.join(command))}\n".encode())
        sink.flush()
        start = sink.tell()
        try:
            code = _run_reaped(command, sink, sink, cwd=cwd, env=env, timeout=timeout)
        except OSError as error:
            lines = [f"{error.filename or command[0]}: {error.strerror}"]
            raise CommandError(what, code=_NOT_FOUND, log=log, lines=lines) from None
    if code == 0:
        return
    from builders.storage.logs import error_lines

    lines = error_lines(log, start=start)
    if code is None:
        raise TooSlowError(what, code=-signal.SIGTERM, log=log, lines=lines)
    raise CommandError(what, code=code, log=log, lines=lines)


def _run_reaped(
    command: Sequence[str],
    output: IO[bytes],
    errors: IO[bytes] | int,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> int | None:
    """Run a program, end everything that it started, and return its exit code; None after `timeout`."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", reaper.__file__, *command],
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=errors,
        start_new_session=True,  # an interrupt from the terminal must not reach it
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        return None
    finally:
        assert process.stdin is not None  # noqa: S101  for mypy
        # This makes the reaper end everything that still runs, after an interrupt as well.
        process.stdin.close()
        process.wait()


def end_with_parent() -> None:
    """Make the kernel end this process when its parent dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def output_of(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Return the output of a quick program, or an empty string if it fails."""
    return (bytes_of(command, env=env, timeout=_LONGEST_QUERY) or b"").decode(errors="replace")


def output_in_container(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
    """Return the output of a container engine's command, or an empty string if it fails.

    Engines start further processes, such as Apptainer's squashfuse_ll. None of them outlives `matrix`.
    """
    with os.fdopen(os.memfd_create("output"), "w+b") as output:
        try:
            code = _run_reaped(command, output, subprocess.DEVNULL, env=env, timeout=_LONGEST_QUERY)
        except BlockingIOError:
            # A limit of processes is an error of the machine, and no answer of the engine.
            raise
        except OSError:
            return ""
        output.seek(0)
        return "" if code else output.read().decode(errors="replace")


def bytes_of(
    command: Sequence[str],
    given: bytes | None = None,
    *,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> bytes | None:
    """Return the output of a program that gets `given` as its input, or None if it fails.

    Raise `BlockingIOError` if no more processes can be started.
    """
    try:
        return subprocess.run(
            command, input=given, check=True, capture_output=True, timeout=timeout, env=env
        ).stdout
    except BlockingIOError:
        raise
    except (OSError, subprocess.SubprocessError):
        return None


def log_size(log: Path) -> int:
    """Return the size of a log in bytes, for `read_since`."""
    return log.stat().st_size if log.exists() else 0


def read_since(log: Path, start: int) -> str:
    """Return the text added to a log since `log_size` returned `start`."""
    with log.open("rb") as source:
        source.seek(start)
        return source.read().decode(errors="replace")
