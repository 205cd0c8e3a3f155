"""``--time-limit`` and ``--signal``: when builds stop."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from matrix.cli import main
from matrix.command_line.options import add_stopping, stop_time
from tests.support.recorder import Recorder


def stop_time_of(*arguments: str) -> float | None:
    parser = argparse.ArgumentParser()
    add_stopping(parser)
    context: Any = SimpleNamespace(args=parser.parse_args(arguments), console=Recorder())
    return stop_time(context)


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)


@pytest.fixture
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("text", "seconds"), [("2h", 7200), ("90m", 5400), ("1h30m", 5400), ("01:30:00", 5400)]
)
def test_time_limit_counts_from_the_start(text: str, seconds: float) -> None:
    assert stop_time_of("--time-limit", text) == pytest.approx(time.time() + seconds, abs=5)


def test_nothing_limits_builds_outside_of_jobs() -> None:
    assert stop_time_of() is None


@pytest.mark.parametrize(("remaining", "spare"), [(7200, 60), (100, 10)])
def test_builds_stop_before_the_job_ends(
    monkeypatch: pytest.MonkeyPatch, remaining: int, spare: float
) -> None:
    end = int(time.time()) + remaining
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(end))
    assert stop_time_of() == pytest.approx(end - spare, abs=2)
    assert stop_time_of("--time-limit", "30s") == pytest.approx(time.time() + 30, abs=5)


@pytest.mark.parametrize("has_limit", [True, False])
def test_slurm_is_asked_when_the_job_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, has_limit: bool
) -> None:
    """Use a STAND-IN: a `squeue` that lists one job."""
    end = int(time.time()) + 7200
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(end)) if has_limit else "N/A"
    squeue = tmp_path / "squeue"
    squeue.write_text(f'#!/bin/sh\n[ "$*" = "--noheader --job=7 --format=%e" ] && echo {text}\n')
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert stop_time_of() == (pytest.approx(end - 60, abs=2) if has_limit else None)


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("name", ["USR1", "SIGUSR1", "usr1"])
def test_named_signal_interrupts(name: str) -> None:
    stop_time_of("--signal", name)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--time-limit", "soon"], "'soon' is not a valid duration"),
        (["--time-limit", "0s"], "must be above 0"),
        (["--signal", "KILL"], "not a signal that can be handled"),
        (["--signal", "HELLO"], "not a signal that can be handled"),
        (["--executor", "slurm", "--time-limit", "2h"], "for builds on this machine"),
    ],
)
def test_bad_limits_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build-wheels", *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
