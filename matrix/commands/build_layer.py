"""``matrix build-layer``: what a base image lacks, as one file to mount over it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.containers.image import image_name, is_local
from builders.containers.sbom import is_sbom
from matrix.building import work
from matrix.command_line.arguments import request_arguments
from matrix.command_line.options import defaults_of
from matrix.consumers.venv import LAYER
from matrix.input.locking import overlays_of, read_earlier
from resolver.errors import EnvironmentLacksError, UsageError
from resolver.facts.schema import PLATFORM
from resolver.model import IMAGE, Resolution

if TYPE_CHECKING:
    import argparse

    from matrix.command_line.context import Context

SUMMARY = "from a request to a verified layer over an image, which holds only what the image lacks"
EXAMPLE = "matrix build-layer extras.sqsh einops transformers --base-image lumi-multitorch.sif"
MOST_USED = ("--site", "--dry-run", "--account", "--base-image", "--executor")


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
    return work.make(context.with_options(lock=lock, keep_installed=kept), LAYER, _prepared)


def _prepared(context: Context) -> Context:
    """Return a context with a base image: the requested one, that of the lock, or the site's for the request.

    Everything in an image is known only if its file is read. So the image that the catalog's facts lead to is
    named, and the request is resolved again with its content.
    """
    settings, dry_run = context.settings, context.args.dry_run
    given, lock = settings.base_image, read_earlier(context.lock_path)
    if given and is_sbom(Path(given)) and not dry_run:
        msg = f"{given} is the list of an image's content, and a layer is installed in the image itself."
        raise EnvironmentLacksError(msg, hint="Name the image with --base-image, or add --dry-run.")
    if given:
        return context if lock is None or settings.has_requirements else _moved(context, lock, given)
    answer = context.resolve() if lock is None or (settings.has_requirements and not lock.image) else lock
    image = answer.image if isinstance(answer, Resolution) else None
    if image is None:
        return context
    if is_local(Path(image.path)):
        return context.with_options(base_image=image.path)
    if dry_run:
        context.console.warning(
            f"{image.name} is not on this machine. The plan uses only what the catalog records of it."
        )
        return context
    msg = f"The base image {image.name} is not on this machine, so nothing can be installed over it."
    raise EnvironmentLacksError(msg, hint="Name the file of an image that is: --base-image IMAGE.sif.")


def _moved(context: Context, lock: Resolution, given: str) -> Context:
    """Return a context with the request of the lock, for another image.

    ROCm, Python and torch are then those of the image, so requirements on ROCm and Python are left out.
    """
    if image_name(given, context.catalog) == lock.target.base_image:
        return context
    if lock.request.constraints or lock.request.overrides:
        msg = f"{context.lock_path} was resolved with constraints or overrides, whose files are not in it."
        raise UsageError(msg, hint="Repeat the whole command with the other image.")
    own = tuple(one for one in lock.request.requirements if one.name not in PLATFORM)
    facts = overlays_of(lock, context.lock_path)
    words = request_arguments(
        replace(lock.request, requirements=own), date=None, base_image=given, catalog=facts
    )
    values = defaults_of(sys.modules[__name__], str(context.args.out), *words)
    missing = {
        name: value for name, value in values.items() if value and not getattr(context.args, name, True)
    }
    return context.with_options(**missing)
