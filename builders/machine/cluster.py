"""The name of Slurm's cluster, and the cores and memory that this process may use.

They are not in `host`, whose imports take longer than a short command.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

_GIB = 2**30
_MIB = 2**20


def cluster_name() -> str:
    """Return the name of Slurm's cluster in a job's environment or Slurm's configuration; empty without."""
    file = Path(os.environ.get("SLURM_CONF") or "/etc/slurm/slurm.conf")
    named = os.environ.get("SLURM_CLUSTER_NAME", "").lower()
    if named or not (file.is_file() and os.access(file, os.R_OK)):
        return named
    return cluster_in(file.read_text(encoding="utf-8", errors="replace"))


def cluster_in(configuration: str) -> str:
    """Return the name of the cluster in Slurm's configuration, as in ``slurm.conf``; empty without."""
    match = re.search(r"^\s*ClusterName\s*=\s*(\S+)", configuration, re.MULTILINE | re.IGNORECASE)
    return match[1].lower() if match else ""


def cores() -> int:
    """Return the cores that affinity, the quotas of control groups and the Slurm job allow this process."""
    limits = [len(os.sched_getaffinity(0))]
    for path in _cgroup_files("cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text_of(path).partition(" ")
        period = period or text_of(path.with_name("cpu.cfs_period_us"))
        if quota.isdigit() and period.isdigit():
            limits.append(int(quota) // int(period))
    if "SLURM_JOB_ID" in os.environ:
        limits += _numbers("SLURM_CPUS_ON_NODE")
    return max(1, min(limits))


def memory_gib() -> float:
    """Return the GiB that the kernel, the control groups and the Slurm job still leave to this process."""
    texts = map(text_of, _cgroup_files("memory", "memory.max", "memory.limit_in_bytes"))
    limits = [_meminfo_available(), *(int(text) for text in texts if text.isdigit())]
    if "SLURM_JOB_ID" in os.environ:
        per_core = (number * cores() for number in _numbers("SLURM_MEM_PER_CPU"))
        limits += [number * _MIB for number in (*_numbers("SLURM_MEM_PER_NODE"), *per_core) if number]
    return min(limits) / _GIB


def _numbers(variable: str) -> list[int]:
    text = os.environ.get(variable, "")
    return [int(text)] if text.isdigit() else []


def text_of(path: Path) -> str:
    """Return the text of a file without space around it; empty if it does not exist."""
    return path.read_text().strip() if path.exists() else ""


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 4 * _GIB


def _cgroup_files(controller: str, file: str, file_of_version_1: str) -> list[Path]:
    """Return the files with a limit for this process's control groups and their parents (v2 and v1)."""
    root = Path("/sys/fs/cgroup")
    own = Path("/proc/self/cgroup")
    paths = [root / controller / file_of_version_1]
    for line in own.read_text().splitlines() if own.exists() else []:
        _, controllers, group = line.split(":", 2)
        base = root if not controllers else root / controller
        name = file if not controllers else file_of_version_1
        if not controllers or controller in controllers.split(","):
            folder = base / group.lstrip("/")
            paths += [parent / name for parent in (folder, *folder.parents) if parent.is_relative_to(base)]
    return paths


def compile_jobs(memory_per_job: float, *, jobs: int | None = None, memory: float | None = None) -> int:
    """Return the number of compile jobs for which there is memory (GiB) and a core."""
    by_memory = int((memory or memory_gib()) // memory_per_job)
    return max(1, min(jobs or cores(), by_memory))
