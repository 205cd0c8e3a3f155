"""Search: resolvelib behind arc consistency, and the choice among solutions."""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import resolvelib

from resolver.errors import MatrixError
from resolver.model import PLATFORM
from resolver.problem import ABSENT, Demand, Problem, bits, propagate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resolvelib.providers import Preference
    from resolvelib.resolvers import RequirementInformation


MOST_ROUNDS = 20_000
"""After this many rounds the search gives up; arc consistent problems need tens."""


_LAYERS = {name: position for position, name in enumerate((*PLATFORM, "torch"))}


def _layer(name: str) -> tuple[int, str]:
    """Order components as they are decided: the platform, torch, then the rest by name."""
    return _LAYERS.get(name, len(_LAYERS)), name


class TooLargeError(MatrixError):
    """The search was stopped by its guard."""

    id = "too-large"


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

    def __init__(self, problem: Problem, domains: Mapping[str, int]) -> None:
        self._domains = domains
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


def solve(problem: Problem, *, most_rounds: int = MOST_ROUNDS) -> dict[str, int] | None:
    """Find a solution.

    Returns
    -------
    dict or None
        For each variable that is part of the set the bit number of its candidate; None when no
        solution exists. Complete: None is given only when there is none.

    Raises
    ------
    TooLargeError
        The guard on rounds stopped the search, which says nothing about solutions.
    """
    domains = propagate(problem)
    if domains is None:
        return None
    if _is_circular(problem):
        return _exhaust(problem, most_rounds)
    provider = _Provider(problem, domains)
    resolver = resolvelib.Resolver(provider, resolvelib.BaseReporter())
    needs = [
        _Need(demand.variable.name, demand.mask) for demand in problem.demands if not demand.mask & ABSENT
    ]
    try:
        result = resolver.resolve(needs, max_rounds=most_rounds)
    except resolvelib.ResolutionImpossible:
        return None
    except resolvelib.ResolutionTooDeep:
        raise _stopped(most_rounds, "rounds") from None
    return {name: choice.bit for name, choice in result.mapping.items() if choice.bit}


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


def _stopped(steps: int, what: str) -> TooLargeError:
    msg = f"The search was stopped after {steps} {what} without an answer."
    return TooLargeError(msg, hint="Ask for fewer packages, or pin torch or ROCm.")


def _exhaust(problem: Problem, most_steps: int) -> dict[str, int] | None:
    """Search depth first, arc consistent at every step: slower than resolvelib, but right in circles.

    Raises
    ------
    TooLargeError
        After `most_steps` steps.
    """
    stack = [list(problem.demands)]
    for _ in range(most_steps):
        if not stack:
            return None
        demands = stack.pop()
        domains = propagate(problem.restricted(demands, problem.relations))
        if domains is None:
            continue
        open_names = [name for name, mask in domains.items() if mask & (mask - 1)]
        if not open_names:
            return {name: mask.bit_length() - 1 for name, mask in domains.items() if mask != ABSENT}
        name = min(open_names, key=lambda one: (domains[one].bit_count(), one))
        stack += [[*demands, _choose(problem, name, bit)] for bit in reversed(list(bits(domains[name])))]
    raise _stopped(most_steps, "steps")


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
    witness = solve(problem)
    if witness is None:
        return None
    fixed = list(problem.demands)
    undecided = sorted(problem.variables, key=_layer)
    while undecided:
        domains = propagate(problem.restricted(fixed, problem.relations)) or {}
        needed = (name for name in undecided if not _can_be_left_out(problem, fixed, domains, witness, name))
        name = next(needed, undecided[0])
        undecided.remove(name)
        for bit in bits(domains.get(name, 0)):
            choice = _choose(problem, name, bit)
            if bit != witness.get(name, 0):
                found = solve(problem.restricted([*fixed, choice], problem.relations))
                if found is None:
                    continue
                witness = found
            fixed.append(choice)
            break
    return witness


def _choose(problem: Problem, name: str, bit: int) -> Demand:
    return Demand(problem.variables[name], 1 << bit, f"{name} chosen", "fact", "the search")


def _can_be_left_out(
    problem: Problem, fixed: list[Demand], domains: Mapping[str, int], witness: Mapping[str, int], name: str
) -> bool:
    if not witness.get(name, 0):
        return True
    if not domains.get(name, 0) & ABSENT:
        return False
    without = [*fixed, _choose(problem, name, 0)]
    return solve(problem.restricted(without, problem.relations)) is not None
