"""Write and submit Slurm jobs: to verify an environment on a GPU node, and to build.

Source: sbatch(1).
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from builders.machine.process import log_size, read_since, run
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import Catalog

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_PLAIN = re.compile(r"[\w.,+-]+")
_MOST_RESTARTS = 3
_SUBMITTED = re.compile(r"(?m)^(\d+)(;\S+)?$")


class BatchJob(msgspec.Struct, frozen=True):
    """The resources and the command of a job."""

    partition: str
    account: str
    time: str
    """Time limit in sbatch's format, such as ``00:15:00``."""
    command: Sequence[str]
    """The words of the command."""
    output: str
    """File for its output; ``%j`` is the job number."""
    name: str = "matrix-verify"
    options: Mapping[str, str] = msgspec.field(default_factory=lambda: {"gpus-per-node": "1"})
    """Additional options for sbatch."""
    before: Sequence[str] = ()
    """Lines of shell before the command."""
    exit_file: str = ""
    """File for the command's exit code, which Slurm forgets after some minutes; ``%j`` is the job number."""


def job_script(job: BatchJob) -> str:
    """Return the script of a job."""
    options = {
        "job-name": job.name,
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
        "nodes": "1",
        "ntasks": "1",
        **job.options,
    }
    for name, value in options.items():
        if value and not _PLAIN.fullmatch(value.replace(":", "")):
            msg = f"{value!r} is not a valid value for sbatch's --{name}."
            raise UsageError(msg)
    if not job.output.isprintable() or {*'"\\'} & {*job.output}:
        msg = f"sbatch cannot write the output of a job to {job.output!r}."
        raise UsageError(msg, hint="Use a directory without quotes, backslashes and control characters.")
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Written by matrix.",
            *lines,
            f'#SBATCH --output="{job.output}"',
            *job.before,
            *(_keeping_exit_code(job) if job.exit_file else [f"exec {shlex.join(job.command)}"]),
            "",
        ]
    )


def _keeping_exit_code(job: BatchJob) -> list[str]:
    before, _, after = job.exit_file.partition("%j")
    return [
        f"file={shlex.quote(before)}$SLURM_JOB_ID{shlex.quote(after)}",
        f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {_MOST_RESTARTS} ]; then',
        '  echo "error: Slurm restarted this job too often." >&2; exit 1',
        "fi",
        'rm -f "$file"',
        shlex.join(job.command),
        "code=$?",
        'echo $code > "$file.tmp" && mv "$file.tmp" "$file"',
        "exit $code",
    ]


def partition_for(catalog: Catalog, site: str, hours: float) -> str:
    """Return the GPU partition of a site with the lowest sufficient time limit: its jobs start first.

    A partition without a known limit is returned if no other is sufficient.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and row.backend == "rocm"]
    sufficient = [row for row in rows if not row.max_hours or row.max_hours >= hours]
    if not sufficient:
        known = ", ".join(f"{row.name} up to {row.max_hours:g} h" for row in rows)
        msg = f"The catalog has no GPU partition of {site} for {hours:g} hours."
        raise UsageError(msg, hint=f"It has {known}." if known else "Name a partition with --partition.")
    return min(sufficient, key=lambda row: row.max_hours or math.inf).name


def hours_of(time: str) -> float:
    """Parse a time as sbatch does: minutes, minutes:seconds, hours:minutes:seconds, days-hours:...

    Raise `UsageError` if the time is not valid.

    Examples
    --------
    >>> hours_of("30"), hours_of("90:00"), hours_of("01:15:00"), hours_of("1-12")
    (0.5, 1.5, 1.25, 36.0)
    """
    match = _TIME.fullmatch(time)
    if not match:
        msg = f"{time!r} is not a valid time for sbatch."
        raise UsageError(msg, hint="Use the form HH:MM:SS.")
    days, *rest = match.groups()
    first, second, third = (int(number) if number else 0 for number in rest)
    if days is not None:
        return int(days) * 24 + first + second / 60 + third / 3600
    if rest[2] is not None:
        return first + second / 60 + third / 3600
    return first / 60 + second / 3600


def submit(script: Path, log: Path, *options: str) -> str:
    """Submit a script, with additional options for sbatch, and return the job number."""
    if not shutil.which("sbatch"):
        msg = f"sbatch is not on PATH, so nothing was submitted. The script is {script}."
        raise EnvironmentLacksError(msg, hint=f"Run `sbatch {script}` on a login node of the cluster.")
    start = log_size(log)
    run(["sbatch", "--parsable", *options, str(script)], what=f"Submitting {script}", log=log)
    numbers = _SUBMITTED.findall(read_since(log, start))
    if not numbers:
        msg = f"sbatch succeeded but printed no job number.\n  Log: {log}"
        raise MatrixError(msg, hint="Check with `squeue --me` whether the job is queued.")
    return str(numbers[-1][0])
