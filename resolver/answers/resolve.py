"""Resolve a request to a resolution or a conflict."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from math import inf
from operator import itemgetter
from time import monotonic
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.answers.network import with_network_plugin
from resolver.answers.resolution import preferred_solution, resolution_of
from resolver.compiling import add_distributions, start_problem
from resolver.compiling.names import for_rocm, named_by, wheels_for_rocm
from resolver.compiling.preinstalled import content_notes
from resolver.compiling.problem import ABSENT
from resolver.compiling.problem_builder import ProblemBuilder, advice_for, is_advised, reachable
from resolver.errors import MatrixError
from resolver.facts.catalog import is_elsewhere
from resolver.model import SUGGESTIONS_STOPPED, Notice, Resolution
from resolver.providers.index import LabelledProvider
from resolver.providers.inferred import InferredProvider
from resolver.reporter import SILENT
from resolver.requirements import parse_requirement
from resolver.solving.session import Refuted, Session
from resolver.versions import join_words

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Candidate, Conflict, Request, Requirement
    from resolver.providers import Provider
    from resolver.reporter import Reporter
    from resolver.solving.search import Assumption
    from resolver.solving.session import Solution
    from resolver.solving.solver import Solver

_MOST_CONFLICTS_OF_A_TRY = 1000
"""Contradictions after which the search for a suggestion gives up."""
_LONGEST = 900.0
"""Seconds after which a search gives up, because the releases or the index of a stranger may have no end.

A first search for 500 distributions takes less than a minute on a fast network."""


def resolve(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes | None = None,
    *,
    keep: Mapping[str, str] | None = None,
    reporter: Reporter = SILENT,
) -> Resolution | Conflict:
    """Return a resolution with a version of every component that the request needs, or the conflict.

    The result is deterministic: it depends only on the arguments and the state of the indexes.

    Parameters
    ----------
    indexes
        Package indexes for distributions outside the catalog, and for releases that the catalog does not list
        if no listed release can be chosen. Without indexes, only the platform and the catalog are resolved.
    keep
        Version and variant (`Distribution.key`) to prefer, by name, such as from an earlier resolution.
    reporter
        Receives a conflict as soon as it is known; the search for suggestions then takes up to a minute.

    Raises
    ------
    UsageError
        The request names something that is neither in the catalog nor on an index.
    EnvironmentLacksError
        An index of the user cannot be reached. (If an index that only the catalog names cannot be reached,
        the resolution leaves open what its metadata would require.)
    SourceError
        A page of an index is broken.
    TooLargeError
        The search exceeded its limit.
    """
    stated = request.requirements
    request, notes = for_rocm(catalog, request)
    search = Search(catalog, request, indexes, keep)
    if request.target.backend == "rocm":
        search = _with_extras(_with_wheels(search, notes), notes)
    request, answer = search.request, search.answer
    if isinstance(answer, Resolution):
        image = catalog.image.get(answer.target.base_image or "")
        notes += content_notes(catalog, request, answer.picks, image)
        notes += _published_instead(search, answer)
        notes += _nothing_to_install(request, answer)
        notes += _code_for_every_gpu(catalog, answer)
        answer = with_network_plugin(catalog, search.request, answer, search.with_distribution)
        return replace(answer, notes=(*answer.notes, *notes)) if notes else answer
    from resolver.answers.explain import explain_conflict
    from resolver.answers.suggest import SECONDS, suggest

    conflict, core = explain_conflict(request, answer)
    conflict = replace(conflict, warnings=(*answer.warnings, *notes))
    reporter.conflict(conflict)

    until = monotonic() + SECONDS

    def solved(relaxed: Request) -> Resolution | Refuted | None:
        try:
            return Search(catalog, relaxed, indexes, until=until).answer
        except MatrixError:
            return None

    suggestions, is_stopped = suggest(catalog, request, core, solved, stated=stated)
    if is_stopped:
        text = "The search for changes of the request that resolve was stopped, so there may be others."
        conflict = replace(conflict, warnings=(*conflict.warnings, Notice(SUGGESTIONS_STOPPED, "", text)))
    return replace(conflict, suggestions=suggestions)


def _with_wheels(search: Search, notes: list[Notice]) -> Search:
    """Return a search with wheels of another name in place of what the answer would compile.

    They are taken if they are for the same ROCm, if the site advises another ROCm, or if there is no solution
    without them. A note says what was replaced, or with which ROCm it could be.
    """
    # Another search, not an assumption of the first: the names that were asked for decide the order of
    # decisions, which packages are compiled into the problem, and what a conflict says.
    advice = advice_for(search.catalog, search.request).get("rocm")
    for stated in search.request.requirements if not search.request.no_prebuilt else ():
        row, answer = wheels_for_rocm(search.catalog, stated.name), search.answer
        pick = answer.pick(stated.name) if isinstance(answer, Resolution) else None
        if row is None or (pick is not None and pick.origin != "build"):
            continue
        rocm = (isinstance(answer, Resolution) and answer.target.rocm) or ""
        others = (other for other in search.request.requirements if other != stated)
        renamed = replace(search.request, requirements=(*others, *named_by(stated, row)))
        try:
            other = Search(search.catalog, renamed, search.indexes, {"rocm": rocm} if rocm else None)
            found = other.answer
        except MatrixError:  # the wheels have other versions
            continue
        if not isinstance(found, Resolution):
            continue
        names = join_words(row.by, joiner="and")
        if found.target.rocm == rocm or not rocm or (advice and not is_advised(advice, rocm)):
            text = f"{stated.name} means {names} on ROCm {found.target.rocm}. {row.note}".strip()
            notes.append(Notice("named-for-rocm", stated.name, text))
            search = other
        else:
            text = (
                f"{stated.name} is compiled for ROCm {rocm}. {names} has wheels for ROCm "
                f"{found.target.rocm}; to use them, require {names}."
            )
            notes.append(Notice("published-instead", stated.name, text))
    return search


def _with_extras(search: Search, notes: list[Notice]) -> Search:
    """Return a search with an extra for ROCm of a requested project, if nothing in the answer is for ROCm.

    Of several extras that resolve, the one with the fewest distributions is taken. If none resolves, the
    answer is the conflict of the first, which names it.
    """
    for stated in search.request.requirements:
        answer, extras = search.answer, search.extras.get(stated.name, ())
        if stated.url or not extras or (isinstance(answer, Resolution) and answer.target.rocm):
            continue
        others = [other for other in search.request.requirements if other != stated]
        tried: list[tuple[int, str, Search]] = []
        for extra in extras:
            marker = f" ; {stated.marker}" if stated.marker else ""
            names = ",".join(sorted({*stated.extras, extra}))
            asked = parse_requirement(f"{stated.name}[{names}]{stated.specifier or ''}{marker}")
            asking = replace(search.request, requirements=(*others, asked))
            with_extra = Search(search.catalog, asking, search.indexes)
            found = with_extra.answer
            tried.append(
                (len(found.picks) if isinstance(found, Resolution) else sys.maxsize, extra, with_extra)
            )
        _size, extra, search = min(tried, key=itemgetter(0))
        rest = [f"{stated.name}[{one}]" for one in extras if one != extra]
        also = f" Its other extras for them: {join_words(rest, joiner='and')}." if rest else ""
        text = f"{stated.name} means {stated.name}[{extra}] on AMD GPUs.{also}"
        notes.append(Notice("named-for-rocm", stated.name, text))
    return search


def _published_instead(search: Search, answer: Resolution) -> Iterator[Notice]:
    """Yield a sentence for each requested build that a published wheel with other versions would replace."""
    asked = {requirement.name: requirement.extras for requirement in search.request.requirements}
    built = {pick.name for pick in answer.picks if pick.origin == "build"} - {"torch"}
    for name in sorted(built & asked.keys()) if not search.request.no_prebuilt else ():
        if not any(map(is_elsewhere, search.catalog.releases_of(name))) or asked[name]:
            continue
        chosen = search.with_wheel(name)
        if wheel := chosen.get(name):
            pin = parse_requirement(f"{name}=={wheel.version}")
            torch = f" with {chosen['torch']}" if "torch" in chosen else ""
            text = f"{name} is compiled, but {pin.text}{torch} is published. To use it, require {pin.text}."
            yield Notice("published-instead", name, text)


def _nothing_to_install(request: Request, answer: Resolution) -> Iterator[Notice]:
    """Yield a sentence if a request only for ROCm does not name its pip packages."""
    if not answer.distributions and any(requirement.name == "rocm" for requirement in request.requirements):
        text = (
            "rocm means the ROCm of a base image or of the machine, so there is nothing to install. For "
            "AMD's pip packages of ROCm, require rocm[libraries], or rocm[devel] to compile."
        )
        yield Notice("nothing-to-install", "rocm", text)


def _code_for_every_gpu(catalog: Catalog, answer: Resolution) -> Iterator[Notice]:
    """Yield a sentence about a torch with the ROCm of pip packages that has no extra for one architecture."""
    row = catalog.torch.get(answer.version_of("torch") or "")
    if row and row.pip_rocm and not row.device_extra and answer.target.gfx:
        extras = ",".join(f"device-{gfx}" for gfx in answer.target.gfx)
        text = (
            f"torch {row.version} has no extra for the code of one GPU architecture, so it may install that "
            f"of all, which has gigabytes. torch[{extras}] means a torch with only that of the target."
        )
        yield Notice("code-of-every-gpu", "torch", text)


class Search:
    """A request, its one search, and the answer. Later questions are further assumptions of this search.

    For the parameters see `resolve`. With indexes, the search gives up with a `TooLargeError` at the time
    `until` (`time.monotonic`), or when it has taken too long.
    """

    def __init__(
        self,
        catalog: Catalog,
        request: Request,
        indexes: PackageIndexes | None,
        keep: Mapping[str, str] | None = None,
        until: float = inf,
    ) -> None:
        self.request = request
        self.catalog = catalog
        self.indexes = indexes
        self._notes: list[Notice] = []
        self._recent: list[Notice] = []
        self._assumed: list[Assumption] = []
        """That requested releases are not from years ago."""
        self.extras: Mapping[str, list[str]] = {}
        """The extras for ROCm of requested projects in the answer, none of which is requested."""
        self._selectors: Mapping[str, int] = {}
        self._solver: Solver | None = None
        if indexes is None:
            self._builder = start_problem(ProblemBuilder(catalog, request, keep=keep))
            self._session = Session(self._builder.problem())
        else:
            self._solver = _solver(catalog, request, indexes, keep or {})
            self._solver.search.until = min(until, monotonic() + _LONGEST)
            if until < inf:
                self._solver.search.max_conflicts = _MOST_CONFLICTS_OF_A_TRY
            self._builder, self._session = self._solver.world.builder, self._solver.session
            self._selectors = self._solver.projects.selectors
        solution = self._solve()
        # That a release is not years old is a preference for new ones, which such a request does not have.
        if solution is not None and self._solver is not None and request.prefer not in {"oldest", "proven"}:
            from resolver.answers.recent import recent

            found = recent(self._solver, keep or {}, self._solve)
            solution = self._solver.world.solution if found else None
            self._assumed, self._recent = found or ([], [])
        self._solution = solution
        self._chosen: list[Assumption] = []
        """The values of the answer."""

    @cached_property
    def answer(self) -> Resolution | Refuted:
        """The answer, or the proof that there is none; not to be asked for after another question."""
        if self._solution is not None:
            self._chosen = self._values(self._solution)
            if self._solver is not None:
                self._chosen += [(node.number, 1 << bit) for node, bit in self._solver.projects.chosen()]
            return self._answer(self.request, self._solution)
        if self._solver is None:
            return Refuted(self._session, self._session.refutation())
        return self._solver.refuted()

    def with_wheel(self, name: str) -> dict[str, Candidate]:
        """Return what would be chosen with a wheel of a distribution that the catalog lists; {} if none."""
        variable = self._session.problem.variables[name]
        wheels = variable.mask(
            number
            for number, candidate in enumerate(variable.candidates)
            if candidate.origin == "published" and candidate.release and not candidate.inferred_from
        )
        solution = self._solve([*self._assumed, (self._session.number[name], wheels)]) or {}
        variables = self._session.problem.variables
        return {other: variables[other].candidate(bit) for other, bit in solution.items()}

    def with_distribution(self, name: str) -> Resolution | None:
        """Return the answer with one more distribution of the catalog; None if that changes a version."""
        add_distributions(self._builder, {name})
        if self._solver is None:
            self._session.extend()
        else:
            self._solver.world.state_demands()
        solution = self._solve([*self._chosen, (self._session.number[name], ~ABSENT)])
        asked = replace(self.request, requirements=(*self.request.requirements, parse_requirement(name)))
        return None if solution is None else self._answer(asked, solution)

    def with_requirements(self, stated: Sequence[Requirement]) -> Resolution | Refuted:
        """Return the picks of the answer with further requirements of what the request names, not confirmed.

        They are assumptions of this search. Only without a solution, the longer request has its own.
        """
        limits = [limit for one in stated if (limit := self._limit(one))]
        solution = self._solve([*self._assumed, *limits]) if len(limits) == len(stated) else None
        if solution is not None:
            return self._answer(self.request, solution, only_picks=True)
        request = replace(self.request, requirements=(*self.request.requirements, *stated))
        return Search(self.catalog, request, self.indexes).answer

    def _limit(self, stated: Requirement) -> Assumption | None:
        """Return what a requirement allows as an assumption; None for a variant, or if it was never met."""
        node = self._solver.projects.node(stated.name) if self._solver is not None else None
        if node is not None:
            return node.number, node.allowed_by(stated.specifier)
        variable = self._session.problem.variables.get(stated.name)
        if variable is None or stated.extras:
            return None
        return self._session.number[stated.name], variable.allowed_by(str(stated.specifier))

    def _solve(self, assumed: Sequence[Assumption] = ()) -> Solution | None:
        """Return the preferred solution under assumptions."""
        if self._solver is None:
            return self._preferred(assumed)
        return self._solver.solve(assumed, self._within_set if self.request.prefer == "proven" else None)

    def _preferred(self, assumed: Sequence[Assumption]) -> Solution | None:
        solution, self._notes = preferred_solution(
            self.catalog, self.request, self._session, assumed, self._selectors
        )
        return solution

    def _within_set(self, assumed: Sequence[Assumption]) -> list[Assumption] | None:
        """Return the values of the best proven set that the search has not refuted, as assumptions."""
        from resolver.answers.proven import selected

        solution = self._preferred(assumed)
        if solution is None:
            return None
        key = next((note.subject for note in self._notes), "")
        return [*assumed, *selected(self._selectors, key), *self._values(solution)]

    def _answer(self, request: Request, solution: Solution, *, only_picks: bool = False) -> Resolution:
        problem = self._session.problem
        closed = resolution_of(self.catalog, request, problem, solution, self._notes)
        if self._solver is None:
            return closed
        from resolver.answers.answer import Answer
        from resolver.answers.assembling import completed

        answer = Answer(self._solver)
        lock = completed(closed, answer, only_picks=only_picks)
        if only_picks:
            return lock
        from resolver.answers.confirmation import confirm

        lock = replace(lock, warnings=(*lock.warnings, *self._recent)) if self._recent else lock
        self.extras = answer.extras_for_rocm()
        known = {*self._session.number, *self._builder.closed}
        confirm(lock, answer.recorded(closed.edges), known, answer.index.indexes)
        return lock

    def _values(self, solution: Solution) -> list[Assumption]:
        return [(self._session.number[name], 1 << bit) for name, bit in solution.items()]


def _solver(catalog: Catalog, request: Request, indexes: PackageIndexes, keep: Mapping[str, str]) -> Solver:
    """Return the search for a request with indexes, in which all requirements of the request are stated."""
    from resolver.solving.solver import Solver
    from resolver.solving.triton import TritonProvider

    inferred = InferredProvider(catalog, request, indexes)
    providers: list[Provider] = [inferred, TritonProvider(catalog, request, indexes)]
    if not request.no_prebuilt:
        providers.append(LabelledProvider(catalog, request, indexes))
    names = {requirement.name for requirement in request.requirements}
    inferred.start(reachable(catalog, request.target.backend, names))
    inferred.check()
    builder = ProblemBuilder(catalog, request, keep=keep, open_world=True, providers=providers)
    solver = Solver(start_problem(builder), indexes, keep)
    of_index = names - builder.closed
    for row in catalog.proven_at(request.target.site) if request.prefer == "proven" else ():
        if of_index & row.picks.keys():
            solver.projects.may_use(row)
    solver.requirements.add_requests()
    return solver
