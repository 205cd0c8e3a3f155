"""What rows must mean together: they name only what exists, and do not contradict one another.

A row that breaks one of these is named with its file and line, and nothing is loaded.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from resolver.errors import CatalogError, did_you_mean
from resolver.facts.layers import place
from resolver.facts.values import triton_name
from resolver.model import PLATFORM

if TYPE_CHECKING:
    from collections.abc import Collection

    from resolver.facts import schema
    from resolver.facts.catalog import Catalog


def check_together(catalog: Catalog) -> None:
    """See that rows name only what exists, so that a typing error cannot hide a fact, and agree.

    Raises
    ------
    CatalogError
        With file and line of the row, and what was probably meant.
    """
    _references(catalog)
    _windows(catalog)
    _same_thing_same_answer(catalog)


def companions(catalog: Catalog) -> list[str]:
    """Give the names of torch and of the distributions that are published beside it."""
    tritons = {triton_name(row) for row in catalog.torch.values() if row.triton}
    return ["torch", "torchvision", "torchaudio", *sorted(tritons)]


def _references(catalog: Catalog) -> None:
    for site_image in catalog.site_image.values():
        _known(site_image, "image", site_image.image, catalog.image)
        _known(site_image, "site", site_image.site, catalog.site)
    for partition in catalog.partition.values():
        _known(partition, "site", partition.site, catalog.site)
    for window in catalog.window.values():
        _known(window, "site", window.site, catalog.site)
        _known(window, "driver", window.driver, catalog.driver)
    for release in catalog.release.values():
        _known(release, "package", release.package, catalog.package)
    for proven in catalog.proven.values():
        _known(proven, "site", proven.site or "local", catalog.site)
    _components(catalog)


def _components(catalog: Catalog) -> None:
    components = dict.fromkeys([*PLATFORM, *catalog.package, *companions(catalog)])
    for row in catalog.requires:
        _known(row, "package", row.package, catalog.package)
        _known(row, "component", canonicalize_name(row.on), components)
    for recipe in catalog.recipe:
        _known(recipe, "package", recipe.package, catalog.package)
    for bad in catalog.known_bad.values():
        for name in bad.combination:
            _known(bad, "component", name, components)
        for target in bad.gfx:
            _known(bad, "offload target", target, catalog.gfx)


def _known(row: schema.Row, kind: str, name: str, rows: Collection[str]) -> None:
    if name not in rows:
        msg = f"{place(row)}: the catalog has no {kind} {name!r}, but this row names it."
        raise CatalogError(msg, hint=did_you_mean(name, rows))


def _windows(catalog: Catalog) -> None:
    """See that a site has one driver at a time; a window without an end lasts until the next begins."""
    for site in catalog.site:
        for earlier, later in pairwise(catalog.windows_of(site)):
            if earlier.until is not None and earlier.until > later.since:
                msg = (
                    f"{place(later)}: {site} has driver {later.driver} from {later.since}, but by "
                    f"{place(earlier)} it has driver {earlier.driver} until {earlier.until}."
                )
                raise CatalogError(msg, hint=f"Let the earlier window end: until = {later.since}.")


def _same_thing_same_answer(catalog: Catalog) -> None:
    """One file has one hash, one path one image, one commit one version."""
    images: dict[str, schema.Image] = {}
    for image in catalog.image.values():
        if image.path:
            other = images.setdefault(image.path, image)
            if other is not image:
                _contradiction(image, other, f"the images {image.name} and {other.name} have the same path")
    hashes: dict[str, schema.Release] = {}
    commits: dict[tuple[str, str, str], schema.Release] = {}
    for release in catalog.release.values():
        file = release.sdist or release.wheel
        if file:
            first = hashes.setdefault(file.file, release)
            known = first.sdist or first.wheel
            if known and known.sha256 != file.sha256:
                _contradiction(release, first, f"{file.file} has two hashes")
        if release.git:
            of = (release.package, release.git.url, release.git.commit)
            first = commits.setdefault(of, release)
            if first.version != release.version:
                versions = f"{first.version} and {release.version}"
                _contradiction(
                    release, first, f"commit {release.git.commit[:12]} has two versions, {versions}"
                )


def _contradiction(row: schema.Row, other: schema.Row, what: str) -> None:
    msg = f"{place(row)} contradicts {place(other)}: {what}."
    raise CatalogError(msg)
