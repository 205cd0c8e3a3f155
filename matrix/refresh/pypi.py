"""Releases on PyPI that the catalog does not have, hashes that differ, releases that were yanked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from matrix.refresh.learned import Learned
from matrix.refresh.simple import files_by_version, project_page
from resolver.errors import EnvironmentLacksError
from resolver.facts import schema
from resolver.facts.catalog import applies, recipe_for

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pypi_simple import DistributionPackage, ProjectPage

    from matrix.refresh.web import Web
    from resolver.facts.catalog import Catalog

_COPIED = "Copied from {old}: nobody has read what {new} needs."


def learn(catalog: Catalog, packages: Iterable[str], web: Web, index: str) -> Learned:
    """Compare the releases of packages with what the index has.

    Only packages whose PyPI project is the same are asked for (a name can belong to another project),
    and only releases newer than every known one are new: an older one that the catalog lacks was left
    out for a reason.
    """
    learned = Learned()
    for name in packages:
        if catalog.package[name].pypi != "same" or not any(_pinned(one) for one in catalog.releases_of(name)):
            continue
        try:
            page = project_page(web, index, name)
        except EnvironmentLacksError as error:
            learned.unreachable.append(f"{name}: {error.message}")
            continue
        if page is None:
            learned.remarks.append(f"The index has no project {name}, though the catalog says so.")
            continue
        _compare(catalog, name, page, learned)
    return learned


def _pinned(release: schema.Release) -> bool:
    return bool(release.sdist or release.wheel or release.pypi)


def _compare(catalog: Catalog, name: str, page: ProjectPage, learned: Learned) -> None:
    known = [one for one in catalog.releases_of(name) if _pinned(one)]
    files = {package.filename: package for package in page.packages}
    for release in known:
        _look_again(catalog, release, files, learned)
    newest = max(known, key=lambda one: Version(one.version))
    latest = max((one.version for one in catalog.releases_of(name)), key=Version)
    for version, packages in files_by_version(page, ["sdist", "wheel"]).items():
        if _is_newer(version, latest) and not all(one.is_yanked for one in packages):
            _new_release(catalog, newest, version, packages, learned)


def _look_again(
    catalog: Catalog, release: schema.Release, files: dict[str, DistributionPackage], learned: Learned
) -> None:
    name = f"{release.package} {release.version}"
    pin = release.sdist or release.wheel
    if pin is None:
        return
    found = files.get(pin.file)
    if found is None:
        learned.remarks.append(f"{name}: the index no longer has {pin.file}.")
        return
    digest = (found.digests or {}).get("sha256", "")
    if digest and digest != pin.sha256:
        learned.remarks.append(
            f"{name}: the index gives another sha256 for {pin.file}, {digest}; the catalog has {pin.sha256}."
        )
    if found.is_yanked:
        reason = f": {found.yanked_reason}" if found.yanked_reason else ""
        row = schema.KnownBad(
            combination={release.package: f"=={release.version}"},
            problem=f"it was yanked on PyPI{reason}".rstrip(". \n"),
            status="documented",
            source=f"PyPI {name} (yanked, PEP 592)",
        )
        learned.rows += [] if row.key() in catalog.known_bad else [row]


def _is_newer(version: str, than: str) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        return False
    return parsed > Version(than) and not parsed.is_prerelease


def _new_release(
    catalog: Catalog,
    newest: schema.Release,
    version: str,
    packages: list[DistributionPackage],
    learned: Learned,
) -> None:
    """Write a release of the kind that the newest known one is, and what it probably needs."""
    name = newest.package
    source = f"PyPI {name} {version}"
    if newest.pypi:
        release = schema.Release(
            package=name,
            version=version,
            pypi=True,
            backend=newest.backend,
            status="documented",
            source=source,
        )
    else:
        wanted = [one for one in packages if _alike(one.filename, one.package_type, newest)]
        file = next((one for one in wanted if (one.digests or {}).get("sha256")), None)
        if file is None:
            kind = "sdist" if newest.sdist else "wheel of that kind"
            learned.remarks.append(f"{name} {version} is on PyPI, but without a {kind} with a sha256.")
            return
        pin = schema.Sdist(file.filename, (file.digests or {})["sha256"])
        release = schema.Release(
            package=name,
            version=version,
            backend=newest.backend,
            sdist=pin if newest.sdist else None,
            wheel=pin if newest.wheel else None,
            status="documented",
            source=f"PyPI {'sdist' if newest.sdist else 'wheel'} {name} {version}",
        )
    if release.sdist and not any(recipe_for(catalog, release, backend) for backend in release.backend):
        learned.remarks.append(
            f"{name} {version} is on PyPI; no recipe of the catalog speaks of it, so it was left out."
        )
        return
    learned.rows.append(release)
    learned.rows += _needs(catalog, newest, release)


def _alike(file: str, kind: str | None, known: schema.Release) -> bool:
    """Tell whether a file is of the kind of a known one: the same tags, for a wheel."""
    if known.sdist:
        return kind == "sdist" and file.endswith((".tar.gz", ".zip"))
    tags = known.wheel.file.removesuffix(".whl").split("-")[-3:] if known.wheel else []
    ours = file.removesuffix(".whl").split("-")[-3:]
    return kind == "wheel" and ours[:2] == tags[:2] and ours[2:] != [] and _machine(ours) == _machine(tags)


def _machine(tags: list[str]) -> str:
    """Give the last part of a platform tag, such as ``x86_64``: the glibc in it may change."""
    platform = tags[-1].split(".")[0]
    return "x86_64" if platform.endswith("x86_64") and "linux" in platform else platform


def _needs(catalog: Catalog, known: schema.Release, new: schema.Release) -> list[schema.Row]:
    """Copy what the newest known release needs, where no row speaks of the new one, as inferred."""
    rows: list[schema.Row] = []
    for row in catalog.requires:
        if applies(row, known) and not any(
            applies(other, new) and (other.on, other.backend) == (row.on, row.backend)
            for other in catalog.requires
        ):
            old = f"{known.package} {known.version}"
            note = _COPIED.format(old=old, new=new.version)
            rows.append(
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
            )
    return rows
