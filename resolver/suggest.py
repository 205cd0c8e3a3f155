"""The nearest requests that do resolve: every one that is named was solved."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.changes import changes_of
from resolver.compiling import compile_problem
from resolver.compiling.asked import asked_text
from resolver.core import minimal_demands
from resolver.errors import MatrixError
from resolver.model import PLATFORM, Suggestion
from resolver.network import Network
from resolver.solve import MOST_STEPS, preferred_within

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from resolver.changes import Change
    from resolver.facts.catalog import Catalog
    from resolver.model import Request
    from resolver.problem import Demand, Problem

MOST_SUGGESTIONS = 3
_MOST_PAIRS = 60
"""How many pairs of changes are tried before everything is let go that can be."""
_OF_THE_SITE = {"kernel-driver", "base-image"}


def suggestions_for(
    catalog: Catalog, request: Request, problem: Problem, core: Sequence[Demand]
) -> tuple[Suggestion, ...]:
    """Give changes after which a request resolves, the cheapest first; at least one if any exists.

    A single change that touches the core comes first: a pin let go, the base image, another day, a
    requirement left out. Only if none is enough are two tried together, then all pins at once, then
    everything that can be let go, then another site or offload target; of the pairs and of what can
    be let go the first that resolves is given. At last as much of the request as goes together is
    kept, here or with a change of the target.

    Parameters
    ----------
    catalog, request, problem
        What was asked, of which facts, and both compiled.
    core
        The demands that are part of the conflict.
    """
    blamed = {demand.variable.name for demand in core if demand.kind == "request"}
    sited = any(demand.kind == "fact" and demand.variable.name in _OF_THE_SITE for demand in core)
    changes = changes_of(catalog, request, sited=sited, blamed=blamed)
    near = [one for one in changes if not one.last and (one.name in blamed or not one.name)]
    trials = _Trials(catalog, request, problem)
    found: list[Suggestion] = []
    kinds: set[str] = set()
    for change in near:
        if len(found) < MOST_SUGGESTIONS and change.kind not in kinds:
            resolving = list(trials.resolving([[change]]))
            kinds |= {change.kind} - {""} if resolving else set()
            found += resolving
    far = [one for one in changes if one.last]
    stages: list[tuple[Iterable[Sequence[Change]], int]] = [
        (_together(changes, near), 1),
        (trials.one_clash_after_another(changes, blamed), 1),
        (([one] for one in far), MOST_SUGGESTIONS),
        (_with_all_pins_let_go(changes, far), 1),
        (trials.as_much_as_can_be(changes), 1),
    ]
    for combinations, most in stages:
        found = found or list(islice(trials.resolving(combinations), most))
    return tuple(dict.fromkeys(found))


def _together(changes: Sequence[Change], near: Sequence[Change]) -> Iterator[list[Change]]:
    """Yield pairs of changes, then all pins let go at once, alone and with a change of the target."""
    others = [one for one in changes if not one.last]
    pairs = ([one, other] for one in near for other in others if one is not other)
    yield from islice(pairs, _MOST_PAIRS)
    pins = [one for one in others if one.frees_a_pin]
    yield pins
    yield from ([*pins, one] for one in others if not one.name)


def _with_all_pins_let_go(changes: Sequence[Change], far: Iterable[Change]) -> Iterator[list[Change]]:
    pins = [one for one in changes if one.frees_a_pin]
    yield from ([*pins, one] for one in far)


def _without_needless(changes: Sequence[Change]) -> Sequence[Change]:
    """Give the change that leaves a component out alone: its pins go with it."""
    left_out = [one for one in changes if not one.frees_a_pin]
    return left_out[:1] or changes


class Compiled:
    """The problem of a target, with what is known of its relaxed forms."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.network = Network(problem)
        self._links = range(len(problem.relations))
        self._hopeless: list[dict[str, int]] = []
        """Domains of some variables with which there is no solution, whatever the others have."""

    def solve(self, demands: Sequence[Demand]) -> dict[str, int] | None:
        """Find the preferred solution under other demands than the problem's own.

        What a failure rests on is kept: whatever asks as much of the same variables fails, too.
        """
        domains: dict[str, int] = {}
        for demand in demands:
            name = demand.variable.name
            domains[name] = domains.get(name, demand.variable.everything) & demand.mask
        for known in self._hopeless:
            if all(domains.get(name, ~0) & ~mask == 0 for name, mask in known.items()):
                return None
        proof = self.network.refute(demands, self._links, MOST_STEPS)
        if proof is not None:
            names = [self.network.names[number] for number in proof.variables]
            self._hopeless.append({name: domains[name] for name in names if name in domains})
            return None
        start = self.network.start(demands)
        return None if start is None else preferred_within(self.network, start)


class _Trials:
    """Relaxed requests, tried on as few compiled problems as there are targets among them.

    Letting a pin go or leaving a requirement out only takes demands away, so it needs no new problem.
    """

    def __init__(self, catalog: Catalog, request: Request, problem: Problem) -> None:
        self._catalog = catalog
        self._request = request
        self._compiled: dict[Request, Compiled | None] = {request: Compiled(problem)}

    def resolving(self, combinations: Iterable[Sequence[Change]]) -> Iterator[Suggestion]:
        """Yield the suggestions that combinations of changes make, as far as they lead to a solution."""
        for changes in combinations:
            other = self._changed(changes)
            if not self._asks_for_anything(other) or other == self._request:
                continue
            outcome = self._outcome(other)
            if outcome is not None:
                text = ", and ".join(change.text for change in changes)
                yield Suggestion(text + outcome, request_arguments(other))

    def one_clash_after_another(
        self, changes: Sequence[Change], blamed: Collection[str]
    ) -> Iterator[list[Change]]:
        """Let go what clashes, and what clashes then, until the rest resolves; yield that, if it does.

        What turns out not to be needed then is taken back.

        Parameters
        ----------
        changes
            What can be let go.
        blamed
            The components of which the request asks what clashes first.
        """
        made: list[Change] = []
        compiled = self._compiled[self._request]
        while compiled and self._outcome(self._changed(made)) is None:
            if made:
                relaxed = self._relaxed(compiled.problem, self._changed(made))
                core = minimal_demands(compiled.network, relaxed)
                blamed = {demand.variable.name for demand in core if demand.kind == "request"}
            change = next((one for one in changes if one.name in blamed and one not in made), None)
            if change is None or not self._asks_for_anything(self._changed([*made, change])):
                return
            made.append(change)
        for change in tuple(made):
            fewer = [one for one in made if one is not change]
            if fewer and self._outcome(self._changed(fewer)) is not None:
                made = fewer
        yield made

    def as_much_as_can_be(self, changes: Sequence[Change]) -> Iterator[list[Change]]:
        """Keep of the request what goes together, here and with each change of the target; yield what goes.

        One component after another is taken in as it was asked for, else in any version, else left
        out. So something is found whenever anything of the request resolves for any of the targets.
        """
        names = dict.fromkeys(one.name for one in self._request.requirements)
        for target in [[], *([one] for one in changes if not one.name)]:
            let_go = {name: [one for one in changes if one.name == name] for name in names}
            for name, all_of_it in sorted(let_go.items(), key=lambda pair: pair[0] not in PLATFORM):
                pins = [one for one in all_of_it if one.frees_a_pin]
                for attempt in ([], pins):
                    tried = let_go | {name: attempt}
                    if self._outcome(self._changed(chain(target, *tried.values()))) is not None:
                        let_go = tried
                        break
            yield [*target, *chain.from_iterable(_without_needless(one) for one in let_go.values())]

    def _asks_for_anything(self, other: Request) -> bool:
        """Tell whether a distribution is left, if there was one: a platform alone is no smaller wish."""
        names = {one.name for one in other.requirements}
        return bool(names - {*PLATFORM} or names == {one.name for one in self._request.requirements})

    def _changed(self, changes: Iterable[Change]) -> Request:
        other = self._request
        for change in changes:
            other = change.apply(other)
        return other

    def _outcome(self, other: Request) -> str | None:
        """Name the torch and ROCm that a request leads to; None if it leads nowhere."""
        compiled = self._problem(replace(other, requirements=self._request.requirements))
        if compiled is None:
            return None
        problem = compiled.problem
        solution = compiled.solve(self._relaxed(problem, other))
        if solution is None:
            return None
        named = [
            problem.variables[one].candidate(solution[one]) for one in ("torch", "rocm") if one in solution
        ]
        return f" (gives {' and '.join(map(str, named))})" if named else ""

    def _problem(self, request: Request) -> Compiled | None:
        if request not in self._compiled:
            try:
                self._compiled[request] = Compiled(compile_problem(self._catalog, request))
            except MatrixError:
                self._compiled[request] = None
        return self._compiled[request]

    def _relaxed(self, problem: Problem, other: Request) -> list[Demand]:
        """Give the demands that are left when requirements were let go or left out."""
        asked = {asked_text(one) for one in self._request.requirements}
        kept = {asked_text(one) for one in other.requirements}
        wanted = {one.name for one in other.requirements}
        demands = []
        for demand in problem.demands:
            if demand.text in asked and demand.text not in kept:
                if demand.variable.name in wanted:
                    demands.append(replace(demand, mask=demand.variable.present))
            else:
                demands.append(demand)
        return demands


def request_arguments(request: Request) -> tuple[str, ...]:
    """Write a request as the arguments of ``matrix resolve``."""
    target = request.target
    options = {
        "--site": request.site_file or target.site,
        "--date": target.date.isoformat(),
        "--backend": target.backend if target.backend == "cpu" else "",
        "--gfx": ",".join(target.gfx),
        "--driver": target.driver or "",
        "--base-image": target.base_image or "",
        "--support": request.support if request.support != "any" else "",
        "--prefer": request.prefer if request.prefer != "newest" else "",
        "--keep-installed": request.preinstalled.source if request.preinstalled else "",
    }
    given = [word for option, value in options.items() if value for word in (option, value)]
    given += [word for name in request.catalogs for word in ("--catalog", name)]
    return (*(one.text for one in request.requirements), *given)
