"""A search that learns from contradictions, over variables with finite domains as bit masks.

An *incompatibility* maps variables to masks: not all of these variables may have a value in their mask. It is
the form of PubGrub [1]_, with masks in place of version ranges; bit 0 of every mask means "absent", as in
`resolver.problem`. Incompatibilities may be added while the search runs, so a caller can add those of a
version when it considers the version. A contradiction is resolved with the incompatibilities that led to it
until one choice is left to take back (conflict-driven clause learning [2]_). A learned incompatibility does
not depend on any choice, so it also applies to later searches with other assumptions.

The variables that must be present are decided in the order in which they were added, each with its first
remaining value. Learned incompatibilities only exclude values that have no solution with the earlier
decisions. So every other solution is worse in the first variable in which it differs, as long as the set of
variables that must be present does not change.

.. [1] N. Weizenbaum, "PubGrub: next-generation version solving" (2018).
.. [2] J. P. Marques-Silva, K. A. Sakallah, "GRASP: a search algorithm for propositional satisfiability",
   IEEE Transactions on Computers 48 (1999).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from resolver.errors import TooLargeError
from resolver.problem import ABSENT

MOST_CONFLICTS = 20_000
"""The search gives up after this many contradictions."""


class Incompatibility:
    """Variables that may not all have a value in their mask.

    Attributes
    ----------
    terms
        Masks by number of the variable.
    reason
        The statement behind it; None if it was learned.
    parents
        The two incompatibilities from which it was learned.
    """

    __slots__ = ("parents", "reason", "terms")

    def __init__(
        self,
        terms: dict[int, int],
        reason: object = None,
        parents: tuple[Incompatibility, ...] = (),
    ) -> None:
        self.terms = terms
        self.reason = reason
        self.parents = parents

    def reasons(self) -> list[object]:
        """Return the distinct statements from which the incompatibility follows."""
        left, seen, stated = [self], {id(self)}, dict[int, object]()
        while left:
            incompatibility = left.pop()
            if incompatibility.reason is not None:
                stated.setdefault(id(incompatibility.reason), incompatibility.reason)
            for parent in incompatibility.parents:
                if id(parent) not in seen:
                    seen.add(id(parent))
                    left.append(parent)
        return list(stated.values())


class _Entry(NamedTuple):
    """A step of the search: a variable lost values."""

    variable: int
    before: int
    previous: int
    """Position of the variable's previous entry; -1 if this is its first."""
    level: int
    """The level of the last choice that this entry follows from; its own level if it is a choice."""
    total: int
    """The highest such level among this entry and the earlier entries of the variable."""
    cause: Incompatibility | None
    """None for a choice or an assumption."""


class Search:
    """Variables, incompatibilities, and the choices made so far.

    Attributes
    ----------
    domains
        For each variable the mask of the values that are left.
    conflicts
        Number of contradictions so far.
    stated
        The incompatibilities that were added.
    touched
        Variables whose domain is new or changed. The caller removes those that it has processed.
    """

    def __init__(self, *, max_conflicts: int = MOST_CONFLICTS) -> None:
        self.domains: list[int] = []
        self.conflicts = 0
        self.stated: list[Incompatibility] = []
        self.touched: set[int] = set()
        self._everything: list[int] = []
        self._max_conflicts = max_conflicts
        self._touching: list[list[Incompatibility]] = []
        self._trail: list[_Entry] = []
        self._last: list[int] = []
        """For each variable the position of its last entry; -1 if it has none."""
        self._starts: list[int] = []
        """For each level from 1 the position of its first entry."""
        self._fresh: list[Incompatibility] = []
        """Incompatibilities to check, whatever changed."""
        self._changed: list[int] = []
        """Variables whose incompatibilities must be checked."""

    def add_variable(self, everything: int) -> int:
        """Add a variable with a mask of values, and return its number."""
        self.domains.append(everything)
        self._everything.append(everything)
        self._touching.append([])
        self._last.append(-1)
        self.touched.add(len(self.domains) - 1)
        return len(self.domains) - 1

    def add(self, terms: Mapping[int, int], reason: object) -> None:
        """Add an incompatibility, unless it has an empty mask and so has no effect."""
        everything = self._everything
        if all(terms.values()):
            kept = {variable: mask for variable, mask in terms.items() if everything[variable] & ~mask}
            incompatibility = Incompatibility(kept, reason)
            self.stated.append(incompatibility)
            self._add(incompatibility)

    def solve(
        self,
        assumptions: Iterable[tuple[int, int]],
        choose: Callable[[], tuple[int, int] | None],
    ) -> Incompatibility | None:
        """Search for a solution in which some variables have the assumed values.

        Parameters
        ----------
        assumptions
            Variables with the masks that they are limited to.
        choose
            Returns the variable to decide and the mask of its value, or None if all variables that must be
            present are decided. It may add variables and incompatibilities, including some that exclude its
            choice.

        Returns
        -------
        Incompatibility or None
            None if there is a solution, which `domains` then contains. Otherwise the reason: its terms are
            variables of the assumptions; if it has no terms, there is no solution under any assumptions.

        Raises
        ------
        TooLargeError
            There were too many contradictions.
        """
        self._return_to(0)
        failed = self._settle()
        if failed:
            return failed
        self._starts.append(len(self._trail))
        for variable, mask in assumptions:
            if not self.domains[variable] & mask:
                other = self._everything[variable] & ~mask
                failed = self._without_conclusions(Incompatibility({variable: other}))
                failed.terms[variable] = mask  # the conclusion is valid only under this assumption
                return failed
            self._limit(variable, mask, 1, None)
        while True:
            failed = self._settle()
            if failed:
                return failed
            choice = choose()
            if self._fresh:
                continue
            if choice is None:
                return None
            variable, mask = choice
            self._starts.append(len(self._trail))
            self._limit(variable, mask, len(self._starts), None)

    def _add(self, incompatibility: Incompatibility) -> None:
        for variable in incompatibility.terms:
            self._touching[variable].append(incompatibility)
        self._fresh.append(incompatibility)

    def _limit(self, variable: int, mask: int, level: int, cause: Incompatibility | None) -> None:
        before, previous = self.domains[variable], self._last[variable]
        total = max(level, self._trail[previous].total) if previous >= 0 else level
        self._trail.append(_Entry(variable, before, previous, level, total, cause))
        self._last[variable] = len(self._trail) - 1
        if before & ~mask:
            self.domains[variable] = before & mask
            self._changed.append(variable)
            self.touched.add(variable)

    def _settle(self) -> Incompatibility | None:
        """Propagate all conclusions; return the final incompatibility if the assumptions have no solution."""
        while True:
            conflict = self._propagate()
            if conflict is None:
                return None
            self.conflicts += 1
            if self.conflicts > self._max_conflicts:
                msg = f"The search stopped after {self._max_conflicts} contradictions without an answer."
                raise TooLargeError(msg, hint="Request fewer packages, or pin some of them.")
            failed = self._learn(conflict)
            if failed is not None:
                self._fresh.append(conflict)  # for the next search, whose assumptions may not violate it
                return failed

    def _propagate(self) -> Incompatibility | None:
        """Limit variables until nothing changes; return an incompatibility that is violated."""
        domains, touching = self.domains, self._touching
        while True:
            if self._fresh:
                incompatibility = self._fresh.pop()
                if self._apply(incompatibility, is_fresh=True):
                    return incompatibility
                continue
            if not self._changed:
                return None
            variable = self._changed.pop()
            domain = domains[variable]
            for incompatibility in touching[variable]:
                if domain & ~incompatibility.terms[variable]:
                    continue
                if self._apply(incompatibility, is_fresh=False):
                    return incompatibility
                domain = domains[variable]

    def _apply(self, incompatibility: Incompatibility, *, is_fresh: bool) -> bool:
        """Limit the only variable that an incompatibility leaves open; return whether it leaves none."""
        open_variable = -1
        domains = self.domains
        for variable, mask in incompatibility.terms.items():
            if domains[variable] & ~mask:
                if open_variable >= 0:
                    return False
                open_variable = variable
        if open_variable < 0:
            return True
        mask = incompatibility.terms[open_variable]
        if is_fresh:  # if it follows from fewer choices than were made, record it in any case
            others = (v for v in incompatibility.terms if v != open_variable)
            level = max((self._level_of(v, incompatibility.terms[v]) for v in others), default=0)
            if domains[open_variable] & mask or level < len(self._starts):
                self._limit(open_variable, ~mask, level, incompatibility)
        elif domains[open_variable] & mask:
            self._limit(open_variable, ~mask, len(self._starts), incompatibility)
        return False

    def _satisfier(self, variable: int, mask: int) -> int:
        """Return the position of the entry after which all values of a variable are in a mask."""
        position = self._last[variable]
        while position >= 0 and not self._trail[position].before & ~mask:
            position = self._trail[position].previous
        return position

    def _level_of(self, variable: int, mask: int) -> int:
        position = self._satisfier(variable, mask)
        return self._trail[position].total if position >= 0 else 0

    def _learn(self, conflict: Incompatibility) -> Incompatibility | None:
        """Learn from a violated incompatibility and take choices back.

        Return the remaining incompatibility if only assumptions could be taken back.
        """
        while True:
            levels = {variable: self._level_of(variable, mask) for variable, mask in conflict.terms.items()}
            last = max(levels.values(), default=0)
            if last <= 1:
                return self._without_conclusions(conflict)
            latest = [variable for variable, level in levels.items() if level == last]
            if len(latest) == 1:
                earlier = (level for level in levels.values() if level < last)
                self._return_to(max(earlier, default=1) or 1)
                self._add(conflict)
                return None
            entry = self._trail[
                max(self._satisfier(variable, conflict.terms[variable]) for variable in latest)
            ]
            conflict = _resolved(conflict, entry, self._everything[entry.variable])

    def _without_conclusions(self, conflict: Incompatibility) -> Incompatibility:
        """Resolve a violated incompatibility until only assumptions violate it."""
        while True:
            concluded = [
                position
                for variable, mask in conflict.terms.items()
                if (position := self._satisfier(variable, mask)) >= 0
                and self._trail[position].cause is not None
            ]
            if not concluded:
                return conflict
            entry = self._trail[max(concluded)]
            conflict = _resolved(conflict, entry, self._everything[entry.variable])

    def _return_to(self, level: int) -> None:
        """Take back all choices after a level, and everything that follows from them."""
        if len(self._starts) <= level:
            self._changed.clear()
            return
        start = self._starts[level]
        del self._starts[level:]
        while len(self._trail) > start:
            entry = self._trail.pop()
            self.domains[entry.variable] = entry.before
            self.touched.add(entry.variable)
            self._last[entry.variable] = entry.previous
            if entry.cause is not None and entry.level <= level:
                self._fresh.append(entry.cause)  # it still follows
        self._changed.clear()


def _resolved(conflict: Incompatibility, entry: _Entry, everything: int) -> Incompatibility:
    """Combine an incompatibility with the incompatibility that limited one of its variables."""
    cause = entry.cause
    if cause is None:
        msg = "a choice has no cause"
        raise AssertionError(msg)
    terms = dict(conflict.terms)
    for variable, mask in cause.terms.items():
        if variable == entry.variable:
            union = terms[variable] | mask
            if everything & ~union:
                terms[variable] = union
            else:
                del terms[variable]
        elif variable in terms:
            terms[variable] &= mask
        else:
            terms[variable] = mask
    return Incompatibility(terms, None, (conflict, cause))


def is_required(domain: int) -> bool:
    """Return whether a variable must be present."""
    return not domain & ABSENT
