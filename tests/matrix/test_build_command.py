"""``matrix build-wheels``: rejected options, locks and images, and errors that start no build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.machine.host import running_python
from matrix.cli import main
from resolver.errors import MatrixError

Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("own_cache")


def left_behind(directory: Path) -> list[Path]:
    """Return the files below a directory, except the compiled catalog and the marks of own locks."""
    return [
        path
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".msgpack" and path.parent.name != "locks"
    ]


def test_build_without_container_exits_3(capsys: Capture, tmp_path: Path) -> None:
    assert main(["build-wheels", "deepspeed", "--gfx90a", "--date", "2026-03-01"]) == 3
    output = capsys.readouterr().err
    assert "container" in output
    assert "Nothing was built" in output
    assert "lumi-multitorch" in output
    assert "gfx90a" in output
    assert not (tmp_path / "index").exists()
    assert left_behind(tmp_path / "cache") == []


def test_absent_slurm_is_reported_before_resolving(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["build-wheels", "--executor", "slurm"]) == 3
    assert "is not on PATH" in capsys.readouterr().err
    assert left_behind(tmp_path) == []


def test_published_rocm_lock_needs_no_container(capsys: Capture) -> None:
    assert main(["resolve", "torch", "bitsandbytes", "--date", "2026-03-01", "-q"]) == 0
    capsys.readouterr()
    assert main(["build-wheels", "--gfx90a"]) == 0
    assert "everything in it is published" in capsys.readouterr().out


def test_gfx90a_with_cpu_lock_is_bad_usage(capsys: Capture, tmp_path: Path) -> None:
    assert main(["resolve", "deepspeed", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()
    assert main(["build-wheels", "--gfx90a"]) == 2
    output = capsys.readouterr().err
    assert "rocm" in output
    assert "cpu" in output
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--in", "apptainer"], 2, "requires a base image"),
        (["--in", "podman"], 2, "requires a base image"),
    ],
)
def test_impossible_runtime_is_reported(
    arguments: list[str], code: int, message: str, capsys: Capture, tmp_path: Path
) -> None:
    assert main(["build-wheels", "deepspeed", "--backend", "cpu", *arguments]) == code
    assert message in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_dry_run_gives_reason_and_writes_nothing(capsys: Capture, tmp_path: Path) -> None:
    assert main(["build-wheels", "deepspeed", "--backend", "cpu", "--dry-run", "--format", "json"]) == 0
    (wheel,) = json.loads(capsys.readouterr().out)["wheels"]
    assert (wheel["name"], wheel["state"]) == ("deepspeed", "to build")
    assert "the index has no wheel for it" in wheel["why"]
    assert left_behind(tmp_path) == []


def test_request_without_resolution_exits_1(capsys: Capture) -> None:
    assert main(["build-wheels", "apex", "--backend", "cpu"]) == 1
    output = capsys.readouterr().out
    assert "the backend is cpu" in output
    assert "requires backend rocm" in output


def test_missing_compiler_is_reported_first(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("CXX", raising=False)
    assert main(["build-wheels", "deepspeed", "--backend", "cpu", "--index", "index"]) == 3
    output = capsys.readouterr().err
    assert "C++ compiler" in output
    assert "The build was not started" in output
    assert left_behind(tmp_path / "cache") == []


@pytest.mark.slow
def test_offline_without_source_exits_3(capsys: Capture) -> None:
    assert main(["build-wheels", "deepspeed", "--backend", "cpu", "--offline"]) == 3
    assert "deepspeed-0.19.8.tar.gz is not in the cache" in capsys.readouterr().err


DIFFERENT = ["--python 3.9", "--site lumi-g", "--date 2020-01-01", "--backend rocm", "--rocm 6.2", "--gfx90a"]


@pytest.mark.parametrize("options", DIFFERENT)
def test_options_contradicting_lock_are_rejected(options: str, capsys: Capture, tmp_path: Path) -> None:
    assert main(["resolve", "deepspeed", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()
    assert main(["build-wheels", *options.split()]) == 2
    assert "was resolved for" in capsys.readouterr().err
    assert not (tmp_path / "index").exists()


def test_options_agreeing_with_lock_are_accepted(capsys: Capture) -> None:
    assert main(["resolve", "deepspeed", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()
    same = ["--backend", "cpu", "--site", "local", "--python", running_python()]
    assert main(["build-wheels", *same, "--dry-run"]) == 0
    assert "to build" in capsys.readouterr().out


def test_keep_going_prints_one_document_and_fails(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        msg = "it broke"
        raise MatrixError(msg)

    monkeypatch.setattr("builders.scheduling.local.build_wheel", fail)
    command = ["build-wheels", "deepspeed", "--backend", "cpu", "--keep-going", "--format", "json"]
    assert main(command) == 1
    output = capsys.readouterr()
    assert [wheel["state"] for wheel in json.loads(output.out)["wheels"]] == ["failed"]
    assert "it broke" in output.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--partition", "small"], 2, "--partition requires --executor slurm"),
        (["--cancel"], 2, "--cancel requires --executor slurm"),
        (["--executor", "slurm", "--attach", "--cancel"], 2, "--attach and --cancel cannot be combined"),
        (["--executor", "slurm", "--attach", "--time", "5"], 2, "--attach and --time cannot be combined"),
        (["--executor", "slurm", "--attach"], 2, "You have no Slurm jobs that build wheels for"),
        (["--executor", "slurm"], 3, "sbatch is not on PATH"),
    ],
)
def test_slurm_options_are_checked(
    arguments: list[str],
    code: int,
    message: str,
    *,
    capsys: Capture,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert main(["build-wheels", "deepspeed", "--backend", "cpu", *arguments]) == code
    assert message in capsys.readouterr().err


def test_cancel_without_jobs_succeeds(capsys: Capture) -> None:
    assert main(["build-wheels", "--executor", "slurm", "--cancel"]) == 0
    assert capsys.readouterr().out == "There are no jobs to cancel.\n"
