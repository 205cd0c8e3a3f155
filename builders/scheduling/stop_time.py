"""When builds stop: at the user's time limit, or shortly before the end of the Slurm job they run in.

Sources: sbatch(1), squeue(1).
"""

from __future__ import annotations

import os
import re
import time
from datetime import datetime

from builders.machine.process import output_of
from builders.probe.slurm import hours_of
from resolver.errors import UsageError

_PARTS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")
_IN_SECONDS = (86400, 3600, 60, 1)
_SPARE = 60.0
"""Seconds between the stop and the end of a Slurm job: ending all programs takes up to 30."""
_LARGEST_SHARE = 0.1
"""Maximum fraction of the remaining time to keep free, so that short jobs build something, too."""


def seconds_of(text: str) -> float:
    """Parse a duration: ``2h``, ``90m``, ``1h30m``, ``45s``, ``1d``, or a time as sbatch takes it.

    Raises
    ------
    UsageError
        The text is not a valid duration.

    Examples
    --------
    >>> seconds_of("2h"), seconds_of("1h30m"), seconds_of("45s"), seconds_of("02:00:00"), seconds_of("90")
    (7200, 5400, 45, 7200.0, 5400.0)
    """
    match = _PARTS.fullmatch(text.strip())
    if match and any(match.groups()):
        return sum(int(number or 0) * unit for number, unit in zip(match.groups(), _IN_SECONDS, strict=True))
    try:
        return hours_of(text.strip()) * 3600
    except UsageError:
        msg = f"{text!r} is not a valid duration."
        raise UsageError(msg, hint="Write hours, minutes or seconds, such as 2h, 90m or 1h30m.") from None


def job_stop_time() -> float | None:
    """Return when to stop in the Slurm job that this process runs in, in seconds since the epoch.

    None outside of a job, or if its end is unknown. Not every release of Slurm sets ``SLURM_JOB_END_TIME``.
    """
    number = os.environ.get("SLURM_JOB_ID", "")
    if not number:
        return None
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    end = float(text) if text.isdecimal() else _end_of_job(number)
    if end is None:
        return None
    return end - min(_SPARE, max(0.0, end - time.time()) * _LARGEST_SHARE)


def _end_of_job(number: str) -> float | None:
    text = output_of(["squeue", "--noheader", f"--job={number}", "--format=%e"]).strip()
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:  # N/A without a time limit
        return None
