"""Releases that the catalog does not list, with the facts of the nearest older release.

Facts over ranges apply to every release in them. If no row has a fact for a release, the fact is copied from
the nearest older release, with status ``inferred``. A release older than all that the catalog lists has the
facts of the oldest, and is offered only if the request allows no listed release.
"""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.known_bad import bad_releases
from resolver.errors import NoVersionError
from resolver.facts.catalog import closed_names, is_elsewhere
from resolver.facts.schema import Release, Sdist
from resolver.indexes import uploaded_by
from resolver.providers.catalog import candidate_of
from resolver.providers.installed import installed_names
from resolver.requirements import closest_versions, normalize_name
from resolver.versions import (
    Versions,
    bounds_cross,
    grouped,
    is_plain,
    newest_first,
    parse_specifier,
    satisfies,
    shorten,
    version_key,
    version_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import date

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend, Recipe, Requires
    from resolver.indexes import File, PackageIndexes, Project, ProjectRelease
    from resolver.model import Candidate, Distribution, Request, Requirement, Resolution
    from resolver.versions import Specifier


class InferredProvider:
    """Releases that only an index lists, as candidates; their pages are fetched when these are asked for."""

    def __init__(self, catalog: Catalog, request: Request, indexes: PackageIndexes) -> None:
        self._catalog = catalog
        self._request = request
        self._indexes = indexes
        self._backend = request.target.backend
        self._closed = closed_names(catalog, self._backend)
        self._wider: dict[str, Catalog] = {}

    def start(self, names: Iterable[str]) -> None:
        """Start to fetch the pages of projects."""
        for name in names:
            if self._counts(name):
                self._indexes.submit(partial(self._indexes.project, name))

    def candidates(self, name: str) -> Sequence[Candidate]:
        """Return the releases of a package that the catalog does not list."""
        if not self._counts(name):
            return []
        wider = self._with_releases(name)
        rows = (
            row
            for row in wider.releases_of(name)
            if row.key() in wider.inferred and row.key() not in self._catalog.inferred
        )
        return [
            candidate_of(row, wider.recipe_for(row, self._backend), inferred_from=wider.inferred[row.key()])
            for row in rows
        ]

    def requirements(self, candidate: Candidate) -> Sequence[Requires]:
        """Return the facts that are copied from the nearest older release."""
        copied = self._with_releases(candidate.name).requires[len(self._catalog.requires) :]
        return [row for row in copied if row.releases == f"=={candidate.version}"]

    def check(self) -> None:
        """Check that some release matches each requirement of the request on a package of the catalog."""
        for requirement in self._request.requirements:
            name = requirement.name
            if not self._allows_none(requirement) or not self._is_on_index(name):
                continue
            wider = self._with_releases(name)
            if not requirement.marker and _is_unmatched(wider, self._request, requirement):
                project = self._indexes.project(name)
                if project and self._is_excluded(requirement, project):
                    continue  # the search says why
                raise self._no_release(requirement, project)

    def _no_release(self, requirement: Requirement, project: Project | None) -> NoVersionError:
        name, text, specifier = requirement.name, shorten(requirement.text), requirement.specifier
        known = {row.version for row in self._catalog.releases_of(name)}
        asked = f"Searched: {', '.join(self._indexes.urls)}."
        if project is None:
            msg = f"No known version of {name} matches {text!r}, and no index has the project."
            return NoVersionError(msg, name, hint=f"{_closest(requirement, known)} {asked}")
        releases = project.releases
        published = next((row for row in releases if specifier and specifier.allows(row.version)), None)
        if published is None:
            msg = f"No version of {name} matches {text!r}, neither in the catalog nor on an index."
            known.update(row.version for row in releases)
            hint = f"{_closest(requirement, known)} {asked}"
            return NoVersionError(msg, name, hint=hint, is_published=bool(releases))
        reason = _obstacle(self._catalog, name, published, self._request)
        what = f"{name} {published.version}"
        msg = f"The catalog does not list {what}, and its facts cannot be inferred: {reason}."
        return NoVersionError(msg, name, hint=_closest(requirement, known))

    def _counts(self, name: str) -> bool:
        """Return whether releases of a package may be inferred for the request."""
        return name in self._closed and self._is_on_index(name)

    def _with_releases(self, name: str) -> Catalog:
        wider = self._wider.get(name)
        if wider is None:
            wider, project = self._catalog, self._indexes.project(name)
            if project is not None:
                stated = (*self._request.requirements, *self._request.constraints)
                wider = infer_releases(
                    self._catalog,
                    name,
                    project,
                    self._backend,
                    until=self._request.target.date,
                    older=[one.specifier for one in stated if one.name == name and self._allows_none(one)],
                )
            self._wider[name] = wider
        return wider

    def _is_on_index(self, name: str) -> bool:
        """Return whether a package is the project of this name on PyPI, and has releases from there."""
        package = self._catalog.package.get(name)
        return (
            package is not None
            and package.pypi == "same"
            and any(
                self._backend in row.backend and not row.variant and row.git is None and not is_elsewhere(row)
                for row in self._catalog.releases_of(name)
            )
        )

    def _is_excluded(self, requirement: Requirement, project: Project) -> bool:
        """Return whether the catalog excludes a release that a requirement allows."""
        name, specifier = requirement.name, requirement.specifier
        rows = bad_releases(self._catalog, self._request.target).get(name, ())
        allowed = [one.version for one in project.releases if specifier and specifier.allows(one.version)]
        return any(satisfies(version, row.combination[name]) for version in allowed for row in rows)

    def _allows_none(self, requirement: Requirement) -> bool:
        """Return whether a requirement on a package allows no release that the catalog lists."""
        return _is_unmatched(self._catalog, self._request, requirement)


def infer_releases(
    catalog: Catalog,
    name: str,
    project: Project,
    backend: Backend,
    *,
    until: date | None = None,
    older: Sequence[Specifier | None] = (),
) -> Catalog:
    """Return a catalog that also has the final releases of a project that were missing for a backend.

    A release is added if the catalog has an older release that also comes from an index: with wheels if the
    older release has wheels, else with an sdist. Releases on an index cannot be matched with commits. `until`
    is the last day whose files count; all files if None. Of the releases before all that the catalog lists,
    those that one of `older` allows are added.
    """
    below = _ReleasesBelow(catalog, name, backend)
    pairs = []
    for published in project.releases:
        if not _is_final(published.version) or below.knows(published.version):
            continue
        is_named = any(one is not None and one.allows(published.version) for one in older)
        neighbour = below.nearest(published.version, or_oldest=is_named)
        row = _row(published, neighbour, backend, until) if neighbour else None
        if neighbour and row:
            pairs.append((row, neighbour))
    return _with_facts(catalog, name, pairs, backend)


def with_releases_of(catalog: Catalog, lock: Resolution, *, drafts: bool = True) -> Catalog:
    """Return a catalog with a lock's inferred releases and, with `drafts`, those with a drafted recipe."""
    backend = lock.target.backend
    for pick in lock.distributions:
        if drafts and pick.recipe is not None:
            catalog = _with_recipe(catalog, pick, pick.recipe)
        if not _is_inferred(catalog, pick):
            continue
        neighbour = _ReleasesBelow(catalog, pick.name, backend).nearest(pick.version, or_oldest=True)
        if neighbour and neighbour.git is None:
            row = _like(neighbour, pick.version, backend, pick.sdist, pick.facts[0].source)
            catalog = _with_facts(catalog, pick.name, [(row, neighbour)], backend)
    return catalog


def _with_recipe(catalog: Catalog, pick: Distribution, recipe: Recipe) -> Catalog:
    row = Release(
        package=pick.name,
        version=pick.version,
        variant=pick.variant,
        backend=(recipe.backend,),
        sdist=pick.sdist,
        git=pick.git,
        status="inferred",
        source=recipe.source,
    )
    release = {row.key(): row} | catalog.release
    return replace(catalog, release=release, recipe=[*catalog.recipe, recipe])


def _is_inferred(catalog: Catalog, pick: Distribution) -> bool:
    return (
        pick.origin in {"published", "build"}
        and pick.git is None
        and pick.name in catalog.package
        and (pick.name, pick.version, pick.variant) not in catalog.release
        and bool(pick.facts)
        and pick.facts[0].status == "inferred"
    )


def _is_unmatched(catalog: Catalog, request: Request, requirement: Requirement) -> bool:
    name, specifier = requirement.name, requirement.specifier
    if specifier is None or name not in catalog.package or bounds_cross(specifier):
        return False
    rows = catalog.releases_of(name)
    return (
        not any(specifier.allows(row.version) for row in rows)
        and not {row.variant for row in rows} & {*requirement.extras}
        and name not in installed_names(catalog, request)
    )


def _closest(requirement: Requirement, versions: Iterable[str]) -> str:
    return closest_versions(requirement, newest_first({*versions}))


def _obstacle(catalog: Catalog, name: str, published: ProjectRelease, request: Request) -> str:
    backend, until = request.target.backend, request.target.date
    if not _is_final(published.version):
        return "pre-releases and versions with a local label must be listed"
    neighbour = _ReleasesBelow(catalog, name, backend).nearest(published.version, or_oldest=True)
    if neighbour is None or neighbour.git is not None:
        which = f"the nearest release{f', {neighbour.version},' if neighbour else ''}"
        return f"{which} is built from a commit, not from the index"
    if not _usable(published.files, None):
        return "it was yanked"
    if not _usable(published.files, until):
        return f"it was published after {until}"
    kind = "sdist with a SHA-256" if neighbour.sdist else "wheel"
    return f"it has no {kind}, unlike the nearest release ({neighbour.version})"


def _is_final(version: str) -> bool:
    if is_plain(version):
        return True
    parsed = version_or_none(version)
    return parsed is not None and not parsed.is_prerelease and parsed.local is None


class _ReleasesBelow:
    """The releases of a package in the catalog, to find the nearest one."""

    def __init__(self, catalog: Catalog, name: str, backend: Backend) -> None:
        rows = {
            version_key(row.version): row
            for row in catalog.releases_of(name)
            if not row.variant and version_or_none(row.version)
        }
        self._known = rows.keys()
        self._rows = {
            key: row
            for key, row in sorted(rows.items())
            if backend in row.backend and row.key() not in catalog.inferred and not is_elsewhere(row)
        }
        self._keys = list(self._rows)

    def knows(self, version: str) -> bool:
        return version_key(version) in self._known

    def nearest(self, version: str, *, or_oldest: bool = False) -> Release | None:
        """Return the nearest older release; if there is none, perhaps the oldest."""
        position = bisect_left(self._keys, version_key(version))
        if not self._keys or not (position or or_oldest):
            return None
        return self._rows[self._keys[max(position - 1, 0)]]


def _row(
    published: ProjectRelease, neighbour: Release, backend: Backend, until: date | None
) -> Release | None:
    """Return the row of a release, from the kind of file that its neighbour has; None without such a file."""
    if neighbour.git is not None:
        return None
    files = _usable(published.files, until)
    wheels = [file for file in files if file.name.endswith(".whl")]
    sdists = [file for file in files if not file.name.endswith(".whl") and file.sha256]
    chosen = sdists if neighbour.sdist else wheels
    if not chosen:
        return None
    file = min(chosen, key=lambda file: not file.name.endswith(".tar.gz"))
    sdist = Sdist(file.name, file.sha256) if neighbour.sdist else None
    source = f"{file.index}/{neighbour.package}/" if file.index else file.url
    return _like(neighbour, str(version_or_none(published.version)), backend, sdist, source)


def _like(neighbour: Release, version: str, backend: Backend, sdist: Sdist | None, source: str) -> Release:
    """Return the row of a release that is built from an sdist, or else has wheels."""
    return replace(
        neighbour,
        version=version,
        backend=(backend,),
        sdist=sdist,
        wheel=None,
        pypi=sdist is None,
        status="inferred",
        source=source,
        note=_note(neighbour),
        from_file=neighbour.from_file if neighbour.patches else "",  # patches are next to the file
    )


def _usable(files: Iterable[File], until: date | None) -> list[File]:
    return [file for file in (uploaded_by(files, until) if until else files) if file.yanked is None]


def _note(neighbour: Release) -> str:
    return f"Facts of {neighbour.package} {neighbour.version}, the nearest release."


def _with_facts(
    catalog: Catalog, name: str, pairs: Sequence[tuple[Release, Release]], backend: Backend
) -> Catalog:
    """Return a catalog with more releases, each with the facts that only its neighbour has."""
    if not pairs:
        return catalog
    versions = dict.fromkeys(row.version for pair in pairs for row in pair)
    bit = {version: 1 << number for number, version in enumerate(versions)}
    masks = Versions(bit)

    def covered(rows: Iterable[Requires | Recipe]) -> int:
        mask = 0
        for row in rows:
            mask |= _mask(masks, row)
        return mask

    requires = grouped(
        ((normalize_name(row.on), row.kind, row.when_present), row)
        for row in catalog.requires_of(name)
        if row.backend in {None, backend} and not row.variant
    )
    copied: list[Requires] = []
    for rows in requires.values():
        mask = covered(rows)
        copied += [
            replace(row, releases=f"=={new.version}", status="inferred", note=_note(neighbour))
            for new, neighbour in pairs
            if not mask & bit[new.version]
            for row in rows
            if _mask(masks, row) & bit[neighbour.version]
        ]
    mask = covered(row for row in catalog.recipes_of(name) if row.backend == backend and not row.variant)
    recipes = [
        replace(recipe, releases=f"=={new.version}", status="inferred", note=_note(neighbour))
        for new, neighbour in pairs
        if not mask & bit[new.version] and (recipe := catalog.recipe_for(neighbour, backend))
    ]
    return replace(
        catalog,
        release=catalog.release | {row.key(): row for row, _ in pairs},
        requires=[*catalog.requires, *copied],
        recipe=[*catalog.recipe, *recipes],
        inferred=catalog.inferred | {row.key(): neighbour.version for row, neighbour in pairs},
    )


def _mask(masks: Versions, row: Requires | Recipe) -> int:
    return masks.allowed_by(parse_specifier(row.releases)) if row.releases else ~0
