"""Options that stop builds: a time limit, and a signal."""

from __future__ import annotations

import argparse
import signal
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from builders.scheduling.stop_time import job_stop_time, seconds_of
from resolver.errors import UsageError

if TYPE_CHECKING:
    from matrix.command_line.context import Context

_NOT_HANDLED = {signal.SIGKILL, signal.SIGSTOP}


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
