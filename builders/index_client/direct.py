"""Package indexes together with what direct references (``name @ URL``) name."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import msgspec

from builders.files import sha256_of
from builders.urls import local_path
from resolver.errors import UsageError
from resolver.indexes import File
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resolver.indexes import Metadata, PackageIndexes, Project
    from resolver.model import Requirement


class _Release(msgspec.Struct, frozen=True):
    version: str
    files: tuple[File, ...]


class _Project(msgspec.Struct, frozen=True):
    name: str
    releases: tuple[_Release, ...]
    status: str = "active"


class WithDirectReferences:
    """Package indexes in which each project that has a direct reference has one release, that of the URL.

    Parameters
    ----------
    indexes
        Where all other projects are.
    requirements
        Requirements, of which only direct references matter.

    Raises
    ------
    UsageError
        Two direct references name the same distribution.
    """

    def __init__(self, indexes: PackageIndexes, requirements: Iterable[Requirement]) -> None:
        self._indexes = indexes
        self._direct: dict[str, Requirement] = {}
        for requirement in requirements:
            if not requirement.url:
                continue
            other = self._direct.setdefault(requirement.name, requirement)
            if other.url != requirement.url:
                msg = f"{shorten(requirement.text)!r} and {shorten(other.text)!r} have different URLs."
                raise UsageError(msg, hint=f"Keep one URL of {requirement.name}.")

    @property
    def urls(self) -> tuple[str, ...]:
        """The indexes."""
        return self._indexes.urls

    def at(self, url: str) -> PackageIndexes:
        """Return one index alone."""
        return self._indexes.at(url)

    def project(self, name: str) -> Project | None:
        """Return a project, from its direct reference if it has one.

        Raises
        ------
        UsageError
            Nothing at the URL says which version it is without running code.
        """
        requirement = self._direct.get(name)
        return self._indexes.project(name) if requirement is None else _project_at(requirement)

    def metadata(self, files: Sequence[File], *, allow_dynamic: bool = False) -> Metadata | None:
        """Return the metadata of a release."""
        return self._indexes.metadata(files, allow_dynamic=allow_dynamic)

    def is_cached(self, name: str) -> bool:
        """Return whether `project` would answer without a request over the network."""
        return name in self._direct or self._indexes.is_cached(name)

    def submit(self, work: Callable[[], object]) -> None:
        """Do some work in a thread."""
        self._indexes.submit(work)


def _project_at(requirement: Requirement) -> _Project:
    url, _, fragment = requirement.url.partition("#")
    hashes = [part.removeprefix("sha256=") for part in fragment.split("&") if part.startswith("sha256=")]
    path = local_path(url)
    if path is not None and path.is_dir():
        from builders.pyproject import static_metadata

        version = static_metadata(path).version
        name = f"{requirement.name}-{version}"
    else:
        name = unquote(urlsplit(url).path.rpartition("/")[2])
        version = "" if url.startswith("git+") else _version_of(name)
        hashes += [sha256_of(path)] if path is not None and path.is_file() else []
    if not version:
        what = "a git repository" if url.startswith("git+") else "a file without a version in its name"
        msg = f"matrix cannot resolve {shorten(requirement.text)!r}: the URL names {what}."
        hint = f"Build a wheel with `pip wheel --no-deps '{shorten(requirement.url)}'`, and name its path."
        raise UsageError(msg, hint=hint)
    return _Project(requirement.name, (_Release(version, (File(name, url, hashes[0] if hashes else ""),)),))


def _version_of(file: str) -> str:
    """Return the version in the name of a wheel or an sdist; empty if there is none."""
    from packaging.utils import (
        InvalidSdistFilename,
        InvalidWheelFilename,
        parse_sdist_filename,
        parse_wheel_filename,
    )

    try:
        return str(parse_wheel_filename(file)[1] if file.endswith(".whl") else parse_sdist_filename(file)[1])
    except (InvalidSdistFilename, InvalidWheelFilename):
        return ""
