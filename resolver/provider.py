"""The provider through which resolvelib reads a problem."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import resolvelib

from resolver.model import layer
from resolver.network import Domains, Network
from resolver.problem import ABSENT, Problem, bits

if TYPE_CHECKING:
    from resolvelib.providers import Preference
    from resolvelib.resolvers import RequirementInformation


class _Requirement(msgspec.Struct, frozen=True):
    """resolvelib's requirement: a variable must take one of these values."""

    name: str
    mask: int


class _Candidate(msgspec.Struct, frozen=True):
    """resolvelib's candidate: a variable takes this value (bit 0: absent)."""

    name: str
    bit: int


class _Provider(resolvelib.AbstractProvider["_Requirement", "_Candidate", str]):
    """Provide the relations of a problem to resolvelib."""

    def __init__(self, problem: Problem, network: Network, domains: Domains) -> None:
        self._domains = dict(zip(network.names, domains, strict=True))
        self._tables: dict[str, list[tuple[str, list[int]]]] = {}
        for relation in problem.relations:
            tables = self._tables.setdefault(relation.subject.name, [])
            tables.append((relation.object.name, relation.table))

    def identify(self, requirement_or_candidate: _Requirement | _Candidate) -> str:
        return requirement_or_candidate.name

    def get_preference(
        self,
        identifier: str,
        resolutions: Mapping[str, _Candidate],  # noqa: ARG002  part of resolvelib's contract
        candidates: Mapping[str, Iterator[_Candidate]],  # noqa: ARG002
        information: Mapping[str, Iterator[RequirementInformation[_Requirement, _Candidate]]],  # noqa: ARG002
        backtrack_causes: Sequence[RequirementInformation[_Requirement, _Candidate]],  # noqa: ARG002
    ) -> Preference:
        return layer(identifier)

    def find_matches(
        self,
        identifier: str,
        requirements: Mapping[str, Iterator[_Requirement]],
        incompatibilities: Mapping[str, Iterator[_Candidate]],
    ) -> Iterable[_Candidate]:
        mask = self._domains[identifier]
        for requirement in requirements[identifier]:
            mask &= requirement.mask
        for candidate in incompatibilities[identifier]:
            mask &= ~(1 << candidate.bit)
        return [_Candidate(identifier, bit) for bit in bits(mask)]

    def is_satisfied_by(self, requirement: _Requirement, candidate: _Candidate) -> bool:
        return bool(requirement.mask >> candidate.bit & 1)

    def get_dependencies(self, candidate: _Candidate) -> Iterable[_Requirement]:
        if not candidate.bit:
            return []
        tables = self._tables.get(candidate.name, ())
        requirements = (_Requirement(name, table[candidate.bit]) for name, table in tables)
        # A variable that may be absent and is not limited need not be decided.
        return [
            need for need in requirements if self._domains[need.name] & ~need.mask or not need.mask & ABSENT
        ]


def ask_resolvelib(problem: Problem, network: Network, domains: Domains, max_rounds: int) -> Domains | None:
    """Find a solution within arc consistent domains.

    Returns
    -------
    list or None
        None if resolvelib finds no solution in this many rounds. There may still be a solution: for random
        requests to the catalog, 3 % of its negative answers were wrong (resolvelib 1.2.1).
    """
    resolver = resolvelib.Resolver(_Provider(problem, network, domains), resolvelib.BaseReporter())
    present = [
        _Requirement(name, mask)
        for name, mask in zip(network.names, domains, strict=True)
        if not mask & ABSENT
    ]
    try:
        result = resolver.resolve(present, max_rounds=max_rounds)
    except (resolvelib.ResolutionImpossible, resolvelib.ResolutionTooDeep):
        return None
    bit = {name: candidate.bit for name, candidate in result.mapping.items()}
    return [1 << bit.get(name, 0) for name in network.names]
