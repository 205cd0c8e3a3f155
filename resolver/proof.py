"""Why there is no solution, noted while a `Network` is searched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_CHOICE = -1
"""Stands for a relation where the search dropped candidates to try one of them."""


class Proof:
    """Why there is no solution: what has a part in any of the contradictions that were met.

    With the demands on these variables and these relations alone there is no solution either. Other
    sets may prove the same, smaller ones among them.

    Attributes
    ----------
    links
        Numbers of relations.
    variables
        Numbers of variables whose candidates matter.
    """

    __slots__ = ("_trail", "links", "variables")

    def __init__(self) -> None:
        self.links: set[int] = set()
        self.variables: set[int] = set()
        self._trail: list[tuple[int, int, int]] = []
        """What dropped candidates since the start: the variable, the relation, and its other variable."""

    def note(self, variable: int, link: int, other: int) -> None:
        """Note that a relation dropped candidates of a variable because of those of another."""
        self._trail.append((variable, link, other))

    def choose(self, variable: int) -> None:
        """Note that the search tries one candidate of a variable."""
        self._trail.append((variable, _CHOICE, variable))

    @property
    def length(self) -> int:
        """The number of notes."""
        return len(self._trail)

    def forget(self, length: int) -> None:
        """Take back all notes but the first ones."""
        del self._trail[length:]

    def contradiction(self, link: int, variables: Iterable[int]) -> int:
        """Trace a contradiction to what led to it.

        Parameters
        ----------
        link
            The relation that left a variable without candidates; negative if a demand did.
        variables
            The variables of that relation.

        Returns
        -------
        int
            The place in the notes of the last choice that has a part in it; -1 if none has.
        """
        needed, last = set(variables), -1
        if link >= 0:
            self.links.add(link)
        for place in range(len(self._trail) - 1, -1, -1):
            variable, reason, other = self._trail[place]
            if variable not in needed:
                continue
            if reason == _CHOICE:
                last = max(last, place)
            else:
                self.links.add(reason)
                needed.add(other)
        self.variables |= needed
        return last
