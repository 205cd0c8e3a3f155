"""``matrix check --run``: this machine's Python against a lock, and the job for a GPU node."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest

from matrix.api import write_lock
from matrix.cli import main
from matrix.judging.verdict import VERDICTS
from resolver.lock import read_lock
from tests.support.commands import bare_environment
from tests.support.locks import local_file, lock_of, locked_pick
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "own"))
    monkeypatch.delenv("PYTHONPATH", raising=False)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """Create an empty environment, and return the path of its Python."""
    bare_environment(tmp_path / "env")
    return str(tmp_path / "env" / "bin" / "python")


def resolved(capsys: Capture, *more: str) -> None:
    assert main(["resolve", "torch", "apex", "--site", "lumi-g", "--date", "2026-03-01", *more]) == 0
    capsys.readouterr()


@pytest.mark.slow
def test_runs_at_the_same_time_do_not_disturb_each_other(python: str, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    command = [sys.executable, "-m", "matrix", "check", python, "--run", "--format", "json"]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(4)]
    documents = [json.loads(run.communicate()[0]) for run in runs]
    assert [document["status"] for document in documents] == ["does-not-fit"] * 4
    assert not list(Path("cache", "matrix", "logs").glob("check-*"))


@pytest.mark.slow
def test_empty_environment_is_defective_and_its_start_is_timed(capsys: Capture, python: str) -> None:
    resolved(capsys)
    assert main(["check", python, "--run", "--format", "json"]) == 1
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    ids = [finding["id"] for finding in thing["findings"]]
    assert thing["verdict"] == "does-not-fit"
    assert thing["ran"]["executable"] == python
    assert {"verify-pin-missing", "verify-torch-failed"} <= set(ids)
    assert 0 < thing["findings"][ids.index("verify-start")]["evidence"]["seconds"] < 60


def test_text_without_lock(capsys: Capture, python: str) -> None:
    assert main(["check", python, "--run"]) == 1
    out = capsys.readouterr().out
    assert "torch cannot be imported" in out
    assert "[verify-pins-not-judged]" in out
    assert out.startswith(f"{python} does not work at lumi-g on ")


FLASH = """
import os
USE_TRITON_ROCM = os.getenv("FLASH_ATTENTION_TRITON_AMD_ENABLE") == "TRUE"
if not USE_TRITON_ROCM:
    import flash_attn_2_cuda
"""


@pytest.mark.slow
def test_variable_of_built_package_is_reported(
    capsys: Capture, python: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Use a STAND-IN for flash-attention's Triton build, which cannot be imported without its variable."""
    resolved(capsys, "flash-attn[triton]")
    pins = {pick.name: pick.pinned for pick in read_lock(Path("matrix.lock")).distributions}
    (packages,) = tmp_path.glob("env/lib/python3*/site-packages")
    info = packages / f"flash_attn-{pins['flash-attn']}.dist-info"
    for folder in (info, packages / "flash_attn"):
        folder.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: flash-attn\nVersion: {pins['flash-attn']}\n"
    )
    (info / "RECORD").write_text("flash_attn/__init__.py,,\nflash_attn/flash_attn_interface.py,,\n")
    (packages / "flash_attn" / "__init__.py").write_text("from . import flash_attn_interface\n")
    (packages / "flash_attn" / "flash_attn_interface.py").write_text(FLASH)

    def findings(command: str = python, **env: str) -> dict[str, dict[str, str]]:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert main(["check", command, "--run", "--format", "json"]) == 1
        rows = json.loads(capsys.readouterr().out)["things"][0]["findings"]
        about = [row for row in rows if "flash" in row["message"] or "FLASH" in row["message"]]
        return {row["id"]: row for row in about}

    unset = findings()
    assert unset["verify-variable-required"]["severity"] == "warning"
    assert "source environment.sh" in unset["verify-variable-required"]["fix"]
    assert "probe-import-failed" not in unset
    setting = f"env FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE {python}"  # as programs of tykky set it
    assert not {"verify-variable-required", "probe-import-failed"} & findings(setting).keys()
    other = findings(FLASH_ATTENTION_TRITON_AMD_ENABLE="FALSE")
    assert "verify-variable-required" not in other
    assert other["probe-import-failed"]["fix"] == (
        "Set FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE when flash-attn runs. "
        "The environment has FLASH_ATTENTION_TRITON_AMD_ENABLE=FALSE."
    )
    right = findings(FLASH_ATTENTION_TRITON_AMD_ENABLE="TRUE")
    assert not {"verify-variable-required", "probe-import-failed"} & right.keys()


def other_version(packages: Path) -> None:
    metadata = next(packages.glob("idna-*")) / "METADATA"
    metadata.write_text(metadata.read_text().replace("3.10", "3.9"))


DEFECTS: dict[str, Callable[[Path], object]] = {
    "sound": lambda _: None,
    "missing": lambda packages: shutil.rmtree(next(packages.glob("idna-*"))),
    "other version": other_version,
    "at every start": lambda packages: (packages / "own.pth").write_text("import sys; sys.own = 1\n"),
    "not in the lock": lambda packages: tiny_installed(packages, "six", "1.17.0"),
}


def tiny_installed(packages: Path, name: str, version: str) -> None:
    with ZipFile(tiny_wheel(packages.parents[3] / "files", name, version)) as wheel:
        wheel.extractall(packages)


@pytest.mark.parametrize("defect", DEFECTS)
def test_what_is_verified_is_accepted_without_starting_it(
    defect: str, python: str, tmp_path: Path, capsys: Capture
) -> None:
    """``build-container`` verifies what `check --run` accepts with the lock; `check` accepts it, too."""
    (packages,) = tmp_path.glob("env/lib/python3*/site-packages")
    picks = []
    for name, version in (("sympy", "1.14.0"), ("idna", "3.10")):
        tiny_installed(packages, name, version)
        file = local_file(tmp_path / "files" / f"{name}-{version}-py3-none-any.whl")
        picks.append(locked_pick(name, version, file))
    write_lock(lock_of(*picks))
    DEFECTS[defect](packages)
    environment = str(Path(python).parent.parent)
    verdicts = {}
    for options in ((), ("--run",)):
        main(["check", environment, "--lock", "matrix.lock", "--format", "json", *options])
        (thing,) = json.loads(capsys.readouterr().out)["things"]
        verdicts["--run" in options] = thing["verdict"]
    assert VERDICTS.index(verdicts[False]) >= VERDICTS.index(verdicts[True]), verdicts
    assert (verdicts[True] == "fits") == (defect in {"sound", "at every start", "not in the lock"}), verdicts


def test_dry_run_writes_job_script(capsys: Capture, tmp_path: Path) -> None:
    resolved(capsys)
    (tmp_path / "my image.sif").write_bytes(b"")
    assert main(["check", "my image.sif", "--gpu", "--dry-run", "--account", "project_1"]) == 0
    text = (tmp_path / "matrix-check.sbatch").read_text()
    assert "#SBATCH --partition=dev-g\n#SBATCH --account=project_1\n" in text
    assert f"check '{tmp_path}/my image.sif' --run --need-gpu --lock {tmp_path}/matrix.lock" in text
    subprocess.run(["bash", "-n", "matrix-check.sbatch"], check=True)


def test_job_for_two_nodes_has_a_rank_on_each(capsys: Capture, tmp_path: Path) -> None:
    resolved(capsys)
    (tmp_path / "c.sif").write_bytes(b"")
    script = tmp_path / "matrix-check.sbatch"
    command = ["check", "c.sif", "--gpu", "--nodes", "2", "--timeout", "100", "--dry-run"]
    assert main(command) == 0
    text = script.read_text()
    for option in ("nodes=2", "ntasks=2", "ntasks-per-node=1", "gpus-per-node=1", "cpus-per-task=7"):
        assert f"#SBATCH --{option}\n" in text
    assert "--nodes 2 --timeout 100.0" in text
    assert "matrix-check-$SLURM_JOB_ID" not in text
    assert main([*command, "--wait", "5"]) == 0
    assert "matrix-check-$SLURM_JOB_ID" in script.read_text()
    assert main(["resolve", "torch", "--site", "frontier", "--date", "2026-11-20", "-q"]) == 0
    assert main(command) == 0
    assert "#SBATCH --network=disable_rdzv_get\n" in script.read_text()


def test_missing_account_is_explained(capsys: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    """Use a STAND-IN for sbatch, with the message of a Slurm that requires accounts."""
    resolved(capsys)
    sbatch = tmp_path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    said = "sbatch: error: Invalid account or account/partition combination specified"
    sbatch.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}:{os.environ['PATH']}")
    assert main(["check", "--gpu"]) == 1
    err = capsys.readouterr().err
    assert "Invalid account" in err
    assert "--account NAME, or as `account` in matrix.toml" in err


def test_lock_for_cpu_needs_no_gpu_job(capsys: Capture, tmp_path: Path) -> None:
    assert main(["resolve", "torch==2.9.1", "--backend", "cpu", "--date", "2026-03-01"]) == 0
    assert main(["check", "--gpu", "--dry-run", "--partition", "p"]) == 2
    assert "The lock is for CPUs" in capsys.readouterr().err
    assert not (tmp_path / "matrix-check.sbatch").exists()


def test_verify_script_without_slurm_is_kept(capsys: Capture, tmp_path: Path, monkeypatch: Patch) -> None:
    resolved(capsys)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["check", "--gpu", "-o", "job.sh"]) == 3
    assert "sbatch is not on PATH" in capsys.readouterr().err
    assert (tmp_path / "job.sh").is_file()


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["none.sif", "--run"], 2, "does not exist"),
        (["--lock", "none.lock", "--run"], 2, "none.lock"),
        (["--dry-run"], 2, "--dry-run requires --gpu"),
        (["--gpu"], 2, "its GPU partition are unknown"),
        (["--gpu", "--partition", "p", "--time", "soon"], 2, "not a valid time"),
        (["--gpu", "--partition", "p q"], 2, "not a valid value for sbatch's --partition"),
        (["--partition", "p"], 2, "--partition requires --gpu"),
        (["--account", "p"], 2, "--account requires --gpu"),
        (["--time", "01:00:00"], 2, "--time requires --gpu"),
        (["-o", "other.sbatch"], 2, "needs --repair or --gpu"),
        (["--wait", "5"], 2, "--wait requires --gpu"),
        (["--nodes", "0"], 2, "whole number above 0"),
        (
            ["--nodes", "2", "--run"],
            2,
            "needs a Slurm allocation with as many nodes; this process is in none",
        ),
        (["/none", "--run"], 2, "`/none` does not start a working Python"),
        (["/none", "--run"], 2, "/none: No such file or directory"),
        (["sh no-such.sh", "--run"], 2, "no-such.sh"),
        (["sh 'x", "--run"], 2, "no closing quotation"),
        (["/bin/true", "--run"], 2, "`/bin/true` does not start a working Python"),
    ],
)
def test_bad_usage_is_reported(
    capsys: Capture, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    assert main(["check", *arguments]) == code
    assert text in capsys.readouterr().err
    assert not (tmp_path / "matrix-check.sbatch").exists()


def test_failing_python_is_not_bad_input(capsys: Capture, tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} "$@"\nexit 9\n')
    broken.chmod(0o755)
    assert main(["check", str(broken), "--run"]) == 1
    assert "Probing the environment failed with exit code 9" in capsys.readouterr().err
