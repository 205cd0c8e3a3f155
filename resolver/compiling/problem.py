"""The common form to which all facts are compiled.

A problem has variables (components), each with candidates in the order of preference. Sets of
candidates are integers used as bit masks; bit 0 means "absent", not part of the set. Two kinds of
constraints exist:

- a `Demand` limits one variable: a request, or a fact about the target;
- a `Relation` maps candidates of one variable to the candidates of another that they allow.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from resolver.model import Fact, layer
from resolver.versions import Versions, minor, parse_specifier

if TYPE_CHECKING:
    from resolver.facts.schema import Row, Status
    from resolver.indexes import File
    from resolver.model import Candidate, Requirement
    from resolver.versions import Specifier


ABSENT = 1
"""The mask of "not part of the set"."""


class Variable:
    """A component and its candidates, in the order of preference.

    `present` is the mask of all candidates, `everything` that of all candidates and of absence.
    """

    __slots__ = (
        "_by_line",
        "_by_specifier",
        "_by_version",
        "_versions",
        "candidates",
        "everything",
        "name",
        "present",
    )

    def __init__(self, name: str, candidates: list[Candidate]) -> None:
        self.name = name
        self.candidates = candidates
        self.everything = (1 << (len(candidates) + 1)) - 1
        self.present = self.everything & ~ABSENT
        self._by_version: dict[str, int] = {}
        for position, candidate in enumerate(candidates):
            mask = self._by_version.get(candidate.version, 0)
            self._by_version[candidate.version] = mask | 1 << (position + 1)
        self._versions: Versions | None = None
        self._by_line: dict[str, int] = {}
        self._by_specifier: dict[str, int] = {}

    def of_versions(self, versions: Iterable[str]) -> int:
        """Return the mask of the candidates of these versions."""
        mask = 0
        for version in versions:
            mask |= self._by_version.get(version, 0)
        return mask

    def of_line(self, line: str) -> int:
        """Return the mask of the candidates of a major.minor line."""
        if not self._by_line:
            for version, mask in self._by_version.items():
                self._by_line[minor(version)] = self._by_line.get(minor(version), 0) | mask
        return self._by_line.get(line, 0)

    def allowed_by(self, specifier: str) -> int:
        """Return the mask of the candidates whose version a specifier allows."""
        mask = self._by_specifier.get(specifier)
        if mask is None:
            self._versions = self._versions or Versions(self._by_version)
            mask = self._by_specifier[specifier] = self._versions.allowed_by(parse_specifier(specifier))
        return mask

    def mask(self, positions: Iterable[int]) -> int:
        """Return the mask of the candidates at these positions."""
        mask = 0
        for position in positions:
            mask |= 2 << position
        return mask

    def candidate(self, bit: int) -> Candidate:
        """Return the candidate of a bit number (1 or more)."""
        return self.candidates[bit - 1]

    def chosen(self, mask: int) -> list[Candidate]:
        """Return the candidates in a mask, in the order of preference."""
        return [self.candidates[bit - 1] for bit in bits(mask) if bit]


class Statement(msgspec.Struct, frozen=True):
    """What a row of the catalog says of one of its subjects: a fact, made only when it is read."""

    row: Row
    subject: str
    """The candidate, or the releases of a distribution."""
    predicate: str | Callable[[], str]
    note: str | None = None
    """If it is not that of the row."""
    is_inferred: bool = False
    """Whether it says more than the row."""

    @property
    def status(self) -> Status:
        """The status of the fact."""
        return "inferred" if self.is_inferred else self.row.status

    def fact(self) -> Fact:
        """Return the fact with its text."""
        row, text = self.row, f"{self.subject} {self.stated}"
        note = row.note if self.note is None else self.note
        return Fact(text, self.status, row.source, note, row.file)

    @property
    def stated(self) -> str:
        """The text of the predicate."""
        return self.predicate if isinstance(self.predicate, str) else self.predicate()


class RelationRow(msgspec.Struct, frozen=True):
    """One fact as masks: these subjects allow these objects."""

    subjects: int
    objects: int
    text: Fact | Statement
    risk: bool = False
    """Whether AMD does not support the combination, or nobody has judged it, although it may work."""
    contradicts: bool = False
    """Whether the combination was observed although the catalog excludes it."""

    @property
    def fact(self) -> Fact:
        """The fact with its text."""
        return self.text.fact() if isinstance(self.text, Statement) else self.text


class Relation(msgspec.Struct, eq=False):
    """All facts between two variables. A subject that no row mentions is not constrained."""

    subject: Variable
    object: Variable
    kind: Literal["run", "build"]
    rows: list[RelationRow]
    when_present: bool = False
    """Whether the relation applies only if the object is part of the set."""
    forbids: bool = False
    """Whether the relation only excludes combinations, and so is never the reason for a choice."""
    table: list[int] = []
    """For each bit of the subject the mask of allowed objects; computed from the rows."""
    revisions: dict[tuple[int, int], tuple[int, int]] = {}
    """A cache that all searches with this relation share; see `resolver.solving.search.Search.add_table`."""

    def __post_init__(self) -> None:
        everything = self.object.everything
        allowed: dict[int, int] = {}
        absence = ABSENT if self.when_present else 0
        for row in self.rows:
            objects = row.objects
            for bit in bits(row.subjects):
                allowed[bit] = allowed.get(bit, absence) | objects
        self.table = [allowed.get(bit, everything) for bit in range(len(self.subject.candidates) + 1)]
        self.table[0] = everything

    def rows_between(self, subject: int, target: int) -> list[RelationRow]:
        """Return the rows that allow this pair of bit numbers."""
        return [row for row in self.rows if row.subjects >> subject & 1 and row.objects >> target & 1]


class Demand(msgspec.Struct, eq=False):
    """A limit on one variable, from the request or a fact about the target."""

    variable: Variable
    mask: int
    text: str
    kind: Literal["request", "fact"]
    source: str
    of_target: bool = False
    """Whether it limits the target, which a site often sets, and not the distributions to install."""
    requirement: Requirement | None = None
    """The requirement of the request that it is."""
    implied: bool = False
    """Whether it is part of any request, so that it explains nothing."""

    @property
    def about(self) -> str:
        """The requirement that it is, or the component that it limits."""
        return self.requirement.text if self.requirement else self.variable.name


class Problem(msgspec.Struct, eq=False):
    """Variables, demands, relations and preferences."""

    variables: dict[str, Variable]
    demands: list[Demand]
    relations: list[Relation]
    preferences: dict[str, tuple[str, dict[int, int]]] = {}
    """By component whose best candidates depend on another component: the other's name, and the mask of those
    that come first, by the bit number of the other's candidate (0: the solution does not need it). Python has
    the base image as the other."""
    requested: frozenset[str] = frozenset()
    default_images: int = 0
    """The base images of which one is chosen for whatever uses ROCm, if one fits."""

    def layer(self, name: str) -> tuple[int, str]:
        """Return the sort key of a component in the order of decisions; see `resolver.model.layer`."""
        return layer(name, self.requested)

    def version(self, solution: Mapping[str, int], name: str) -> str:
        """Return the version of a component in a solution; empty if it has none."""
        return self.variables[name].candidate(solution[name]).version if name in solution else ""


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the set bits, lowest first.

    Examples
    --------
    >>> list(bits(0b1011))
    [0, 1, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


_PRERELEASE = re.compile(r"\d[-_.]?(a|b|c|pre|rc)|dev", re.IGNORECASE)


class Link(msgspec.Struct, frozen=True, gc=False):
    """A statement about releases of a distribution: a requirement, or the reason why they cannot be used."""

    subject: str
    """Name of the distribution, optionally with an extra: ``lightning[extra]``."""
    object: str
    """Name of the other distribution; empty if the statement is about the release alone."""
    version: str
    """The release, or releases as a specifier; empty if the statement is about every release."""
    predicate: str
    """The statement, such as ``requires torch<2.2``; empty if it always holds and is never reported."""
    source: str
    requirement: str = ""
    """The requirement of the request that it is."""
    for_cuda: str = ""
    """The distribution for CUDA that the releases require."""
    others: tuple[str, ...] = ()
    """More releases of which the same is true."""
    lacks: str = ""
    """The extra that the releases do not provide, although another one does."""


ALWAYS = Link("", "", "", "", "")
"""The reason for statements that hold by definition, such as that an extra has the version of its project."""


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
