"""Suggest the nearest requests that resolve. Every suggestion was solved."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.answers.changes import RequestChange, changes_of
from resolver.answers.explain import LinkGroup
from resolver.compiling import compile_problem
from resolver.compiling.problem import Demand, Problem
from resolver.compiling.request import demand_text
from resolver.errors import MatrixError
from resolver.facts.schema import PLATFORM
from resolver.model import Suggestion
from resolver.solving.session import Session

if TYPE_CHECKING:
    from resolver.answers.explain import Constraint
    from resolver.facts.catalog import Catalog
    from resolver.model import Request, Requirement, Resolution
    from resolver.solving.session import Refuted

MAX_SUGGESTIONS = 3
SECONDS = 2.0
"""No further change is tried after this time."""
_MAX_PAIRS = 60
"""Maximum number of pairs of changes to try before all pins are removed."""
_MOST_GIVEN = 2
_FILES = (".whl", ".tar.gz", ".zip")
_SET_BY_SITE = {"kernel-driver", "base-image"}


def suggest(
    catalog: Catalog,
    request: Request,
    refuted: Refuted,
    core: Sequence[Constraint],
    resolves: Callable[[Request], Resolution | None] | None = None,
    *,
    stated: tuple[Requirement, ...] = (),
) -> tuple[Suggestion, ...]:
    """Return changes with which a request resolves, smallest first.

    Single changes to the conflict are tried first: remove a pin, change the base image or the date. If none
    is enough, the first of these that resolves is returned: two changes together, all pins removed, the
    conflicts relaxed one after another, and another site. Nothing that was asked for is left out. The search
    ends after `SECONDS`. `resolves` resolves a request as a command would; None if it has no solution either.
    By default, the problem of the catalog is solved: without indexes and proven sets, the command gives the
    same. `stated` is that of `changes_of`.
    """
    demands = [item for item in core if isinstance(item, Demand)]
    blamed = {demand.variable.name for demand in demands if demand.kind == "request"}
    groups = [item for item in core if isinstance(item, LinkGroup)]
    blamed |= {group.object.partition("[")[0] for group in groups}
    sited = any(demand.kind == "fact" and demand.variable.name in _SET_BY_SITE for demand in demands)
    changes = changes_of(catalog, request, sited=sited, stated=stated)
    backend = request.target.backend
    links = [link for group in groups for link in group.links]
    if any(link.object in {"", "rocm"} and link.source.endswith(_FILES) for link in links):
        # Without GPUs, files are not read, so the CPU would seem to help against what a file contains.
        changes = [change for change in changes if change.apply(request).target.backend == backend]
    near = [change for change in changes if not change.last and (change.name in blamed or not change.name)]
    trials = _Trials(catalog, request, refuted.session, resolves)
    suggestions: list[Suggestion] = []
    kinds: set[str] = set()
    for change in near:
        if len(suggestions) < MAX_SUGGESTIONS and change.kind not in kinds:
            resolving = list(trials.resolving([[change]]))
            kinds |= {change.kind} - {""} if resolving else set()
            suggestions += resolving
    far = [
        change
        for change in changes
        if change.last and (not groups or change.apply(request).target.backend == backend)
    ]
    stages: list[tuple[Iterable[Sequence[RequestChange]], int]] = [
        (_combinations(changes, near), 1),
        (trials.relax_core_by_core(changes, blamed), 1),
        (([change] for change in far), MAX_SUGGESTIONS),
        (_without_pins(changes, far), 1),
    ]
    for combinations, limit in stages:
        suggestions = suggestions or list(islice(trials.resolving(combinations), limit))
    return tuple(dict.fromkeys(suggestions))


def _combinations(
    changes: Sequence[RequestChange], near: Sequence[RequestChange]
) -> Iterator[list[RequestChange]]:
    """Yield pairs of changes, then the removal of all pins, alone and with a change of the target."""
    others = [change for change in changes if not change.last]
    pairs = ([change, other] for change in near for other in others if change is not other)
    yield from islice(pairs, _MAX_PAIRS)
    pins = [change for change in others if change.frees_a_pin]
    yield pins
    yield from ([*pins, change] for change in others if not change.name)


def _without_pins(
    changes: Sequence[RequestChange], far: Iterable[RequestChange]
) -> Iterator[list[RequestChange]]:
    pins = [change for change in changes if change.frees_a_pin]
    yield from ([*pins, change] for change in far)


class _Trials:
    """Relaxed requests, solved in one session for each target among them.

    Removing a pin or leaving out a requirement only removes demands, so it needs no new problem.
    """

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        session: Session,
        resolves: Callable[[Request], Resolution | None] | None,
    ) -> None:
        self._catalog = catalog
        self._request = request
        self._resolves = resolves
        self._end = monotonic() + SECONDS
        self._sessions: dict[Request, Session | None] = {request: session}

    def resolving(self, combinations: Iterable[Sequence[RequestChange]]) -> Iterator[Suggestion]:
        """Yield a suggestion for each combination of changes with which the request resolves."""
        for changes in combinations:
            if monotonic() > self._end:
                return
            relaxed = self._changed(changes)
            if not self._is_useful(relaxed) or relaxed == self._request:
                continue
            picks = self._outcome(relaxed)
            if picks is not None:
                text = ", and ".join(change.text for change in changes)
                given = gives(picks, [change.name for change in changes])
                yield Suggestion(text + given, request_arguments(relaxed))

    def relax_core_by_core(
        self, changes: Sequence[RequestChange], blamed: Collection[str]
    ) -> Iterator[list[RequestChange]]:
        """Relax one conflict after another until the rest resolves, then yield the changes made.

        Changes that turn out to be unnecessary are undone. `blamed` are components whose requirements are
        part of the first conflict.
        """
        made: list[RequestChange] = []
        session = self._sessions[self._request]
        while session and self._outcome(self._changed(made)) is None:
            if made:
                core = session.minimal_demands(self._demands(session.problem, self._changed(made)))
                blamed = {demand.variable.name for demand in core if demand.kind == "request"}
            change = next(
                (candidate for candidate in changes if candidate.name in blamed and candidate not in made),
                None,
            )
            if change is None or not self._is_useful(self._changed([*made, change])):
                return
            made.append(change)
        for change in tuple(made):
            fewer = [other for other in made if other is not change]
            if fewer and self._outcome(self._changed(fewer)) is not None:
                made = fewer
        yield made

    def _is_useful(self, relaxed: Request) -> bool:
        """Return whether a relaxed request still contains a distribution, if the original did."""
        names = {requirement.name for requirement in relaxed.requirements}
        requested = {requirement.name for requirement in self._request.requirements}
        return bool(names - {*PLATFORM} or names == requested)

    def _changed(self, changes: Iterable[RequestChange]) -> Request:
        request = self._request
        for change in changes:
            request = change.apply(request)
        return request

    def _outcome(self, relaxed: Request) -> dict[str, str] | None:
        """Return the versions that a relaxed request gives, by component; None if it has no solution."""
        if self._resolves:
            resolution = self._resolves(relaxed)
            return {pick.name: pick.key for pick in resolution.picks} if resolution else None
        session = self._session(replace(relaxed, requirements=self._request.requirements))
        if session is None:
            return None
        solution = session.solve(self._demands(session.problem, relaxed))
        variables = session.problem.variables
        if solution is None:
            return None
        return {name: variables[name].candidate(bit).key for name, bit in solution.items()}

    def _session(self, request: Request) -> Session | None:
        if request not in self._sessions:
            try:
                self._sessions[request] = Session(compile_problem(self._catalog, request))
            except MatrixError:
                self._sessions[request] = None
        return self._sessions[request]

    def _demands(self, problem: Problem, relaxed: Request) -> list[Demand]:
        """Return the demands that remain when pins are removed or requirements left out."""
        requested = {demand_text(requirement) for requirement in self._request.requirements}
        kept = {demand_text(requirement) for requirement in relaxed.requirements}
        names = {requirement.name for requirement in relaxed.requirements}
        demands = []
        for demand in problem.demands:
            if demand.text not in requested or demand.text in kept:
                demands.append(demand)
            elif demand.variable.name in names:
                demands.append(replace(demand, mask=demand.variable.present))
        return demands


def gives(picks: Mapping[str, str], changed: Sequence[str]) -> str:
    """Return the versions of what a change concerns, in parentheses: its components, then torch and ROCm."""
    names = [name for name in dict.fromkeys((*changed, "torch", "rocm")) if name in picks]
    shown = sorted(names[:_MOST_GIVEN], key=lambda name: (name != "torch", name == "rocm"))
    return f" (gives {' and '.join(f'{name} {picks[name]}' for name in shown)})" if shown else ""


def request_arguments(request: Request) -> tuple[str, ...]:
    """Return a request as arguments of ``matrix resolve``."""
    target = request.target
    options = {
        "--site": request.site_file or target.site,
        "--date": target.date.isoformat(),
        "--backend": target.backend if target.backend == "cpu" else "",
        "--gfx": ",".join(target.gfx),
        "--driver": target.driver or "",
        "--base-image": target.base_image or "",
        "--support": request.support if request.support != "any" else "",
        "--prefer": request.prefer if request.prefer != "advised" else "",
        "--keep-installed": request.preinstalled.source if request.preinstalled else "",
    }
    arguments = [word for option, value in options.items() if value for word in (option, value)]
    arguments += ["--no-prebuilt"] if request.no_prebuilt else []
    arguments += ["--no-network-plugin"] if request.no_network_plugin else []
    arguments += ["--no-content-check"] if request.no_content_check else []
    arguments += [word for ops in request.ops for word in ("--ops", ops)]
    arguments += [word for name in request.catalogs for word in ("--catalog", name)]
    return (*(requirement.text for requirement in request.requirements), *arguments)
