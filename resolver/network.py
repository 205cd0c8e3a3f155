"""A problem as arrays, and a search that maintains arc consistency at every step.

A `Network` is built once for a set of relations. Domains are lists of masks, one for each variable, so each
step of the search copies one list and revises only the changed domains (AC-3 with a queue [1]_; maintaining
it during search is MAC [2]_). The search branches first on variables whose relations caused earlier
contradictions (dom/wdeg [3]_). A `Proof` records which relation dropped which candidates. So a contradiction
can be traced to the relations that led to it. The search takes back at once all choices that did not
contribute to it (conflict-directed backjumping [4]_).

.. [1] A. K. Mackworth, "Consistency in networks of relations", Artificial Intelligence 8 (1977).
.. [2] D. Sabin, E. C. Freuder, "Contradicting conventional wisdom in constraint satisfaction",
   ECAI (1994).
.. [3] F. Boussemart et al., "Boosting systematic search by weighting constraints", ECAI (2004).
.. [4] P. Prosser, "Hybrid algorithms for the constraint satisfaction problem", Computational
   Intelligence 9 (1993).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache

from resolver.errors import TooLargeError
from resolver.problem import ABSENT, Demand, Problem, bits

Domains = list[int]
"""For each variable, in the order of `Network.names`, the mask of candidates that are left."""

MOST_STEPS = 20_000
"""The search gives up after this many steps. A request to the catalog takes tens of steps."""

_MAX_CACHED_REVISIONS = 250
"""Revisions cached for each relation; limits memory."""

_CHOICE = -1
"""Used instead of a relation in records where the search dropped candidates to try one of them."""


class Proof:
    """The reason why there is no solution: everything that contributes to one of the contradictions.

    The demands on `variables` and the relations `links` have no solution on their own. They need not be a
    minimal set, and other sets may prove the same.

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
        """The steps that dropped candidates, in order: the variable, the relation, and its other variable."""

    def record(self, variable: int, link: int, other: int) -> None:
        """Record that a relation dropped candidates of a variable because of another variable."""
        self._trail.append((variable, link, other))

    def choose(self, variable: int) -> None:
        """Record that the search tries one candidate of a variable."""
        self._trail.append((variable, _CHOICE, variable))

    @property
    def length(self) -> int:
        """Number of records."""
        return len(self._trail)

    def truncate(self, length: int) -> None:
        """Keep only the first records."""
        del self._trail[length:]

    def contradiction(self, link: int, variables: Iterable[int]) -> int:
        """Trace a contradiction back to the relations and variables that led to it.

        Parameters
        ----------
        link
            The relation that left a variable without candidates; negative if a demand did.
        variables
            The variables of that relation.

        Returns
        -------
        int
            Position in the records of the last choice that contributes to it; -1 if there is none.
        """
        needed, last = set(variables), -1
        if link >= 0:
            self.links.add(link)
        for position in range(len(self._trail) - 1, -1, -1):
            variable, reason, other = self._trail[position]
            if variable not in needed:
                continue
            if reason == _CHOICE:
                last = max(last, position)
            else:
                self.links.add(reason)
                needed.add(other)
        self.variables |= needed
        return last


class Network:
    """Variables and relations, indexed by number.

    Parameters
    ----------
    problem
        The problem. Its demands are not used.
    max_steps
        Limit of steps for one search.

    Attributes
    ----------
    names
        Names of the variables.
    number
        Number of each variable, by name.
    """

    def __init__(self, problem: Problem, *, max_steps: int = MOST_STEPS) -> None:
        self.names = list(problem.variables)
        self.number = {name: number for number, name in enumerate(self.names)}
        self._max_steps = max_steps
        self._everything = [variable.everything for variable in problem.variables.values()]
        self._tables = [relation.table for relation in problem.relations]
        self._ends = [
            (self.number[relation.subject.name], self.number[relation.object.name])
            for relation in problem.relations
        ]
        self._revisions: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in self._ends]
        """Results of `_revise`, for each relation."""
        self._touching: list[list[int]] = [[] for _ in self.names]
        for link, ends in enumerate(self._ends):
            for end in dict.fromkeys(ends):
                self._touching[end].append(link)
        self._preferences = {
            self.number[name]: (self.number[preference.other], preference.first)
            for name, preference in problem.preferences.items()
        }
        self._degrees = [len(links) for links in self._touching]
        self._weights = self._degrees.copy()

    def start(
        self, demands: Iterable[Demand], links: Sequence[int] | None = None, proof: Proof | None = None
    ) -> Domains | None:
        """Return the domains that demands and relations leave, or None if one of them is empty.

        Parameters
        ----------
        demands
            Limits on single variables.
        links
            Numbers of the relations to consider; all if None.
        proof
            Receives the reason if a domain is empty. With a proof, only variables that must be present are
            made consistent: all others can be absent together, so they have no part in any proof.
        """
        domains = list(self._everything)
        for demand in demands:
            domains[self.number[demand.variable.name]] &= demand.mask
        if not all(domains):
            if proof:
                proof.contradiction(-1, [domains.index(0)])
            return None
        active = range(len(self._ends)) if links is None else links
        failed = self._propagate(
            domains, active, self._touching_among(links), proof, lazily=proof is not None
        )
        if failed is None:
            return domains
        if proof:
            proof.contradiction(failed, self._ends[failed])
        return None

    def by_preference(self, domains: Domains, variable: int) -> list[int]:
        """Return the remaining bit numbers of a variable: absence, then by preference."""
        mask, first = domains[variable], ABSENT
        if variable in self._preferences:
            other, preferred = self._preferences[variable]
            if domains[other] & ABSENT:
                first |= preferred.get(0, 0)
            elif domains[other].bit_count() == 1:
                first |= preferred.get(domains[other].bit_length() - 1, 0)
        return [*bits(mask & first), *bits(mask & ~first)]

    def _touching_among(self, links: Sequence[int] | None) -> Sequence[Sequence[int]]:
        """Return, for each variable, its relations to consider."""
        if links is None or len(links) == len(self._ends):
            return self._touching
        touching: list[list[int]] = [[] for _ in self.names]
        for link in links:
            for end in set(self._ends[link]):
                touching[end].append(link)
        return touching

    def narrow(self, domains: Domains, variable: int, mask: int) -> Domains | None:
        """Return the domains that are left if a variable keeps only some candidates; None if one is empty."""
        kept = domains[variable] & mask
        if not kept:
            return None
        if kept == domains[variable]:
            return domains
        narrowed = domains.copy()
        narrowed[variable] = kept
        failed = self._propagate(narrowed, self._touching[variable], self._touching, None)
        return narrowed if failed is None else None

    def refute(self, demands: Sequence[Demand], links: Sequence[int] | None = None) -> Proof | None:
        """Return a proof that there is no solution, or None if there is one.

        Parameters
        ----------
        demands, links
            As for `start`.

        Raises
        ------
        TooLargeError
            The search reached its limit of steps.
        """
        self._weights = self._degrees.copy()  # weights learned from earlier problems would mislead the search
        proof = Proof()
        domains = self.start(demands, links, proof)
        if domains is not None and self.search(domains, links, proof):
            return None
        return proof

    def search(
        self,
        domains: Domains,
        links: Sequence[int] | None = None,
        proof: Proof | None = None,
    ) -> Domains | None:
        """Find a solution within arc consistent domains.

        The search does not branch on a variable that may be absent. When all other variables are decided,
        none of them needs such a variable, so all such variables can be absent together.

        Parameters
        ----------
        domains
            The remaining candidates of each variable.
        links
            Numbers of the relations to consider; all if None.
        proof
            Receives the reason if there is no solution.

        Returns
        -------
        list or None
            Domains with one bit each; None if there is no solution.

        Raises
        ------
        TooLargeError
            The search reached its limit of steps.
        """
        proof = proof or Proof()
        touching = self._touching_among(links)
        stack = [(domains, -1, 0, proof.length)]
        for _ in range(self._max_steps):
            if not stack:
                return None
            before, variable, mask, length = stack.pop()
            proof.truncate(length)
            current = before
            if variable >= 0:
                proof.choose(variable)
                current = before.copy()
                current[variable] = mask
                failed = self._propagate(current, touching[variable], touching, proof)
                if failed is not None:
                    choice = proof.contradiction(failed, self._ends[failed])
                    while stack and stack[-1][3] > choice:
                        stack.pop()
                    continue
            branch = self._most_constrained(current)
            if branch < 0:
                return [ABSENT if mask & ABSENT else mask for mask in current]
            length = proof.length
            stack += [(current, branch, 1 << bit, length) for bit in reversed(list(bits(current[branch])))]
        msg = f"The search stopped after {self._max_steps} steps without an answer."
        raise TooLargeError(msg, hint="Request fewer packages, or pin torch or ROCm.")

    def _most_constrained(self, domains: Domains) -> int:
        """Return the undecided variable to branch on, or -1 if no variable must be decided."""
        best, chosen = 0.0, -1
        for variable, mask in enumerate(domains):
            if mask & ABSENT or not mask & (mask - 1):
                continue
            score = mask.bit_count() / (self._weights[variable] or 1)
            if chosen < 0 or score < best:
                best, chosen = score, variable
        return chosen

    def _propagate(
        self,
        domains: Domains,
        links: Iterable[int],
        touching: Sequence[Sequence[int]],
        proof: Proof | None,
        lazily: bool = True,
    ) -> int | None:
        """Drop every candidate that has no partner in some relation.

        Parameters
        ----------
        domains
            Changed in place.
        links
            The relations to start with.
        touching
            For each variable, the relations to consider.
        proof
            Records the relations that dropped candidates.
        lazily
            Do not follow a relation until its subject must be present.

        Returns
        -------
        int or None
            Number of the relation that left a variable without candidates; None if none did.
        """
        ends, revisions = self._ends, self._revisions
        queue = deque(links)
        waiting = set(queue)
        while queue:
            link = queue.popleft()
            subject, target = ends[link]
            subjects, objects = domains[subject], domains[target]
            if lazily and subjects & ABSENT:
                waiting.discard(link)
                continue
            known = revisions[link].get((subjects, objects))
            kept, reachable = known or self._revise(link, subjects, objects)
            if not kept:  # then nothing is reachable either
                self._weights[subject] += 1
                self._weights[target] += 1
                return link
            for variable, left, other in ((subject, kept, target), (target, reachable, subject)):
                if left == domains[variable]:
                    continue
                domains[variable] = left
                if proof:
                    proof.record(variable, link, other)
                for neighbour in touching[variable]:
                    if neighbour not in waiting:
                        waiting.add(neighbour)
                        queue.append(neighbour)
            waiting.discard(link)  # not earlier: the relation is consistent with what it left
        return None

    def _revise(self, link: int, subjects: int, objects: int) -> tuple[int, int]:
        """Return the subjects that still have an allowed object, and the objects that they allow.

        Searches in one network start from the same domains and proceed almost the same way, so most
        revisions occur again and are cached.
        """
        subject, target = self._ends[link]
        table = self._tables[link]
        if subject == target:
            kept = reachable = sum(1 << bit for bit in bits(subjects) if table[bit] >> bit & 1)
        else:
            kept, reachable = subjects, 0
            for bit in _numbers(subjects):
                partners = table[bit] & objects
                if partners:
                    reachable |= partners
                else:
                    kept ^= 1 << bit
        known = self._revisions[link]
        if len(known) >= _MAX_CACHED_REVISIONS:
            known.clear()
        known[subjects, objects] = kept, reachable
        return kept, reachable


@lru_cache(maxsize=4096)
def _numbers(mask: int) -> tuple[int, ...]:
    """Return the numbers of the set bits; cached, because a few masks occur again and again."""
    return tuple(bits(mask))
