"""New releases on PyPI, files whose hash changed, and yanked releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from matrix.maintaining import CatalogUpdate
from matrix.maintaining.client import first_upload
from resolver.errors import EnvironmentLacksError
from resolver.facts import schema
from resolver.facts.catalog import is_elsewhere
from resolver.versions import version_or_none

if TYPE_CHECKING:
    from collections.abc import Iterable

    from matrix.maintaining.client import Client, Releases
    from resolver.facts.catalog import Catalog
    from resolver.indexes import File

_COPIED = "Copied from {known}; the requirements of {new} have not been checked."


def find_updates(catalog: Catalog, packages: Iterable[str], client: Client, index: str) -> CatalogUpdate:
    """Compare the releases of packages with the files on a package index.

    A package is skipped if the project of that name on PyPI is a different project. Only releases newer than
    all known ones are added, because the catalog leaves out older releases on purpose.
    """
    update = CatalogUpdate()
    for name in packages:
        known = [one for one in catalog.releases_of(name) if one.sdist or one.wheel or one.pypi]
        if catalog.package[name].pypi != "same" or not known:
            continue
        try:
            page = client.releases(index, name)
        except EnvironmentLacksError as error:
            update.unreachable.append((name, error.message))
            continue
        if page is None:
            update.remarks.append(
                f"{name}: the index does not have this project, but the catalog expects it."
            )
            continue
        _compare(catalog, known, page, update)
    return update


def _compare(catalog: Catalog, known: list[schema.Release], page: Releases, update: CatalogUpdate) -> None:
    files = {file.name: file for several in page.values() for file in several}
    for release in known:
        _check_known(catalog, release, files, update)
    newest = max(known, key=lambda release: Version(release.version))
    releases = (release for release in catalog.releases_of(newest.package) if not is_elsewhere(release))
    latest = max((release.version for release in releases), key=Version)
    for version, candidates in page.items():
        parsed = version_or_none(version)
        if parsed is None or parsed.is_prerelease or parsed <= Version(latest):
            continue
        if any(file.yanked is None for file in candidates):
            _add_release(catalog, newest, version, candidates, update)


def _check_known(
    catalog: Catalog, release: schema.Release, files: dict[str, File], update: CatalogUpdate
) -> None:
    """Check the hash of a pinned file, and whether its release was yanked."""
    name = f"{release.package} {release.version}"
    pin = release.sdist or release.wheel
    if pin is None:
        return
    file = files.get(pin.file)
    if file is None:
        update.remarks.append(f"{name}: the index no longer has {pin.file}.")
        return
    digest = file.sha256
    if digest and digest != pin.sha256:
        update.remarks.append(
            f"{name}: the SHA-256 of {pin.file} is {digest} on the index, but {pin.sha256} in the catalog."
        )
    if file.yanked is not None:
        reason = f": {file.yanked}" if file.yanked else ""
        row = schema.KnownBad(
            combination={release.package: f"=={release.version}"},
            problem=f"it was yanked on PyPI{reason}".rstrip(". \n"),
            status="documented",
            source=f"PyPI {name} (yanked, PEP 592)",
        )
        update.rows += [] if row.key() in catalog.known_bad else [row]


def _add_release(
    catalog: Catalog,
    newest: schema.Release,
    version: str,
    files: list[File],
    update: CatalogUpdate,
) -> None:
    """Add a release with a file of the same kind as the newest known release, and its likely requirements."""
    name = newest.package
    kind = "sdist" if newest.sdist else "wheel" if newest.wheel else ""
    pin = None
    if kind:
        similar = (file for file in files if _is_similar(file, newest))
        file = next((file for file in similar if file.sha256), None)
        if file is None:
            what = "sdist" if newest.sdist else "wheel like those of older releases"
            update.remarks.append(f"{name} {version} is on PyPI, but has no {what} with a SHA-256.")
            return
        pin = schema.Sdist(file.name, file.sha256)
    release = schema.Release(
        package=name,
        version=version,
        released=first_upload(files),
        backend=newest.backend,
        sdist=pin if newest.sdist else None,
        wheel=pin if newest.wheel else None,
        pypi=newest.pypi,
        status="documented",
        source=" ".join(filter(None, ("PyPI", kind, name, version))),
    )
    if release.sdist and not any(catalog.recipe_for(release, backend) for backend in release.backend):
        update.remarks.append(
            f"{name} {version} is on PyPI, but the catalog has no recipe for it, so it was skipped."
        )
        return
    update.rows.append(release)
    update.rows += copied_requirements(catalog, newest, release)


def _is_similar(file: File, known: schema.Release) -> bool:
    """Return whether a file has the kind, and for a wheel the tags, of a known release's file."""
    if known.sdist:
        return file.name.endswith((".tar.gz", ".zip"))
    tags = known.wheel.file.removesuffix(".whl").split("-")[-3:] if known.wheel else []
    own = file.name.removesuffix(".whl").split("-")[-3:]
    return file.name.endswith(".whl") and own[:2] == tags[:2] and _machine(own) == _machine(tags)


def _machine(tags: list[str]) -> str:
    """Return ``x86_64`` for every Linux tag of that machine, and the platform tag for others."""
    platform = tags[-1].split(".")[0]
    return "x86_64" if platform.endswith("x86_64") and "linux" in platform else platform


def copied_requirements(catalog: Catalog, known: schema.Release, new: schema.Release) -> list[schema.Row]:
    """Copy, as inferred, requirements of the newest known release that no row states for the new release."""
    note = _COPIED.format(known=f"{known.package} {known.version}", new=new.version)
    return [
        schema.Requires(
            package=row.package,
            releases=f"=={new.version}",
            variant=row.variant,
            backend=row.backend,
            on=row.on,
            versions=row.versions,
            kind=row.kind,
            when_present=row.when_present,
            status="inferred",
            source=row.source,
            note=note,
        )
        for row in catalog.requires
        if row.applies_to(known)
        and not any(
            other.applies_to(new) and (other.on, other.backend) == (row.on, row.backend)
            for other in catalog.requires
        )
    ]
