"""The interface through which the resolver reads package indexes; `builders.index_client` implements it.

The resolver has no network access of its own. It requests projects and the metadata of files from a
`PackageIndexes`, only when it considers a candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

import msgspec

from resolver.texts import Digest, FileName, Url

if TYPE_CHECKING:
    from resolver.content import Content
    from resolver.facts import schema


IndexStrategy = Literal["first-index", "unsafe-best-match"]
"""Which indexes count for a project: the first one that has it, or all of them, as for pip."""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A file that an index offers: a wheel or an sdist."""

    name: FileName
    url: Url
    sha256: Digest = ""
    """Hexadecimal; empty if the index does not publish it."""
    size: int = 0
    """In bytes; 0 if unknown."""
    index: Url = ""
    """URL of the index, as in `PackageIndexes.urls`."""
    requires_python: str = ""
    uploaded: str = ""
    """Time of the upload (PEP 700) in ISO 8601, UTC; empty if unknown."""
    yanked: str | None = None
    """The reason (PEP 592), which may be empty; None if the file is not yanked."""
    has_metadata: bool = False
    """Whether the index serves its metadata (PEP 658)."""
    metadata_sha256: Digest = ""
    """SHA-256 of that metadata, hexadecimal; empty if unknown."""


def uploaded_by(files: Iterable[File], day: date) -> list[File]:
    """Return the files uploaded by the end of a day, and those without an upload time."""
    last = day.isoformat()
    return [file for file in files if not file.uploaded or file.uploaded[:10] <= last]


def files_of(release: schema.Release) -> list[File]:
    """Return the wheels that the catalog lists for a release because no index has them."""
    return [File(name=wheel.file, url=wheel.url, sha256=wheel.sha256) for wheel in release.wheels]


class ProjectRelease(Protocol):
    """One version of a project with its files."""

    @property
    def version(self) -> str:
        """The version as it is spelled in the file names."""

    @property
    def files(self) -> Sequence[File]:
        """Its Linux wheels and its sdists from all indexes, wheels first; may be empty."""


class InstalledFiles(NamedTuple):
    """An installed version that no index has."""

    version: str
    files: tuple[File, ...] = ()


class Project(Protocol):
    """A project on one or more indexes."""

    @property
    def name(self) -> str:
        """Its normalized name."""

    @property
    def releases(self) -> Sequence[ProjectRelease]:
        """All releases with a valid version, newest first."""

    @property
    def status(self) -> str:
        """Its status (PEP 792), such as ``archived``; ``active`` by default."""


class Metadata(msgspec.Struct, frozen=True, gc=False):
    """The core metadata of a distribution, as far as resolving needs it."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    """The values of Requires-Dist."""
    extras: tuple[str, ...] = ()
    """Normalized names of the extras that it provides."""
    requires_python: str = ""
    source: str = ""
    """Where it was read: ``its metadata file``, ``its wheel`` or ``its sdist``."""
    dynamic: bool = False
    """Whether building may change it: it was read from an sdist whose metadata is not static (PEP 643)."""


class PackageIndexes(Protocol):
    """The configured package indexes. All methods may be called from several threads."""

    @property
    def urls(self) -> tuple[str, ...]:
        """The indexes in order of preference, then find-links; without credentials and trailing slash."""

    def at(self, url: str) -> PackageIndexes:
        """Return the single index at a URL, which need not be one of `urls`."""

    def project(self, name: str) -> Project | None:
        """Return a project, or None if no index has it.

        It has the releases of the first index that has more of it than wheels that we built (`label`), and
        of all find-links locations. With the strategy ``unsafe-best-match`` it has those of all indexes.

        Raises
        ------
        EnvironmentLacksError
            An index cannot be reached, or replies with an error, and its reply is not cached.
        SourceError
            A page is broken; the message contains index and project.
        """

    def direct(self, name: str, url: str) -> Project:
        """Return a project with only the release of a direct reference (``name @ URL``).

        Its file has no index. The URL of a commit in git has all digits of the commit.

        Raises
        ------
        UsageError
            The metadata is not static, or belongs to another distribution.
        SourceError
            There is no such file or commit, or it is damaged or has another hash.
        CommandError
            git failed.
        EnvironmentLacksError
            git is not installed, or the server cannot be reached and its reply is not cached.
        """

    def metadata(self, files: Sequence[File], *, allow_dynamic: bool = False) -> Metadata | None:
        """Return the metadata of a release, from its first file that provides metadata without running code.

        In this order: the metadata file of a wheel (PEP 658), the wheel itself by range requests, the
        PKG-INFO of an sdist if it is static (PEP 643). None if none of these exists.

        Parameters
        ----------
        allow_dynamic
            Whether the PKG-INFO of an sdist is used even if building may change it. If it lists no
            requirements, they are those in the requires.txt of setuptools.

        Raises
        ------
        EnvironmentLacksError
            An index cannot be reached, and its reply is not cached.
        SourceError
            The metadata is broken, or contradicts the file; the message contains index, project and file.
        """

    def content(self, file: File, metadata: Metadata | None) -> Content | None:
        """Return what a wheel or an sdist contains; None if nothing in it is compiled.

        How much of the file is read depends on the file and its metadata only.

        Parameters
        ----------
        file
            The wheel or sdist.
        metadata
            The metadata of its release, if it is known.

        Raises
        ------
        EnvironmentLacksError
            An index cannot be reached, and its reply is not cached.
        SourceError
            The wheel is broken; the message contains index, project and file.
        """

    def is_cached(self, name: str) -> bool:
        """Return whether a project is in the cache, so that `project` does not use the network."""

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work` in a thread of the pool, so that replies are cached before they are needed.

        Errors are ignored here. The next call that needs the reply raises them.
        """
