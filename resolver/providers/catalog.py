"""The provider of the catalog: releases and recipes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.model import Candidate, Fact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Request


class CatalogProvider:
    """The releases of the catalog as candidates, and its rows as requirements."""

    def __init__(self, catalog: Catalog, request: Request) -> None:
        self._catalog = catalog
        self._backend = request.target.backend
        self._no_prebuilt = request.no_prebuilt

    def candidates(self, name: str) -> Sequence[Candidate]:
        """Return a candidate for each release; without the published ones if the request wants builds."""
        catalog = self._catalog
        candidates = [
            candidate_of(
                release,
                catalog.recipe_for(release, self._backend),
                inferred_from=catalog.inferred.get(release.key(), ""),
            )
            for release in catalog.releases_of(name)
        ]
        if self._no_prebuilt and any(map(self._is_built, candidates)):
            return [candidate for candidate in candidates if candidate.origin == "build"]
        return candidates

    def requirements(self, candidate: Candidate) -> Sequence[schema.Requires]:
        """Return the rows that apply to a release."""
        release = candidate.release
        rows = self._catalog.requires_of(candidate.name)
        return [row for row in rows if release is not None and row.applies_to(release)]

    def _is_built(self, candidate: Candidate) -> bool:
        release = candidate.release
        return bool(candidate.recipe and release and self._backend in release.backend) and (
            candidate.origin == "build"
        )


def candidate_of(
    release: schema.Release, recipe: schema.Recipe | None, *, inferred_from: str = ""
) -> Candidate:
    """Return the candidate for a release."""
    return Candidate(
        release.package,
        release.version,
        "distribution",
        "published" if release.is_published else "build",
        Fact.of(release, _origin_text(release)),
        variant=release.variant,
        index=release.index,
        release=release,
        recipe=recipe,
        inferred_from=inferred_from,
    )


def _origin_text(release: schema.Release) -> str:
    name = f"{release.package} {release.version}"
    if release.git:
        return f"{name} is {release.git.url} at {release.git.commit[:12]}"
    if release.sdist:
        return f"{name} is the sdist {release.sdist.file}"
    if release.wheel:
        return f"{name} is published as {release.wheel.file}"
    place = release.wheels[0].url.rpartition("/")[0] if release.wheels else release.index
    return f"{name} is published {f'at {place}' if place else 'on PyPI'}"
