"""Wheels that were built with this program and published on a configured index.

Their local version label contains the ROCm, torch and GPU architectures that they were built for. They are
releases like any other that PyPI does not have, so a site that shares an index compiles each extension once.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.clauses import PAIRED_WITH_TORCH
from resolver.compiling.problem_builder import reachable
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.facts import schema
from resolver.facts.catalog import recipe_for
from resolver.indexes import uploaded_by
from resolver.label import built_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes, Release
    from resolver.label import BuiltFor
    from resolver.model import Request


def with_labelled_wheels(catalog: Catalog, request: Request, indexes: PackageIndexes) -> Catalog:
    """Return a catalog with the labelled wheels that the indexes have for the target and the request.

    The first index is not queried: it is usually PyPI, which rejects labels and may have other projects of
    the same names.
    """
    target = request.target
    reached = reachable(catalog, target.backend, [row.name for row in request.requirements])
    names = [
        name
        for name in sorted(reached & catalog.package.keys() - {"torch", *PAIRED_WITH_TORCH})
        if any(recipe_for(catalog, row, target.backend) for row in catalog.releases_of(name))
    ]
    releases: list[schema.Release] = []
    requires: list[schema.Requires] = []
    for name, url in product(names, indexes.urls[1:]):
        try:
            project = indexes.at(url).project(name)
        except (EnvironmentLacksError, SourceError):
            continue  # if the project is needed, the search reports the error
        for published in project.releases if project else ():
            label = built_for(published.version)
            if label is None or label.backend != target.backend or not {*target.gfx} <= {*label.gfx}:
                continue
            if uploaded_by(published.files, target.date):
                releases.append(_release(name, published, url, target.backend))
                requires += _requirements(name, published.version, label, url)
    if not releases:
        return catalog
    return replace(
        catalog,
        release=catalog.release | {row.key(): row for row in releases},
        requires=[*catalog.requires, *requires],
    )


def _release(name: str, published: Release, index: str, backend: schema.Backend) -> schema.Release:
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
