"""The providers of package indexes: anything that pip could install, and wheels of this program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from resolver.errors import EnvironmentLacksError, SourceError, UsageError
from resolver.facts import schema
from resolver.indexes import InstalledFiles, files_of, uploaded_by
from resolver.providers.catalog import candidate_of
from resolver.providers.installed import installed_versions
from resolver.requirements import PAIRED_WITH_TORCH, is_rocm_package
from resolver.versions import built_for, grouped, shorten, sort_key, version_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.indexes import File, Metadata, PackageIndexes, ProjectRelease
    from resolver.model import Candidate, Distribution, Request, Requirement
    from resolver.versions import BuiltFor


HIDDEN = "hidden-by-index"
"""The id of the warning that an index has releases which do not count, as `IndexProvider.ignored` says."""
_ONLY_AMD = (
    "Only AMD's indexes have ROCm as pip packages; PyPI's projects of these names are empty. To use the ROCm "
    "of a base image instead, leave them out."
)


class _Sources(msgspec.Struct, frozen=True):
    """A release of which only the sdist counts."""

    version: str
    files: Sequence[File]


def _without_wheels(release: ProjectRelease) -> ProjectRelease:
    """Return a release without its compiled wheels, if it has an sdist."""
    sources = [file for file in release.files if not file.name.endswith(".whl")]
    is_pure = any(file.name.endswith("-any.whl") for file in release.files)
    return _Sources(release.version, sources) if sources and not is_pure else release


class IndexProvider:
    """Releases of indexes with their metadata; `applies` tests a marker for any Python of the request."""

    def __init__(
        self,
        indexes: PackageIndexes,
        catalog: Catalog,
        request: Request,
        applies: Callable[[str], object] = bool,
    ) -> None:
        self._applies = applies
        self.indexes = indexes
        self._metadata: dict[tuple[str, str], Metadata] = {}
        """By the URL of a file and `listed`, so that the confirmation reads nothing again."""
        self._stated = {one.source: one.metadata for one in request.stated}
        self._catalog = catalog
        self._installed = installed_versions(catalog, request)
        stated = (*request.requirements, *request.constraints, *request.overrides)
        self._direct = by_name(requirement for requirement in stated if requirement.url)
        self._to_build = {one.name for one in request.requirements if request.no_prebuilt}

    def candidates(self, name: str, torches: Iterable[Candidate] = ()) -> Sequence[ProjectRelease] | None:
        """Return the releases of a project, newest first; None if no index has it.

        `torches` are the candidates of torch, preferred first: ROCm as packages is on their indexes only.
        """
        installed, url = self._installed.get(name), self.url(name)
        if url and not installed:
            return self.indexes.direct(name, url).releases
        if is_rocm_package(name) and not installed:
            return self._beside_torch(name, torches)
        project = self.indexes.project(name)
        if installed:
            same = (
                [release for release in project.releases if release.version == installed] if project else []
            )
            return same or [InstalledFiles(installed)]
        if project and name in self._to_build - self._catalog.package.keys():
            return [_without_wheels(release) for release in project.releases]
        return project.releases if project else None

    def requirements(self, files: Sequence[File], candidate: Candidate | None = None) -> Metadata | None:
        """Return the metadata of a release; None if it cannot be read without running code.

        The first file is the best. Metadata that a build may change is enough. If the release is a candidate
        that a recipe builds, the requirements are those of that build, as far as the source lists them. What
        the build backend of a source has stated takes the place of all.
        """
        stated = self.stated(files, candidate)
        if stated is not None or not files:
            return stated
        recipe = candidate.recipe if candidate is not None and candidate.origin == "build" else None
        listed = recipe.requirements if recipe else ""
        keys = [(file.url, listed) for file in files]
        known = next((self._metadata[key] for key in keys if key in self._metadata), None)
        if known is None:
            known = self.indexes.metadata(files, listed)
            if known is not None:
                self._metadata |= dict.fromkeys(keys, known)
        return known

    def stated(self, files: Sequence[File], candidate: Candidate | None = None) -> Metadata | None:
        """Return what the build backend of a source has stated; None if it was not asked.

        The source is one of these files, or the pinned one of the candidate, which no index may list.
        """
        if not self._stated:
            return None
        release = candidate.release if candidate is not None else None
        commit = release.git.commit if release and release.git else ""
        pinned = release.sdist.sha256 if release and release.sdist else ""
        digests = (commit, pinned, *(file.sha256 for file in files))
        return next((self._stated[digest] for digest in digests if digest in self._stated), None)

    def offered(
        self, candidate: Candidate, torch: Candidate | None
    ) -> tuple[Sequence[File], PackageIndexes, str]:
        """Return all files of a candidate of the catalog, and the indexes that have them.

        The third result is the reason why an index that only the catalog names has no answer; mostly empty.
        Raise `EnvironmentLacksError` or `SourceError` if an index of the user cannot be reached, or its page
        is broken.
        """
        release, index = candidate.release, index_of(candidate, torch)
        indexes = self.indexes.at(index) if index else self.indexes
        if release is not None and release.git is not None:
            return (), indexes, ""
        if release is not None and release.wheels:
            return files_of(release), indexes, ""
        files: Sequence[File] = ()
        problem = ""
        try:
            files = self._listed(candidate, indexes)
        except (EnvironmentLacksError, SourceError) as error:
            if self.is_configured(index):
                raise
            problem = error.message
        if not files and index:  # an index of the user may have the same wheel
            files, indexes = self._listed(candidate, self.indexes), self.indexes
        pinned = release and (release.sdist or release.wheel)
        files = [file for file in files if file.name == pinned.file] if pinned else files
        return files, indexes, "" if files else problem

    def is_configured(self, url: str) -> bool:
        """Return whether an index is the user's; only the catalog names the others. Empty means all."""
        return not url or url in self.indexes.urls

    def _listed(self, candidate: Candidate, indexes: PackageIndexes) -> Sequence[File]:
        """Return the files of exactly the version of a candidate, with its label.

        The catalog says which project this is, so each index may list it, not only the first with the name.
        """
        version = sort_key(candidate.version)
        for source in (indexes, *map(indexes.at, indexes.urls[1:])):
            project = source.project(candidate.name)
            for release in project.releases if project else ():
                if sort_key(release.version) == version:
                    return release.files
        return ()

    def url(self, name: str) -> str:
        """Return the URL of the direct reference that the request has for a name, if any."""
        if name not in self._direct:
            return ""
        direct = [
            requirement
            for requirement in self._direct[name]
            if not requirement.marker or self._applies(requirement.marker)
        ]
        for other in direct[1:]:
            if other.url != direct[0].url and other.marker == direct[0].marker:
                msg = f"{shorten(other.text)!r} and {shorten(direct[0].text)!r} have different URLs."
                raise UsageError(msg, hint=f"Keep one URL of {name}.")
        return direct[0].url if direct else ""

    def earlier(self, name: str, index: str) -> str:
        """Return the first index that has a project, if it comes before the given index."""
        urls = self.indexes.urls
        before = urls[: urls.index(index)] if index in urls else ()
        ordered = (url for url in before if url not in self.indexes.equal)
        return next((url for url in ordered if self._versions(name, url)), "")

    def newer_elsewhere(self, pick: Distribution) -> list[tuple[str, str]]:
        """Return newer releases that do not count, each with its index; none if an index does not reply."""
        index = pick.files[0].index if pick.files else ""
        urls = self.indexes.urls
        later = urls[urls.index(index) + 1 :] if index in urls and index not in self.indexes.equal else ()
        try:
            counting = {sort_key(one.version) for one in self.candidates(pick.name) or ()} if later else set()
            projects = [(url, self.indexes.at(url).project(pick.name)) for url in later]
        except (EnvironmentLacksError, SourceError):
            return []
        return [
            (url, release.version)
            for url, project in projects
            for release in (project.releases if project else ())
            if sort_key(release.version) > sort_key(pick.version) and built_for(release.version) is None
            if sort_key(release.version) not in counting
        ]

    def ignored(self, name: str) -> str:
        """Return a hint if an index has releases of a project that do not count; empty if none has."""
        try:
            project = self.indexes.project(name)
            counting = {sort_key(release.version) for release in (project.releases if project else ())}
            other = next((url for url in self.indexes.urls if self._versions(name, url) - counting), "")
        except (EnvironmentLacksError, SourceError):
            return ""
        if not other:
            return ""
        return (
            f"{other} has other releases of {name}, which do not count, because an index before it has the "
            "project. --index-strategy unsafe-best-match considers all indexes."
        )

    def _versions(self, name: str, url: str) -> set[tuple[Any, ...]]:
        """Return the keys of a project's versions on an index, without those of wheels that we built."""
        project = self.indexes.at(url).project(name)
        versions = (release.version for release in (project.releases if project else ()))
        return {sort_key(version) for version in versions if built_for(version) is None}

    def _beside_torch(self, name: str, torches: Iterable[Candidate]) -> Sequence[ProjectRelease] | None:
        rows = (self._catalog.torch.get(torch.version) for torch in torches)
        urls = dict.fromkeys(row.index for row in rows if row and row.device_extra)
        releases: dict[str, ProjectRelease] = {}
        failure = None
        for url in urls:
            try:
                project = self.indexes.at(url).project(name)
            except (EnvironmentLacksError, SourceError) as error:
                if self.is_configured(url):
                    raise
                failure = error
                continue
            for release in project.releases if project else ():
                releases.setdefault(release.version, release)
        if failure and not releases:
            raise failure.changed(hint=f"{failure.hint} {_ONLY_AMD}".strip())
        return (
            sorted(releases.values(), key=lambda release: version_key(release.version), reverse=True) or None
        )


def index_of(candidate: Candidate, torch: Candidate | None) -> str:
    """Return the URL of a catalog candidate's index, which companions share with torch; empty for all."""
    is_companion = candidate.release is None and candidate.origin == "published"
    return candidate.index or (torch.index if torch and is_companion else "")


def by_name(requirements: Iterable[Requirement]) -> dict[str, list[Requirement]]:
    """Return requirements by name."""
    return grouped((requirement.name, requirement) for requirement in requirements)


class LabelledProvider:
    """Wheels that were built with this program and published on the user's indexes, as candidates.

    Their local version label contains the ROCm, torch and GPU architectures that they were built for. They
    are releases like any other that PyPI does not have, so a site that shares an index compiles each
    extension once. What their labels say are their requirements.

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
            self._catalog.recipe_for(row, backend) for row in self._catalog.releases_of(name)
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
