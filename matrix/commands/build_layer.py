"""``matrix build-layer``: what a base image lacks, as one file to mount over it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.image import is_local
from builders.containers.sbom import is_sbom
from matrix.building import work
from matrix.consumers.venv import LAYER
from resolver.errors import EnvironmentLacksError, LockError
from resolver.lock import read_lock
from resolver.model import IMAGE, Resolution

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context
    from resolver.model import BaseImage

SUMMARY = "from a request to a verified layer over an image, which holds only what the image lacks"
EXAMPLE = "matrix build-layer extras.sqsh einops transformers --base-image lumi-multitorch.sif"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    work.add_arguments(parser, "the layer, such as extras.sqsh")
    parser.add_argument(
        "--lock", metavar="FILE", type=Path, help="the lock (default: OUT.lock, such as extras.lock)"
    )
    parser.set_defaults(consumer="venv")


def execute(context: Context) -> int:
    """Run the command."""
    lock = context.args.lock or context.args.out.with_suffix(".lock")
    kept = context.settings.keep_installed or IMAGE
    return work.make(_with_image(context.with_options(lock=lock, keep_installed=kept)), LAYER)


def _with_image(context: Context) -> Context:
    """Return a context with a base image: the requested one, that of the lock, or the site's for the request.

    Everything in an image is known only if its file is read. So the image that the catalog's facts lead to is
    named, and the request is resolved again with its content.
    """
    given = context.settings.base_image
    if given and is_sbom(Path(given)) and not context.args.dry_run:
        msg = f"{given} is the list of an image's content, and a layer is installed in the image itself."
        raise EnvironmentLacksError(msg, hint="Name the image with --base-image, or add --dry-run.")
    if given or context.args.cancel:
        return context
    image = _image_of_lock(context)
    if image is None:
        if not context.settings.has_requirements:
            return context  # what is missing is said there
        answer = context.resolve()
        image = answer.image if isinstance(answer, Resolution) else None
    if image is None:
        return context
    if is_local(Path(image.path)):
        return context.with_options(base_image=image.path)
    if context.args.dry_run:
        context.console.warning(
            f"{image.name} is not on this machine. The plan uses only what the catalog records of it."
        )
        return context
    msg = f"The base image {image.name} is not on this machine, so nothing can be installed over it."
    raise EnvironmentLacksError(msg, hint="Name the file of an image that is: --base-image IMAGE.sif.")


def _image_of_lock(context: Context) -> BaseImage | None:
    try:
        return read_lock(context.lock_path).image if context.lock_path.exists() else None
    except LockError:
        return None  # the command resolves again, or reports it
