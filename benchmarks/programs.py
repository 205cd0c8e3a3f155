"""Run the programs that a benchmark times. A program that fails or answers wrongly ends the benchmark."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_SHOWN = 2000
"""Characters of the output of a failed program in the message."""


class Run(NamedTuple):
    """The measurements of one process."""

    wall: float
    cpu: float
    mebibytes: float


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    expected: int = 0,
    contains: Collection[str] = (),
) -> str:
    """Run a program and return its standard output.

    Parameters
    ----------
    expected
        The exit code that the right answer has.
    contains
        Texts that the right answer contains.

    Raises
    ------
    SystemExit
        The program ended with another exit code, or its output lacks one of the texts.
    """
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    check(command, done.returncode, done.stdout, done.stderr, expected=expected, contains=contains)
    return done.stdout


def timed(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    expected: int = 0,
    contains: Collection[str] = (),
    result: Path | None = None,
) -> Run:
    """Run a program as `run` does, and return its measurements.

    Parameters
    ----------
    result
        The file with the answer; by default everything that the program prints.
    """
    with (folder / "output.txt").open("w+") as output:
        start = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if result is not None and process.returncode == expected:
        text = result.read_text(encoding="utf-8")
    check(command, process.returncode, text, expected=expected, contains=contains)
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def check(
    command: Sequence[str | Path],
    code: int,
    output: str,
    errors: str = "",
    *,
    expected: int = 0,
    contains: Collection[str] = (),
) -> None:
    """Check the exit code and the answer of a program that has ended.

    Raises
    ------
    SystemExit
        The program ended with another exit code, or its output lacks one of the texts.
    """
    if code != expected:
        fail(command, f"ended with exit code {code} instead of {expected}", output + errors)
    for text in contains:
        if text not in output:
            fail(command, f"gave a wrong answer, without {text!r}", output + errors)


def fail(command: Sequence[str | Path], reason: str, output: str = "") -> None:
    """End the benchmark.

    Raises
    ------
    SystemExit
        Always.
    """
    raise SystemExit(f"`{shlex.join(map(str, command))}` {reason}.\n{output[-_SHOWN:]}".rstrip())
