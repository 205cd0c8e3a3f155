"""``matrix env``: the file that a consumer of the index reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders.files import write_atomic
from builders.index import Index
from matrix.commands.build_wheels import INDEX
from matrix.commands.resolve import LOCK
from matrix.consumers.conda import MOUNTED_INDEX, conda_environment
from resolver.errors import UsageError
from resolver.lock import read_lock

if TYPE_CHECKING:
    import argparse

    from matrix.console import Console
    from resolver.lock import Lock

CONSUMERS = ("cotainr", "pylock")
EXAMPLE = "matrix env --for cotainr -o env.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--for", dest="consumer", choices=CONSUMERS, required=True, help="who reads it")
    parser.add_argument(
        "--lock", metavar="FILE", type=Path, default=LOCK, help="the lock (default: %(default)s)"
    )
    parser.add_argument(
        "--index", metavar="DIR", type=Path, default=INDEX, help="the index (default: %(default)s)"
    )
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help=f"the index as the consumer sees it (default: {MOUNTED_INDEX} for cotainr, "
        "paths relative to the file for pylock)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: stdout)")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    lock = read_lock(args.lock, tell=console.say)
    write = {"cotainr": _cotainr, "pylock": _pylock}[args.consumer]
    text = write(lock, Index(args.index), args, console)
    if args.output is None:
        console.data(text.rstrip())
    else:
        write_atomic(args.output, text)
        console.say(f"Wrote {args.output}")
    return 0


def _cotainr(lock: Lock, index: Index, args: argparse.Namespace, console: Console) -> str:
    text = conda_environment(lock, index_url=args.index_url or MOUNTED_INDEX, index_path=str(index.root))
    for pick in lock.built():
        if not any(f"-{pick.pinned}-" in path.name for path in index.wheels(pick.name)):
            console.warn(
                f"{pick.name} {pick.pinned} is not in {index.root} yet; matrix build-wheels makes it."
            )
    return text


def _pylock(lock: Lock, index: Index, args: argparse.Namespace, console: Console) -> str:
    from packaging.pylock import is_valid_pylock_path  # noqa: PLC0415

    from builders.published import published_wheels  # noqa: PLC0415
    from matrix.consumers.pylock import left_out, pylock  # noqa: PLC0415

    if args.output is not None and not is_valid_pylock_path(args.output):
        msg = f"Installers read no lock that is called {args.output.name}."
        raise UsageError(msg, hint="Call it pylock.toml, or pylock.NAME.toml.")
    find = partial(published_wheels, python=lock.target.python)
    beside = (args.output.parent if args.output else Path()).absolute()
    text = pylock(lock, index, find, beside=beside, index_url=args.index_url or "")
    console.warn(left_out(lock))
    return text
