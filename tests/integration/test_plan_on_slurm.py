"""The script of ``matrix farm plan --format sbatch`` with a real Slurm."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.farm.plan import sbatch_script
from tests.rig.slurm import Slurm, one_node
from tests.support.plans import plan_of

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with one_node(tmp_path_factory.mktemp("slurm")) as made:
        yield made


def submit(slurm: Slurm, script: str, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    path = directory / "build.sh"
    path.write_text(script)
    return subprocess.run(
        ["bash", str(path), *options],
        env={**os.environ, **slurm.env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_jobs_follow_those_they_require(slurm: Slurm, tmp_path: Path) -> None:
    scripts = {
        "base": ("sleep 1; echo base >> order", ()),
        "bad": ("exit 7", ()),
        "top": ("echo top $2 >> order", ("base",)),
        "never": ("echo never >> order", ("top", "bad")),
    }
    done = submit(slurm, sbatch_script(plan_of(tmp_path, scripts)), tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = done.stdout.split()
    jobs = {name: slurm.ended(number) for name, number in zip(scripts, numbers, strict=True)}
    states = {name: job["JobState"] for name, job in jobs.items()}
    assert states == {"base": "COMPLETED", "bad": "FAILED", "top": "COMPLETED", "never": "CANCELLED"}
    assert (tmp_path / "order").read_text().split() == ["base", "top", "1"]
    assert (jobs["top"]["NumCPUs"], jobs["top"]["TimeLimit"]) == ("1", "00:05:00")


def test_rejected_job_leaves_none_behind(slurm: Slurm, tmp_path: Path) -> None:
    script = sbatch_script(plan_of(tmp_path, {"one": ("true", ()), "two": ("true", ())}))
    script = script.replace("submit matrix-two 1 ", "submit matrix-two many ")
    done = submit(slurm, script, tmp_path)
    assert done.returncode != 0
    assert "many" in done.stderr
    queue = subprocess.run(
        ["squeue", "--noheader"], env={**os.environ, **slurm.env}, capture_output=True, text=True, check=True
    )
    assert "matrix-one" not in queue.stdout
