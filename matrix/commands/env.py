"""``matrix env``: the file that a consumer of the index reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builders.files import write_atomic
from builders.index import Index
from matrix.commands.build_wheels import INDEX
from matrix.commands.resolve import LOCK
from matrix.consumers.conda import MOUNTED_INDEX, conda_environment
from resolver.lock import read_lock

if TYPE_CHECKING:
    import argparse

    from matrix.console import Console

EXAMPLE = "matrix env --for cotainr -o env.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--for", dest="consumer", choices=("cotainr",), required=True, help="who reads it")
    parser.add_argument(
        "--lock", metavar="FILE", type=Path, default=LOCK, help="the lock (default: %(default)s)"
    )
    parser.add_argument(
        "--index", metavar="DIR", type=Path, default=INDEX, help="the index (default: %(default)s)"
    )
    parser.add_argument(
        "--index-url",
        metavar="URL",
        default=MOUNTED_INDEX,
        help="the index as the container's build sees it (default: %(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: stdout)")


def execute(args: argparse.Namespace, console: Console) -> int:
    """Run the command."""
    lock = read_lock(args.lock)
    index = Index(args.index)
    text = conda_environment(lock, index_url=args.index_url, index_path=str(index.root))
    for pick in lock.built():
        if not any(f"-{pick.pinned}-" in path.name for path in index.wheels(pick.name)):
            console.warn(
                f"{pick.name} {pick.pinned} is not in {index.root} yet; matrix build-wheels makes it."
            )
    if args.output is None:
        console.data(text.rstrip())
    else:
        write_atomic(args.output, text)
        console.say(f"Wrote {args.output}")
    return 0
