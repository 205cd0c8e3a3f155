"""The one search: variables with finite domains as bit masks, tables and learned incompatibilities.

Constraints have two forms. A *table* is a relation between two variables that is known as a whole, such as
the driver table of ROCm. An *incompatibility* maps variables to masks: not all of these variables may have
a value in their mask. It is the form of PubGrub [1]_, with masks in place of version ranges. Bit 0 of every
mask means "absent", as in `resolver.compiling.problem`. Variables, tables and incompatibilities may be added
while the search runs, so a caller can add the requirements of a release when it considers the release.

Tables are propagated as masks (arc consistency, maintained during the search [2]_). The incompatibility that
is the reason for a conclusion from a table is built only if a contradiction depends on it. A contradiction is
resolved with the incompatibilities that led to it until one choice is left to take back (conflict-driven
clause learning [3]_). A learned incompatibility does not depend on any choice, so it also applies to later
searches with other assumptions. Each assumption is a level of its own, and the common prefix of successive
assumptions is kept (as in MiniSat [4]_), so that deciding component by component costs little more than one
search.

Learned incompatibilities only exclude values that have no solution with the earlier decisions. So, if the
caller always decides the first undecided variable of a fixed order with its most preferred value, every other
solution is worse in the first variable in which it differs.

.. [1] N. Weizenbaum, "PubGrub: next-generation version solving" (2018).
.. [2] D. Sabin, E. C. Freuder, "Contradicting conventional wisdom in constraint satisfaction", ECAI (1994).
.. [3] J. P. Marques-Silva, K. A. Sakallah, "GRASP: a search algorithm for propositional satisfiability",
   IEEE Transactions on Computers 48 (1999).
.. [4] N. Een, N. Sorensson, "Temporal induction by incremental SAT solving", ENTCS 89 (2003).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import inf
from operator import itemgetter
from time import monotonic

import msgspec

from resolver.compiling.problem import ABSENT, bits
from resolver.errors import TooLargeError

MOST_CONFLICTS = 20_000
"""A search gives up after this many contradictions."""
_MOST_REVISIONS = 400
"""Revisions cached for each table; limits memory."""

Assumption = tuple[int, int]
"""A variable, and the mask that it is limited to."""
Revisions = dict[tuple[int, int], tuple[int, int]]
"""For subjects and objects of a table, those that are consistent with each other."""


class Incompatibility:
    """Variables that may not all have a value in their mask.

    `terms` has the masks by number of the variable, `reason` the statement behind it, or None if it was
    learned from the two incompatibilities `parents`.
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


@lru_cache(maxsize=4096)
def _numbers(mask: int) -> tuple[int, ...]:
    """Return the numbers of the set bits; cached, because the tables of a variable share its masks."""
    return tuple(bits(mask))


class _Table:
    """A relation between two variables; a subject that is absent allows every object."""

    __slots__ = ("allowed", "born", "everything", "object", "reason", "revisions", "subject")

    def __init__(
        self,
        ends: tuple[int, int],
        allowed: Sequence[int],
        everything: int,
        reason: object,
        revisions: Revisions,
    ) -> None:
        self.subject, self.object = ends
        self.allowed = allowed
        """For each value of the subject the mask of allowed objects."""
        self.everything = everything
        self.reason = reason
        self.born = 0
        """The level at which it was propagated first."""
        self.revisions = revisions

    def revised(self, subjects: int, objects: int) -> tuple[int, int]:
        known = self.revisions.get((subjects, objects))
        if known is None:
            kept, reachable = subjects, 0
            allowed = self.allowed
            for bit in _numbers(subjects):
                partners = allowed[bit] & objects
                if partners:
                    reachable |= partners
                else:
                    kept ^= 1 << bit
            if len(self.revisions) > _MOST_REVISIONS:
                self.revisions.clear()
            known = kept, reachable
            self.revisions[subjects, objects] = self.revisions[known] = known  # both ends are consistent now
        return known

    def why(self, variable: int, lost: int) -> Incompatibility:
        """Return the incompatibility because of which a variable lost values."""
        # The lost subjects allow only `other`. The reason names every object that excludes them, not only
        # those that are excluded now, so that what is learned from it holds in more cases.
        other = 0
        if variable == self.subject:
            for bit in bits(lost):
                other |= self.allowed[bit]
            excluded = self.everything & ~other
            others = {self.object: excluded} if excluded != self.everything else {}
            return Incompatibility({self.subject: lost, **others}, self.reason)
        for bit, mask in enumerate(self.allowed):
            if mask & lost:
                other |= 1 << bit
        subjects = (1 << len(self.allowed)) - 1
        return Incompatibility({self.object: lost, self.subject: subjects & ~other}, self.reason)


_Watch = tuple[int, int, int, Incompatibility]
"""An incompatibility to check when a variable has only values of its mask, and how many the variable had
before. If there is one other variable, as in nearly all, also this variable and its mask; else -1 and 0."""


class _Entry(msgspec.Struct, frozen=True, gc=False):
    """A step of the search: a variable lost values."""

    variable: int
    before: int
    level: int
    """The level of the last choice that this entry follows from; its own level if it is a choice."""
    total: int
    """The highest such level among this entry and the earlier entries of the variable."""
    cause: Incompatibility | _Table | None
    """None for a choice or an assumption."""
    after: int


class Search:
    """Variables, constraints, and the choices made so far.

    With `lazily`, tables are not propagated until their subject must be present. This is faster if most
    variables may be absent, and leaves values that have no solution in the domains of these.

    `domains` has for each variable the mask of the values that are left, `stated` the incompatibilities that
    were added, `touched` the variables whose domain is new or changed: the caller removes those that it has
    processed. `conflicts` counts the contradictions in the current call. At the time `until`
    (`time.monotonic`), a search gives up.
    """

    def __init__(self, *, max_conflicts: int = MOST_CONFLICTS, lazily: bool = False) -> None:
        self._lazily = lazily
        self.domains: list[int] = []
        self.everything: list[int] = []
        self.conflicts = 0
        self.until = inf
        self.stated: list[Incompatibility] = []
        self.touched: set[int] = set()
        self.max_conflicts = max_conflicts
        self._touching: list[dict[int, list[_Watch]]] = []
        """For each variable the incompatibilities with several of its values in their mask, by the values
        outside the mask: many releases of a project require the same versions of another."""
        self._of_value: list[dict[int, list[_Watch]]] = []
        """For each variable the other incompatibilities by their only value, such as one release: they matter
        only once the variable has this value, and most belong to releases that are not chosen."""
        self._degrees: list[int] = []
        """For each variable the number of its tables and of incompatibilities in `_touching`."""
        self._tables: list[list[_Table]] = []
        self._late: list[_Table] = []
        """Tables that were added after a choice."""
        self._trail: list[_Entry] = []
        self._entries: list[list[int]] = []
        """For each variable the positions of its entries, in order."""
        self._starts: list[int] = []
        """For each level from 1 the position of its first entry."""
        self._assumed: list[Assumption] = []
        """The assumptions of the current call; the first levels are theirs."""
        self._fresh: list[Incompatibility] = []
        """Incompatibilities to check, whatever changed."""
        self._changed: dict[int, None] = {}
        """Variables whose constraints must be checked, the first to change first."""

    def add_variable(self, everything: int) -> int:
        """Add a variable with a mask of values, and return its number."""
        self.domains.append(everything)
        self.everything.append(everything)
        self._touching.append({})
        self._of_value.append({})
        self._degrees.append(0)
        self._tables.append([])
        self._entries.append([])
        self.touched.add(len(self.domains) - 1)
        return len(self.domains) - 1

    def add(self, terms: Mapping[int, int], reason: object) -> None:
        """Add an incompatibility, unless it has an empty mask and so has no effect."""
        everything = self.everything
        if all(terms.values()):
            kept = {variable: mask for variable, mask in terms.items() if everything[variable] & ~mask}
            incompatibility = Incompatibility(kept, reason)
            self.stated.append(incompatibility)
            self._add(incompatibility)

    def add_table(
        self,
        subject: int,
        target: int,
        allowed: Sequence[int],
        reason: object,
        revisions: Revisions | None = None,
    ) -> None:
        """Add a relation: the mask of objects for each subject. Equal tables may share `revisions`."""
        if subject == target:
            # Both ends have the same value, so each value but absence must allow itself.
            excluded = sum(1 << bit for bit in range(1, len(allowed)) if not allowed[bit] >> bit & 1)
            self.add({subject: excluded}, reason)
            return
        shared = {} if revisions is None else revisions
        table = _Table((subject, target), allowed, self.everything[target], reason, shared)
        if self._starts:
            table.born = len(self._starts)
            self._late.append(table)
        for variable in (subject, target):
            self._tables[variable].append(table)
            self._degrees[variable] += 1
            self._changed[variable] = None

    def degree(self, variable: int) -> int:
        """Return the number of constraints on a variable, learned ones included; at least 1."""
        return 1 + self._degrees[variable]

    def narrow(self, assumptions: Sequence[Assumption]) -> bool:
        """Limit the domains by propagation; return whether one is empty. Others may have no solution."""
        return self.solve(assumptions, lambda: None) is None

    def solve(
        self, assumptions: Sequence[Assumption], choose: Callable[[], Assumption | None]
    ) -> Incompatibility | None:
        """Search for a solution in which some variables have the assumed values.

        `choose` returns the variable to decide and the mask that it is limited to, or None if all variables
        that must be present are decided. It may add variables and constraints, also some that exclude its
        choice. Return None if there is a solution, which `domains` then contains. Otherwise return an
        incompatibility that the assumptions violate, perhaps by what follows from them; see `why`. Raise
        `TooLargeError` if there were too many contradictions.
        """
        self.conflicts = 0
        self._return_to(self._prefix(assumptions))
        self._assumed = list(assumptions)
        while True:
            failed = self._settle()
            if failed:
                return failed
            if len(self._starts) < len(self._assumed):
                variable, mask = self._assumed[len(self._starts)]
                if not self.domains[variable] & mask:
                    return Incompatibility({variable: self.everything[variable] & ~mask})
                self._starts.append(len(self._trail))
                self._limit(variable, mask, len(self._starts), None)
                continue
            choice = choose()
            if monotonic() > self.until:
                # After `choose`, which may have read pages and metadata for a long time.
                msg = "The search stopped at its time limit without an answer."
                raise TooLargeError(msg, hint="Request fewer packages, or pin some of them.")
            if self.is_pending:
                continue
            if choice is None:
                return None
            variable, mask = choice
            self._starts.append(len(self._trail))
            self._limit(variable, mask, len(self._starts), None)

    def why(self, failed: Incompatibility) -> Incompatibility:
        """Resolve what `solve` returned until its terms are variables of the assumptions.

        If it has no terms, there is no solution under any assumptions. Call this before the next `solve`.
        """
        is_assumption = failed.reason is None and not failed.parents
        # `solve` returned an assumption that left no value as if it were a fact. What is resolved from it
        # holds only under this assumption, which becomes one more term at the end.
        assumed = {v: self.everything[v] & ~mask for v, mask in failed.terms.items()} if is_assumption else {}
        while True:
            concluded = [
                position
                for variable, mask in failed.terms.items()
                if (position := self._satisfier(variable, mask)) >= 0
                and self._trail[position].cause is not None
            ]
            if not concluded:
                return Incompatibility(failed.terms | assumed, failed.reason, failed.parents)
            failed = self._resolved(failed, self._trail[max(concluded)])

    @property
    def is_pending(self) -> bool:
        """Whether something was added that was not propagated yet."""
        return bool(self._fresh or self._changed)

    def learn(self, failed: Incompatibility) -> Incompatibility:
        """Keep what `solve` returned as `why` gives it, so that the same assumptions are not tried again."""
        learned = self.why(failed)
        self._add(learned)
        return learned

    def restart(self) -> None:
        """Take back all choices, but no assumption; `choose` may then decide in another order."""
        self._return_to(len(self._assumed))

    def _prefix(self, assumptions: Sequence[Assumption]) -> int:
        """Return the number of assumptions that are in force already."""
        kept = 0
        for old, new in zip(self._assumed[: len(self._starts)], assumptions, strict=False):
            if old != new:
                break
            kept += 1
        return kept

    def _add(self, incompatibility: Incompatibility) -> None:
        terms = incompatibility.terms
        for variable, mask in terms.items():
            others = [other for other in terms if other != variable] if len(terms) == 2 else []  # noqa: PLR2004
            other = others[0] if others else -1
            watch = (self._degrees[variable], other, terms.get(other, 0), incompatibility)
            if mask & (mask - 1):
                self._touching[variable].setdefault(self.everything[variable] & ~mask, []).append(watch)
                self._degrees[variable] += 1
            else:
                self._of_value[variable].setdefault(mask, []).append(watch)
        self._fresh.append(incompatibility)

    def _limit(self, variable: int, mask: int, level: int, cause: Incompatibility | _Table | None) -> None:
        """Record that a variable keeps only the values in a mask."""
        before, entries = self.domains[variable], self._entries[variable]
        after = before & mask
        # A mask can hold because of several entries together, so all of them count: `total` is the highest
        # level of this variable's entries so far. A conclusion from old choices may stand behind newer ones.
        total = max(level, self._trail[entries[-1]].total) if entries else level
        entries.append(len(self._trail))
        self._trail.append(_Entry(variable, before, level, total, cause, after))
        if before != after:
            self.domains[variable] = after
            self._changed[variable] = None
            self.touched.add(variable)

    def _settle(self) -> Incompatibility | None:
        """Propagate all conclusions; return an incompatibility if the assumptions have no solution."""
        while True:
            conflict = self._propagate()
            if conflict is None:
                return None
            self.conflicts += 1
            if self.conflicts > self.max_conflicts:
                # What changed is no longer in `_changed`, so the next call would not meet this conflict by
                # itself.
                self._fresh.append(conflict)
                msg = f"The search stopped after {self.max_conflicts} contradictions without an answer."
                raise TooLargeError(msg, hint="Request fewer packages, or pin torch or ROCm.")
            failed = self._learn(conflict)
            if failed is not None:
                self._fresh.append(conflict)  # for the next search, whose assumptions may not violate it
                return failed

    def _propagate(self) -> Incompatibility | None:
        """Limit variables until nothing changes; return an incompatibility that is violated."""
        while True:
            if self._fresh:
                incompatibility = self._fresh.pop()
                if self._apply(incompatibility, is_fresh=True):
                    return incompatibility
                continue
            if not self._changed:
                return None
            # Removed before its constraints are applied, because they may change it once more.
            variable = next(iter(self._changed))
            del self._changed[variable]
            violated = self._propagate_from(variable) or self._revise(variable)
            if violated:
                return violated

    def _propagate_from(self, variable: int) -> Incompatibility | None:
        """Apply the incompatibilities of a changed variable; return one that is violated."""
        domains = self.domains
        domain = domains[variable]
        found = [watches for outside, watches in self._touching[variable].items() if not domain & outside]
        # In the order in which they were added, as if they were one list: the first conflict that is found
        # decides what is learned, and this must not depend on how they are grouped.
        if len(found) > 1:
            found = [sorted(chain.from_iterable(found), key=itemgetter(0))]
        for watches in (self._of_value[variable].get(domain, ()), *found):
            for _, other, excluded, incompatibility in watches:
                if other < 0:
                    if self._apply(incompatibility, is_fresh=False):
                        return incompatibility
                elif domains[other] & excluded:
                    if not domains[other] & ~excluded:
                        return incompatibility
                    # Everything was propagated before the last choice, so what is concluded now follows from
                    # that choice, and has its level. Only a fresh incompatibility may follow from fewer: see
                    # `_apply`.
                    self._limit(other, ~excluded, len(self._starts), incompatibility)
        return None

    def _revise(self, variable: int) -> Incompatibility | None:
        """Make the tables of a changed variable consistent; return an incompatibility that is violated."""
        domains = self.domains
        for table in self._tables[variable]:
            subjects, objects = domains[table.subject], domains[table.object]
            if subjects & ABSENT and self._lazily:
                continue
            kept, reachable = table.revised(subjects, objects)
            if not kept:
                return table.why(table.subject, subjects)
            if kept != subjects:
                self._limit(table.subject, kept, len(self._starts), table)
            if reachable != objects:
                self._limit(table.object, reachable, len(self._starts), table)
        return None

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
        entries = self._entries[variable]
        # All values were in the mask from the start, so this depends on no choice.
        if not entries or not self._trail[entries[0]].before & ~mask:
            return -1
        # Domains only shrink, and a project may have an entry for each of its releases.
        first = bisect_left(entries, True, key=lambda position: not self._trail[position].after & ~mask)
        return entries[min(first, len(entries) - 1)]

    def _level_of(self, variable: int, mask: int) -> int:
        position = self._satisfier(variable, mask)
        return self._trail[position].total if position >= 0 else 0

    def _learn(self, conflict: Incompatibility) -> Incompatibility | None:
        """Learn, and take choices back; return what remains if only assumptions could be taken back."""
        while True:
            levels = {variable: self._level_of(variable, mask) for variable, mask in conflict.terms.items()}
            last = max(levels.values(), default=0)
            if last <= len(self._assumed):
                return conflict
            latest = [variable for variable, level in levels.items() if level == last]
            # With one variable of the last choice, the conflict says something about that variable as soon
            # as the other terms hold: go back to the choice that made the last of them hold, however many
            # choices lie between, and let it propagate there. With several, the last entry is replaced by
            # its cause, so that the conflict speaks of earlier entries; the choice itself has no cause and
            # is reached last, so this ends.
            if len(latest) == 1:
                self._return_to(max((level for level in levels.values() if level < last), default=0))
                self._add(conflict)
                return None
            entry = self._trail[
                max(self._satisfier(variable, conflict.terms[variable]) for variable in latest)
            ]
            conflict = self._resolved(conflict, entry)

    def _resolved(self, conflict: Incompatibility, entry: _Entry) -> Incompatibility:
        """Combine an incompatibility with the incompatibility that limited one of its variables."""
        cause = entry.cause
        if cause is None:
            msg = "a choice has no cause"
            raise AssertionError(msg)
        if isinstance(cause, _Table):
            cause = cause.why(entry.variable, entry.before & ~entry.after)
        # The rule of resolution: each value of the shared variable that is in either mask is forbidden by one
        # of the two incompatibilities, so these masks are united. Both conditions on any other variable must
        # hold, so its masks are intersected. A mask with all values is no condition.
        terms = dict(conflict.terms)
        for variable, mask in cause.terms.items():
            if variable == entry.variable:
                union = terms[variable] | mask
                if self.everything[variable] & ~union:
                    terms[variable] = union
                else:
                    del terms[variable]
            elif variable in terms:
                terms[variable] &= mask
            else:
                terms[variable] = mask
        return Incompatibility(terms, None, (conflict, cause))

    def _return_to(self, level: int) -> None:
        if len(self._starts) <= level:
            return
        # What changed on the levels that are kept was propagated before the next choice was made.
        self._changed.clear()
        start = self._starts[level]
        del self._starts[level:]
        while len(self._trail) > start:
            entry = self._trail.pop()
            self.domains[entry.variable] = entry.before
            self.touched.add(entry.variable)
            self._entries[entry.variable].pop()
            if isinstance(entry.cause, Incompatibility) and entry.level <= level:
                self._fresh.append(entry.cause)  # it still follows
        # A table that was added after one of these choices was checked only with them, and its conclusions
        # are taken back. Its object may be optional, so nothing else would make the search look at it again.
        for table in self._late:
            if table.born > level:
                table.born = level
                self._changed |= {table.subject: None, table.object: None}


def is_required(domain: int) -> bool:
    """Return whether a variable must be present."""
    return not domain & ABSENT
