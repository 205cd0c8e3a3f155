"""``matrix env --for module``: which files are written; tests/integration/test_modules.py loads them."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.cli import main

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def lock(tmp_path: Path) -> Path:
    """Write a lock for LUMI; the working directory is its directory."""
    path = tmp_path / "matrix.lock"
    assert main(["resolve", "torch", "--site", "lumi-g", "--date", "2026-11-20", "-o", str(path), "-q"]) == 0
    return path


def env(*more: str, consumer: str = "module") -> int:
    return main(["env", "--for", consumer, *more])


def test_wrappers_of_a_container_pass_shellcheck(tmp_path: Path, lock: Path) -> None:
    assert env("--environment", "my 'own' container.sif", "-o", "train.lua") == 0
    wrappers = sorted((tmp_path / "train.bin").iterdir())
    assert [path.name for path in wrappers] == ["extend-venv-activate", "python", "python3", "torchrun"]
    assert main(["resolve", "torch", "--site", "frontier", "--date", "2026-11-20", "-o", "f.lock", "-q"]) == 0
    assert env("--lock", "f.lock", "--environment", "f.sif", "-o", "frontier.lua") == 0
    scripts = [*wrappers, tmp_path / "frontier.bin" / "python"]
    program = str(Path(sys.executable).parent / "shellcheck")
    done = subprocess.run([program, *map(str, scripts)], capture_output=True, text=True, check=False)
    assert done.stdout == ""
    assert "FI_CXI_RX_MATCH_MODE" in scripts[-1].read_text()
    digest = hashlib.sha256(lock.read_bytes()).hexdigest()
    for name in ("train.lua", "train"):
        text = (tmp_path / name).read_text()
        assert digest in text
        assert "torch==2.9.1+rocm6.4" in text
        assert "RCCL must use the Slingshot interfaces.\n" in text
        assert "205-Containers.md" in text  # the source of the variable
        assert "SLURM_NODEID" not in text  # its value differs on each node: the wrappers set this variable
    assert "SLURM_NODEID" in (tmp_path / "train.bin" / "python").read_text()


def test_directory_of_an_environment_is_on_path(tmp_path: Path) -> None:
    assert env("--environment", "env", "-o", "train.lua") == 0
    assert [path.name for path in (tmp_path / "train.bin").iterdir()] == ["extend-venv-activate"]
    assert f'prepend_path("PATH", "{tmp_path}/env/bin")' in (tmp_path / "train.lua").read_text()


def test_script_of_venv_starts_the_programs(tmp_path: Path) -> None:
    """Use a STAND-IN for ``run.sh``, which prints its arguments."""
    (tmp_path / "run.sh").write_text('printf "%s|" "$@"\n')
    assert env("--environment", "run.sh", "-o", "train.lua") == 0
    python = tmp_path / "train.bin" / "python"
    (python.parent / "accelerate").symlink_to("python")
    for name in ("python", "accelerate"):
        command = [str(python.parent / name), "-c", "two words"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout == f"{name}|-c|two words|"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "train.tcl"], "end in .lua"),
        (["--environment", "a:b.sif", "-o", "train.lua"], "colon"),
        (["--environment", "a\nb.sif", "-o", "train.lua"], "control characters"),
    ],
)
def test_names_that_modules_cannot_have(capsys: Capture, arguments: list[str], message: str) -> None:
    assert env(*arguments) == 2
    assert message in capsys.readouterr().err
    assert not Path("train.tcl").exists()


def test_other_consumers_use_no_environment(capsys: Capture) -> None:
    assert env("--environment", "a.sif", consumer="pip") == 2
    assert "makes an environment" in capsys.readouterr().err
    assert env("--environment", "my 'own' container.sif", "-o", ".", consumer="slurm-job") == 0
    assert "my '\"'\"'own'\"'\"' container.sif'}" in Path("job-gpu.sh").read_text()


@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o755), (0o077, 0o700), (0o007, 0o770)])
def test_whoever_may_read_a_wrapper_may_run_it(tmp_path: Path, umask: int, expected: int) -> None:
    before = os.umask(umask)
    try:
        assert env("-o", "train.lua") == 0
    finally:
        os.umask(before)
    assert (tmp_path / "train.bin" / "python").stat().st_mode & 0o777 == expected
    assert (tmp_path / "train.lua").stat().st_mode & 0o777 == expected & 0o666
