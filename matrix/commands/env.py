"""``matrix env``: write the files that a consumer of the index reads."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from builders.constants import MOUNTED_INDEX
from builders.index import Index
from matrix.consumers import Consumer, consumer_names, load_consumer
from matrix.consumers.shared.files import Layout, split, write_files
from matrix.consumers.shared.installation import Installation, pin
from matrix.locking import names_target, same_target
from matrix.options import add_index, add_lock, add_target_options
from resolver.errors import MatrixError, UsageError
from resolver.versions import join_words

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from matrix.console import Console
    from matrix.context import Context
    from resolver.model import Distribution

_URL = re.compile(r"""(?:[a-z+]+://|(?=\$))(?:[^\s'"\\`$]|\$\{[A-Z0-9_]+\})+""")
"""A URL as the files can contain it: pip expands ``${VARIABLE}`` itself."""
SUMMARY = "write the file that a consumer of the index reads"
EXAMPLE = "matrix env --for cotainr -o env.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--for",
        dest="consumer",
        choices=consumer_names(),
        required=True,
        help="the tool that reads the files: %(choices)s",
        metavar="CONSUMER",
    )
    add_lock(parser)
    add_index(parser)
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help=f"the index as the consumer sees it (default: {MOUNTED_INDEX} for cotainr and venv, paths "
        "relative to the file for pylock, the real path for all others)",
    )
    parser.add_argument(
        "--hashes",
        action="store_true",
        help="list everything that will be installed, with hashes; pip or uv resolves the dependencies",
    )
    parser.add_argument(
        "--python-from", metavar="PATH", type=Path, help="interpreter or prefix with which --hashes resolves"
    )
    parser.add_argument(
        "--wheelhouse",
        metavar="DIR",
        type=Path,
        help="for apptainer: a directory with all wheels, so that the build downloads nothing",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR",
        type=Path,
        help="the main file, or a directory for all files (default: print the main file)",
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    consumer = load_consumer(args.consumer)
    _check_options(args, consumer)
    lock = context.lock
    if names_target(args):
        same_target(lock, args, context.catalog_of_lock())
    folder, main = split(args.output, consumer.file) if args.output else (Path(), consumer.file)
    index = Index(args.index)
    layout = Layout(
        main, index.root.resolve(), (args.index_url or "").rstrip("/"), folder, wheelhouse=args.wheelhouse
    )
    installation = Installation(lock)
    missing = _missing(installation, index)
    if args.hashes:
        installation = _with_closure(installation, missing, args, layout, console)
    files = consumer.emit(installation, layout)
    for pick in missing:
        console.warning(
            f"{pick.name} {pick.pinned} is not in {index.root} yet. Build it with `matrix build-wheels`."
        )
    for finding in consumer.check(installation, layout):
        console.warning(str(finding))
    # A device or pipe, such as /dev/stdout, has no directory for other files.
    if args.output is None or (args.output.exists() and not (args.output.is_file() or args.output.is_dir())):
        console.data(files[0].text.rstrip())
        if files[1:]:
            names = ", ".join(file.name for file in files[1:])
            console.info(f"It needs these files in the same directory: {names}. -o DIR writes all of them.")
        return 0
    for path in write_files(files, folder, named=not args.output.is_dir()):
        console.info(f"Wrote {path}")
    return 0


def _check_options(args: argparse.Namespace, consumer: Consumer) -> None:
    if args.index_url is not None and not _URL.fullmatch(args.index_url):
        msg = f"--index-url {args.index_url!r} is not a URL."
        raise UsageError(msg, hint="Example: https://wheels.example/simple, or file:///scratch/index/simple.")
    if args.wheelhouse is not None and not consumer.supports_wheelhouse:
        names = [name for name in consumer_names() if load_consumer(name).supports_wheelhouse]
        msg = f"--wheelhouse works only with --for {join_words(names)}, not with --for {args.consumer}."
        raise UsageError(msg)
    if args.hashes and not consumer.supports_hashes:
        msg = f"--hashes does not work with --for {args.consumer}."
        raise UsageError(msg, hint=consumer.hashes_hint)
    if args.python_from is not None and not args.hashes:
        msg = "--python-from works only with --hashes: it names the interpreter that resolves."
        raise UsageError(msg, hint="To choose the Python of the lock, use `matrix resolve --python`.")


def _missing(installation: Installation, index: Index) -> list[Distribution]:
    return [
        pick
        for pick in installation.built
        if not any(f"-{pick.pinned}-" in path.name for path in index.wheels(pick.name))
    ]


def _with_closure(
    installation: Installation,
    missing: Sequence[Distribution],
    args: argparse.Namespace,
    layout: Layout,
    console: Console,
) -> Installation:
    """Add everything that the pins require, as pip or uv resolves it."""
    from builders.cache import cache_root
    from builders.closure import resolve_closure
    from matrix.consumers.shared.requirements import requirement_lines

    if installation.preinstalled:
        msg = "--hashes lists everything that is installed, but this lock keeps packages of the base image."
        raise UsageError(msg, hint="Resolve without --keep-installed, or omit --hashes.")
    if missing:
        names = ", ".join(map(pin, missing))
        msg = f"The index {layout.index} does not contain {names}, so their hashes are unknown."
        raise MatrixError(msg, hint="Build them with `matrix build-wheels`.")
    # This machine sees the index by its path, wherever the consumer sees it.
    url = (layout.index / "simple").as_uri()
    wheels = resolve_closure(
        requirement_lines(installation, url),
        python=installation.python,
        log=cache_root() / "logs" / "hashes.log",
        reporter=console,
        given=args.python_from,
        glibc=installation.lock.target.glibc or "",
    )
    rank = {pick.name: number for number, pick in enumerate(installation.installed)}
    wheels.sort(key=lambda wheel: (rank.get(wheel.name, len(rank)), wheel.name))
    return replace(installation, closure=tuple(wheels))
