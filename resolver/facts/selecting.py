"""Which rows of a package speak of which of its releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.versions import satisfies

if TYPE_CHECKING:
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog


def applies(row: schema.Requires | schema.Recipe, release: schema.Release) -> bool:
    """Tell whether a row speaks of this release of its package."""
    return (
        row.package == release.package
        and (row.variant is None or row.variant == release.variant)
        and (not row.releases or satisfies(release.version, row.releases))
    )


def recipe_for(catalog: Catalog, release: schema.Release, backend: str) -> schema.Recipe | None:
    """Find the recipe that builds a release for a backend; the last that fits wins."""
    found = None
    for row in catalog.recipes_of(release.package):
        if row.backend == backend and applies(row, release):
            found = row
    return found
