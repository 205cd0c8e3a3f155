"""The Slurm job that verifies an environment on a GPU node: its script, and handing it in.

Source: sbatch(1). The script asks for one GPU of one node, for some minutes.
"""

from __future__ import annotations

import re
import shlex
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders.process import log_size, read_since, run
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resolver.facts.catalog import Catalog

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_PLAIN = re.compile(r"[\w.,+-]+")
_SUBMITTED = re.compile(r"(?m)^(\d+)(;\S+)?$")


@dataclass(frozen=True, slots=True)
class Job:
    """What a job asks of Slurm."""

    partition: str
    account: str
    time: str
    """As sbatch takes it, such as ``00:15:00``."""
    command: Sequence[str]
    """What it runs, word by word."""
    output: str
    """File for what it prints; ``%j`` is the job's number."""


def script_of(job: Job) -> str:
    """Write the script of a job.

    Raises
    ------
    UsageError
        A value would not stay on its line.
    """
    options = {
        "job-name": "matrix-verify",
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
        "nodes": "1",
        "ntasks": "1",
        "gpus-per-node": "1",
    }
    for name, value in options.items():
        if value and not _PLAIN.fullmatch(value.replace(":", "")):
            msg = f"{value!r} is no value for sbatch's --{name}."
            raise UsageError(msg)
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Written by `matrix verify --gpu`: asks on a GPU node what is installed and whether it runs.",
            *lines,
            f'#SBATCH --output="{job.output}"',
            "set -euo pipefail",
            f"exec {shlex.join(job.command)}",
            "",
        ]
    )


def partition_for(catalog: Catalog, site: str, hours: float) -> str:
    """Choose the GPU partition of a site with the shortest limit that is long enough: it starts soonest.

    Raises
    ------
    UsageError
        The catalog knows none.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and row.backend == "rocm"]
    able = [row for row in rows if row.max_hours >= hours]
    if not able:
        known = ", ".join(f"{row.name} up to {row.max_hours:g} h" for row in rows)
        msg = f"The catalog knows no GPU partition of {site} for {hours:g} hours."
        raise UsageError(msg, hint=f"It knows {known}." if known else "Name one with --partition.")
    return min(able, key=lambda row: row.max_hours).name


def hours_of(time: str) -> float:
    """Read a time as sbatch does: minutes, minutes:seconds, hours:minutes:seconds, days-hours:...

    Raises
    ------
    UsageError
        It is none.

    Examples
    --------
    >>> hours_of("30"), hours_of("90:00"), hours_of("01:15:00"), hours_of("1-12")
    (0.5, 1.5, 1.25, 36.0)
    """
    found = _TIME.fullmatch(time)
    if not found:
        msg = f"{time!r} is no time that sbatch reads."
        raise UsageError(msg, hint="Write it as HH:MM:SS.")
    days, *rest = found.groups()
    first, second, third = (int(one) if one else 0 for one in rest)
    if days is not None:
        return int(days) * 24 + first + second / 60 + third / 3600
    if rest[2] is not None:
        return first + second / 60 + third / 3600
    return first / 60 + second / 3600


def submit(script: Path, log: Path) -> str:
    """Hand a script in; gives the job's number.

    Raises
    ------
    CommandError
        Slurm refuses it; the error has its words.
    EnvironmentLacksError
        There is no sbatch here.
    """
    if not shutil.which("sbatch"):
        msg = f"sbatch is not on PATH, so nothing was submitted. The script is {script}."
        raise EnvironmentLacksError(msg, hint=f"On a login node of the cluster: sbatch {script}")
    start = log_size(log)
    run(["sbatch", "--parsable", str(script)], what=f"Submitting {script}", log=log)
    found = _SUBMITTED.findall(read_since(log, start))
    if not found:
        msg = f"sbatch ended well and named no job.\n  Log: {log}"
        raise MatrixError(msg, hint="Look whether it is there: squeue --me")
    return str(found[-1][0])
