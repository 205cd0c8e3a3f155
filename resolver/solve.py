"""Search: resolvelib behind arc consistency, and the choice among solutions.

resolvelib finds most answers in a few rounds, because arc consistency leaves little to take back.
Where it does not, or where components need each other in a circle (there it keeps what a dropped
choice had brought in), a search that stays arc consistent at every step decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import resolvelib

from resolver.model import PLATFORM
from resolver.network import Network, TooLargeError
from resolver.problem import ABSENT, bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resolvelib.providers import Preference
    from resolvelib.resolvers import RequirementInformation

    from resolver.network import Domains
    from resolver.problem import Problem

__all__ = ["MOST_STEPS", "TooLargeError", "solve", "solve_preferred"]

MOST_STEPS = 20_000
"""After this many steps the search gives up; what the catalog asks needs tens."""
_ROUNDS_FOR_EACH = 3
"""resolvelib gets this many rounds for each variable before the other search takes over."""


_LAYERS = {name: position for position, name in enumerate((*PLATFORM, "torch"))}


def _layer(name: str) -> tuple[int, str]:
    """Order components as they are decided: the platform, torch, then the rest by name."""
    return _LAYERS.get(name, len(_LAYERS)), name


@dataclass(frozen=True, slots=True)
class _Need:
    """resolvelib's requirement: a variable must take one of these values."""

    name: str
    mask: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """resolvelib's candidate: a variable takes this value (bit 0: it is not part of the set)."""

    name: str
    bit: int


class _Provider(resolvelib.AbstractProvider["_Need", "_Choice", str]):
    """Tells resolvelib what the problem says."""

    def __init__(self, problem: Problem, network: Network, domains: Domains) -> None:
        self._domains = dict(zip(network.names, domains, strict=True))
        self._needs: dict[str, list[tuple[str, list[int]]]] = {}
        for relation in problem.relations:
            self._needs.setdefault(relation.subject.name, []).append((relation.object.name, relation.table))

    def identify(self, requirement_or_candidate: _Need | _Choice) -> str:
        return requirement_or_candidate.name

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, _Choice],  # noqa: ARG002  part of resolvelib's contract
        candidates: Mapping[str, Iterator[_Choice]],  # noqa: ARG002
        information: Mapping[str, Iterator[RequirementInformation[_Need, _Choice]]],  # noqa: ARG002
        backtrack_causes: Sequence[RequirementInformation[_Need, _Choice]],  # noqa: ARG002
    ) -> Preference:
        return _layer(identifier)

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[_Need]],
        incompatibilities: Mapping[str, Iterator[_Choice]],
    ) -> Iterable[_Choice]:
        mask = self._domains[identifier]
        for need in requirements[identifier]:
            mask &= need.mask
        for choice in incompatibilities[identifier]:
            mask &= ~(1 << choice.bit)
        return [_Choice(identifier, bit) for bit in bits(mask)]

    def is_satisfied_by(self, requirement: _Need, candidate: _Choice) -> bool:
        return bool(requirement.mask >> candidate.bit & 1)

    def get_dependencies(self, candidate: _Choice) -> Iterable[_Need]:
        if not candidate.bit:
            return []
        needs = (_Need(name, table[candidate.bit]) for name, table in self._needs.get(candidate.name, ()))
        # What may be absent and limits nothing need not be decided.
        return [one for one in needs if self._domains[one.name] & ~one.mask or not one.mask & ABSENT]


def solve(problem: Problem, *, most_steps: int = MOST_STEPS) -> dict[str, int] | None:
    """Find a solution.

    Returns
    -------
    dict or None
        For each variable that is part of the set the bit number of its candidate; None when no
        solution exists. Complete: None is given only when there is none.

    Raises
    ------
    TooLargeError
        The guard on steps stopped the search, which says nothing about solutions.
    """
    network = Network(problem)
    domains = network.start(problem.demands)
    if domains is None:
        return None
    solution = _solve_within(problem, network, domains, most_steps)
    return None if solution is None else _chosen(network, solution)


def _chosen(network: Network, solution: Domains) -> dict[str, int]:
    """Give the variables that are part of a solution with the numbers of their bits."""
    return {
        name: mask.bit_length() - 1
        for name, mask in zip(network.names, solution, strict=True)
        if mask != ABSENT
    }


def _solve_within(problem: Problem, network: Network, domains: Domains, most_steps: int) -> Domains | None:
    """Find a solution within arc consistent domains, by resolvelib if it finds one soon."""
    if not _is_circular(problem):
        most_rounds = min(most_steps, _ROUNDS_FOR_EACH * len(network.names))
        resolver = resolvelib.Resolver(_Provider(problem, network, domains), resolvelib.BaseReporter())
        needs = [
            _Need(name, mask) for name, mask in zip(network.names, domains, strict=True) if not mask & ABSENT
        ]
        try:
            result = resolver.resolve(needs, max_rounds=most_rounds)
        except resolvelib.ResolutionImpossible:
            return None
        except resolvelib.ResolutionTooDeep:
            pass
        else:
            bit = {name: choice.bit for name, choice in result.mapping.items()}
            return [1 << bit.get(name, 0) for name in network.names]
    return network.search(domains, most_steps)


def _is_circular(problem: Problem) -> bool:
    """Tell whether components need each other in a circle.

    There resolvelib keeps what a dropped choice had brought in, and then errs or does not end.
    """
    graph = TopologicalSorter[str]()
    for relation in problem.relations:
        graph.add(relation.subject.name, relation.object.name)
    try:
        graph.prepare()
    except CycleError:
        return True
    return False


def solve_preferred(problem: Problem) -> dict[str, int] | None:
    """Find the solution that is best component by component.

    resolvelib gives up an earlier choice as soon as a later one asks for it, so the newest Apex
    would win over the newest torch. Here each component in turn gets its most preferred candidate
    with which the rest, given the choices so far, still has a solution:

    1. take any solution as a witness;
    2. take the first undecided component, platform before torch before the rest, that no solution
       can do without; if every one can be done without, take the first and leave it out;
    3. give it the best candidate that leaves a solution; that solution is the new witness;
    4. go on with 2 until all are decided.

    So what nobody asked for is left out, but never for the price of an older version of what was.

    Returns
    -------
    dict or None
        As `solve` gives it.
    """
    network = Network(problem)
    domains = network.start(problem.demands)
    witness = None if domains is None else network.search(domains, MOST_STEPS)
    if domains is None or witness is None:
        return None
    undecided = [network.number[name] for name in sorted(problem.variables, key=_layer)]
    while any(witness[variable] != ABSENT for variable in undecided):
        needed = (one for one in undecided if not _can_be_left_out(network, domains, witness, one))
        variable = next(needed, undecided[0])
        undecided.remove(variable)
        for bit in bits(domains[variable]):
            narrowed = network.narrowed(domains, variable, 1 << bit)
            if narrowed is None:
                continue
            if witness[variable] != 1 << bit:
                found = network.search(narrowed, MOST_STEPS)
                if found is None:
                    continue
                witness = found
            domains = narrowed
            break
    return _chosen(network, witness)


def _can_be_left_out(network: Network, domains: Domains, witness: Domains, variable: int) -> bool:
    if witness[variable] == ABSENT:
        return True
    if not domains[variable] & ABSENT:
        return False
    without = network.narrowed(domains, variable, ABSENT)
    return without is not None and network.search(without, MOST_STEPS) is not None
