"""Resolve a request for the whole environment, with the catalog and package indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import astuple, replace

from resolver.choices import Link, Pick
from resolver.compiling import compile_problem
from resolver.compiling.clauses import PAIRED_WITH_TORCH, REQUEST
from resolver.compiling.problem_builder import closed_names
from resolver.errors import EnvironmentLacksError
from resolver.model import PLATFORM, Candidate, Distribution, Edge, Fact, Resolution, layer
from resolver.open_world import OpenWorld, TritonFoundError, WantedError
from resolver.order import generations, without_cycles
from resolver.problem import ABSENT, Demand, Problem, Relation, Row, Variable
from resolver.requirements import TRITON_NAMES
from resolver.resolution import preferred_solution, resolution_of, with_labels
from resolver.session import Session
from resolver.versions import join_words

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Request
    from resolver.session import Solution

_MOST_REASONS = 3
"""Maximum number of requirements to list as the reason for a distribution."""
_LEARNED = "learned-"
"""Prefix of the names of the components that stand for the ways to avoid a learned combination."""


class Refuted(NamedTuple):
    """A request without a solution, as far as it was explored.

    Attributes
    ----------
    problem
        The problem of the platform and the catalog.
    narrowed
        The same problem with all learned exclusions.
    links
        The statements that prove that no distributions outside the catalog fit the problem; empty if the
        problem itself has no solution.
    """

    problem: Problem
    narrowed: Problem
    world: OpenWorld
    links: list[Link]


def solve(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes,
    keep: Mapping[str, str] | None = None,
    *,
    any_patch: bool = False,
) -> Resolution | Refuted:
    """Return the resolution of a request, or the proof that it has none; see `resolve` for the arguments."""
    also = frozenset(PAIRED_WITH_TORCH)  # often required; any other name costs another round
    while True:
        problem = compile_problem(catalog, request, also=also, keep=keep, open_world=True)
        bound = closed_names(catalog, request.target.backend)
        world = OpenWorld(
            catalog, request, problem, bound=bound, indexes=indexes, keep=keep or {}, any_patch=any_patch
        )
        turns = _Turns(catalog, request, problem, world)
        try:
            answer = turns.resolve(frozenset(), frozenset())
            resolution = answer[0] if answer else None
        except WantedError as error:
            also |= error.names
            continue
        except TritonFoundError as error:
            row = replace(catalog.torch[error.torch], triton=error.requirement)
            catalog = replace(catalog, torch={**catalog.torch, error.torch: row})
            continue
        except EnvironmentLacksError as error:
            if world.has_answer:
                raise
            resolution = _left_open(catalog, request, problem, error)
        return resolution or Refuted(problem, turns.narrowed(), world, turns.links)


class _Turns:
    """Alternate between network and open world until both have a solution, or the network has none."""

    def __init__(self, catalog: Catalog, request: Request, problem: Problem, world: OpenWorld) -> None:
        self._catalog = catalog
        self._request = request
        self._problem = problem
        self._world = world
        self._names = list(problem.variables)
        self._learned: list[dict[str, int]] = []
        self.links: list[Link] = []
        """The statements behind the learned exclusions."""

    def resolve(self, present: frozenset[str], absent: frozenset[str]) -> tuple[Resolution, Solution] | None:
        """Return the preferred resolution with some distributions of the catalog and without others.

        Also return the solution of the catalog's problem.
        """
        while True:
            session = Session(self.narrowed(present, absent))
            solution, notes = preferred_solution(self._catalog, self._request, session)
            if solution is None:
                return None
            solution = {name: bit for name, bit in solution.items() if name in self._problem.variables}
            free = self._distributions - solution.keys() - absent
            try:
                failed = self._world.extend(solution, free)
            except WantedError as error:
                if not error.names <= self._problem.variables.keys():
                    raise
                answer = self.resolve(present | error.names, absent)
                if answer and not self._is_better(solution, answer[1]):
                    return answer
                other = self.resolve(present, absent | error.names)  # other releases may require none of them
                return other if other and (not answer or self._is_better(other[1], answer[1])) else answer
            if failed is None:
                resolution = resolution_of(self._catalog, self._request, self._problem, solution, notes)
                return _completed(resolution, self._world), solution
            self.links += [link for link in failed.reasons() if isinstance(link, Link)]
            self._learned.append({self._names[number]: mask for number, mask in failed.terms.items()})

    def _is_better(self, solution: Solution, than: Solution) -> bool:
        """Return whether the platform of a solution is preferred to the platform of another solution.

        A solution without torch is never better: a newer ROCm does not justify an old release that does not
        use torch.
        """
        if self._request.prefer == "proven" or "torch" not in solution:
            return False
        names = sorted({*PLATFORM, "torch"} & solution.keys() & than.keys(), key=layer)
        return [solution[name] for name in names] < [than[name] for name in names]

    @cached_property
    def _distributions(self) -> set[str]:
        variables = self._problem.variables
        return {
            name
            for name, variable in variables.items()
            if any(candidate.kind == "distribution" for candidate in variable.candidates)
        }

    def narrowed(
        self, present: frozenset[str] = frozenset(), absent: frozenset[str] = frozenset()
    ) -> Problem:
        """Return the problem with all learned exclusions."""
        problem = self._problem
        for number, terms in enumerate(self._learned):
            problem = _without(problem, terms, number)
        variables = problem.variables
        demands = [_demand(variables[name], variables[name].present) for name in sorted(present)]
        demands += [_demand(variables[name], ABSENT) for name in sorted(absent)]
        return replace(problem, demands=[*problem.demands, *demands])


def _demand(variable: Variable, mask: int) -> Demand:
    return Demand(variable, mask, "the releases on the indexes", "fact", "the indexes")


def _without(problem: Problem, terms: dict[str, int], number: int) -> Problem:
    """Return a problem without a combination of values."""
    fact = Fact("learned from the indexes", "documented", "the indexes")
    name = f"{_LEARNED}{number}"
    ways = Variable(name, [Candidate(name, f"without {term}", "platform", "request", fact) for term in terms])
    relations = [
        Relation(
            ways,
            problem.variables[component],
            "run",
            [Row(1 << bit, problem.variables[component].everything & ~mask, fact)],
            forbids=True,
        )
        for bit, (component, mask) in enumerate(terms.items(), start=1)
    ]
    return replace(
        problem,
        variables={**problem.variables, name: ways},
        demands=[*problem.demands, _demand(ways, ways.present)],
        relations=[*problem.relations, *relations],
    )


def _left_open(
    catalog: Catalog, request: Request, problem: Problem, error: EnvironmentLacksError
) -> Resolution | None:
    """Resolve the platform and the catalog alone, because no index can be reached."""
    session = Session(problem)
    solution, notes = preferred_solution(catalog, request, session)
    if solution is None:
        return None
    resolution = resolution_of(catalog, request, problem, solution, notes)
    requirements = request.requirements
    left = [requirement.text for requirement in requirements if requirement.name not in problem.variables]
    left += [f"the requirements of {pick}" for pick in resolution.distributions]
    note = f"Not everything is locked: {error.message}"
    note += " To lock the rest, run `matrix resolve` with network access."
    return replace(resolution, left_open=tuple(left), warnings=(*resolution.warnings, note))


def _completed(resolution: Resolution, world: OpenWorld) -> Resolution:
    """Add the picks of the open world to a resolution of the catalog."""
    known = [
        replace(pick, files=world.files_of(pick.name), extras=world.extras_of(pick.name))
        if pick.kind == "distribution"
        else pick
        for pick in resolution.picks
    ]
    required_by = _required_by(known, world)
    added = [
        Distribution(
            name=pick.name,
            version=pick.version,
            kind="distribution",
            origin="published" if pick.files else "preinstalled",
            support=pick.support,
            verdict="supported",
            index=pick.files[0].index if pick.files else "",
            files=pick.files,
            extras=pick.extras,
            facts=tuple(_facts(pick, required_by.get(pick.name, ()))),
        )
        for pick in sorted(world.picks())
    ]
    aliases = list(_aliases(resolution, (*known, *added), world, required_by))
    known = [*with_labels(resolution.request.target, [*known, *aliases])]
    edges = dict.fromkeys(resolution.edges)
    edges |= dict.fromkeys(Edge(alias.name, alias.alias_of, "run", declared=True) for alias in aliases)
    names = {pick.name for pick in known} | {pick.name for pick in added}
    for pick in (*known, *added):
        if pick.kind == "distribution":
            for required, _ in world.requirements_of(pick.name):
                if required in names and required != pick.name:
                    edges.setdefault(Edge(pick.name, required, "run", declared=True))
    ordered = without_cycles(tuple(sorted(edges, key=astuple)))
    platform = [pick for pick in known if pick.kind == "platform"]
    distributions = sorted(
        (pick for pick in (*known, *added) if pick.kind == "distribution"), key=lambda pick: pick.name
    )
    left = tuple(f"the requirements of {name}: {reason}" for name, reason in sorted(world.unread().items()))
    without_metadata = [pick for pick in distributions if pick.git and not pick.files]
    unread_names = [pick.name for pick in without_metadata]
    notes = [*resolution.notes, *([_known_after_build(unread_names)] if unread_names else [])]
    ignored = [
        f"{pick.name} is built from a git commit, so the requirements of its extra {extra!r} are not locked."
        for pick in without_metadata
        for extra in pick.extras
    ]
    return replace(
        resolution,
        picks=(*platform, *distributions),
        edges=ordered,
        order=generations((pick.name for pick in distributions), ordered),
        left_open=left,
        notes=tuple(notes),
        warnings=(*resolution.warnings, *ignored, *_warnings(world), *_confusions(distributions, world)),
    )


def _known_after_build(names: Sequence[str]) -> str:
    source = "is built from a git commit" if len(names) == 1 else "are built from git commits"
    known = (
        "Requirements that the catalog does not list are known only after the build; `matrix env` names them."
    )
    return f"{join_words(names, joiner='and')} {source}. {known}"


def _confusions(picks: Iterable[Distribution], world: OpenWorld) -> Iterator[str]:
    """Warn about distributions whose name may mean another project on an earlier index."""
    for pick in picks:
        index = pick.files[0].index if pick.files else ""
        bound = pick.index and pick.index != index
        if pick.origin == "published" and not bound and (earlier := world.earlier_index(pick.name, index)):
            yield (
                f"{pick} comes from {index}, and {earlier} also has a project {pick.name}. As in pip, the "
                "highest version of all indexes was chosen. If they are different projects, require "
                f"{pick.name}<{pick.version}, or remove the index."
            )


def _required_by(known: Iterable[Distribution], world: OpenWorld) -> dict[str, list[Fact]]:
    """Return, for each required distribution, the facts about the requirements on it."""
    facts: dict[str, list[Fact]] = {}
    names = [pick.name for pick in known if pick.kind == "distribution"]
    for name in [*names, *(pick.name for pick in sorted(world.picks()))]:
        for required, text in world.requirements_of(name):
            version = world.version_of(name)
            fact = Fact(
                f"{name} {version} requires {text}", "documented", f"the metadata of {name} {version}"
            )
            facts.setdefault(required, []).append(fact)
    return facts


def _aliases(
    resolution: Resolution,
    picks: Sequence[Distribution],
    world: OpenWorld,
    required_by: Mapping[str, Sequence[Fact]],
) -> Iterator[Distribution]:
    """Yield an alias for each other name of torch's triton."""
    names = {pick.name for pick in picks}
    triton = next((pick for pick in picks if pick.name in TRITON_NAMES), None)
    if triton is None:
        return
    others = [name for name in TRITON_NAMES if name in required_by and name not in names]
    reasons = {name: list(required_by[name]) for name in others}
    for requirement in world.requested_tritons():
        if requirement.name not in names:
            fact = Fact(f"you asked for {requirement}", "documented", REQUEST)
            reasons.setdefault(requirement.name, []).append(fact)
    torch = resolution.pick("torch")
    own = Fact(f"{torch} has {triton}, which installs triton", triton.support, triton.facts[0].source)
    for name, facts in sorted(reasons.items()):
        yield Distribution(
            name=name,
            version=triton.version.partition("+")[0],
            kind="distribution",
            origin="build",
            support=triton.support,
            verdict="supported",
            alias_of=triton.name,
            facts=(*facts, own),
        )


def _facts(pick: Pick, required_by: Sequence[Fact]) -> Iterator[Fact]:
    name, release = pick.name, f"{pick.name} {pick.version}"
    index = pick.files[0].index if pick.files else ""
    if index:
        yield Fact(f"{release} is published at {index}", "documented", f"{index}/{name}/")
    elif pick.files:
        yield Fact(f"{release} comes from the URL in the request", "documented", pick.files[0].url)
    if pick.support == "inferred":
        text = f"{release} has the requirements in its PKG-INFO, which a build may change"
        yield Fact(text, "inferred", pick.files[0].url)
    yield from required_by[:_MOST_REASONS]


def _warnings(world: OpenWorld) -> Iterator[str]:
    for pick in sorted(world.picks()):
        if world.needs_newer_patch(pick):
            needed = f"{pick.name} {pick.version} requires Python {pick.files[0].requires_python}"
            yield f"{needed}, so some patch releases of the Python in the lock cannot install it."
        if pick.support == "inferred":
            yield (
                f"{pick.name} {pick.version} has only an sdist whose metadata a build may change. The "
                "requirements in its PKG-INFO were used."
            )
    unread = world.unread()
    if unread:
        names, reason = sorted(unread), next(iter(unread.values()))
        what = f"The requirements of {join_words(names, joiner='and')} are not locked: {reason.rstrip('.')}."
        yield f"{what} To lock them, run `matrix resolve` with network access."
    yield from world.lacking()
    yield from world.replaced_for_cuda()
    for release, problem in world.skipped.items():
        yield f"{release} was skipped: it {problem}."
