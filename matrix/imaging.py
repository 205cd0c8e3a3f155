"""The base image of a request: a name of the catalog, or a file or directory of this machine.

A file is looked into, and what is seen becomes a row of the catalog, over any row of the same name.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.errors import EnvironmentLacksError, UsageError, did_you_mean
from resolver.versions import shorten

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution


def image_name(given: str, catalog: Catalog) -> str:
    """Give the name under which the catalog and the lock know a base image.

    Parameters
    ----------
    given
        A name, or the path of a file or directory: its name where the catalog knows that (LUMI's end
        in ``.sif``), else its name without suffix.

    Raises
    ------
    EnvironmentLacksError
        It is an address of a registry.
    UsageError
        It is the path of nothing that is here, and the catalog knows no image of that name.
    """
    path = Path(given)
    if given in catalog.image and not _is_here(path):
        return given
    if path.name in catalog.image:
        return path.name
    if _is_here(path):
        return path.name.removesuffix(".sif").removesuffix(".tar") or path.name
    if "://" in given:
        msg = f"{given} is an address; a base image must be a file on this machine."
        raise EnvironmentLacksError(msg, hint=f"Pull it first: apptainer pull image.sif {given}")
    if "/" in given:
        msg = f"There is no file {shorten(given)}, and the catalog knows no base image {shorten(path.name)}."
        raise UsageError(msg, hint=did_you_mean(path.name, catalog.image))
    return given


def lay_image(given: str, catalog: Catalog, name: str = "") -> None:
    """Look into a base image of this machine and lay what is seen over the catalog.

    A name is left to the catalog, and so is the path of an image that is elsewhere.

    Parameters
    ----------
    given
        What ``--base-image`` says.
    name
        What it is called, where that is not what `image_name` says.

    Raises
    ------
    EnvironmentLacksError
        It cannot be read, or there is no runtime to look into it.
    UsageError
        It is no image.
    """
    path = Path(given)
    if not _is_here(path):
        return
    from builders.containers.facts import as_row
    from builders.containers.image import find_image
    from builders.containers.inspect import look_into

    facts = look_into(find_image(path, name or image_name(given, catalog)))
    catalog.image[facts.name] = as_row(facts, catalog)


def with_known_digest(resolution: Resolution) -> Resolution:
    """Add the digest of the chosen base image where its row says none and it was computed before.

    Tens of gigabytes are not read for it: resolving stays quick. Building computes it.
    """
    image = resolution.image
    if image is None or image.digest or not image.path.startswith("/") or not _is_here(Path(image.path)):
        return resolution
    from builders.containers.image import known_digest

    digest = known_digest(Path(image.path))
    return replace(resolution, image=replace(image, digest=digest))


def _is_here(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that is too long for a path, or a directory that may not be looked into
        return False
