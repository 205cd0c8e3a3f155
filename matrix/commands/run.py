"""``matrix run -- COMMAND``: a command that sees the index, such as cotainr's build of a container."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING

from builders.index import Index
from builders.process import run_in_foreground
from matrix.options import add_index
from matrix.running.routes import choose_route
from matrix.running.variables import (
    CERTIFICATES,
    VISIBLE,
    Change,
    applied,
    binding,
    disturbing,
    for_container,
    is_visible,
    makes_container,
    remarks,
    telling,
)
from resolver.errors import EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matrix.context import Context

SUMMARY = "run a command, such as cotainr, so that it can use the index"
EXAMPLE = "matrix run -- cotainr build my.sif --base-image rocm.sif --conda-env env.yml --accept-licenses"
_MOUNTED = "file:///mnt/simple/"
_NOT_IN_A_BIND = set(":,\\\n")  # what runtimes read as the end of a path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    parser.add_argument(
        "--base-image",
        metavar="PATH",
        default="",
        help="looked into for /mnt (default: what COMMAND itself names with --base-image)",
    )
    parser.add_argument(
        "--route",
        choices=("auto", "bind", "loopback"),
        default="auto",
        help="bind the index to /mnt, or serve it on 127.0.0.1 (default: bind where the base image has /mnt)",
    )
    parser.add_argument(
        "--keep", metavar="NAME", action="append", default=[], help="leave this variable alone (repeatable)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be set, and run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")


def execute(context: Context) -> int:
    """Run the command; its exit code is ours."""
    args, console = context.args, context.console
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    index = Index(args.index)
    _require(command, index)
    container = makes_container(command)
    chosen = choose_route(args.route, command, args.base_image)
    changes = disturbing(os.environ, args.keep)
    if container:
        changes += for_container(os.environ, args.keep)
    with ExitStack() as held:
        beside = None
        if chosen.route == "bind":
            changes += [*binding(_bindable(index.root)), *telling(os.environ, _MOUNTED)]
        else:
            from builders.index.server import address_of, listen, serving_on

            listening = held.enter_context(closing(listen()))
            changes += telling(os.environ, address_of(listening))
            beside = serving_on(listening, index)
        if container and not args.dry_run:
            folder = Path(
                held.enter_context(tempfile.TemporaryDirectory(prefix="matrix-run-", dir=VISIBLE[0]))
            )
            changes += [*_visible_certificates(os.environ, folder, args.keep), *_singularity(folder)]
        console.info(f"The index {index.root} by {chosen.route}: {chosen.why}.")
        for change in changes:
            console.info(f"  {change}")
        for remark in remarks(os.environ):
            console.warning(remark)
        if args.dry_run:
            return 0
        return run_in_foreground(command, env=applied(os.environ, changes), alongside=beside)


def _require(command: list[str], index: Index) -> None:
    if not command:
        msg = "There is no command to run."
        raise UsageError(msg, hint=f"Put it behind two dashes: {EXAMPLE}")
    if command[0].startswith("-"):
        msg = f"{command[0]} is no program."
        raise UsageError(msg, hint=f"Options of matrix run come before the two dashes: {EXAMPLE}")
    if not index.simple.is_dir():
        msg = f"There is no index at {index.root}: it has no directory simple/."
        raise UsageError(msg, hint="matrix build-wheels makes one; another place is named with --index.")
    if not shutil.which(command[0]):
        msg = f"{command[0]} is not on PATH."
        raise EnvironmentLacksError(
            msg, hint=f"Load the site's module (module avail {command[0]}) or install it."
        )


def _bindable(root: Path) -> str:
    """Give the real path of the index; another machine or a container may lack the links to it."""
    real = str(root.resolve())
    if _NOT_IN_A_BIND & set(real):
        msg = f"{real!r} cannot be bound into a container: the name has one of : , \\"
        raise UsageError(msg, hint="Move or link the index elsewhere, or use --route loopback.")
    return real


def _singularity(folder: Path) -> list[Change]:
    """Give Apptainer the older name where it has not got it: cotainr calls ``singularity``."""
    apptainer = shutil.which("apptainer")
    if apptainer is None or shutil.which("singularity"):
        return []
    (folder / "bin").mkdir()
    (folder / "bin" / "singularity").symlink_to(apptainer)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return [Change("PATH", path, "cotainr calls singularity, and here it is apptainer alone")]


def _visible_certificates(env: Mapping[str, str], folder: Path, keep: list[str]) -> list[Change]:
    """Copy files of certificates to where the container sees them; pip fails on one that is not there."""
    changes = []
    for name in CERTIFICATES:
        given = env.get(name, "")
        path = Path(given)
        if not given or name in keep or is_visible(str(path.resolve())) or not path.is_file():
            continue
        copy = folder / f"{name}.pem"
        shutil.copyfile(path, copy)
        changes.append(Change(name, str(copy), f"a copy of {given}, which the container may not see"))
    return changes
