"""The job scripts of ``matrix env --for slurm-job`` in a real Slurm: two ranks on two nodes.

The all-reduce is real. Both nodes are this machine, and the ranks have no GPU: torch's backend is gloo. The
binding of cores and GPUs is not shown.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rig.slurm import Slurm, cluster
from tests.support.built import matrix

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]
JOB = """schema = 1
[[job]]
site = "local"
ranks = 1
cpus = 1
bandwidth = 12.5
status = "observed"
source = "tests"
"""


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    """Start two nodes, which are both this machine."""
    root = tmp_path / "slurm"
    root.mkdir()
    with cluster(root, nodes=("rig1", "rig2")) as made:
        yield made


def test_two_ranks_meet_and_report_their_bandwidth(
    slurm: Slurm, tmp_path: Path, fresh_environment: Callable[..., Path]
) -> None:
    python = fresh_environment("torch==2.13.0")
    work = tmp_path / "work"
    work.mkdir()
    (work / "job.toml").write_text(JOB)
    resolved = matrix(work, "resolve", "torch==2.13.0", "--backend", "cpu", "--catalog", "job.toml")
    assert resolved.returncode == 0, resolved.stderr
    written = matrix(work, "env", "--for", "slurm-job", "-o", ".")
    assert written.returncode == 0, written.stderr
    output = {}
    for name, arguments in {"srun": ["--smoke"], "torchrun": ["--torchrun", "--smoke"]}.items():
        environment = f"ALL,MATRIX_ENVIRONMENT={python.parents[1]},GLOO_SOCKET_IFNAME=lo"
        number = slurm.run(
            "sbatch", "--parsable", f"--chdir={work}", f"--export={environment}",
            f"--output={work}/{name}.out", str(work / "job-nodes.sh"), *arguments,
        ).strip()  # fmt: skip
        record = slurm.ended(number)
        output[name] = (work / f"{name}.out").read_text()
        assert record["JobState"] == "COMPLETED", output[name]
        assert record["NumNodes"] == "2"
    for text in output.values():
        assert "all-reduce of 4 MiB on 2 ranks (gloo, cpu): right sum" in text
        assert "local can send 12.5 GB/s at most" in text
    missing = subprocess.run(["bash", "job-nodes.sh"], cwd=work, capture_output=True, text=True, check=False)
    assert missing.returncode == 3
    assert "set MATRIX_ENVIRONMENT=PATH" in missing.stderr
