"""Wheels that were built with this program and published on a configured index.

Their local version label contains the ROCm, torch and GPU architectures that they were built for. They are
releases like any other that PyPI does not have, so a site that shares an index compiles each extension once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.facts import schema
from resolver.facts.catalog import recipe_for
from resolver.indexes import uploaded_by
from resolver.providers.catalog import candidate_of
from resolver.requirements import PAIRED_WITH_TORCH
from resolver.versions import built_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes, ProjectRelease
    from resolver.model import Candidate, Request
    from resolver.versions import BuiltFor


class LabelledProvider:
    """Labelled wheels on the user's indexes as candidates, with what their labels say as requirements.

    A single index is not queried: it is usually PyPI, which rejects labels and may have other projects of the
    same names.
    """

    def __init__(self, catalog: Catalog, request: Request, indexes: PackageIndexes) -> None:
        self._catalog = catalog
        self._target = request.target
        self._indexes = indexes
        self._labels: dict[tuple[str, str], tuple[BuiltFor, str]] = {}
        """By name and version, the label and the index of each wheel."""

    def candidates(self, name: str) -> Sequence[Candidate]:
        """Return the labelled wheels of a package with a recipe that are built for the target."""
        backend = self._target.backend
        if name in {"torch", *PAIRED_WITH_TORCH} or not any(
            recipe_for(self._catalog, row, backend) for row in self._catalog.releases_of(name)
        ):
            return []
        found: dict[str, Candidate] = {}
        urls = self._indexes.urls
        for url in urls if len(urls) > 1 else ():
            project = self._indexes.at(url).project(name)
            for published in project.releases if project else ():
                label = built_for(published.version)
                if label is None or label.backend != backend or not {*self._target.gfx} <= {*label.gfx}:
                    continue
                if uploaded_by(published.files, self._target.date):
                    release = _release(name, published, url, backend)
                    found[release.version] = candidate_of(release, None)
                    self._labels[name, release.version] = label, url
        return list(found.values())

    def requirements(self, candidate: Candidate) -> Sequence[schema.Requires]:
        """Return what the label of a wheel says."""
        label, url = self._labels[candidate.name, candidate.version]
        return list(_requirements(candidate.name, candidate.version, label, url))


def _release(name: str, published: ProjectRelease, index: str, backend: schema.Backend) -> schema.Release:
    return schema.Release(
        package=name,
        version=published.version,
        backend=(backend,),
        index=index,
        status="observed",
        source=f"{index}/{name}/",
    )


def _requirements(name: str, version: str, label: BuiltFor, index: str) -> Iterator[schema.Requires]:
    stated: dict[str, tuple[str, ...]] = {
        "torch": (f"=={label.torch}",) if label.torch else (),
        "rocm": (f"=={label.rocm}.*",) if label.rocm else (),
        "gfx": label.gfx,
    }
    for on, versions in stated.items():
        if not versions:
            continue
        yield schema.Requires(
            package=name,
            releases=f"=={version}",
            on=on,
            versions=versions,
            status="observed",
            source=f"{index}/{name}/",
            note="From its local version label.",
        )
