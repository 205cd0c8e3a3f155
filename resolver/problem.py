"""The one form that all facts compile to.

A problem has variables (components), each with candidates in the order of preference. Sets of
candidates are integers used as bit masks; bit 0 means "not part of the set". Two kinds of things
constrain them:

- a `Demand` limits one variable: a request, or a fact about the target;
- a `Relation` says which candidates of one variable allow which of another.

What follows from them without searching, and the search, is in `network`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from resolver.model import Candidate, Fact

ABSENT = 1
"""The mask of "not part of the set"."""


@dataclass(slots=True)
class Variable:
    """A component and its candidates, the preferred first."""

    name: str
    candidates: list[Candidate]
    _by_version: dict[str, int] = field(init=False, default_factory=dict)
    _by_specifier: dict[str, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for position, one in enumerate(self.candidates):
            self._by_version[one.version] = self._by_version.get(one.version, 0) | 1 << (position + 1)

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
            mask = self.of_versions(one for one in self._by_version if satisfies(one, specifier))
            self._by_specifier[specifier] = mask
        return mask

    @property
    def everything(self) -> int:
        """The mask of all candidates and of absence."""
        return (1 << (len(self.candidates) + 1)) - 1

    @property
    def present(self) -> int:
        """The mask of all candidates, absence left out."""
        return self.everything & ~ABSENT

    def mask(self, which: Iterable[int]) -> int:
        """Give the mask of some candidates by their position."""
        return sum(1 << (position + 1) for position in which)

    def candidate(self, bit: int) -> Candidate:
        """Give the candidate of a bit number (1 or more)."""
        return self.candidates[bit - 1]

    def chosen(self, mask: int) -> list[Candidate]:
        """Give the candidates in a mask, in the order of preference."""
        return [self.candidates[bit - 1] for bit in bits(mask) if bit]


@dataclass(frozen=True, slots=True)
class Row:
    """One fact as masks: these subjects allow these objects."""

    subjects: int
    objects: int
    fact: Fact
    risk: bool = False
    """It may work, but outside what the makers support."""


@dataclass(slots=True, eq=False)
class Relation:
    """All facts between two variables. A subject that no row speaks of is not constrained."""

    subject: Variable
    object: Variable
    kind: Literal["run", "build"]
    rows: list[Row]
    when_present: bool = False
    """It holds only if the object is part of the set."""
    forbids: bool = False
    """It only says what does not work, and so is no reason for what was chosen."""
    table: list[int] = field(init=False)
    """For each bit of the subject the mask of allowed objects."""

    def __post_init__(self) -> None:
        absence = ABSENT if self.when_present else 0
        self.table = [self.object.everything]
        for position in range(len(self.subject.candidates)):
            bit = 1 << (position + 1)
            speaking = [row for row in self.rows if row.subjects & bit]
            allowed = absence
            for row in speaking:
                allowed |= row.objects
            self.table.append(allowed if speaking else self.object.everything)

    def rows_between(self, subject: int, chosen: int) -> list[Row]:
        """Give the rows that allow this pair of bit numbers."""
        return [row for row in self.rows if row.subjects >> subject & 1 and row.objects >> chosen & 1]


@dataclass(slots=True, eq=False)
class Demand:
    """What the request or the target says of one variable."""

    variable: Variable
    mask: int
    text: str
    kind: Literal["request", "fact"]
    source: str


@dataclass(slots=True)
class Problem:
    """Variables, demands and relations."""

    variables: dict[str, Variable]
    demands: list[Demand]
    relations: list[Relation]

    def restricted(self, demands: Sequence[Demand], relations: Sequence[Relation]) -> Problem:
        """Give the same problem with only some of its demands and relations."""
        return Problem(self.variables, list(demands), list(relations))


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
