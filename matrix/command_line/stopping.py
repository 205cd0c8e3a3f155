"""Options that stop builds: a time limit, and a signal."""

from __future__ import annotations

import argparse
import os
import re
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builders.machine.process import output_of
from builders.scheduling.slurm import hours_of
from resolver.errors import UsageError

if TYPE_CHECKING:
    from matrix.command_line.context import Context

_NOT_HANDLED = {signal.SIGKILL, signal.SIGSTOP}
_PARTS = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m(?:in)?)?(?:(\d+)s)?")
_IN_SECONDS = (86400, 3600, 60, 1)
_SPARE = 60.0
"""Seconds between the stop and the end of a Slurm job: ending all programs takes up to 30."""
_LARGEST_SHARE = 0.1
"""Maximum fraction of the remaining time to keep free, so that short jobs build something, too."""


def add_stopping(parser: argparse.ArgumentParser) -> None:
    """Add ``--time-limit`` and ``--signal``."""
    parser.add_argument(
        "--time-limit",
        metavar="TIME",
        type=duration_argument,
        help="stop after this time, such as 2h or 90m; the next run continues "
        "(default in a Slurm job: a minute before it ends)",
    )
    parser.add_argument(
        "--signal",
        metavar="NAME",
        type=_signal,
        help="also stop on this signal, such as USR1 from sbatch --signal (INT, TERM and HUP always stop)",
    )


def stop_time(context: Context) -> float | None:
    """Return the time when builds stop, in seconds since the epoch; None if there is no limit.

    After this call, the signal that the user named stops the builds, too.
    """
    args = context.args
    if args.signal is not None:
        signal.signal(args.signal, signal.default_int_handler)
    if args.time_limit is not None:
        return time.time() + float(args.time_limit)
    end = job_stop_time()
    if end is not None:
        moment = datetime.fromtimestamp(end, tz=UTC).astimezone()
        context.console.info(f"Builds stop at {moment:%H:%M:%S}, before the Slurm job ends.")
    return end


def duration_argument(text: str) -> float:
    """Convert a duration, such as ``2h``, to seconds."""
    try:
        seconds = seconds_of(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(f"{error.message.rstrip('.')}; {error.hint}") from None
    if not seconds:
        msg = "the time must be above 0"
        raise argparse.ArgumentTypeError(msg)
    return seconds


def _signal(text: str) -> signal.Signals:
    name = text.upper().removeprefix("SIG")
    numbers = {number.name.removeprefix("SIG"): number for number in signal.Signals}
    if name not in numbers or numbers[name] in _NOT_HANDLED:
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal that can be handled, such as USR1")
    return numbers[name]


def seconds_of(text: str) -> float:
    """Parse a duration: ``2h``, ``90m``, ``1h30m``, ``45s``, ``1d``, or a time as sbatch takes it.

    Raise `UsageError` if the text is not a valid duration.

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
