"""Search: resolvelib behind arc consistency, and the choice among solutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import resolvelib

from resolver.errors import MatrixError
from resolver.model import PLATFORM
from resolver.problem import ABSENT, Demand, Problem, bits, propagate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resolvelib.providers import Preference
    from resolvelib.resolvers import RequirementInformation

    from resolver.facts.schema import ProvenSet

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
        everything = {name: self._domains[name] for name, _ in self._needs.get(candidate.name, ())}
        return [
            _Need(name, table[candidate.bit])
            for name, table in self._needs.get(candidate.name, ())
            if everything[name] & ~table[candidate.bit] or not table[candidate.bit] & ABSENT
        ]


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
        msg = f"The search was stopped after {most_rounds} rounds without an answer."
        raise TooLargeError(msg, hint="Ask for fewer packages, or pin torch or ROCm.") from None
    return {name: choice.bit for name, choice in result.mapping.items() if choice.bit}


def solve_preferred(problem: Problem) -> dict[str, int] | None:
    """Find the solution that is best layer by layer.

    resolvelib gives up an earlier choice as soon as a later one asks for it, so the newest Apex
    would win over the newest torch. Here each component in turn, platform first, gets its most
    preferred candidate with which the rest, given the choices so far, still has a solution:

    1. take any solution as a witness;
    2. for the next component try the candidates preferred to the witness's, best first;
    3. the first that leaves a solution becomes the choice, and that solution the witness.

    Returns
    -------
    dict or None
        As `solve` gives it. A component that nothing needs is left out.
    """
    witness = solve(problem)
    if witness is None:
        return None
    fixed = list(problem.demands)
    for name in sorted(problem.variables, key=_layer):
        variable = problem.variables[name]
        domains = propagate(problem.restricted(fixed, problem.relations)) or {}
        for bit in bits(domains.get(name, 0)):
            choice = Demand(variable, 1 << bit, f"{name} chosen", "fact", "the search")
            if bit != witness.get(name, 0):
                found = solve(problem.restricted([*fixed, choice], problem.relations))
                if found is None:
                    continue
                witness = found
            fixed.append(choice)
            break
    return witness


def solve_proven(
    problem: Problem, sets: Iterable[ProvenSet]
) -> tuple[dict[str, int] | None, ProvenSet | None]:
    """Find a solution inside a set that somebody ran, the newest set first.

    Each pick of a proven set that concerns a component of the problem becomes a demand; the first
    set under which the problem is solvable decides. Without any, the newest solution is taken.

    Returns
    -------
    tuple
        The solution as `solve` gives it, and the set it lies in, or None.
    """
    for proven in sorted(sets, key=lambda row: (row.date, row.id), reverse=True):
        demands = []
        for name, key in proven.picks.items():
            variable = problem.variables.get(name)
            if variable is None:
                continue
            matching = [i for i, one in enumerate(variable.candidates) if one.key == key]
            demands.append(
                Demand(
                    variable,
                    variable.mask(matching) | ABSENT,
                    f"{name} {key}",
                    "fact",
                    proven.source,
                )
            )
        solution = solve_preferred(problem.restricted([*problem.demands, *demands], problem.relations))
        if solution is not None:
            return solution, proven
    return solve_preferred(problem), None
