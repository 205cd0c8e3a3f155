"""The source of a draft, fetched and pinned: a project on an index, a directory, an sdist, or a commit."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from builders.learning import LearnedFacts
from builders.network.download import keep_sdist, keep_tree
from builders.network.git import Repository, is_commit, split_reference
from builders.network.source_tree import source_tree
from builders.network.urls import without_password
from builders.source_facts.facts import SourceFacts
from builders.source_facts.reading import learn_release, learn_source
from builders.source_facts.recipe_draft import (
    backends_of,
    components_of,
    draft_recipes,
    draft_requirements,
    gaps_of,
    version_of_ref,
)
from builders.sources.source import fetch_sdist, unpack_sdist
from builders.storage.files import sdist_path
from builders.storage.lease import TemporaryDirectory
from resolver.compiling.problem import is_prerelease
from resolver.errors import EnvironmentLacksError, SourceError, UsageError
from resolver.facts import schema
from resolver.facts.schema import Git, Sdist
from resolver.requirements import parse_requirement, required_name
from resolver.versions import specifier_or_none

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from datetime import date

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Status
    from resolver.indexes import File, Metadata, PackageIndexes, Project, ProjectRelease

BACKENDS = get_args(schema.Backend)
ARCHIVES = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


class Origin(msgspec.Struct, frozen=True):
    """A pinned source, and the facts that were read from it."""

    facts: SourceFacts
    pin: Sdist | Git
    title: str
    """File name, or URL and commit, for output."""
    source: str
    """The source of the rows that are drafted from it."""
    on_index: bool = False
    size: int = 0
    """Bytes of the source."""
    status: Status = "observed"
    """Status of its requirements: `inferred` if building may change them."""
    note: str = ""
    """A note about limits on the use of the draft."""

    def rows(self, components: Collection[str], today: date) -> list[schema.Row]:
        """Return the rows of a draft: package, release, requirements, and a recipe for each backend.

        Name and version in the facts must be known.
        """
        facts, backends = self.facts, backends_of(self.facts)
        read: dict[str, Any] = {
            "status": "observed", "source": self.source, "note": f"Read on {today}; nothing was executed."
        }  # fmt: skip
        package = schema.Package(
            name=facts.name,
            title=facts.summary or facts.name,
            import_name=facts.import_name,
            pypi="same" if self.on_index else "",
            **read,
        )
        pins = {"sdist": self.pin} if isinstance(self.pin, Sdist) else {"git": self.pin}
        release = schema.Release(package=facts.name, version=facts.version, backend=backends, **pins, **read)
        requirements = draft_requirements(facts, self.source, self.status, components, on_index=self.on_index)
        return [package, release, *requirements, *draft_recipes(facts, self.source, backends)]


def read_origin(
    text: str,
    *,
    version: str = "",
    indexes: PackageIndexes | None,
    mirrors: Mapping[str, str],
    offline: bool = False,
) -> Origin:
    """Fetch a source, unpack it, and read its facts; none of its code is executed.

    `text` is a requirement (``NAME``, ``NAME==1.0``), a directory, an sdist, or the URL of a git repository,
    with a branch, tag or commit after ``@``. `version` is the version of a source that computes it.
    """
    path = Path(text)
    if is_git(text):
        return _of_git(text.removeprefix("git+"), version, mirrors, offline=offline)
    if "://" in text:
        msg = f"{without_password(text)!r} is not the URL of a git repository."
        raise UsageError(msg, hint="Write git+https://HOST/PATH@TAG, or download the file and name it.")
    if path.is_dir():
        return _of_directory(path, version)
    if text.endswith(ARCHIVES) and path.is_file():
        return _of_archive(path, version)
    if "/" in text or text.endswith((*ARCHIVES, ".whl")):
        msg = f"{text!r} {'is not an sdist' if path.is_file() else 'does not exist'}."
        raise UsageError(msg, hint="Name a project, a directory, an sdist or a git URL.")
    return _of_project(text, indexes, mirrors, offline=offline)


def learn_origin(origin: Origin, catalog: Catalog, today: date) -> LearnedFacts:
    """Return rows that the catalog lacks, and remarks where the source disagrees with the catalog.

    A release, a package and a recipe of the catalog are never replaced.
    """
    facts = origin.facts
    release = catalog.release.get((facts.name, facts.version, ""))
    recipes = [recipe for backend in BACKENDS if release and (recipe := catalog.recipe_for(release, backend))]
    kept = [
        row
        for row in origin.rows(components_of(catalog), today)
        if not (isinstance(row, schema.Package) and facts.name in catalog.package)
        and not (isinstance(row, schema.Release | schema.Recipe) and release)
    ]
    title = f"{facts.name} {facts.version}"
    remarks = [f"{title}: cannot determine {gap}." for gap in gaps_of(facts)]
    pin = release and (release.sdist or release.git)
    if release and pin and type(pin) is type(origin.pin):
        stated, read = (one.sha256 if isinstance(one, Sdist) else one.commit for one in (pin, origin.pin))
        if stated != read:
            text = f"{release.location} names a different file or commit than {origin.title}."
            remarks.append(f"{title}: {text}")
    remarks += [text for recipe in recipes for text in _differences(facts, recipe)]
    return LearnedFacts(kept, remarks, origin.size, origin.size)


def _differences(facts: SourceFacts, recipe: schema.Recipe) -> Iterator[str]:
    """Yield the differences from the build requirements in a recipe of the catalog."""
    where = f"{facts.name} {facts.version} ({recipe.location})"
    declared, listed = ({*map(required_name, texts)} for texts in (facts.declared, recipe.declared))
    if declared != listed:
        stated, known = (", ".join(sorted(names)) or "nothing" for names in (declared, listed))
        yield f"{where}: the source declares {stated}; the recipe lists {known}."
    needed = {*map(required_name, facts.undeclared)} - listed - {*map(required_name, recipe.undeclared)}
    if needed:
        yield f"{where}: the build also needs {', '.join(sorted(needed))}, which the recipe does not list."


def is_git(text: str) -> bool:
    """Return whether a text is the URL of a git repository."""
    location = text.partition("#")[0]
    return text.startswith(("git+", "git://", "ssh://")) or (
        "://" in text and location.rpartition("@")[0 if "@" in location else 2].endswith(".git")
    )


def _of_git(text: str, version: str, mirrors: Mapping[str, str], *, offline: bool) -> Origin:
    location, _, fragment = text.partition("#")
    if "subdirectory=" in fragment:
        msg = f"{without_password(text)!r} names a subdirectory, which a recipe cannot build."
        raise UsageError(msg, hint="Make an sdist of the directory (`python -m build --sdist`), and name it.")
    parts = urlsplit(location)
    if parts.password or (parts.username and parts.scheme.startswith("http")):
        msg = "The URL contains a login, which the draft would store."
        raise UsageError(msg, hint="Put the login into ~/.netrc, and remove it from the URL.")
    address, ref = split_reference(location)
    repository = Repository(address)
    if offline and not is_commit(ref):
        msg = f"--offline is set, but the commit of {ref or 'the default branch'} is only on the server."
        raise EnvironmentLacksError(msg, hint="Name a commit with all 40 digits.")
    commit = repository.commit_of(ref, mirrors)
    with source_tree(f"git+{repository.url}@{commit}", mirrors, offline=offline) as top:
        facts = learn_release(top, without_password(text), version, version_of_ref(ref))
        size = sum(path.lstat().st_size for path in top.rglob("*"))
    pin = Git(repository.url, commit, tuple(repository.submodule_commits(commit)))
    shown = f"{without_password(repository.url)}@{commit}"
    return Origin(facts, pin, shown, shown, size=size)


def _of_directory(path: Path, version: str) -> Origin:
    facts = learn_release(path, str(path), version)
    return _of_machine(facts, keep_tree(path, facts.name, facts.version), f"the directory {path}")


def _of_archive(path: Path, version: str) -> Origin:
    try:
        with _unpacked(path) as top:
            facts = learn_release(top, str(path), version)
    except SourceError as error:
        raise SourceError(error.message, hint="Name another file.") from None
    return _of_machine(facts, keep_sdist(path), path.name)


def _of_machine(facts: SourceFacts, pin: Sdist, title: str) -> Origin:
    note = f"{pin.file} is in the cache of this machine only; publish it before others use the draft."
    return Origin(facts, pin, title, f"{pin.file} sha256:{pin.sha256}", size=_size(pin), note=note)


def _of_project(
    text: str, indexes: PackageIndexes | None, mirrors: Mapping[str, str], *, offline: bool
) -> Origin:
    requirement = parse_requirement(text)
    project = indexes.project(requirement.name) if indexes else None
    if indexes is None or project is None:
        msg = f"No package index has a project {requirement.name!r}."
        raise UsageError(msg, hint="Check the name, or name a directory or a git URL.")
    versions = requirement.specifier
    releases = [row for row in project.releases if versions is None or versions.allows(row.version)]
    release, file = _newest_sdist(releases, project, text)
    pin = Sdist(file.name, file.sha256)
    archive = fetch_sdist(project.name, pin, url=file.url, offline=offline, mirrors=mirrors)
    metadata = indexes.metadata([file])
    with _unpacked(archive) as top:
        facts = _with_metadata(learn_source(top), release.version, metadata, requirement.name)
    status: Status = "observed" if metadata and not metadata.dynamic else "inferred"
    source = f"{file.name} sha256:{file.sha256}"
    return Origin(facts, pin, file.name, source, on_index=True, size=_size(pin), status=status)


def _newest_sdist(releases: list[ProjectRelease], project: Project, text: str) -> tuple[ProjectRelease, File]:
    """Return the newest release with its sdist; a pre-release or yanked release only if there is no other."""
    usual = [
        row
        for row in releases
        if not is_prerelease(row.version)
        and not (row.files and all(file.yanked is not None for file in row.files))
    ]
    stable = usual or releases
    if not stable:
        msg = f"No release of {project.name} matches {text!r}."
        newest = ", ".join(row.version for row in project.releases[:3])
        raise UsageError(msg, hint=f"Its newest releases: {newest}.")
    sdists = {row.version: [file for file in row.files if not file.name.endswith(".whl")] for row in releases}
    release = next((row for row in stable if row.files), stable[0])
    files = [file for file in sdists[release.version] if file.sha256]
    if not files:
        without = " with a SHA-256" if sdists[release.version] else ""
        msg = f"{project.name} {release.version} has no sdist{without} on the package index."
        older = [version for version, listed in sdists.items() if listed]
        alternative = f", or {project.name}=={older[0]}, which has an sdist" if older else ""
        raise SourceError(msg, hint=f"Name its git repository{alternative}.")
    return release, min(files, key=lambda file: not file.name.endswith(".tar.gz"))


def _with_metadata(facts: SourceFacts, version: str, metadata: Metadata | None, name: str) -> SourceFacts:
    """Return the facts with the name, version and requirements from the index."""
    requires = metadata.requires if metadata else facts.requires
    python = metadata.requires_python if metadata else ""
    python = python if python and specifier_or_none(python) else facts.requires_python
    return replace(facts, name=name, version=version, requires=requires, requires_python=python)


@contextmanager
def _unpacked(archive: Path) -> Iterator[Path]:
    with TemporaryDirectory() as directory:
        yield unpack_sdist(archive, directory.root / "unpacked")


def _size(pin: Sdist) -> int:
    return sdist_path(pin).stat().st_size
