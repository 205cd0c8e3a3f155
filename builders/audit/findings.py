"""What an audit says: findings as data, which text, JSON and provenance are made from."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MOST_OF_ONE_KIND = 100  # nobody reads more, and a hostile wheel has millions
Severity = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a wheel."""

    id: str
    severity: Severity
    text: str
    cure: str = ""
    """What to do about it; empty where nothing needs doing."""
    evidence: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Where it was seen: ``member``, ``section``, ``offset``, ``library`` and the like."""


class Findings:
    """The findings of one check; beyond the first hundred of one kind they are counted and not kept."""

    def __init__(self, found: Iterable[Finding] = ()) -> None:
        self._kept: list[Finding] = []
        self._counts = Counter[tuple[str, Severity]]()
        for one in found:
            self.add(one)

    def add(self, one: Finding) -> None:
        """Take a finding."""
        self._counts[one.id, one.severity] += 1
        if self._counts[one.id, one.severity] <= _MOST_OF_ONE_KIND:
            self._kept.append(one)

    def all(self) -> list[Finding]:
        """Give what was kept, and for each kind with more of it, how many more."""
        return [
            *self._kept,
            *(
                Finding(name, severity, f"There are {more} more of these.", "", {"count": str(more)})
                for (name, severity), count in self._counts.items()
                if (more := count - _MOST_OF_ONE_KIND) > 0
            ),
        ]
