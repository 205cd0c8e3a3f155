"""``matrix build-wheels --executor``: a torch whose requirements are unknown until it is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builders.index import Index
from builders.scheduling.batch import Run
from builders.scheduling.slurm import Slurm
from matrix.cli import main
from tests.support.projects import GIT_ROWS
from tests.support.records import record_of
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
TORCH = GIT_ROWS.format(
    name="torch",
    version="2.13.0a0+git0123abc",
    url="https://example.invalid/torch",
    commit="1" * 40,
    fields='declared = ["setuptools"]',
)
SCATTER = GIT_ROWS.format(
    name="torch-scatter",
    version="9.0",
    url="https://example.invalid/torch-scatter",
    commit="2" * 40,
    fields='undeclared = ["torch", "setuptools"]',
)
KNOWN = """
[[requires]]
package = "torch"
on = "numpy"
versions = ["<3"]
status = "observed"
source = "tests"
"""
BUILD = ("build-wheels", "--catalog", "mine.toml", "--executor", "slurm")


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Replace the batch system and all downloads; return the wheels of each run without a result."""
    runs: list[list[str]] = []

    class Batch(Slurm):
        def require(self, consequence: str) -> None:
            pass

        def start(self, run: Run) -> Run:
            runs.append([task.name for task in run.tasks if task.state == "to build"])
            return run

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("matrix.commands.build_wheels.Slurm", Batch)
    monkeypatch.setattr("builders.sources.source.obtain", lambda *_, **__: None)
    monkeypatch.setattr("matrix.building.planning.wheels_of", lambda *_, **__: None)
    return runs


def resolve(rows: str) -> None:
    Path("mine.toml").write_text(f"schema = 1\n{rows}")
    request = ("torch==2.13.0a0+git0123abc", "torch-scatter", "--backend", "cpu", "--catalog", "mine.toml")
    assert main(["resolve", *request, "-q"]) == 0


def test_unknown_requirements_of_torch_stop_before_jobs_are_submitted(
    capsys: Capture, started: list[Any]
) -> None:
    resolve(TORCH + SCATTER)
    assert main([*BUILD]) == 3
    message = capsys.readouterr().err
    assert "for the build of torch-scatter" in message
    assert "`matrix build-wheels torch --executor slurm`. Then resolve again" in message
    assert started == []
    assert main([*BUILD, "torch"]) == 0
    assert main([*BUILD, "--keep-going"]) == 3
    assert started == [["torch"], ["torch"]]


def test_jobs_start_when_torch_is_built(capsys: Capture, started: list[Any], tmp_path: Path) -> None:
    resolve(TORCH + SCATTER)
    capsys.readouterr()
    assert main(["farm", "plan", "torch", "--catalog", "mine.toml", "--format", "json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    Index(tmp_path / "index").publish(tiny_wheel(tmp_path, "torch", task["version"]), record_of(task["key"]))
    assert main([*BUILD]) == 0
    assert started == [["torch-scatter"]]


def test_known_requirements_of_torch_are_fetched_in_advance(started: list[Any]) -> None:
    resolve(TORCH + SCATTER + KNOWN)
    assert main([*BUILD]) == 0
    assert started == [["torch", "torch-scatter"]]
