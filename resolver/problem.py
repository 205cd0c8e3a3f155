"""The one form that all facts compile to.

A problem has variables (components), each with candidates in the order of preference. Sets of
candidates are integers used as bit masks; bit 0 means "not part of the set". Two kinds of things
constrain them:

- a `Demand` limits one variable: a request, or a fact about the target;
- a `Relation` says which candidates of one variable allow which of another.

What follows from them without searching, and the search, is in `network`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from resolver.specifiers import Versions
from resolver.versions import parse_specifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from resolver.facts.schema import Status
    from resolver.model import Candidate, Fact

ABSENT = 1
"""The mask of "not part of the set"."""


class Variable:
    """A component and its candidates, the preferred first."""

    __slots__ = ("_by_specifier", "_by_version", "_versions", "candidates", "everything", "name", "present")

    def __init__(self, name: str, candidates: list[Candidate]) -> None:
        self.name = name
        self.candidates = candidates
        self.everything = (1 << (len(candidates) + 1)) - 1
        """The mask of all candidates and of absence."""
        self.present = self.everything & ~ABSENT
        """The mask of all candidates, absence left out."""
        self._by_version: dict[str, int] = {}
        for position, one in enumerate(candidates):
            self._by_version[one.version] = self._by_version.get(one.version, 0) | 1 << (position + 1)
        self._versions: Versions | None = None
        self._by_specifier: dict[str, int] = {}

    def of_versions(self, versions: Iterable[str]) -> int:
        """Give the mask of the candidates of some versions."""
        mask = 0
        for version in versions:
            mask |= self._by_version.get(version, 0)
        return mask

    def allowed_by(self, specifier: str) -> int:
        """Give the mask of the candidates whose version a specifier allows."""
        mask = self._by_specifier.get(specifier)
        if mask is None:
            self._versions = self._versions or Versions(self._by_version)
            mask = self._by_specifier[specifier] = self._versions.allowed_by(parse_specifier(specifier))
        return mask

    def mask(self, which: Iterable[int]) -> int:
        """Give the mask of some candidates by their position."""
        return sum(1 << (position + 1) for position in which)

    def candidate(self, bit: int) -> Candidate:
        """Give the candidate of a bit number (1 or more)."""
        return self.candidates[bit - 1]

    def chosen(self, mask: int) -> list[Candidate]:
        """Give the candidates in a mask, in the order of preference."""
        return [self.candidates[bit - 1] for bit in bits(mask) if bit]


class Saying(msgspec.Struct, frozen=True):
    """A fact whose words are made when they are read: of most facts they never are."""

    status: Status
    words: Callable[..., Fact]
    about: tuple[object, ...]
    """What `words` is called with."""

    def fact(self) -> Fact:
        """Give the fact."""
        return self.words(*self.about)


class Row(msgspec.Struct, frozen=True):
    """One fact as masks: these subjects allow these objects."""

    subjects: int
    objects: int
    said: Fact | Saying
    risk: bool = False
    """It may work, but outside what the makers support."""

    @property
    def fact(self) -> Fact:
        """The fact, in words."""
        return self.said.fact() if isinstance(self.said, Saying) else self.said


class Relation(msgspec.Struct, eq=False):
    """All facts between two variables. A subject that no row speaks of is not constrained."""

    subject: Variable
    object: Variable
    kind: Literal["run", "build"]
    rows: list[Row]
    when_present: bool = False
    """It holds only if the object is part of the set."""
    forbids: bool = False
    """It only says what does not work, and so is no reason for what was chosen."""
    table: list[int] = []
    """For each bit of the subject the mask of allowed objects; made from the rows."""

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

    def rows_between(self, subject: int, chosen: int) -> list[Row]:
        """Give the rows that allow this pair of bit numbers."""
        return [row for row in self.rows if row.subjects >> subject & 1 and row.objects >> chosen & 1]


class Demand(msgspec.Struct, eq=False):
    """What the request or the target says of one variable."""

    variable: Variable
    mask: int
    text: str
    kind: Literal["request", "fact"]
    source: str
    of_target: bool = False
    """It says for what is resolved, which a site often decides, and not what is wanted."""


class Favour(msgspec.Struct, frozen=True):
    """Candidates of a component that come first once another component is chosen."""

    other: str
    """The other component: for Python the base image."""
    first: dict[int, int]
    """Bit number of the other's candidate to the mask of the candidates that come first."""


class Problem(msgspec.Struct, eq=False):
    """Variables, demands and relations."""

    variables: dict[str, Variable]
    demands: list[Demand]
    relations: list[Relation]
    favours: dict[str, Favour] = {}
    """For a component, candidates that come first depending on another component."""

    def restricted(self, demands: Sequence[Demand], relations: Sequence[Relation]) -> Problem:
        """Give the same problem with only some of its demands and relations."""
        return Problem(self.variables, list(demands), list(relations), self.favours)


def bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the set bits, the lowest first.

    Examples
    --------
    >>> list(bits(0b1011))
    [0, 1, 3]
    """
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
