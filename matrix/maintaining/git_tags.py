"""New tags of the git repositories that packages are built from (``git ls-remote``)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec
from packaging.version import Version

from builders.network.git import Repository
from builders.network.urls import mirrored, without_password
from matrix.maintaining import CatalogUpdate
from matrix.maintaining.pypi import copied_requirements
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.facts import schema
from resolver.facts.catalog import is_elsewhere
from resolver.versions import version_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resolver.facts.catalog import Catalog

_TAG = re.compile(r"v?(\d+(\.\d+)+(\.?post\d+)?)")


def find_updates(catalog: Catalog, packages: Iterable[str], mirrors: Mapping[str, str]) -> CatalogUpdate:
    """Return the tags that are newer than every known release of their package.

    Only packages whose newest release without a variant comes from git are looked up. Releases of other
    packages are those on PyPI or of a fork. Wheels that others compiled are not compared.
    """
    update = CatalogUpdate()
    for name in packages:
        releases = [row for row in catalog.releases_of(name) if not row.variant and not is_elsewhere(row)]
        newest = max(releases, key=lambda row: Version(row.version), default=None)
        git = newest.git if newest else None
        if newest is None or git is None:
            continue
        try:
            tags = Repository(git.url).tags(mirrors)
        except EnvironmentLacksError as error:
            address = without_password(mirrored(git.url, mirrors))
            reason = error.message.partition("\n")[0].replace(address, "the repository")
            update.unreachable.append((git.url, reason))
        except SourceError as error:
            update.remarks.append(f"{name}: {error.message}")
        else:
            _add_new(catalog, newest, git, tags, update)
    return update


def _add_new(
    catalog: Catalog,
    newest: schema.Release,
    git: schema.Git,
    tags: Mapping[str, str],
    update: CatalogUpdate,
) -> None:
    releases = (row for row in catalog.releases_of(newest.package) if not is_elsewhere(row))
    latest = max(Version(row.version) for row in releases)
    for tag, commit in tags.items():
        match = _TAG.fullmatch(tag)
        version = version_or_none(match[1]) if match else None
        if version is None or version <= latest:
            continue
        release = schema.Release(
            package=newest.package,
            version=str(version),
            backend=newest.backend,
            git=msgspec.structs.replace(git, commit=commit),
            status="documented",
            source=f"{git.url} tag {tag}",
            note=f"Submodules as of {newest.version}." if git.submodules else "",
        )
        if not any(catalog.recipe_for(release, backend) for backend in release.backend):
            update.remarks.append(
                f"{newest.package} {version} has the tag {tag}, but the catalog has no recipe for it, "
                "so it was skipped."
            )
            continue
        update.rows.append(release)
        update.rows += copied_requirements(catalog, newest, release)
