"""Which way the index reaches a command: bound to /mnt, or served on the loopback address."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Literal, NamedTuple

from builders.containers.engines import choose_runtime
from builders.containers.image import Image, form_of, real_path, stem
from builders.containers.runtime import output_in
from resolver.errors import EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

Route = Literal["bind", "loopback"]
MOUNT = PurePath("/mnt")
_ELSEWHERE = ("srun", "salloc", "sbatch")
_OPTION = "--base-image"


class Chosen(NamedTuple):
    """A way, and why it was chosen."""

    route: Route
    why: str


def base_image_of(command: Sequence[str]) -> str:
    """Give the base image that a command of cotainr names; empty where there is none.

    Examples
    --------
    >>> base_image_of(["cotainr", "build", "my.sif", "--base-image=rocm.sif"])
    'rocm.sif'
    >>> base_image_of(["cotainr", "build", "my.sif", "--system", "lumi-g"])
    ''
    """
    words = list(command)
    for at, word in enumerate(words):
        if word == _OPTION and at + 1 < len(words):
            return words[at + 1]
        if word.startswith(f"{_OPTION}="):
            return word.partition("=")[2]
    return ""


def choose_route(wanted: str, command: Sequence[str], given: str) -> Chosen:
    """Choose how the command sees the index.

    Parameters
    ----------
    wanted
        ``bind``, ``loopback`` or ``auto``.
    given
        The base image that the user names; what the command names counts where this is empty.

    Raises
    ------
    EnvironmentLacksError, UsageError
        The image cannot be looked into, and the way depends on it.
    UsageError
        The base image has no /mnt; or the command would run on another machine than the server.
    """
    text = given or base_image_of(command)
    chosen = Chosen("loopback", "as asked") if wanted == "loopback" else _by_image(wanted, text, asked=given)
    starter = PurePath(command[0]).name
    if chosen.route == "loopback" and starter in _ELSEWHERE:
        msg = f"{starter} may start the command on another node, which does not reach a server on this one."
        hint = (
            f"Turn it round: {starter} ... matrix run -- COMMAND. Or name the base image with --base-image; "
            "where it has /mnt, the index is bound instead."
        )
        raise UsageError(msg, hint=hint)
    return chosen


def _by_image(wanted: str, text: str, *, asked: str) -> Chosen:
    if not text:
        if wanted == "bind":
            return Chosen("bind", "as asked; whether the base image has /mnt was not looked at")
        return Chosen("loopback", "the command names no base image")
    try:
        there = has_mount_point(text)
    except (EnvironmentLacksError, UsageError) as error:
        if wanted == "bind" or asked:
            raise
        return Chosen("loopback", f"whether {text} has /mnt is not known: {error.message}")
    if there:
        return Chosen("bind", f"{text} has /mnt")
    if wanted == "bind":
        msg = (
            f"{text} has no directory /mnt, and a build makes no mount point, so nothing can be bound to it."
        )
        raise UsageError(msg, hint="--route loopback serves the index instead.")
    return Chosen("loopback", f"{text} has no directory /mnt")


def has_mount_point(text: str) -> bool:
    """Tell whether a base image has the directory /mnt; a file is looked into by its runtime.

    Raises
    ------
    EnvironmentLacksError
        It is no file of this machine, or there is no runtime for it.
    UsageError
        It is no image.
    """
    path = real_path(Path(text))
    if form_of(path) == "directory":
        return (path / MOUNT.relative_to("/")).is_dir()
    # Its digest is of no use here, and would take a minute of reading.
    runtime = choose_runtime(None, Image(stem(path), path, ""))
    said = output_in(runtime, ["/bin/sh", "-c", f"[ -d {MOUNT} ] && echo yes || echo no"]).strip()
    if said not in {"yes", "no"}:
        msg = f"Nothing can be run in {path}."
        raise EnvironmentLacksError(msg, hint=f"Try: {runtime.kind} exec {path} true")
    return said == "yes"
