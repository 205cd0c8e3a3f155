"""``matrix explain``: why a version was chosen, by which facts, from which sources and files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from matrix.commands.resolve import LOCK
from resolver.errors import UsageError, did_you_mean
from resolver.lock import read_lock

if TYPE_CHECKING:
    import argparse

    from matrix.console import Console
    from resolver.lock import LockedPick

EXAMPLE = "matrix explain torch"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="a component of the lock (default: all)")
    parser.add_argument(
        "--lock", metavar="FILE", type=Path, default=LOCK, help="the lock (default: %(default)s)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    lock = read_lock(args.lock, tell=console.say)
    picks = [pick for pick in lock.pick if args.name in {None, pick.name}]
    if not picks:
        msg = f"The lock {args.lock} has no {args.name!r}."
        raise UsageError(msg, hint=did_you_mean(args.name, [pick.name for pick in lock.pick]))
    if args.format == "json":
        console.document({"schema": 1, "picks": [msgspec.to_builtins(pick) for pick in picks]})
    else:
        console.data("\n\n".join(map(_text, picks)))
    return 0


def _text(pick: LockedPick) -> str:
    key = f"{pick.version} ({pick.variant})" if pick.variant else pick.version
    lines = [f"{pick.name} {key}: {pick.support}, {pick.verdict.replace('-', ' ')}"]
    for fact in pick.fact:
        lines += [f"  - {fact.text} [{fact.status}]", f"      {fact.source}"]
        lines += [f"      note: {fact.note}"] if fact.note else []
        lines += [f"      in {fact.file}"] if fact.file else []
    return "\n".join(lines)
