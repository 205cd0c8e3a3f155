"""Fetch data from indexes ahead of the search, so that the search rarely waits for the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from resolver.compiling.choices import is_prerelease
from resolver.indexes import uploaded_by
from resolver.requirements import parse_requirement, split_marker

if TYPE_CHECKING:
    from datetime import date

    from resolver.environment import Environment
    from resolver.indexes import File, PackageIndexes
    from resolver.model import Requirement

_MOST_RELEASES = 25
"""Maximum number of releases to check for the release that will probably be chosen."""


class LookAhead:
    """Projects and metadata that a search is likely to need, fetched in the threads of the indexes.

    The replies are only cached: the search requests them again. Only uploads until `day` count. `is_decided`
    returns whether a requirement is decided without a project of its name.
    """

    def __init__(
        self,
        indexes: PackageIndexes,
        day: date,
        is_decided: Callable[[Requirement], bool],
    ) -> None:
        self._indexes = indexes
        self._day = day
        self._is_decided = is_decided
        self._seen: set[tuple[str, tuple[str, ...]]] = set()
        self._remote: set[str] = set()
        """Projects that were not in the cache at the start."""

    def start(self, requirements: Iterable[Requirement], environment: Environment) -> None:
        """Start to fetch the projects that requirements are likely to need and that are not cached."""
        for requirement in requirements:
            name = requirement.name
            key = (name, requirement.extras)
            if key in self._seen or self._is_decided(requirement):
                continue
            self._seen.add(key)
            if name in self._remote or not self._indexes.is_cached(name):
                self._remote.add(name)
                self._indexes.submit(partial(self._fetch, requirement, environment))

    def read(self, releases: Iterable[Sequence[File]]) -> None:
        """Start to read the metadata of releases, each given by its files."""
        for files in releases:
            self._indexes.submit(partial(self._indexes.metadata, files))

    def _fetch(self, requirement: Requirement, environment: Environment) -> None:
        """Fetch a project, the metadata of its likely release, and its requirements; runs in a thread."""
        project = self._indexes.project(requirement.name)
        if project is None:
            return
        allowed = requirement.specifier
        for release in project.releases[:_MOST_RELEASES]:
            if is_prerelease(release.version) or (allowed and not allowed.allows(release.version)):
                continue
            files = environment.installable(uploaded_by(release.files, self._day))
            if not files:
                continue
            metadata = self._indexes.metadata(files)
            split = map(split_marker, metadata.requires if metadata else ())
            extras = ("", *requirement.extras)
            following = (
                parse_requirement(head)
                for head, marker in split
                if any(environment.applies(marker, extra) for extra in extras)
            )
            self.start(following, environment)
            return
