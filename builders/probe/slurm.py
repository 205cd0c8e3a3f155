"""Write and submit Slurm jobs: to verify an environment on a GPU node, and to build.

Source: sbatch(1).
"""

from __future__ import annotations

import math
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from builders.machine.process import log_size, output_of, read_since, run
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import Catalog

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_PLAIN = re.compile(r"[\w.,+-]+")
_MOST_RESTARTS = 3
_LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STOPPED"}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds between two queries of a job's state."""
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


def partition_for(catalog: Catalog, site: str, hours: float, backend: str = "rocm") -> str:
    """Return the partition of a site with the lowest sufficient time limit: its jobs start first.

    A partition without a known limit is returned if no other is sufficient.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and row.backend == backend]
    sufficient = [row for row in rows if not row.max_hours or row.max_hours >= hours]
    if not sufficient:
        known = ", ".join(f"{row.name} up to {row.max_hours:g} h" for row in rows)
        kind = "GPU partition" if backend == "rocm" else "partition"
        msg = f"The catalog has no {kind} of {site} for {hours:g} hours."
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
    try:
        run(["sbatch", "--parsable", *options, str(script)], what=f"Submitting {script}", log=log)
    except CommandError as error:
        if any("account" in line.lower() for line in error.lines):
            hint = "Name your project with --account NAME, or as `account` in matrix.toml."
            raise error.changed(hint=hint) from None
        raise
    numbers = _SUBMITTED.findall(read_since(log, start))
    if not numbers:
        msg = f"sbatch succeeded but printed no job number.\n  Log: {log}"
        raise MatrixError(msg, hint="Check with `squeue --me` whether the job is queued.")
    return str(numbers[-1][0])


def wait_for(number: str, *, minutes: float, exit_file: Path, output: Path) -> int:
    """Wait until a job has ended, and return its exit code.

    Parameters
    ----------
    minutes
        How long the job may wait for its start.
    exit_file, output
        Where the job writes its exit code and its output.

    Raises
    ------
    MatrixError
        The job has not started in time, or ended without an exit code.
    """
    limit = time.monotonic() + minutes * 60
    pause = _FIRST_PAUSE
    while True:
        # Slurm forgets ended jobs, and squeue then fails or prints nothing.
        command = ["squeue", "--noheader", f"--jobs={number}", "--states=all", "--format=%T|%r"]
        state, _, reason = output_of(command).strip().partition("|")
        if exit_file.exists():
            return int(exit_file.read_text())
        if state not in _LIVE:
            msg = f"Job {number} ended without a result{f' ({state.lower()})' if state else ''}."
            raise MatrixError(msg, hint=f"Read its output, {output}, and `scontrol show job {number}`.")
        if state == "PENDING" and time.monotonic() > limit:
            msg = f"Job {number} has not started within {minutes:g} minutes; Slurm's reason is {reason}."
            hint = f"It stays queued, and writes to {output}. `scancel {number}` removes it."
            raise MatrixError(msg, hint=hint)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
