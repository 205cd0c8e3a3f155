"""What a table is made of: columns, rows, and the cell where they meet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from resolver.model import PLATFORM, STATUS_RANK, Distribution, Fact, Requirement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.model import Verdict

ROW = (*PLATFORM, "torch")
"""Components that limit rows; every other one is a column."""
COMBINATION = "combination"
"""The reason of a refusal where no single fact rules each version out."""
UNDECIDED = "undecided"
"""The guard on the search stopped it: not refused, but not answered either."""


@dataclass(frozen=True, slots=True)
class Column:
    """A package of the table, or several that are resolved together."""

    name: str
    requirements: tuple[Requirement, ...]

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages, each once."""
        return tuple(dict.fromkeys(one.name for one in self.requirements))


@dataclass(frozen=True, slots=True)
class Cell:
    """What a column has for a row: a pick for each of its packages, or why none."""

    picks: tuple[Distribution, ...] = ()
    refused: str = ""
    """Names of the components whose facts rule every version out; see `COMBINATION`, `UNDECIDED`."""

    @property
    def version(self) -> str:
        """Version and variant of each pick; empty when refused."""
        return " + ".join(pick.key for pick in self.picks)

    @property
    def weakest(self) -> tuple[Distribution, Fact]:
        """The fact that decides how far the cell can be trusted, with its pick."""
        pick = min(self.picks, key=lambda one: STATUS_RANK[one.support])
        return pick, next((one for one in pick.facts if one.status == pick.support), pick.facts[0])


@dataclass(frozen=True, slots=True)
class Row:
    """One torch and one Python in base images that no fact tells apart."""

    images: tuple[str, ...]
    """None where no base image goes with this torch and Python."""
    rocm: str
    """Release in the image; the line of the torch wheel where there is none; empty for a CPU."""
    torch: str
    python: str
    verdict: Verdict | None
    """None when the row itself is refused."""
    cells: Mapping[str, Cell] = field(default_factory=dict)
    """By name of the column; empty when the row itself is refused."""
    refused: str = ""
    """Why, as in `Cell`."""
