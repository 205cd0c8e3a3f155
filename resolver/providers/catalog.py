"""The releases of the catalog as candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.model import Candidate, Fact

if TYPE_CHECKING:
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Request


def candidates_of(catalog: Catalog, request: Request, name: str) -> list[Candidate]:
    """Return a candidate for each release of the catalog; only builds if the request wants them."""
    backend = request.target.backend
    candidates = [
        candidate_of(
            release,
            catalog.recipe_for(release, backend),
            inferred_from=catalog.inferred.get(release.key(), ""),
        )
        for release in catalog.releases_of(name)
    ]
    built = [one for one in candidates if one.origin == "build"]
    has_recipe = any(one.recipe and one.release and backend in one.release.backend for one in built)
    return built if request.no_prebuilt and has_recipe else candidates


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
