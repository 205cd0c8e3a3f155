"""The judgement of an all-reduce on several nodes, from the output of its ranks.

The programs are STAND-INS that print what torch and RCCL print; the lines of RCCL are from public logs
(https://github.com/ROCm/rccl-tests/issues/163, https://github.com/aws/aws-ofi-nccl/issues/715).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from builders.diagnosis import DiagnosisContext
from builders.findings import Finding
from builders.probe.all_reduce import all_reduce, require_nodes
from matrix.show.render import findings_text
from resolver.errors import UsageError

STARTED = "rank 0 of 2 started on nid1\nrank 1 of 2 started on nid2\n"
RIGHT = """all-reduce of 128 MiB on 2 ranks (nccl, cuda): right sum
bus bandwidth: 20.5 GB/s. Normal is more.
"""


def judged(tmp_path: Path, script: str, seconds: float = 60) -> dict[str, Finding]:
    (tmp_path / "job.sh").write_text(script)
    findings = all_reduce(
        tmp_path / "job.sh",
        [],
        environment=tmp_path / "x.sif",
        ranks=2,
        seconds=seconds,
        log=tmp_path / "log",
        context=DiagnosisContext(kind="run", backend="rocm"),
    )
    assert findings_text(findings)  # each can be printed
    return {finding.id: finding for finding in findings}


def printing(text: str) -> str:
    return f"cat <<'END'\n{STARTED}{text}{RIGHT}END\n"


@pytest.mark.parametrize(
    ("network", "severity"), [("AWS Libfabric", "info"), ("Libfabric", "info"), ("Socket", "warning")]
)
def test_network_is_that_of_rccls_log(tmp_path: Path, network: str, severity: str) -> None:
    line = f"nid1:7:7 [0] NCCL INFO Using network {network}\n"
    found = judged(tmp_path, printing(line))
    assert found["verify-network"].severity == severity
    assert network in found["verify-network"].message
    assert found["verify-all-reduce"].severity == "info"
    assert "bus bandwidth: 20.5 GB/s. Normal is more." in found["verify-all-reduce"].message
    assert ("rccl-over-tcp" in found) is (network == "Socket")


def test_reason_of_tcp_is_a_known_failure(tmp_path: Path) -> None:
    lines = (
        "nid1:7:7 [0] NCCL INFO NET/Plugin: Could not find: librccl-net.so. Using internal network plugin.\n"
        "nid1:7:7 [0] NCCL INFO Using network Socket\n"
    )
    found = judged(tmp_path, printing(lines))
    assert found["rccl-plugin-missing"].severity == "warning"
    assert "rccl-over-tcp" not in found


def test_log_without_network_is_not_judged(tmp_path: Path) -> None:
    assert "verify-network-not-judged" in judged(tmp_path, printing(""))


@pytest.mark.parametrize(
    ("finished", "message"),
    [
        ("", "Rank 0 waits on nid1; rank 1 waits on nid2."),
        ("rank 0 finished its first all-reduce\n", "Rank 1 waits on nid2."),
    ],
)
def test_hanging_ranks_are_named(tmp_path: Path, finished: str, message: str) -> None:
    script = f"printf '%s' '{STARTED}{finished}'\nsleep 100\n"
    finding = judged(tmp_path, script, seconds=0.9)["verify-all-reduce-hangs"]
    assert finding.severity == "error"
    assert finding.message == f"The all-reduce hangs: it has not ended after 0.9 s. {message}"


def test_failure_shows_its_last_lines(tmp_path: Path) -> None:
    script = f"printf '%s' '{STARTED}'\necho 'RuntimeError: no network' >&2\nexit 9\n"
    finding = judged(tmp_path, script)["verify-all-reduce-failed"]
    assert "RuntimeError: no network" in finding.message
    assert str(tmp_path / "log") in finding.fix


def test_success_without_a_sum_is_no_success(tmp_path: Path) -> None:
    assert judged(tmp_path, "true\n")["verify-all-reduce-failed"].severity == "error"


@pytest.mark.parametrize("nodes", ["", "1", "many"])
def test_allocation_with_too_few_nodes_is_refused(monkeypatch: pytest.MonkeyPatch, nodes: str) -> None:
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", nodes)
    with pytest.raises(UsageError, match="needs a Slurm allocation") as caught:
        require_nodes(2)
    assert "--gpu --nodes" in caught.value.hint
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    require_nodes(2)
