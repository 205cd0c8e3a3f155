"""The releases of a project as values of a variable, and statements about them."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import ABSENT
from resolver.versions import version_key

if TYPE_CHECKING:
    from resolver.facts.schema import Status
    from resolver.indexes import File, ProjectRelease
    from resolver.versions import Specifier, VersionKey

_PRERELEASE = re.compile(r"\d[-_.]?(a|b|c|pre|rc)|dev", re.IGNORECASE)


class Link(msgspec.Struct, frozen=True, gc=False):
    """A statement about releases of a distribution: a requirement, or the reason why they cannot be used."""

    subject: str
    """Name of the distribution, optionally with an extra: ``lightning[extra]``."""
    object: str
    """Name of the other distribution; empty if the statement is about the release alone."""
    version: str
    """The releases, as versions or a specifier; empty if the statement is about every release."""
    predicate: str
    """The statement, such as ``requires torch<2.2``; empty if it always holds and is never reported."""
    source: str


ALWAYS = Link("", "", "", "", "")
"""The reason for statements that hold by definition, such as that an extra has the version of its project."""


class Choices:
    """The releases of one project that the search may choose, most preferred first.

    Bit 0 stands for absence, bit 1 for the most preferred release. `extra` is one of the extras of the
    project, empty for the project itself; `everything` the mask of all releases and of absence.
    """

    __slots__ = (
        "_by_specifier",
        "_size",
        "everything",
        "extra",
        "name",
        "number",
        "releases",
    )

    def __init__(self, name: str, extra: str, releases: Sequence[ProjectRelease]) -> None:
        self.name = name
        self.extra = extra
        self.releases = releases
        """Newest first."""
        self.number = -1  # of the variable in the search
        self._size = len(releases)
        self.everything = (1 << (self._size + 1)) - 1
        self._by_specifier: dict[str, int] = {}

    def preferred(self, mask: int, *, oldest: bool) -> int:
        """Return the mask of the release to try first."""
        return 1 << (mask.bit_length() - 1) if oldest else mask & -mask

    @property
    def key(self) -> str:
        """The name, with the extra in brackets."""
        return f"{self.name}[{self.extra}]" if self.extra else self.name

    def release(self, bit: int) -> ProjectRelease:
        """Return the release for a bit number (1 or more)."""
        return self.releases[bit - 1]

    def allowed_by(self, specifier: Specifier | None) -> int:
        """Return the mask of the releases that a specifier allows, by bisection of the sorted releases."""
        if specifier is None:
            return self.everything & ~ABSENT
        mask = self._by_specifier.get(specifier.text)
        if mask is None:
            mask = self._by_specifier[specifier.text] = self._mask_of(specifier)
        return mask

    def of_version(self, version: str) -> int:
        """Return the mask of a version that is spelled as in its file names; 0 if there is none."""
        if not version:
            return 0
        releases = enumerate(self.releases, start=1)
        return next((1 << bit for bit, release in releases if release.version == version), 0)

    def _mask_of(self, specifier: Specifier) -> int:
        if specifier.other is not None or any(clause.local is not None for clause in specifier):
            allowed = (bit for bit in range(1, self._size + 1) if specifier.allows(self.release(bit).version))
            return sum(1 << bit for bit in allowed)
        mask = self.everything & ~ABSENT
        for clause in specifier:
            above, below = self._first_below(clause.high), self._first_below(clause.low)
            inside = (1 << (below + 1)) - (1 << (above + 1))
            mask &= ~inside if clause.outside else inside
        return mask

    def _first_below(self, key: VersionKey) -> int:

        def key_of(position: int) -> VersionKey:
            return version_key(self.releases[self._size - 1 - position].version)

        return self._size - bisect_left(range(self._size), key, 0, self._size, key=key_of)


class Pick(msgspec.Struct, frozen=True, order=True):
    """A release that the search added."""

    name: str
    version: str
    files: tuple[File, ...]
    extras: tuple[str, ...]
    support: Status
    """``inferred`` if it is built, and the build may change its requirements."""


def is_prerelease(version: str) -> bool:
    """Return whether a version, or a version in a specifier, is a pre-release (PEP 440)."""
    return _PRERELEASE.search(version.partition("+")[0]) is not None


def names_prerelease(specifier: Specifier | None) -> bool:
    """Return whether a specifier contains a pre-release."""
    return specifier is not None and any(is_prerelease(clause.version) for clause in specifier)
