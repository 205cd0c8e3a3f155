"""``matrix check CONTAINER --gpu`` with a real Slurm; its GPU is a stand-in that Slurm only counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.rig import Rig
from tests.rig.slurm import PARTITION, Slurm, one_node

pytestmark = pytest.mark.integration
VERIFY = ("check", "--gpu", "--time", "00:05:00")


@pytest.fixture(scope="module")
def slurm(rig: Rig) -> Iterator[Slurm]:
    """Start Slurm with files that the ordinary user can read."""
    root = rig.root / "slurm"
    root.mkdir()
    with one_node(root) as made:
        yield made


def test_job_verifies_image_on_the_node(rig: Rig, slurm: Slurm) -> None:
    work = rig.work()
    image = (str(rig.image), "--partition", PARTITION)
    done = rig.matrix(*VERIFY, *image, cwd=work, env=slurm.env)
    assert done.returncode == 0, done.stderr
    number = done.stdout.strip()
    assert f"Submitted job {number}" in done.stderr
    job = slurm.ended(number)
    output = Path(work, f"matrix-check-{number}.out")
    assert str(output) in done.stderr
    text = output.read_text()
    assert "base.sif" in text
    assert "[verify-torch-failed]" in text  # the base image has no torch
    assert "Traceback" not in text
    assert (job["JobState"], job["ExitCode"]) == ("FAILED", "1:0")
    assert job["Partition"] == PARTITION
    assert job["TresPerNode"] == "gres:gpu:1"


def test_rejected_job_shows_slurms_message(rig: Rig, slurm: Slurm) -> None:
    work = rig.work()
    done = rig.matrix(*VERIFY, "--partition", "nowhere", cwd=work, env=slurm.env)
    assert done.returncode == 1
    assert "invalid partition specified: nowhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert (work / "matrix-check.sbatch").is_file()
