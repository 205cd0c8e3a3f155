"""The job scripts of ``matrix env --for slurm-job`` in a real Slurm: two ranks on two nodes.

The all-reduce is real. Both nodes are this machine, and the ranks have no GPU: torch's backend is gloo. The
binding of cores and GPUs is not shown.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rig.slurm import PARTITION, Slurm, cluster
from tests.support.built import matrix
from tests.support.commands import new_environment, pip_environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
JOB = """schema = 1
[[job]]
site = "local"
ranks = 1
cpus = 1
bandwidth = 12.5
status = "observed"
source = "tests"
"""
HANG = """
import pathlib
from builders.diagnosis import DiagnosisContext
from builders.probe.all_reduce import all_reduce
program = '''
import os, time
print(f"rank {os.environ['RANK']} of 2 started on here", flush=True)
time.sleep(1000)
'''
for finding in all_reduce(
    pathlib.Path("job-gpu.sh"), ["python", "-c", program], ranks=2, seconds=10, context=DiagnosisContext(),
    environment=pathlib.Path("hang.sh").absolute(), log=pathlib.Path("hang.log").absolute(),
):
    print(finding.id, finding.message)
"""
"""The program is a STAND-IN for torch, whose import takes long on a busy machine. Rank 1 never starts it."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start two nodes, which are both this machine."""
    with cluster(tmp_path_factory.mktemp("slurm"), nodes=("rig1", "rig2")) as made:
        yield made


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create an environment with torch for the CPU; return its Python."""
    path = new_environment(tmp_path_factory.mktemp("fresh"))
    command = [str(path), "-m", "pip", "install", "-qq", "--no-compile", "torch==2.13.0"]
    subprocess.run(command, check=True, env=pip_environment())
    return path


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a lock of torch for the CPU, for a site that starts one rank on each node."""
    path = tmp_path_factory.mktemp("work")
    (path / "job.toml").write_text(JOB)
    resolved = matrix(path, "resolve", "torch==2.13.0", "--backend", "cpu", "--catalog", "job.toml")
    assert resolved.returncode == 0, resolved.stderr
    written = matrix(path, "env", "--for", "slurm-job", "-o", ".")
    assert written.returncode == 0, written.stderr
    return path


def run_job(slurm: Slurm, work: Path, name: str, *command: str) -> str:
    """Submit a job for two nodes, wait for its end, and return its output."""
    output = work / f"{name}.out"
    number = slurm.run("sbatch", "--parsable", f"--chdir={work}", f"--output={output}", *command).strip()
    record = slurm.ended(number)
    assert record["JobState"] == "COMPLETED", output.read_text()
    assert record["NumNodes"] == "2"
    return output.read_text()


def test_two_ranks_meet_and_report_their_bandwidth(slurm: Slurm, work: Path, python: Path) -> None:
    export = f"--export=ALL,MATRIX_ENVIRONMENT={python.parents[1]},GLOO_SOCKET_IFNAME=lo"
    for name, arguments in {"srun": ["--smoke"], "torchrun": ["--torchrun", "--smoke"]}.items():
        text = run_job(slurm, work, name, export, str(work / "job-nodes.sh"), *arguments)
        assert "all-reduce of 4 MiB on 2 ranks (gloo, cpu): right sum" in text
        assert "A node of local can send 12.5 GB/s at most" in text
        assert {f"rank {rank} finished its first all-reduce" for rank in (0, 1)} <= set(text.splitlines())
    missing = subprocess.run(["bash", "job-nodes.sh"], cwd=work, capture_output=True, text=True, check=False)
    assert missing.returncode == 3
    assert "set MATRIX_ENVIRONMENT=PATH" in missing.stderr


def test_rank_that_hangs_is_named(slurm: Slurm, work: Path) -> None:
    stop = '[ "${SLURM_PROCID:-0}" = 0 ] || sleep 1000'
    (work / "hang.sh").write_text(f'{stop}\nexec {sys.executable} "${{@:2}}"\n')
    (work / "hang.py").write_text(HANG)
    command = f"{sys.executable} hang.py"
    options = ["--export=ALL,GLOO_SOCKET_IFNAME=lo", "--nodes=2", "--ntasks-per-node=1"]
    text = run_job(slurm, work, "hang", *options, f"--wrap={command}")
    hangs = "verify-all-reduce-hangs The all-reduce hangs: it has not ended after 10 s. "
    assert text.startswith(f"{hangs}Rank 0 waits on here; rank 1 ")
    assert "rank 1 has not imported torch." in text


def verify(slurm: Slurm, work: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``matrix check CONTAINER --gpu --nodes 2`` in a directory, and wait for the job."""
    command = [sys.executable, "-m", "matrix", "check", "--gpu", "--nodes", "2", "--partition", PARTITION]
    variables = {**os.environ, **slurm.env, "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, "--catalog", "job.toml", "--time", "00:30:00", *arguments],
        cwd=work, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_verify_judges_an_all_reduce_on_two_nodes(slurm: Slurm, work: Path, python: Path) -> None:
    done = verify(slurm, work, str(python), "--wait", "4")
    summed = "all-reduce of 4 MiB on 2 ranks (gloo, cpu): right sum; bus bandwidth: "
    assert summed in done.stdout, done.stdout + done.stderr
    assert "A node of local can send 12.5 GB/s at most" in done.stdout
    assert "[verify-all-reduce]" in done.stdout
    assert "[verify-network-not-judged]" in done.stdout  # gloo is not RCCL
    assert done.returncode == (1 if " error: " in done.stdout else 4)
    assert not list(work.glob("*.exit"))


def test_job_that_waits_too_long_stays_queued(slurm: Slurm, work: Path) -> None:
    options = ("--parsable", "--nodes=2", "--exclusive", f"--chdir={work}")
    first = slurm.run("sbatch", *options, "--wrap=sleep 300")
    done = verify(slurm, work, "env/bin/python", "--wait", "0.05")
    assert done.returncode == 1
    assert "has not started within 0.05 minutes; Slurm's reason is " in done.stderr
    assert "It stays queued" in done.stderr
    assert "PENDING" in slurm.run("squeue", "--noheader", "--format=%T")
    assert "Traceback" not in done.stderr
    slurm.run("scancel", first.strip(), *slurm.run("squeue", "--noheader", "--format=%i").split())
    # A slurmd that is stopped while its job ends waits for the controller.
    until = time.monotonic() + 100
    while set(slurm.run("sinfo", "--noheader", "--Node", "--Format", "StateCompact").split()) != {"idle"}:
        assert time.monotonic() < until
        time.sleep(0.2)
