"""Operations on one problem: find the remaining candidates, the preferred solution, or a minimal conflict.

All of them use the one search (`resolver.solving.search`): the relations of the problem are its tables, and
demands are assumptions. So what a call has learned helps all later calls on the same session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from resolver.compiling.problem import ABSENT, ALWAYS, Demand, Link, Problem, Relation, bits
from resolver.errors import TooLargeError
from resolver.model import EARLY_PYTHON, Notice
from resolver.solving.search import Incompatibility, Search, is_required

if TYPE_CHECKING:
    from resolver.solving.search import Assumption

_EARLY_IMAGE = -0.5
"""The layer in which a default image is chosen: after whether the catalog's releases are enough."""
_MOST_TRIED = 20_000
"""Statements in all trials after which a minimal conflict is looked for among those of one proof."""
_MOST_TRIED_OF_PROOF = 80_000
"""Statements in the trials among those; then the rest stays, although some could be left out."""
Solution = dict[str, int]
"""For each variable that is part of the set, the bit number of its candidate."""
Rank = tuple[float, int, int, str]
"""The position of a variable in the order of decisions: layer, moves forward, order of appearance, name."""

_Item = TypeVar("_Item")


class Narrowed(msgspec.Struct, frozen=True, dict=True):
    """The candidates that are left under assumptions."""

    assumptions: tuple[Assumption, ...]
    domains: tuple[int, ...]
    """For each variable, by `Session.number`, the mask of the candidates that are left."""

    @cached_property
    def several(self) -> frozenset[int]:
        """The variables with several candidates, absence included."""
        return frozenset(number for number, mask in enumerate(self.domains) if mask & (mask - 1))


class Session:
    """One problem and its search, to which the relations are added once.

    Every method takes the demands to meet; by default those of the problem. Every method that searches raises
    `TooLargeError` if a search reaches its limit of contradictions. What the problem gains later is added by
    `extend`. `rank` has the position of each variable of the search in the order of decisions, also of those
    that another adds.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.search = Search()
        self.number: dict[str, int] = {}  # of the variables in the search
        self._relations = 0
        self.names: dict[int, str] = {}
        self.rank: dict[int, Rank] = {}
        self._undecided: set[int] = set()
        """Variables of the problem that must be present, and have several values."""
        self.failed: Incompatibility | None = None
        """Why there is no solution, if there is none under any assumptions."""
        self._hint: Sequence[int] = ()
        """A solution whose values are tried first."""
        self.extend()

    def extend(self) -> None:
        """Add the variables and relations that the problem has gained."""
        problem = self.problem
        for name, variable in problem.variables.items():
            if name not in self.number:
                number = self.number[name] = self.search.add_variable(variable.everything)
                self.names[number] = name
                group, key = problem.layer(name)
                self.rank[number] = group, 0, 0, key
        for relation in problem.relations[self._relations :]:
            state(self.search, self.number, relation)
        self._relations = len(problem.relations)

    def narrow(self, demands: Iterable[Demand]) -> Narrowed | None:
        """Return the candidates that propagation leaves; None proves that there is no solution."""
        return self._narrowed(self._assumptions(demands))

    def narrow_to(self, narrowed: Narrowed | None, *limits: tuple[str, int]) -> Narrowed | None:
        """Return the candidates that are left if some variables keep only those in a mask."""
        for name, mask in limits:
            number = self.number[name]
            if narrowed is None or not narrowed.domains[number] & mask:
                return None
            if narrowed.domains[number] & ~mask:
                narrowed = self._narrowed((*narrowed.assumptions, (number, mask)))
        return narrowed

    def solve(
        self, demands: Iterable[Demand] | None = None, assumed: Sequence[Assumption] = ()
    ) -> Solution | None:
        """Find the solution that is best component by component.

        Each component in turn gets its most preferred candidate with which the rest, given the choices so
        far, still has a solution:

        1. take any solution as a witness;
        2. take the first undecided component, in the order of `Problem.layer`, that every solution
           contains; if there is none, take the first undecided component and leave it out;
        3. give it the best candidate that leaves a solution; that solution is the new witness;
        4. continue with 2 until all components are decided.

        So components that the request does not name are left out where possible, but never at the price of an
        older version of a component that it does name. None only if there is no solution. `assumed` are
        further limits, also on variables that are not part of the problem.
        """
        demanded = self._assumptions(self.problem.demands if demands is None else demands)
        assumptions = (*demanded, *assumed)
        decided = self.decide(assumptions, list(self.number.values()))
        return None if decided is None else self._solution(decided.domains)

    def solve_within(self, narrowed: Narrowed | None) -> Solution | None:
        """Find the solution that `solve` prefers among the remaining candidates."""
        # Other components have one value in each solution, so no assumption about them is needed.
        decided = narrowed and self.decide(narrowed.assumptions, narrowed.several)
        return None if decided is None else self._solution(decided.domains)

    def is_solvable(self, demands: Sequence[Demand]) -> bool:
        """Return whether any solution meets the demands."""
        return self._witness(self._assumptions(demands)) is not None

    def refutation(self) -> Incompatibility:
        """Return why the problem has no solution, which must have none: the reasons are its statements."""
        items: list[Demand | Relation] = [*self.problem.demands, *self.problem.relations]
        # In the search of this session, demands are assumptions, which have no reason. A new one states them.
        used = self._used(items) or []
        return Incompatibility({}, None, tuple(Incompatibility({}, item) for item in used))

    def explain(self, demands: Sequence[Demand] | None = None) -> tuple[list[Demand], list[Relation]]:
        """Return a minimal core: demands and relations that conflict, none of which can be left out.

        Items that are tried late tend to stay in the core. So the backend, the least surprising reason, is
        tried last. Relations to base images are tried first: a catalog without an image is a weaker reason
        than a driver or a wheel.
        """
        demands = self.problem.demands if demands is None else demands
        ordered = sorted(demands, key=lambda demand: demand.kind != "request")
        relations = self.problem.relations
        images = [relation for relation in relations if relation.object.name == "base-image"]
        items: list[Demand | Relation] = [
            *images,
            *(demand for demand in ordered if demand.variable.name != "backend"),
            *(relation for relation in relations if relation.object.name != "base-image"),
            *(demand for demand in ordered if demand.variable.name == "backend"),
        ]
        core = {id(item) for item in minimal(items, self._used)}
        return (
            [demand for demand in demands if id(demand) in core],
            [relation for relation in relations if id(relation) in core],
        )

    def decide(self, assumptions: Sequence[Assumption], numbers: Iterable[int]) -> Narrowed | None:
        """Return the preferred values of some variables as assumptions; see `solve`.

        Candidates that come first because of another component (`Problem.preferences`) are tried together, as
        early as `resolver.model.EARLY_PYTHON`, before the component itself is decided. One of the default
        images is assumed before ROCm is decided, if ROCm is needed and an image fits. Return the assumptions
        with those for the preferred values, and a solution under them; None if there is no solution.
        """
        fixed = list(assumptions)
        witness = self._witness(fixed)
        if witness is None:
            return None
        preferences = self.problem.preferences
        early: list[tuple[Rank, int, bool]] = [
            ((EARLY_PYTHON, 0, 0, name), self.number[name], True) for name in preferences
        ]
        if self.problem.default_images:
            early.append(((_EARLY_IMAGE, 0, 0, "base-image"), self.number["rocm"], True))
        steps = sorted([*early, *((self.rank[number], number, False) for number in numbers)])
        while any(witness[number] != ABSENT for _, number, _ in steps):
            self.search.narrow(fixed)
            domains = tuple(self.search.domains)
            needed = (step for step in steps if self._is_needed(step[1], domains, witness, fixed))
            step = next(needed, None) or next(step for step in steps if not step[2])
            steps.remove(step)
            _, number, is_early = step
            if is_early and self.names[number] == "rocm":
                number = self.number["base-image"]
                masks = [domains[number] & self.problem.default_images]
            else:
                domain, first = domains[number], self.preferred_early(self.names[number], domains)
                ordered = (domain & ABSENT, domain & first & ~ABSENT, domain & ~first & ~ABSENT)
                masks = [first] if is_early else [1 << bit for mask in ordered for bit in bits(mask)]
            for mask in filter(None, masks):
                # The witness is a solution already if it has one of these values. As it has some value, a
                # component always gets one; an early preference that has no solution is dropped without a
                # trace.
                found = witness if witness[number] & mask else self._witness([*fixed, (number, mask)])
                if found is not None:
                    witness = found
                    fixed.append((number, mask))
                    break
        return Narrowed(tuple(fixed), tuple(witness))

    def preferred_early(self, name: str, domains: Sequence[int]) -> int:
        """Return the candidates that are left and come first because of another component."""
        preference = self.problem.preferences.get(name)
        if preference is None:
            return 0
        name_of_other, first = preference
        other = domains[self.number[name_of_other]]
        bit = 0 if other & ABSENT else other.bit_length() - 1
        is_decided = other & ABSENT or other.bit_count() == 1
        return first.get(bit, 0) & domains[self.number[name]] if is_decided else 0

    def _is_needed(
        self, number: int, domains: Sequence[int], witness: Sequence[int], fixed: Sequence[Assumption]
    ) -> bool:
        """Return whether every solution contains a variable."""
        if witness[number] == ABSENT:
            return False
        # Propagation shows most components to be needed; only the others cost a search.
        return not domains[number] & ABSENT or self._witness([*fixed, (number, ABSENT)]) is None

    def _witness(self, assumptions: Sequence[Assumption]) -> list[int] | None:
        search = self.search
        self._undecided.clear()
        # `touched` has what changed since it was read last, perhaps by the solver of the whole environment.
        # So this starts from all variables.
        search.touched.update(self.number.values())
        failed = search.solve(assumptions, self._choose)
        if failed is not None:
            # At once: the next call changes the choices from which `why` reads the reasons.
            self.failed = search.why(failed) if not assumptions else None
            return None
        # The next question mostly differs in one component. With these values, it seldom has to search.
        self._hint = [ABSENT if domain & ABSENT else domain for domain in search.domains]
        return list(self._hint)

    def refuting(self, assumptions: Sequence[Assumption]) -> list[object]:
        """Return the statements of a proof that nothing meets some assumptions; empty if something does."""
        self._undecided.clear()
        self.search.touched.update(self.number.values())
        failed = self.search.solve(assumptions, self._choose)
        return [] if failed is None else self.search.why(failed).reasons()

    def _choose(self) -> Assumption | None:
        """Return the first undecided variable of the problem, with its most preferred value."""
        number = self._first_undecided()
        if number is None:
            return None
        domain = self.search.domains[number]
        hinted = self._hint[number] & domain if number < len(self._hint) else 0
        return number, hinted or domain & -domain

    def _first_undecided(self) -> int | None:
        domains, touched, undecided = self.search.domains, self.search.touched, self._undecided
        for number in touched:
            domain = domains[number]
            if number in self.names and is_required(domain) and domain & (domain - 1):
                undecided.add(number)
            else:
                undecided.discard(number)
        touched.clear()
        return min(undecided, key=self.rank.__getitem__, default=None)

    def _narrowed(self, assumptions: tuple[Assumption, ...]) -> Narrowed | None:
        if not self.search.narrow(assumptions):
            return None
        return Narrowed(assumptions, tuple(self.search.domains))

    def _assumptions(self, demands: Iterable[Demand]) -> tuple[Assumption, ...]:
        masks: dict[int, int] = {}
        for demand in demands:
            number = self.number[demand.variable.name]
            masks[number] = masks.get(number, demand.variable.everything) & demand.mask
        return tuple(masks.items())

    def _solution(self, domains: Sequence[int]) -> Solution:
        pairs = ((name, domains[number]) for name, number in self.number.items())
        return {name: mask.bit_length() - 1 for name, mask in pairs if not mask & ABSENT}

    def _used(self, items: Sequence[Demand | Relation]) -> list[Demand | Relation] | None:
        """Return the items of a proof that items conflict; None if they do not."""
        # A trial only looks for a contradiction, and most of the catalog's components may be absent.
        search = Search(lazily=True)
        variables = self.problem.variables.items()
        number = {name: search.add_variable(variable.everything) for name, variable in variables}
        for item in items:
            state(search, number, item)
        return conflicting(search, items)


class Refuted(msgspec.Struct, frozen=True):
    """The proof that a request has no solution."""

    session: Session
    """The problem and its search, with everything that was stated."""
    failed: Incompatibility
    """What follows from the statements alone; its reasons are demands, relations and `Link`s."""
    releases: Mapping[str, int] = {}
    """The number of releases of each project in the search."""
    warnings: tuple[Notice, ...] = ()
    """How to resolve without distributions for CUDA, or with the releases of other indexes."""

    @property
    def links(self) -> list[Link]:
        """The statements about projects of indexes; empty if the catalog's problem has no solution itself."""
        return [link for link in self.failed.reasons() if isinstance(link, Link) and link is not ALWAYS]


def state(search: Search, number: Mapping[str, int], item: Demand | Relation) -> None:
    """Add a demand or a relation to a search."""
    if isinstance(item, Demand):
        search.add({number[item.variable.name]: item.variable.everything & ~item.mask}, item)
    else:
        subject, target = number[item.subject.name], number[item.object.name]
        search.add_table(subject, target, item.table, item, item.revisions)


def conflicting(search: Search, items: Sequence[_Item]) -> list[_Item] | None:
    """Return the items of a proof of no solution, or None; each was added with itself as the reason."""

    def choose() -> Assumption | None:
        best = None
        for number, domain in enumerate(search.domains):
            if is_required(domain) and domain & (domain - 1):
                # The fewest values for the most constraints, so that contradictions appear early.
                size = domain.bit_count() / search.degree(number)
                if best is None or size < best[0]:
                    best = size, number, domain & -domain
        return best and best[1:]

    failed = search.solve([], choose)
    if failed is None:
        return None
    reasons = {id(reason) for reason in search.why(failed).reasons()}
    return [item for item in items if id(item) in reasons]


def minimal(items: Sequence[_Item], used: Callable[[Sequence[_Item]], list[_Item] | None]) -> list[_Item]:
    """Return items that conflict, none of which can be left out; empty if the items do not conflict.

    Items are left out one after another, and an item stays left out if the rest still conflicts. So items
    that are tried late tend to stay.

    `used` returns the items of a proof that items conflict, None if they do not. If it raises
    `TooLargeError`, the items that were left out are kept. The first item that has to stay is found by
    bisection, as in QuickXplain [1]_.

    .. [1] U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained problems",
       AAAI (2004).
    """

    def proof_of(rest: Sequence[_Item]) -> set[int]:
        try:
            return {id(item) for item in used(rest) or ()}
        except TooLargeError:
            return set()

    needed: list[_Item] = []
    proof = proof_of(items)
    step, left = len(items), _MOST_TRIED
    # An item that the proof does not use is left out without a search: the proof is valid without it.
    while positions := [position for position, item in enumerate(items) if id(item) in proof]:
        if left < 0 and len(positions) < len(items):
            # Of a large problem, only the items of the last proof are tried on. They conflict, too, but
            # another order could have kept others.
            items = [items[position] for position in positions]
            continue
        if left < -_MOST_TRIED_OF_PROOF:
            return [*needed, *items]
        tried = min(step, len(positions))
        left -= len(items)
        rest = items[positions[tried - 1] + 1 :]
        smaller = proof_of([*needed, *rest])
        if smaller:
            # While no item has to stay, each search leaves out twice as many as the one before.
            proof, items, step = smaller, rest, 2 * step
        elif tried > 1:
            step = tried // 2
        else:
            needed.append(items[positions[0]])
            items, step = rest, 1
    return needed
