"""Shipped rows that lack a fact."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from resolver.facts import schema
from resolver.facts.schema import NETWORK_PLUGIN
from resolver.versions import minor, satisfies, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.facts.catalog import Catalog

_FUTURE = "9999"
"""A version that only specifiers without an upper bound allow."""
_NEWEST_CXX_STANDARD = 20
"""The C++ standard that the newest torch needs; a recipe with an older one has an upper bound on torch."""
_NEWER_TORCHES = 2
"""A release without an upper bound may have been observed with a torch this many minor versions old."""


def incomplete_rows(catalog: Catalog) -> Iterator[tuple[schema.Row, str, str]]:
    """Yield each shipped row that lacks a fact, with what it lacks and what to add; it can be used."""
    rows: list[schema.Torch | schema.Release | schema.Rocm | schema.Python] = [
        *catalog.torch.values(),
        *catalog.release.values(),
        *catalog.rocm.values(),
        *catalog.python.values(),
    ]
    for row in rows:
        if row.released is None and _is_shipped(row):
            yield (
                row,
                f"{row.title} has no release date",
                "Add `released`, the day of its upload, tag or commit, or on which it was seen first.",
            )
    for recipe in catalog.recipe:
        if not recipe.core_hours and _is_shipped(recipe):
            yield (
                recipe,
                f"the recipe {recipe.title} has no core hours",
                "Add `core-hours`, measured or derived, with its origin in the note.",
            )
    torches = sorted({minor(version) for version in catalog.torch}, key=sort_key)
    for release in catalog.release.values():
        known = _is_shipped(release) and _newest_torch_without_bound(catalog, release)
        if known and known in torches and torches.index(known) < len(torches) - 1 - _NEWER_TORCHES:
            yield (
                release,
                f"{release.title} has no upper bound on torch or ROCm, and its newest torch is {known}",
                "Add a row that limits torch to the versions with which it is known to work.",
            )


def _is_shipped(row: schema.Row) -> bool:
    return row.from_file.startswith(schema.FOLDER)


def _newest_torch_without_bound(catalog: Catalog, release: schema.Release) -> str:
    """Return the newest torch line with which a release was observed, else the newest of its day.

    It is empty if the release has an upper bound on torch or ROCm, or is not compiled against torch.
    """
    recipe = catalog.recipe_for(release, "rocm")
    if release.is_published or recipe is None or "torch" not in recipe.match_runtime:
        return ""
    if release.package == NETWORK_PLUGIN:  # RCCL loads it; nothing in it depends on torch
        return ""
    rows = [
        row
        for row in catalog.requires
        if row.applies_to(release) and row.backend in {None, "rocm"} and not row.partial
    ]
    own = {row.on for row in rows if row.variant}
    rows = [row for row in rows if row.variant or row.on not in own]
    for name in ("torch", "rocm"):
        bounds = [text for row in rows if row.on == name for text in row.versions]
        if bounds and not any(satisfies(_FUTURE, text) for text in bounds):
            return ""
    if recipe.cxx_standard and int(recipe.cxx_standard) < _NEWEST_CXX_STANDARD:
        return ""
    observed = [row for row in rows if row.on == "torch" and row.status == "observed" and row.kind == "build"]
    torches = [
        torch
        for torch in catalog.torch.values()
        if (torch.released or datetime.date.max) <= (release.released or datetime.date.min)
        or any(satisfies(torch.version, text) for row in observed for text in row.versions)
    ]
    return max((minor(torch.version) for torch in torches), key=sort_key, default="")
