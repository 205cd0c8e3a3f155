"""What the search knows of each project of the indexes, and of each release that it decided."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import ABSENT
from resolver.versions import FIRST, LAST, version_key

if TYPE_CHECKING:
    from resolver.environment import Environment
    from resolver.indexes import Content, File, Judgement, ProjectRelease
    from resolver.model import Notice
    from resolver.solving.rules import Judged
    from resolver.versions import Specifier, VersionKey

Terms = dict[int, int]
"""The terms of an incompatibility: masks by number of the variable; see `resolver.solving.search`."""


class ProjectState(msgspec.Struct, eq=False):
    """What the search knows of one project. Masks have the bits of `Choices`."""

    name: str
    releases: Sequence[ProjectRelease]
    """Newest first."""
    allows_prereleases: bool = False
    nodes: dict[str, Choices] = {}
    """Its variables in the search, by extra; the empty text is the project itself."""

    judged: dict[int, Judged] = {}
    """What the rules have found, by bit, as `files` and `to_install`."""
    files: dict[int, Sequence[File]] = {}
    """The files of a release that any Python may install."""
    to_install: dict[tuple[int, Environment], tuple[File, ...]] = {}
    excluded: int = 0
    """The releases whose exclusions were added."""
    usable: tuple[tuple[int, ...], int] = ((), 0)
    """What the last choice depended on, and the choice."""
    passed: str = ""
    """A release that was not chosen because it has no wheel."""
    wheels_only: int = -1
    """The variable that decides whether only wheels may be used; -1 if not needed."""
    seen: int = 0
    """The releases for which it is known whether they have wheels; `sources`: those without, by Pythons."""
    sources: dict[int, int] = {}

    read: int = 0
    """The releases whose metadata was read; `ahead`: before they were chosen; `unreadable`: it cannot be."""
    ahead: int = 0
    unreadable: int = 0

    contents: list[Examined] = []
    """The files whose content was judged."""
    for_cuda: str = ""
    """A release that requires CUDA, and what shows it."""
    unfit: int = 0
    """The releases that do not fit; `unknown`: that cannot be judged; `like_newer`: of these, those that a
    newer one speaks against."""
    unknown: int = 0
    like_newer: int = 0
    judged_only: int = -1
    """The variable that decides whether only releases that were judged may be used; -1 if not needed."""

    tried: int = 0
    """The last choice."""
    losses: int = 0
    """How many choices were taken back."""


class Choices:
    """A project, or one of its extras, as a variable of the search; its values are releases.

    Bit 0 of a mask stands for absence, bit 1 for the newest release. `extra` is empty for the project itself,
    `everything` is the mask of all releases and of absence, and `number` that of the variable.
    """

    __slots__ = ("_by_specifier", "_size", "everything", "extra", "name", "number", "project", "releases")

    def __init__(self, project: ProjectState, extra: str) -> None:
        self.project = project
        self.name = project.name
        self.extra = extra
        self.releases = releases = project.releases
        self.number = -1
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
        # The keys have no local labels, and what `packaging` must decide is not an interval of keys.
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
        if key is LAST or key is FIRST:  # most specifiers have one bound
            return 0 if key is LAST else self._size

        return bisect_left(self.releases, True, key=lambda one: version_key(one.version) < key)


class Decided(msgspec.Struct, eq=False):
    """What is known of a decided value: of a release, or a candidate of the catalog."""

    required: list[tuple[str, str, int]] | None = None
    """The names that it requires, as written, with the Pythons for which it does; None if it was not read."""
    lacking: list[tuple[Notice, int]] = []
    """A warning for each extra that brings nothing, or requirement that is left out, with its Pythons."""
    unread: str = ""
    """Why its metadata could not be read."""
    is_dynamic: bool = False
    """Whether a build may change its metadata."""


class Examined(msgspec.Struct, eq=False):
    """A file that would be installed, and what was found in it."""

    choices: Choices
    bit: int
    file: File
    content: Content | None = None
    """None if it was not read, or nothing in it is compiled."""
    judgement: Judgement | None = None
    """None if nothing in it is compiled."""
    reasons: list[tuple[Terms, str]] = []
    """What was excluded beside it, and why."""

    @property
    def name(self) -> str:
        """The name of the project."""
        return self.choices.name

    @property
    def version(self) -> str:
        """The version of the release."""
        return self.choices.release(self.bit).version

    @property
    def mask(self) -> int:
        """The mask of the release."""
        return 1 << self.bit

    @property
    def is_wheel(self) -> bool:
        """Whether the file is a wheel."""
        return self.file.name.endswith(".whl")
