"""The provider through which resolvelib sees a problem."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import resolvelib

from resolver.model import layer
from resolver.problem import ABSENT, bits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from resolvelib.providers import Preference
    from resolvelib.resolvers import RequirementInformation

    from resolver.network import Domains, Network
    from resolver.problem import Problem


class _Need(msgspec.Struct, frozen=True):
    """resolvelib's requirement: a variable must take one of these values."""

    name: str
    mask: int


class _Choice(msgspec.Struct, frozen=True):
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
        return layer(identifier)

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


def ask_resolvelib(problem: Problem, network: Network, domains: Domains, most_rounds: int) -> Domains | None:
    """Find a solution within arc consistent domains.

    Returns
    -------
    list or None
        None when it finds none within so many rounds, which says nothing about whether there is one:
        of random requests to the catalog 3 in 100 of its refusals were wrong (resolvelib 1.2.1).
    """
    resolver = resolvelib.Resolver(_Provider(problem, network, domains), resolvelib.BaseReporter())
    needs = [
        _Need(name, mask) for name, mask in zip(network.names, domains, strict=True) if not mask & ABSENT
    ]
    try:
        result = resolver.resolve(needs, max_rounds=most_rounds)
    except (resolvelib.ResolutionImpossible, resolvelib.ResolutionTooDeep):
        return None
    bit = {name: choice.bit for name, choice in result.mapping.items()}
    return [1 << bit.get(name, 0) for name in network.names]
