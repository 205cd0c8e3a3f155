"""Package indexes from a dictionary, in place of `builders.index_client` and the servers behind it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from resolver.errors import EnvironmentLacksError, UsageError
from resolver.indexes import Content, File, Metadata, Project

URL = "https://index.example/simple"
"""The only index, unless a `FakeIndexes` names others."""


class FakeRelease(msgspec.Struct, frozen=True, kw_only=True):
    """A release of a project: its metadata and its files."""

    requires: Sequence[str] = ()
    """Values of Requires-Dist."""
    listed: Mapping[str, Sequence[str]] = {}
    """Requirements in files of its sdist, by the glob that names the file."""
    extras: Sequence[str] = ()
    requires_python: str = ""
    wheels: Sequence[str] = ("py3-none-any",)
    """Tags of its wheels, such as ``cp312-cp312-manylinux_2_28_x86_64``."""
    sdist: bool = False
    static: bool = True
    """Whether the metadata of the sdist is static (PEP 643)."""
    yanked: str | None = None
    uploaded: str = ""
    hashed: bool = True
    """Whether the index has hashes of its files."""
    index: str = URL
    content: Content | None = None
    """What its wheels contain; None if nothing in them is compiled."""
    source: Content | None = Content("", "it is built from source, and the source was not read")
    """What its sdist contains; None if there is nothing to compile."""

    def files(self, name: str, version: str) -> tuple[File, ...]:
        """Return its files, wheels first."""
        stem = f"{name.replace('-', '_')}-{version}"
        names = [f"{stem}-{tag}.whl" for tag in self.wheels] + [f"{stem}.tar.gz"] * self.sdist
        return tuple(
            File(
                name=file,
                url=f"{self.index}/{name}/{file}",
                sha256=hashlib.sha256(file.encode()).hexdigest() if self.hashed else "",
                size=1000,
                index=self.index,
                requires_python=self.requires_python,
                uploaded=self.uploaded,
                yanked=self.yanked,
                has_metadata=file.endswith(".whl"),
            )
            for file in names
        )


class FakeIndexes:
    """Package indexes (`resolver.indexes.PackageIndexes`) that record the queries.

    Parameters
    ----------
    projects
        Releases by name and version; a list of requirements stands for a release with one pure wheel.
    urls
        The URLs of the indexes.
    unreachable
        Names of projects for which no index can be reached.
    direct
        Name, version and release at the URL of each direct reference.

    Examples
    --------
    >>> indexes = FakeIndexes({"lightning": {"2.0.1": ["torch<2.2"], "2.1.0": FakeRelease(sdist=True)}})
    >>> [release.version for release in indexes.project("lightning").releases]
    ['2.1.0', '2.0.1']
    """

    def __init__(
        self,
        projects: Mapping[str, Mapping[str, FakeRelease | Sequence[str]]],
        *,
        urls: Sequence[str] = (URL,),
        unreachable: Sequence[str] = (),
        direct: Mapping[str, tuple[str, str, FakeRelease]] | None = None,
    ) -> None:
        self.urls = tuple(urls)
        self.equal = ()
        self.asked: list[str] = []
        """The projects that were queried, in this order."""
        self.read: list[str] = []
        """``name==version`` of the releases whose metadata was read, in this order."""
        self.remembered: dict[str, bytes] = {}
        self.judged: list[str] = []
        """The names of the files whose content was read, in this order."""
        self._unreachable = {canonicalize_name(name) for name in unreachable}
        self._projects: dict[str, Project] = {}
        self._releases: dict[str, tuple[str, str, FakeRelease]] = dict(direct or {})
        for given, versions in projects.items():
            name = canonicalize_name(given)
            releases = []
            for version in sorted(versions, key=Version, reverse=True):
                value: Any = versions[version]
                release = value if isinstance(value, FakeRelease) else FakeRelease(requires=tuple(value))
                files = release.files(name, version)
                self._releases |= {file.url: (name, version, release) for file in files}
                releases.append(ListedRelease(version, files))
            self._projects[name] = Project(name, releases)

    def at(self, url: str) -> FakeIndexes:
        """Return the projects of one index, with its files only."""
        only = FakeIndexes({}, urls=(url,))
        only.asked, only.read, only._releases = self.asked, self.read, self._releases
        only.judged = self.judged
        only._unreachable = self._unreachable
        for name, project in self._projects.items():
            releases = [
                ListedRelease(release.version, files)
                for release in project.releases
                if (files := tuple(file for file in release.files if file.index == url))
            ]
            if releases:
                only._projects[name] = Project(name, releases)
        return only

    def project(self, name: str) -> Project | None:
        """Return a project; None if no project has this name."""
        name = canonicalize_name(name)
        self.asked.append(name)
        if name in self._unreachable:
            msg = f"{self.urls[0]} cannot be reached for {name}: connection refused."
            raise EnvironmentLacksError(msg, hint="Check the network.")
        return self._projects.get(name)

    def direct(self, name: str, url: str) -> Project:
        """Return the release of a direct reference; its file is named after the last part of the URL."""
        project, version, release = self._releases[url]
        if project != name:
            msg = f"{url!r} is {project}, not {name}."
            raise UsageError(msg, hint="Correct the name.")
        file = File(url.rpartition("/")[2], url, hashlib.sha256(url.encode()).hexdigest(), 1000)
        file = msgspec.structs.replace(file, requires_python=release.requires_python)
        return Project(name, (ListedRelease(version, (file,)),))

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        """Return the metadata of the first file."""
        for file in files:
            name, version, release = self._releases[file.url]
            is_wheel = file.name.endswith(".whl")
            self.read.append(f"{name}=={version}")
            requires = release.requires if is_wheel else release.listed.get(listed, release.requires)
            return Metadata(
                name=name,
                version=version,
                requires=tuple(requires),
                extras=tuple(release.extras),
                requires_python=release.requires_python,
                source="its metadata file" if is_wheel else "its sdist",
                dynamic=not is_wheel and not release.static,
            )
        return None

    def content(self, file: File, metadata: Metadata | None) -> Content | None:  # noqa: ARG002  not needed
        """Return what a file contains."""
        self.judged.append(file.name)
        release = self._releases[file.url][2]
        return release.content if file.name.endswith(".whl") else release.source

    def is_cached(self, name: str) -> bool:
        """Return whether `project` works without a network: always, unless the project is unreachable."""
        return canonicalize_name(name) not in self._unreachable

    def recall(self, key: str) -> bytes:
        """Return what was remembered."""
        return self.remembered.get(key, b"")

    def remember(self, key: str, content: bytes) -> None:
        """Keep it as long as this object."""
        self.remembered[key] = content

    def submit(self, work: Callable[[], object]) -> None:
        """Ignore work that would only fill the cache."""


class ListedRelease(msgspec.Struct, frozen=True):
    """A version with its files."""

    version: str
    files: tuple[File, ...]
