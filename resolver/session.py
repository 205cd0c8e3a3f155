"""Operations on one problem: find the remaining candidates, the preferred solution, or a conflict.

resolvelib searches for the first solution. It finds most solutions in a few rounds, because few choices must
be taken back after arc consistency. If it finds no solution, there may still be one: when it jumps back over
several choices, it can miss solutions. So another search, which maintains arc consistency at every step,
decides in three cases: resolvelib finds no solution, it needs more rounds than there are variables, or
components require each other in a cycle (then resolvelib keeps the requirements of a dropped choice). All
later searches in the same network use this second search.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from resolver.model import layer
from resolver.network import MOST_STEPS, Domains, Network, Proof
from resolver.problem import ABSENT, Demand, Problem, Relation
from resolver.provider import ask_resolvelib

_ROUNDS_PER_VARIABLE = 1
"""Maximum number of rounds of resolvelib for each variable, before the other search starts."""

Solution = dict[str, int]
"""For each variable that is part of the set, the bit number of its candidate."""

_Item = Demand | int
"""A demand, or the number of a relation."""


class Session:
    """One problem and its network, which is built once.

    Every method takes the demands to meet; by default those of the problem. Every method that searches
    raises `TooLargeError` if the search reaches its limit of steps.

    Parameters
    ----------
    problem
        The problem.
    max_steps
        Limit of steps for one search.

    Attributes
    ----------
    problem
        The problem.
    network
        Its relations, indexed by number.
    """

    def __init__(self, problem: Problem, *, max_steps: int = MOST_STEPS) -> None:
        self.problem = problem
        self.network = Network(problem, max_steps=max_steps)
        self._max_steps = max_steps
        self._proofs: list[tuple[dict[str, int], Proof]] = []
        """Proofs so far, each with the domains of the variables that it uses."""

    def narrow(
        self, demands: Iterable[Demand] | None = None, links: Sequence[int] | None = None
    ) -> Domains | None:
        """Return the candidates that arc consistency leaves; None proves that there is no solution.

        Parameters
        ----------
        demands
            The demands to meet.
        links
            Numbers of the relations to consider; all if None.
        """
        return self.network.start(self.problem.demands if demands is None else demands, links)

    def narrow_to(self, domains: Domains | None, name: str, mask: int) -> Domains | None:
        """Return the candidates that are left if a variable keeps only some of its own."""
        return None if domains is None else self.network.narrow(domains, self.network.number[name], mask)

    def first_solution(self, domains: Domains) -> Domains | None:
        """Find any solution within arc consistent domains, with resolvelib if it needs few rounds."""
        if not self._has_cycle:
            max_rounds = min(self._max_steps, _ROUNDS_PER_VARIABLE * len(self.network.names))
            solution = ask_resolvelib(self.problem, self.network, domains, max_rounds)
            if solution is not None:
                return solution
        return self.network.search(domains)

    def solve(self, demands: Iterable[Demand] | None = None) -> Solution | None:
        """Find the solution that is best component by component.

        resolvelib gives up an earlier choice as soon as a later choice requires that, so the newest Apex
        would take precedence over the newest torch. Here each component in turn gets its most preferred
        candidate with which the rest, given the choices so far, still has a solution:

        1. take any solution as a witness;
        2. take the first undecided component, in the order of `model.layer`, that every solution
           contains; if there is none, take the first undecided component and leave it out;
        3. give it the best candidate that leaves a solution; that solution is the new witness;
        4. continue with 2 until all components are decided.

        So components that the request does not name are left out where possible, but never at the price
        of an older version of a component that it does name.

        Returns
        -------
        dict or None
            None only if there is no solution.
        """
        domains = self.narrow(demands)
        witness = None if domains is None else self.first_solution(domains)
        if domains is None or witness is None:
            return None
        return self._solution(self._preferred(domains, witness))

    def solve_within(self, domains: Domains | None) -> Solution | None:
        """Find the solution that `solve` prefers, within arc consistent domains."""
        witness = None if domains is None else self.network.search(domains)
        if domains is None or witness is None:
            return None
        return self._solution(self._preferred(domains, witness))

    def refute(self, demands: Sequence[Demand]) -> Proof | None:
        """Return a proof that no solution meets the demands, or None if there is a solution.

        Proofs are stored: a proof is valid for all demands that allow no more values of the variables that it
        uses.
        """
        masks: dict[str, int] = {}
        for demand in demands:
            name = demand.variable.name
            masks[name] = masks.get(name, demand.variable.everything) & demand.mask
        for limits, known in self._proofs:
            if all(masks.get(name, ~0) & ~mask == 0 for name, mask in limits.items()):
                return known
        proof = self.network.refute(demands)
        if proof is not None:
            names = [self.network.names[number] for number in proof.variables]
            self._proofs.append(({name: masks[name] for name in names if name in masks}, proof))
        return proof

    def explain(self, demands: Sequence[Demand] | None = None) -> tuple[list[Demand], list[Relation]]:
        """Return a minimal core: demands and relations that conflict, none of which can be left out.

        If any one of them is left out, the others have a solution. The core is found by deletion: items are
        left out one after another, and an item stays left out if there is still no solution. Items that are
        tried late tend to stay in the core. So the backend, the least surprising reason, is tried last.
        Relations to base images are tried first: a catalog without an image is a weaker reason than a driver
        or a wheel.

        Two shortcuts save most of the searches and do not change the result. An item that the current proof
        does not use can be left out without a search, because the proof is still valid. While no item has to
        stay, each search leaves out twice as many items as the search before; if the rest then has a
        solution, half as many. So the first item that has to stay is found by bisection, as in QuickXplain
        [1]_.

        References
        ----------
        .. [1] U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
           problems", AAAI (2004).
        """
        demands = self.problem.demands if demands is None else demands
        ordered = sorted(demands, key=lambda demand: demand.kind != "request")
        relations = self.problem.relations
        images = [number for number, relation in enumerate(relations) if relation.object.name == "base-image"]
        items: list[_Item] = [*images, *(demand for demand in ordered if demand.variable.name != "backend")]
        items += [number for number in range(len(relations)) if number not in images]
        items += [demand for demand in ordered if demand.variable.name == "backend"]
        core = self._minimal(items, ())
        return (
            [demand for demand in demands if demand in core],
            [relation for number, relation in enumerate(relations) if number in core],
        )

    def minimal_demands(self, demands: Sequence[Demand]) -> list[Demand]:
        """Return demands that conflict, none of which can be left out.

        Unlike `explain`, this leaves out no relations: the request cannot change facts.
        """
        ordered = sorted(demands, key=lambda demand: demand.kind != "request")
        core = self._minimal(ordered, range(len(self.problem.relations)))
        return [demand for demand in demands if demand in core]

    @cached_property
    def _has_cycle(self) -> bool:
        """Whether components require each other in a cycle."""
        graph = TopologicalSorter[str]()
        for relation in self.problem.relations:
            graph.add(relation.subject.name, relation.object.name)
        try:
            graph.prepare()
        except CycleError:
            return True
        return False

    def _preferred(self, domains: Domains, witness: Domains) -> Domains:
        """Decide component by component; any solution within the domains can be the witness."""
        network = self.network
        undecided = [network.number[name] for name in sorted(network.names, key=layer)]
        while any(witness[variable] != ABSENT for variable in undecided):
            required = (number for number in undecided if not self._can_be_absent(domains, witness, number))
            variable = next(required, undecided[0])
            undecided.remove(variable)
            for bit in network.by_preference(domains, variable):
                narrowed = network.narrow(domains, variable, 1 << bit)
                if narrowed is None:
                    continue
                if witness[variable] != 1 << bit:
                    other = network.search(narrowed)
                    if other is None:
                        continue
                    witness = other
                domains = narrowed
                break
        return witness

    def _can_be_absent(self, domains: Domains, witness: Domains, variable: int) -> bool:
        if witness[variable] == ABSENT:
            return True
        if not domains[variable] & ABSENT:
            return False
        without = self.network.narrow(domains, variable, ABSENT)
        return without is not None and self.network.search(without) is not None

    def _solution(self, domains: Domains) -> Solution:
        pairs = zip(self.network.names, domains, strict=True)
        return {name: mask.bit_length() - 1 for name, mask in pairs if mask != ABSENT}

    def _minimal(self, items: Sequence[_Item], always: Sequence[int]) -> Sequence[_Item]:
        """Return items that conflict, none of which can be left out; the relations in `always` stay."""
        needed: list[_Item] = []
        proof = self._refute_items(items, always)
        step = len(items)
        while proof:
            used = [position for position, item in enumerate(items) if self._is_used(proof, item)]
            if not used:
                break
            tried = min(step, len(used))
            rest = items[used[tried - 1] + 1 :]
            smaller = self._refute_items([*needed, *rest], always)
            if smaller:
                proof, items, step = smaller, rest, 2 * step
            elif tried > 1:
                step = tried // 2
            else:
                needed.append(items[used[0]])
                items, step = rest, 1
        return needed if proof else items

    def _refute_items(self, items: Sequence[_Item], always: Sequence[int]) -> Proof | None:
        demands = [item for item in items if isinstance(item, Demand)]
        links = always or [item for item in items if not isinstance(item, Demand)]
        return self.network.refute(demands, links)

    def _is_used(self, proof: Proof, item: _Item) -> bool:
        if isinstance(item, Demand):
            return self.network.number[item.variable.name] in proof.variables
        return item in proof.links
