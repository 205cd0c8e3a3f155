"""Choosing where the programs of a build run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.apptainer import ApptainerRuntime
from builders.containers.image import form_of
from builders.containers.podman import PodmanRuntime
from builders.containers.runtime import HostRuntime
from resolver.errors import EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from builders.containers.image import Form, Image
    from builders.containers.runtime import Runtime

KINDS = ("host", "apptainer", "podman")
_APPTAINERS = ("apptainer", "singularity")
_OF_PODMAN = ("directory", "archive")
_OF_APPTAINER = ("sif", "squashfs", "directory")


def choose_runtime(kind: str | None, image: Image | None, *, tmp: Path | None = None) -> Runtime:
    """Choose where programs run.

    Parameters
    ----------
    kind
        One of `KINDS`; None chooses by the image and by what is installed: this machine without an
        image, else Apptainer or SingularityCE, else podman.
    image
        The base image.
    tmp
        Where a directory is made that is /tmp inside a container; the system's own when None.

    Raises
    ------
    EnvironmentLacksError
        The runtime is not installed.
    UsageError
        A container was asked for, and no image; or the runtime cannot run this one.
    """
    if kind not in {None, *KINDS}:
        msg = f"{kind!r} is no place to build in: {', '.join(KINDS)}."
        raise UsageError(msg)
    if kind == "host" or (kind is None and image is None):
        return HostRuntime()
    if image is None:
        msg = f"To build in a container ({kind}) a base image is needed."
        raise UsageError(msg, hint="Name it with --base-image PATH.")
    form = form_of(image.path)
    if kind == "podman":
        _require(form, _OF_PODMAN, image, "podman", "apptainer")
        return PodmanRuntime(image, _program(("podman",)), tmp)
    if kind is None and _missing(_APPTAINERS) and form in _OF_PODMAN and not _missing(("podman",)):
        return PodmanRuntime(image, _program(("podman",)), tmp)
    if kind is None and form == "archive":
        return PodmanRuntime(image, _program(("podman",)), tmp)
    _require(form, _OF_APPTAINER, image, "apptainer", "podman")
    return ApptainerRuntime(image, _program(_APPTAINERS), tmp)


def _require(form: Form, able: tuple[str, ...], image: Image, runtime: str, other: str) -> None:
    if form not in able:
        msg = f"{runtime} cannot run {image.path}: it is {'an' if form == 'archive' else 'a'} {form} file."
        raise UsageError(msg, hint=f"--in {other} runs it.")


def _missing(names: tuple[str, ...]) -> bool:
    return not any(map(shutil.which, names))


def _program(names: tuple[str, ...]) -> str:
    for name in names:
        found = shutil.which(name)
        if found:
            return str(Path(found))
    other = "--in podman uses podman." if names == _APPTAINERS else "--in apptainer uses Apptainer."
    msg = f"{' or '.join(names)} is needed to run the image, and is not on PATH."
    raise EnvironmentLacksError(
        msg, hint=f"Load the site's module of that name (module avail {names[0]}) or install it. {other}"
    )
