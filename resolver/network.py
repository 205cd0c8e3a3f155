"""A problem as arrays: arc consistency kept up to date, and a search that keeps it at every step.

`Network` is made once for a set of relations. Domains are lists of masks, one for each variable, so
that a step of the search copies one list and revises only what the step touched (AC-3 with a queue
[1]_; maintaining it during search is MAC [2]_). Which variable is branched on follows from where
contradictions were met before (dom/wdeg [3]_).

.. [1] A. K. Mackworth, "Consistency in networks of relations", Artificial Intelligence 8 (1977).
.. [2] D. Sabin, E. C. Freuder, "Contradicting conventional wisdom in constraint satisfaction",
   ECAI (1994).
.. [3] F. Boussemart et al., "Boosting systematic search by weighting constraints", ECAI (2004).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.errors import MatrixError
from resolver.problem import ABSENT, bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.problem import Demand, Problem, Relation

Domains = list[int]
"""For each variable, in the order of `Network.names`, the mask of candidates that are left."""


class TooLargeError(MatrixError):
    """The search was stopped by its guard."""

    id = "too-large"


def too_large(steps: int) -> TooLargeError:
    """Say that the guard stopped the search, which says nothing about solutions."""
    msg = f"The search was stopped after {steps} steps without an answer."
    return TooLargeError(msg, hint="Ask for fewer packages, or pin torch or ROCm.")


class Network:
    """Variables and relations, indexed by number.

    Parameters
    ----------
    problem
        The problem; its demands are not looked at.

    Attributes
    ----------
    names
        Names of the variables.
    number
        Name to number.
    """

    def __init__(self, problem: Problem) -> None:
        self.names = list(problem.variables)
        self.number = {name: number for number, name in enumerate(self.names)}
        self.relations: Sequence[Relation] = problem.relations
        self._everything = [variable.everything for variable in problem.variables.values()]
        self._tables = [relation.table for relation in problem.relations]
        self._ends = [
            (self.number[relation.subject.name], self.number[relation.object.name])
            for relation in problem.relations
        ]
        self._touching: list[list[int]] = [[] for _ in self.names]
        for link, ends in enumerate(self._ends):
            for end in dict.fromkeys(ends):
                self._touching[end].append(link)
        self._weights = [1] * len(self._ends)

    def start(self, demands: Iterable[Demand], links: Sequence[int] | None = None) -> Domains | None:
        """Give the domains that demands and relations leave, or None if one of them is empty.

        Parameters
        ----------
        demands
            What is wanted.
        links
            Numbers of the relations that count; all when None.
        """
        domains = list(self._everything)
        for demand in demands:
            domains[self.number[demand.variable.name]] &= demand.mask
        if not all(domains):
            return None
        count = range(len(self._ends)) if links is None else links
        only = None if links is None else frozenset(links)
        return domains if self._close(domains, count, only) else None

    def narrowed(
        self, domains: Domains, variable: int, mask: int, only: frozenset[int] | None = None
    ) -> Domains | None:
        """Give the domains that are left when a variable keeps only some candidates."""
        kept = domains[variable] & mask
        if not kept:
            return None
        if kept == domains[variable]:
            return domains
        copy = domains.copy()
        copy[variable] = kept
        return copy if self._close(copy, self._touching[variable], only) else None

    def search(self, domains: Domains, most_steps: int, only: frozenset[int] | None = None) -> Domains | None:
        """Find a solution within arc consistent domains.

        A variable that may be absent is not branched on: when all others are decided, what may be
        absent is needed by none of them, and so all of it may be absent together.

        Returns
        -------
        list or None
            Domains with one bit each; None when there is no solution.

        Raises
        ------
        TooLargeError
            After `most_steps` steps.
        """
        stack: list[tuple[Domains, int, int]] = [(domains, -1, 0)]
        for _ in range(most_steps):
            if not stack:
                return None
            before, variable, mask = stack.pop()
            here = before if variable < 0 else self.narrowed(before, variable, mask, only)
            if here is None:
                continue
            branch = self._most_constrained(here)
            if branch < 0:
                return [ABSENT if mask & ABSENT else mask for mask in here]
            stack += [(here, branch, 1 << bit) for bit in reversed(list(bits(here[branch])))]
        raise too_large(most_steps)

    def _most_constrained(self, domains: Domains) -> int:
        """Choose the open variable to branch on, or -1 if none is left that must be decided."""
        best, chosen = 0.0, -1
        for variable, mask in enumerate(domains):
            if mask & ABSENT or not mask & (mask - 1):
                continue
            weight = sum(self._weights[link] for link in self._touching[variable])
            score = mask.bit_count() / (weight or 1)
            if chosen < 0 or score < best:
                best, chosen = score, variable
        return chosen

    def _close(self, domains: Domains, links: Iterable[int], only: frozenset[int] | None) -> bool:
        """Drop every candidate without a partner in some relation; tell whether each has one left."""
        queue = dict.fromkeys(links)
        ends, tables, touching = self._ends, self._tables, self._touching
        while queue:
            link = next(iter(queue))
            del queue[link]
            if only is not None and link not in only:
                continue
            subject, target = ends[link]
            subjects, objects = domains[subject], domains[target]
            table = tables[link]
            if subject == target:
                subjects = objects = sum(1 << bit for bit in bits(subjects) if table[bit] >> bit & 1)
                kept = reachable = subjects
            else:
                kept, reachable = _revise(table, subjects, objects)
            if not kept or not reachable:
                self._weights[link] += 1
                return False
            if kept != domains[subject]:
                domains[subject] = kept
                queue.update(dict.fromkeys(touching[subject]))
            if reachable != domains[target]:
                domains[target] = reachable
                queue.update(dict.fromkeys(touching[target]))
        return True


def propagate(problem: Problem) -> dict[str, int] | None:
    """Make a problem arc consistent.

    Returns
    -------
    dict or None
        For each variable the mask of candidates that still have a partner in every relation,
        or None when some variable has none left, which proves that there is no solution.
    """
    network = Network(problem)
    domains = network.start(problem.demands)
    return None if domains is None else dict(zip(network.names, domains, strict=True))


def _revise(table: Sequence[int], subjects: int, objects: int) -> tuple[int, int]:
    """Keep the subjects with an allowed object left, and the objects that one of them allows."""
    kept, reachable, rest = 0, 0, subjects
    while rest:
        lowest = rest & -rest
        partners = table[lowest.bit_length() - 1] & objects
        if partners:
            kept |= lowest
            reachable |= partners
        rest ^= lowest
    return kept, reachable
