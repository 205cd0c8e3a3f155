"""``matrix env``: the files that a consumer of the index reads."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from builders.index import Index
from matrix.consumers.output import MOUNTED_INDEX, Where, split, write_files
from matrix.consumers.pins import pins_of
from matrix.locking import names_target, same_target
from matrix.options import add_index, add_lock, add_target_options
from resolver.errors import MatrixError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from matrix.console import Console
    from matrix.consumers.output import File
    from matrix.consumers.pins import Pin, Pins
    from matrix.context import Context
    from resolver.model import Resolution

MAIN = {
    "cotainr": "env.yml",
    "tykky": "env.yml",
    "pip": "requirements.txt",
    "uv": "pyproject.toml",
    "easybuild": "easyconfig-lines.py",
    "venv": "requirements.txt",
    "apptainer": "container.def",
    "pylock": "pylock.toml",
}
"""Every consumer with the name of its main file."""
HASHED = ("cotainr", "tykky", "pip")
"""Who reads lines with hashes from us."""
_URL = re.compile(r"""(?:[a-z+]+://|(?=\$))(?:[^\s'"\\`$]|\$\{[A-Z0-9_]+\})+""")
"""What the files can hold: pip fills in ``${VARIABLE}`` itself."""
SUMMARY = "write the file that a consumer of the index reads"
EXAMPLE = "matrix env --for cotainr -o env.yml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--for", dest="consumer", choices=MAIN, required=True, help="who reads it")
    add_lock(parser)
    add_index(parser)
    parser.add_argument(
        "--index-url",
        metavar="URL",
        help=f"the index as the consumer sees it (default: {MOUNTED_INDEX} for cotainr and venv, else by "
        "its path; for pylock by paths relative to the file)",
    )
    parser.add_argument(
        "--hashes",
        action="store_true",
        help="name everything that will be installed, with hashes; a real resolver is asked what that is",
    )
    parser.add_argument(
        "--python-from",
        metavar="PATH",
        type=Path,
        help="interpreter or prefix that --hashes resolves with",
    )
    parser.add_argument(
        "--wheelhouse",
        metavar="DIR",
        type=Path,
        help="for apptainer: wheels of all that is installed; nothing is downloaded then",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE|DIR",
        type=Path,
        help="where to write; other files stand beside it (default: the main file to stdout)",
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    _check_options(args)
    lock = context.lock
    if names_target(args):
        same_target(lock, args, context.catalog_of_lock())
    default = MAIN[args.consumer]
    folder, main = split(args.output, default) if args.output else (Path(), default)
    where = Where(main, Index(args.index).root.resolve(), (args.index_url or "").rstrip("/"))
    if args.consumer == "pylock":
        files = [_pylock(lock, args, folder, main, console)]
    else:
        files = _files(lock, args, where, console)
    # What is no file, such as /dev/stdout, has nothing beside it.
    if args.output is None or (args.output.exists() and not (args.output.is_file() or args.output.is_dir())):
        console.data(files[0].text.rstrip())
        if files[1:]:
            beside = ", ".join(file.name for file in files[1:])
            console.info(f"Beside it belong: {beside}. -o DIR writes all of them.")
        return 0
    for path in write_files(files, folder, named=not args.output.is_dir()):
        console.info(f"Wrote {path}")
    return 0


def _check_options(args: argparse.Namespace) -> None:
    if args.index_url is not None and not _URL.fullmatch(args.index_url):
        msg = f"--index-url {args.index_url!r} is no URL."
        raise UsageError(msg, hint="Such as https://wheels.example/simple, or file:///scratch/index/simple.")
    if args.wheelhouse is not None and args.consumer != "apptainer":
        msg = "--wheelhouse goes with --for apptainer."
        raise UsageError(msg)
    if args.hashes and args.consumer not in HASHED:
        own = {
            "uv": "uv writes hashes into its own uv.lock: `uv lock` in the directory of the file.",
            "pylock": "pylock.toml has a hash for every file in any case.",
        }
        msg = f"--hashes is not for {args.consumer}."
        hint = own.get(args.consumer, "What is installed there depends on what the image holds already.")
        raise UsageError(msg, hint=hint)
    if args.python_from is not None and not args.hashes:
        msg = "--python-from names the interpreter that --hashes resolves with."
        raise UsageError(msg, hint="The Python of the lock is decided by matrix resolve --python.")


def _files(lock: Resolution, args: argparse.Namespace, where: Where, console: Console) -> list[File]:
    """Write the files of every consumer but pylock; each module is imported for its own only."""
    pins, index = pins_of(lock), Index(args.index)
    missing = _missing(pins, index)
    if args.hashes:
        pins = _with_closure(pins, missing, args, where, console)
    files = _emit(pins, args, where)
    for pin in missing:
        console.warning(f"{pin.name} {pin.version} is not in {index.root} yet; matrix build-wheels makes it.")
    return files


def _emit(pins: Pins, args: argparse.Namespace, where: Where) -> list[File]:
    match args.consumer:
        case "cotainr":
            from matrix.consumers.conda import cotainr_files as emit
        case "tykky":
            from matrix.consumers.conda import tykky_files as emit
        case "pip":
            from matrix.consumers.requirements import pip_files as emit
        case "uv":
            from matrix.consumers.uvproject import uv_files as emit
        case "easybuild":
            from matrix.consumers.easybuild import easybuild_files as emit
        case "venv":
            from matrix.consumers.venv import venv_files as emit
        case _:
            from matrix.consumers.definition import definition_files

            emit = partial(definition_files, wheelhouse=args.wheelhouse)
    return emit(pins, where)


def _missing(pins: Pins, index: Index) -> list[Pin]:
    return [
        pin
        for pin in pins.built
        if not any(f"-{pin.version}-" in path.name for path in index.wheels(pin.name))
    ]


def _with_closure(
    pins: Pins, missing: Sequence[Pin], args: argparse.Namespace, where: Where, console: Console
) -> Pins:
    """Add everything that the pins need, as a real resolver finds it."""
    from dataclasses import replace

    from builders.cache import cache_root
    from builders.closure import resolve_closure
    from matrix.consumers.pins import Hashed
    from matrix.consumers.requirements import requirement_lines

    if pins.kept:
        msg = "--hashes names everything that is installed, and this lock keeps what the base image holds."
        raise UsageError(msg, hint="Resolve without --keep-installed, or leave out --hashes.")
    if missing:
        msg = f"The index {where.index} lacks {', '.join(map(str, missing))}, so there is nothing to hash."
        raise MatrixError(msg, hint="matrix build-wheels makes them.")
    # Here the index is seen by its path, wherever the consumer sees it.
    url = (where.index / "simple").as_uri()
    members = resolve_closure(
        requirement_lines(pins, url),
        python=pins.python,
        log=cache_root() / "logs" / "hashes.log",
        reporter=console,
        given=args.python_from,
        glibc=pins.glibc,
    )
    rank = {pin.name: number for number, pin in enumerate(pins.pins)}
    members.sort(key=lambda one: (rank.get(one.name, len(rank)), one.name))
    return replace(pins, closure=tuple(Hashed(one.name, one.version, one.sha256) for one in members))


def _pylock(lock: Resolution, args: argparse.Namespace, folder: Path, main: str, console: Console) -> File:
    from packaging.pylock import is_valid_pylock_path

    from builders.published import published_wheels
    from matrix.consumers.output import File
    from matrix.consumers.pylock import left_out, pylock

    if not is_valid_pylock_path(Path(main)):
        msg = f"Installers read no lock that is called {main}."
        raise UsageError(msg, hint="Call it pylock.toml, or pylock.NAME.toml.")
    find = partial(published_wheels, python=lock.version_of("python"))
    text = pylock(lock, Index(args.index), find, beside=folder.absolute(), index_url=args.index_url or "")
    console.warning(left_out(lock))
    return File(main, text)
