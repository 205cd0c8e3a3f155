"""Run an all-reduce on the nodes of a Slurm allocation, and judge its output.

The script that starts the ranks is one that users run themselves. RCCL's log is read for the network that it
used, and for known failures.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from builders.diagnosis import DiagnosisContext, read_log
from builders.findings import Finding
from builders.machine.process import run
from resolver.errors import CommandError, TooSlowError, UsageError

_SUBMIT = "`matrix check CONTAINER --gpu --nodes N` submits a job that does so."
_DEBUG = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET"}
_BANDWIDTH = re.compile(r"^bus bandwidth: .*", re.MULTILINE)
_SUM = re.compile(r"^all-reduce of .*\((\w+), \w+\): right sum$", re.MULTILINE)
_NETWORK = re.compile(r"NCCL INFO Using network ([^\r\n]+)")
_STARTED = re.compile(r"^rank (\d+) of \d+ started on (\S+)$", re.MULTILINE)
_FINISHED = re.compile(r"^rank (\d+) finished its first all-reduce$", re.MULTILINE)
_TCP = "Socket"
_LAST_LINES = 3


def require_nodes(nodes: int) -> None:
    """Raise `UsageError` unless this process runs in a Slurm allocation with so many nodes."""
    given = os.environ.get("SLURM_JOB_NUM_NODES", "")
    if not given.isdecimal() or int(given) < nodes:
        has = f"this one has {given}" if given else "this process is in none"
        msg = f"An all-reduce on {nodes} nodes needs a Slurm allocation with as many nodes; {has}."
        raise UsageError(msg, hint=_SUBMIT)


def all_reduce(
    script: Path,
    program: Sequence[str],
    *,
    environment: Path,
    ranks: int,
    seconds: float,
    log: Path,
    context: DiagnosisContext,
) -> list[Finding]:
    """Run an all-reduce with the script, and judge its output; after `seconds`, unfinished ranks hang."""
    log.unlink(missing_ok=True)
    env = {**_DEBUG, **os.environ, "MATRIX_ENVIRONMENT": str(environment)}
    failure: CommandError | None = None
    try:
        run(["bash", str(script), *program], what="The all-reduce", log=log, env=env, timeout=seconds)
    except CommandError as error:
        failure = error
    text = log.read_text(encoding="utf-8", errors="replace")
    findings = [_failed(failure, text, ranks, seconds)] if failure else _measured(text)
    findings += [
        Finding(found.id, "warning", found.message, found.fix, found.evidence)
        for found in read_log(log, context).findings
        if found.id.startswith("rccl-")
    ]
    return findings


def _failed(error: CommandError, text: str, ranks: int, seconds: float) -> Finding:
    hosts = dict(_STARTED.findall(text))
    finished = set(_FINISHED.findall(text))
    late = [name for name in map(str, range(ranks)) if name not in finished]
    states = [
        f"rank {name} {f'waits on {hosts[name]}' if name in hosts else 'has not imported torch'}"
        for name in late
    ]
    evidence = {"log": str(error.log), "ranks": states, "output": list(error.lines)[-_LAST_LINES:]}
    if isinstance(error, TooSlowError):
        which = "; ".join(states) or "all ranks finished their first all-reduce"
        message = (
            f"The all-reduce hangs: it has not ended after {seconds:g} s. {which[0].upper()}{which[1:]}."
        )
        fix = f"Read {error.log}. If the ranks only start slowly, use a higher --timeout."
        return Finding("verify-all-reduce-hangs", "error", message, fix, evidence)
    lines = " / ".join(evidence["output"]) or f"exit code {error.code}"
    fix = f"Read {error.log}; `matrix check` may know the cause."
    return Finding("verify-all-reduce-failed", "error", f"The all-reduce failed: {lines}", fix, evidence)


def _measured(text: str) -> list[Finding]:
    summed, bandwidth = _SUM.search(text), _BANDWIDTH.search(text)
    if summed is None or bandwidth is None:
        message = "The program ended, but reported no all-reduce."
        return [Finding("verify-all-reduce-failed", "error", message, "Read its output in the log.")]
    findings = [Finding("verify-all-reduce", "info", f"{summed[0]}; {bandwidth[0]}")]
    if summed[1] != "nccl":
        message = f"torch used {summed[1]} on CPUs, so RCCL and its network were not judged."
        return [*findings, Finding("verify-network-not-judged", "warning", message)]
    networks = sorted({name.strip() for name in _NETWORK.findall(text)})
    if not networks:
        message = "RCCL's log does not say which network it used."
        return [*findings, Finding("verify-network-not-judged", "warning", message)]
    message = f"RCCL used the network {', '.join(networks)}"
    evidence = {"networks": networks}
    if _TCP in networks:
        fix = (
            "On Slingshot, TCP is slow: add rccl-net to the request. The other findings may have the reason."
        )
        return [*findings, Finding("verify-network", "warning", f"{message}: TCP.", fix, evidence)]
    return [*findings, Finding("verify-network", "info", message, "", evidence)]
