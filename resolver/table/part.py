"""One column of a table on its own: what the domains of a row leave for it, or which facts leave nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from resolver.compiling.bad import WAY_OUT
from resolver.errors import TooLargeError
from resolver.network import Network
from resolver.problem import ABSENT, Demand, bits
from resolver.proven import first_proven, in_order
from resolver.resolve import pick_of
from resolver.solve import preferred_within
from resolver.table.cells import COMBINATION, ROW, UNDECIDED, Cell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from resolver.facts.schema import ProvenSet
    from resolver.model import Candidate
    from resolver.network import Domains
    from resolver.problem import Problem, Relation, Variable


@dataclass(frozen=True)
class Proven:
    """Sets that somebody ran, to be preferred."""

    sets: Sequence[ProvenSet]
    asked: frozenset[str]


class Part:
    """The problem of one column, or with no packages that of the rows themselves."""

    def __init__(self, problem: Problem, packages: tuple[str, ...], proven: Proven | None) -> None:
        self.problem = problem
        self.packages = packages
        self.network = Network(problem)
        self.start = self.network.start([one for one in problem.demands if self._counts(one)])
        self._proven = proven
        self._open: dict[str, Domains | None] = {}
        self._paths: dict[str, list[tuple[tuple[str, int], Domains | None]]] = {}
        self._in_order: dict[bool, list[tuple[ProvenSet, list[Demand]]]] = {}

    def _counts(self, demand: Demand) -> bool:
        return demand.variable.name in {*ROW, *self.packages} or bool(demand.mask & ABSENT)

    def narrowed(self, domains: Domains | None, name: str, mask: int) -> Domains | None:
        """Let a component have only these candidates."""
        return None if domains is None else self.network.narrowed(domains, self.network.number[name], mask)

    def versions(self, domains: Domains | None, name: str) -> list[str]:
        """Give the versions of a component that are left, the preferred first."""
        left = 0 if domains is None else domains[self.network.number[name]]
        return list(dict.fromkeys(one.version for one in self.problem.variables[name].chosen(left)))

    def left(self, name: str) -> list[Candidate]:
        """Give the candidates of a component that some solution may have."""
        left = 0 if self.start is None else self.start[self.network.number[name]]
        return self.problem.variables[name].chosen(left)

    def asked_versions(self, name: str) -> list[str]:
        """Give the versions of a component that the request allows, whether or not anything has them."""
        variable = self.problem.variables[name]
        asked = _all_of(variable.present, [one for one in self._demands_of(name) if _is_asked(one)])
        return list(dict.fromkeys(one.version for one in variable.chosen(asked)))

    def version_of(self, solution: Mapping[str, int], name: str) -> str:
        """Give the version of a component in a solution; empty when it has none."""
        return self.problem.variables[name].candidate(solution[name]).version if name in solution else ""

    def cell(self, domains: Domains | None, pins: Mapping[str, int]) -> Cell:
        """Answer for a row, whose domains are given, made by these pins."""
        try:
            solution = self.solve(domains)
            if solution is not None:
                return Cell(tuple(pick_of(self.problem, solution, name) for name in self.packages))
            return Cell(refused=self.why_refused(pins))
        except TooLargeError:
            return Cell(refused=UNDECIDED)

    def solve(self, domains: Domains | None) -> dict[str, int] | None:
        """Find the solution that `resolver.resolve.resolve` would give."""
        solution = None if domains is None else preferred_within(self.network, domains)
        if solution is None or self._proven is None:
            return solution

        def within(demands: Sequence[Demand]) -> dict[str, int] | None:
            narrowed = domains
            for demand in demands:
                narrowed = self.narrowed(narrowed, demand.variable.name, demand.mask)
            return None if narrowed is None else preferred_within(self.network, narrowed)

        has_image = "base-image" in solution
        if has_image not in self._in_order:
            asked = self._proven.asked | ({"base-image"} if has_image else set())
            self._in_order[has_image] = in_order(self.problem, self._proven.sets, asked)
        return first_proven(self.problem, self._in_order[has_image], within)[0]

    def why_refused(self, pins: Mapping[str, int]) -> str:
        """Say which facts refuse a column; of several packages first those that fail alone."""
        alone = {name: self.reason(name, pins) for name in self.packages}
        if len(alone) == 1:
            return alone[self.packages[0]]
        failing = [f"{name}: {reason}" for name, reason in alone.items() if reason != COMBINATION]
        return failing[0] if failing else COMBINATION

    def reason(self, name: str, pins: Mapping[str, int], mask: int = -1) -> str:
        """Name the components whose facts rule out every version of a package.

        Each version that the domains of the row leave nothing for is ruled out by some relation with
        another component. As few of those as are needed are named, the one that rules out most first.

        Parameters
        ----------
        name
            The package, or torch.
        pins
            What the row says.
        mask
            Which of its candidates are meant.
        """
        variable = self.problem.variables[name]
        own = self._demands_of(name)
        left = _all_of(variable.present & mask, [one for one in own if _is_asked(one)])
        ruled_out: dict[str, int] = {}
        for demand in own:
            if not _is_asked(demand):
                word = "support" if demand.kind == "request" else "known-bad"
                ruled_out[word] = ruled_out.get(word, 0) | left & ~demand.mask
        around = self._around(name, pins)
        if around is None:
            return COMBINATION
        for relation in self.problem.relations:
            for word, out in self._rules_out(relation, variable, left, around):
                ruled_out[word] = ruled_out.get(word, 0) | out
        return _fewest(ruled_out, left)

    def _demands_of(self, name: str) -> list[Demand]:
        return [one for one in self.problem.demands if one.variable.name == name]

    def _around(self, name: str, pins: Mapping[str, int]) -> Domains | None:
        """Give what the row leaves of everything else, with a package that may be absent."""
        if name not in self._open:
            meant = {name, *self.packages}
            free = [
                one
                for one in self.problem.demands
                if self._counts(one) and not (one.variable.name in meant and _is_asked(one))
            ]
            self._open[name] = self.network.start(free)
        # Rows come in order, so that most of what the last one said still holds for this one.
        path, domains = self._paths.setdefault(name, []), self._open[name]
        for depth, pin in enumerate(pins.items()):
            if len(path) == depth or path[depth][0] != pin:
                path[depth:] = [(pin, self.narrowed(domains, *pin))]
            domains = path[depth][1]
        return domains

    def _rules_out(
        self, relation: Relation, variable: Variable, left: int, around: Domains
    ) -> Iterator[tuple[str, int]]:
        """Yield which candidates of a component have no partner in a relation, with the other's name."""
        number = self.network.number
        if relation.subject is variable:
            other = around[number[relation.object.name]]
            out = sum(1 << bit for bit in bits(left) if not relation.table[bit] & other)
            yield _word(relation, relation.object.name), out
        elif relation.object is variable:
            subjects = around[number[relation.subject.name]]
            if not subjects & ABSENT:
                allowed = 0
                for bit in bits(subjects):
                    allowed |= relation.table[bit]
                yield _word(relation, relation.subject.name), left & ~allowed


def _is_asked(demand: Demand) -> bool:
    """Tell whether a demand says that its component is wanted."""
    return demand.kind == "request" and not demand.mask & ABSENT


def _all_of(mask: int, demands: Sequence[Demand]) -> int:
    for demand in demands:
        mask &= demand.mask
    return mask


def _word(relation: Relation, other: str) -> str:
    return "known-bad" if relation.forbids or other.startswith(WAY_OUT) else other


def _fewest(ruled_out: Mapping[str, int], left: int) -> str:
    """Choose names that together rule out all that is left, the one that rules out most first."""
    named: list[str] = []
    while left:
        best = max(ruled_out, key=lambda word: (ruled_out[word] & left).bit_count(), default="")
        if not best or not ruled_out[best] & left:
            return COMBINATION
        named.append(best)
        left &= ~ruled_out[best]
    return ", ".join(named) or COMBINATION
