"""``matrix run -- COMMAND``: run a command, such as cotainr, so that it can use the index."""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from builders.constants import BIND_SEPARATORS, MOUNT_POINT, MOUNTED_INDEX
from builders.containers.engines import choose_runtime
from builders.containers.image import LocalImage, form_of, real_path, stem
from builders.containers.runtime import output_in
from builders.index import Index
from builders.machine.process import run_in_foreground
from matrix.command_line.options import add_index, add_lock
from matrix.consumers.shared.container_variables import (
    VISIBLE,
    VariableChange,
    applied,
    bind_changes,
    container_changes,
    fill_folder,
    index_changes,
    is_visible,
    kept_warnings,
    site_changes,
    unset_changes,
    uses_container,
)
from resolver.errors import EnvironmentLacksError, UsageError, did_you_mean

if TYPE_CHECKING:
    from matrix.command_line.context import Context

SUMMARY = "run a command, such as cotainr, so that it can use the index"
EXAMPLE = "matrix run -- cotainr build my.sif --base-image rocm.sif --conda-env env.yml --accept-licenses"
_OTHER_NODE = ("srun", "salloc", "sbatch")
_PROGRAMS = ("cotainr", "conda-containerize", "pip-containerize", "apptainer", "singularity")
_IMAGE_OPTION = "--base-image"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_index(parser)
    add_lock(parser)
    parser.add_argument(
        "--base-image",
        metavar="PATH",
        default="",
        help="the image in which to look for /mnt (default: the value of --base-image in COMMAND)",
    )
    parser.add_argument(
        "--route",
        choices=("auto", "bind", "loopback"),
        default="auto",
        help="bind the index to /mnt, or serve it on 127.0.0.1 (default: bind if the base image has /mnt)",
    )
    parser.add_argument(
        "--keep", metavar="NAME", action="append", default=[], help="do not change this variable (repeatable)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print all changes and run nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND...")


def execute(context: Context) -> int:
    """Run the command and return its exit code."""
    args, console = context.args, context.console
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    index = Index(args.index)
    _require(command, index)
    route, reason = choose_route(args.route, command, args.base_image)
    changes = unset_changes(os.environ, args.keep)
    variables = context.site_variables() if context.has_lock else []
    changes += site_changes(os.environ, variables, args.keep)
    with ExitStack() as stack:
        server = None
        if route == "bind":
            changes += [*bind_changes(_bindable(index.root)), *index_changes(os.environ, f"{MOUNTED_INDEX}/")]
        else:
            from builders.index.server import address_of, listen, serving_on

            listening = stack.enter_context(closing(listen()))
            changes += index_changes(os.environ, address_of(listening))
            server = serving_on(listening, index)
        if uses_container(command):
            given = os.environ.get("TMPDIR", "")
            parent = given if Path(given).is_dir() and is_visible(given) else str(VISIBLE[0])
            folder = Path(parent, "matrix-run-XXXXXXXX")
            if not args.dry_run:
                made = tempfile.TemporaryDirectory(
                    prefix="matrix-run-", dir=parent, ignore_cleanup_errors=True
                )
                folder = Path(stack.enter_context(made))
                fill_folder(os.environ, folder, args.keep)
            changes += container_changes(os.environ, folder, args.keep)
            if "TMPDIR" not in args.keep and PurePath(command[0]).name not in _OTHER_NODE:
                reason = "this directory is removed at the end, with everything that a killed command left"
                changes.append(VariableChange("TMPDIR", str(folder), reason))
        console.info(f"Index {index.root}, route {route}: {reason}.")
        for change in changes:
            console.info(f"  {change}")
        for warning in kept_warnings(os.environ):
            console.warning(warning)
        if args.dry_run:
            return 0
        env = applied(os.environ, changes)
        for row in variables:
            if row.directory:
                Path(env[row.name]).mkdir(parents=True, exist_ok=True)
        return run_in_foreground(command, env=env, alongside=server)


def _require(command: list[str], index: Index) -> None:
    if not command:
        msg = "There is no command to run."
        raise UsageError(msg, hint=f"Put it after two dashes: `{EXAMPLE}`")
    if command[0].startswith("-"):
        msg = f"{command[0]} is not a program."
        raise UsageError(msg, hint=f"Put options for `matrix run` before the two dashes: `{EXAMPLE}`")
    if not shutil.which(command[0]):
        msg = f"{command[0]} is not on PATH."
        guess = did_you_mean(command[0], _PROGRAMS, typos=2) if command[0] not in _PROGRAMS else ""
        if guess.startswith("Did"):
            raise UsageError(msg, hint=guess)
        raise EnvironmentLacksError(
            msg, hint=f"Load the site's module (`module avail {command[0]}`) or install it."
        )
    if not index.simple.is_dir():
        msg = f"There is no index at {index.root}: it has no directory simple/."
        raise UsageError(msg, hint="Create one with `matrix build-wheels`, or name another with --index.")


def _bindable(root: Path) -> str:
    """Return the path without links, which another machine or a container may not have."""
    real = str(root.resolve())
    if BIND_SEPARATORS & set(real):
        msg = f"{real!r} cannot be bound into a container, because the path contains one of : , \\"
        raise UsageError(
            msg, hint="Move the index to a path without these characters, or use --route loopback."
        )
    return real


def base_image_of(command: Sequence[str]) -> str:
    """Return the base image that a command of cotainr names; empty if it names none.

    Examples
    --------
    >>> base_image_of(["cotainr", "build", "my.sif", "--base-image=rocm.sif"])
    'rocm.sif'
    >>> base_image_of(["cotainr", "build", "my.sif", "--system", "lumi-g"])
    ''
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(_IMAGE_OPTION, default="")
    try:
        return str(parser.parse_known_args(list(command))[0].base_image)
    except argparse.ArgumentError:  # the value is missing
        return ""


def choose_route(route: str, command: Sequence[str], image: str) -> tuple[str, str]:
    """Choose how the command reaches the index (``bind`` or ``loopback``); return also why.

    `image` is the base image that the user names; if empty, that of the command. Raise
    `EnvironmentLacksError` or `UsageError` if the choice depends on an image that cannot be inspected, or the
    route cannot work.
    """
    if route == "loopback":
        chosen: tuple[str, str] = ("loopback", "as requested")
    else:
        chosen = _choose_by_image(route, image or base_image_of(command), requested=bool(image))
    starter = PurePath(command[0]).name
    if chosen[0] == "loopback" and starter in _OTHER_NODE:
        msg = f"{starter} may start the command on another node, which cannot reach a server on this node."
        hint = (
            f"Use the opposite order, `{starter} ... matrix run -- COMMAND`. Or name the base image with "
            "--base-image: if it has /mnt, the index is bound instead."
        )
        raise UsageError(msg, hint=hint)
    return chosen


def _choose_by_image(route: str, image: str, *, requested: bool) -> tuple[str, str]:
    if not image:
        if route == "bind":
            return ("bind", "as requested; no base image is named, so /mnt was not checked")
        return ("loopback", "the command names no base image")
    try:
        has_mount = _has_mount_point(image)
    except (EnvironmentLacksError, UsageError) as error:
        if route == "bind" or requested:
            raise
        reason = error.message.removesuffix(".")
        return ("loopback", f"{image} could not be checked for /mnt: {reason}")
    if has_mount:
        return ("bind", f"{image} has /mnt")
    if route == "bind":
        msg = f"{image} has no directory /mnt, so a build cannot bind the index to it."
        raise UsageError(msg, hint="Serve the index with --route loopback.")
    return ("loopback", f"{image} has no directory /mnt")


def _has_mount_point(text: str) -> bool:
    """Return whether a base image has the directory /mnt; a container is started for image files."""
    path = real_path(Path(text))
    if form_of(path) == "directory":
        return Path(f"{path}{MOUNT_POINT}").is_dir()
    # Computing the digest would take a minute, and it is not needed here.
    runtime = choose_runtime(None, LocalImage(stem(path), path, ""))
    answer = output_in(runtime, ["/bin/sh", "-c", f"[ -d {MOUNT_POINT} ] && echo yes || echo no"]).strip()
    if answer not in {"yes", "no"}:
        msg = f"No program can be run in {path}."
        raise EnvironmentLacksError(msg, hint=f"To see the error: `{runtime.kind} exec {path} true`")
    return answer == "yes"
