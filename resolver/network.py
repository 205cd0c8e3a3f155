"""A problem as arrays: arc consistency kept up to date, and a search that keeps it at every step.

`Network` is made once for a set of relations. Domains are lists of masks, one for each variable, so
that a step of the search copies one list and revises only what the step touched (AC-3 with a queue
[1]_; maintaining it during search is MAC [2]_). Which variable is branched on follows from where
contradictions were met before (dom/wdeg [3]_). `Proof` notes what dropped candidates, so that a
contradiction can be traced to the relations that led to it, and choices that had no part in it are
taken back together (conflict-directed backjumping [4]_).

.. [1] A. K. Mackworth, "Consistency in networks of relations", Artificial Intelligence 8 (1977).
.. [2] D. Sabin, E. C. Freuder, "Contradicting conventional wisdom in constraint satisfaction",
   ECAI (1994).
.. [3] F. Boussemart et al., "Boosting systematic search by weighting constraints", ECAI (2004).
.. [4] P. Prosser, "Hybrid algorithms for the constraint satisfaction problem", Computational
   Intelligence 9 (1993).
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING

from resolver.errors import TooLargeError
from resolver.problem import ABSENT, bits
from resolver.proof import Proof

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.problem import Demand, Problem, Relation

Domains = list[int]
"""For each variable, in the order of `Network.names`, the mask of candidates that are left."""


def too_large(steps: int) -> TooLargeError:
    """Say that the guard stopped the search, which says nothing about solutions."""
    msg = f"The search was stopped after {steps} steps without an answer."
    return TooLargeError(msg, hint="Ask for fewer packages, or pin torch or ROCm.")


_MOST_ANSWERS = 250
"""How many answers are kept for each relation: a bound on memory."""


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
        self._answers: list[dict[tuple[int, int], tuple[int, int]]] = [{} for _ in self._ends]
        """For each relation what `_revise` found."""
        self._touching: list[list[int]] = [[] for _ in self.names]
        for link, ends in enumerate(self._ends):
            for end in dict.fromkeys(ends):
                self._touching[end].append(link)
        self._favours = {
            self.number[name]: (self.number[favour.other], favour.first)
            for name, favour in problem.favours.items()
        }
        self._degrees = [len(links) for links in self._touching]
        self._weights = self._degrees.copy()

    def start(
        self, demands: Iterable[Demand], links: Sequence[int] | None = None, proof: Proof | None = None
    ) -> Domains | None:
        """Give the domains that demands and relations leave, or None if one of them is empty.

        Parameters
        ----------
        demands
            What is wanted.
        links
            Numbers of the relations that count; all when None.
        proof
            Is told why, if a domain is empty. Then only what cannot be absent is looked at: the rest
            can be absent together, and so has no part in any proof.
        """
        domains = list(self._everything)
        for demand in demands:
            domains[self.number[demand.variable.name]] &= demand.mask
        if not all(domains):
            if proof:
                proof.contradiction(-1, [domains.index(0)])
            return None
        counting = range(len(self._ends)) if links is None else links
        failed = self._close(domains, counting, self._among(links), proof, lazily=proof is not None)
        if failed is None:
            return domains
        if proof:
            proof.contradiction(failed, self._ends[failed])
        return None

    def by_preference(self, domains: Domains, variable: int) -> list[int]:
        """Return the bit numbers of what is left of a variable, the preferred first."""
        mask, favoured = domains[variable], 0
        if variable in self._favours:
            other, first = self._favours[variable]
            if domains[other].bit_count() == 1:
                favoured = first.get(domains[other].bit_length() - 1, 0)
        return [*bits(mask & favoured), *bits(mask & ~favoured)]

    def _among(self, links: Sequence[int] | None) -> Sequence[Sequence[int]]:
        """Give for each variable those of its relations that count."""
        if links is None or len(links) == len(self._ends):
            return self._touching
        among: list[list[int]] = [[] for _ in self.names]
        for link in links:
            for end in set(self._ends[link]):
                among[end].append(link)
        return among

    def narrowed(self, domains: Domains, variable: int, mask: int) -> Domains | None:
        """Give the domains that are left when a variable keeps only some candidates."""
        kept = domains[variable] & mask
        if not kept:
            return None
        if kept == domains[variable]:
            return domains
        copy = domains.copy()
        copy[variable] = kept
        failed = self._close(copy, self._touching[variable], self._touching, None)
        return copy if failed is None else None

    def refute(self, demands: Sequence[Demand], links: Sequence[int], most_steps: int) -> Proof | None:
        """Prove that there is no solution, or give None because there is one.

        Parameters
        ----------
        demands, links
            What counts, as for `start`.
        most_steps
            As for `search`.

        Raises
        ------
        TooLargeError
            After `most_steps` steps.
        """
        self._weights = self._degrees.copy()  # what earlier questions met would mislead
        proof = Proof()
        domains = self.start(demands, links, proof)
        if domains is not None and self.search(domains, most_steps, links, proof):
            return None
        return proof

    def search(
        self,
        domains: Domains,
        most_steps: int,
        links: Sequence[int] | None = None,
        proof: Proof | None = None,
    ) -> Domains | None:
        """Find a solution within arc consistent domains; of the relations only some may count.

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
        proof = proof or Proof()
        touching = self._among(links)
        stack = [(domains, -1, 0, proof.length)]
        for _ in range(most_steps):
            if not stack:
                return None
            before, variable, mask, length = stack.pop()
            proof.forget(length)
            here = before
            if variable >= 0:
                proof.choose(variable)
                here = before.copy()
                here[variable] = mask
                failed = self._close(here, touching[variable], touching, proof)
                if failed is not None:
                    choice = proof.contradiction(failed, self._ends[failed])
                    while stack and stack[-1][3] > choice:
                        stack.pop()
                    continue
            branch = self._most_constrained(here)
            if branch < 0:
                return [ABSENT if mask & ABSENT else mask for mask in here]
            length = proof.length
            stack += [(here, branch, 1 << bit, length) for bit in reversed(list(bits(here[branch])))]
        raise too_large(most_steps)

    def _most_constrained(self, domains: Domains) -> int:
        """Choose the open variable to branch on, or -1 if none is left that must be decided."""
        best, chosen = 0.0, -1
        for variable, mask in enumerate(domains):
            if mask & ABSENT or not mask & (mask - 1):
                continue
            score = mask.bit_count() / (self._weights[variable] or 1)
            if chosen < 0 or score < best:
                best, chosen = score, variable
        return chosen

    def _close(
        self,
        domains: Domains,
        links: Iterable[int],
        touching: Sequence[Sequence[int]],
        proof: Proof | None,
        lazily: bool = True,
    ) -> int | None:
        """Drop every candidate without a partner in some relation.

        Lazily, what may be absent keeps all its candidates until it must be there.

        Parameters
        ----------
        links
            The relations to begin with.
        touching
            For each variable the relations that count.

        Returns
        -------
        int or None
            The number of the relation that left a variable without candidates; None if none did.
        """
        ends, answers = self._ends, self._answers
        queue = deque(links)
        waiting = set(queue)
        while queue:
            link = queue.popleft()
            subject, target = ends[link]
            subjects, objects = domains[subject], domains[target]
            if lazily and subjects & ABSENT:
                waiting.discard(link)
                continue
            known = answers[link].get((subjects, objects))
            kept, reachable = known or self._revise(link, subjects, objects)
            if not kept:  # and so nothing is reachable either
                self._weights[subject] += 1
                self._weights[target] += 1
                return link
            for variable, left, other in ((subject, kept, target), (target, reachable, subject)):
                if left == domains[variable]:
                    continue
                domains[variable] = left
                if proof:
                    proof.note(variable, link, other)
                for one in touching[variable]:
                    if one not in waiting:
                        waiting.add(one)
                        queue.append(one)
            waiting.discard(link)  # not before: the relation itself agrees with what it has left
        return None

    def _revise(self, link: int, subjects: int, objects: int) -> tuple[int, int]:
        """Keep the subjects with an allowed object left, and the objects that one of them allows.

        Each question about the network starts with the same domains and goes nearly the same way, so
        nearly every answer is asked for again.
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
        known = self._answers[link]
        if len(known) >= _MOST_ANSWERS:
            known.clear()
        known[subjects, objects] = kept, reachable
        return kept, reachable


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


@lru_cache(maxsize=4096)
def _numbers(mask: int) -> tuple[int, ...]:
    """Give the numbers of the set bits; the same few masks come again and again."""
    return tuple(bits(mask))
