"""When builds in a Slurm job stop."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from matrix.command_line.options import stop_time
from tests.support.recorder import Recorder


@pytest.fixture(autouse=True)
def _no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)


def test_nothing_limits_builds_outside_of_jobs() -> None:
    assert stop_time(Recorder()) is None


@pytest.mark.parametrize(("remaining", "spare"), [(7200, 60), (100, 10)])
def test_builds_stop_before_the_job_ends(
    monkeypatch: pytest.MonkeyPatch, remaining: int, spare: float
) -> None:
    end = int(time.time()) + remaining
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(end))
    assert stop_time(Recorder()) == pytest.approx(end - spare, abs=2)


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
    assert stop_time(Recorder()) == (pytest.approx(end - 60, abs=2) if has_limit else None)
