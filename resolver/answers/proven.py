"""Proven sets: versions that were run together. Solve inside them, and check that they still resolve."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from resolver.answers.explain import core_items
from resolver.compiling import compile_problem
from resolver.compiling.problem import ABSENT, Demand, Problem, RelationRow
from resolver.model import CoreItem, Request, Requirement, Target
from resolver.solving.session import Session, Solution
from resolver.solving.world import LENIENT, STRICT

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import ProvenSet
    from resolver.solving.search import Assumption

_Limits = TypeVar("_Limits")


def solve_proven(
    session: Session,
    sets: Iterable[ProvenSet],
    requested: Collection[str],
    assumed: Sequence[Assumption] = (),
    selectors: Mapping[str, int] = {},
) -> tuple[Solution | None, ProvenSet | None]:
    """Return a solution inside a proven set, and the set; the newest solution if no set fits.

    Sets that pin a requested project of an index, for which there are `selectors` by id, are tried first.
    Of these and of the others, the first are those that contain more of the requested components, and of
    these the newest. The first set that allows a solution without a pick at your own risk is used, else the
    first that allows any solution. `assumed` holds for all solutions.
    """
    problem = session.problem
    ranked = [(row, (row.id, demands)) for row, demands in ranked_sets(problem, sets, requested)]
    ranked.sort(key=lambda trial: trial[0].id not in selectors)

    def solve(within: tuple[str, list[Demand]] | None) -> Solution | None:
        key, demands = within or ("", [])
        fixed = [*assumed, *selected(selectors, key)]
        return session.solve([*problem.demands, *demands], fixed)

    return first_proven(problem, ranked, solve)


def selected(selectors: Mapping[str, int], key: str) -> list[Assumption]:
    """Return assumptions because of which only the set with an id limits the projects of indexes."""
    return [(number, STRICT if row == key else LENIENT) for row, number in selectors.items()]


def ranked_sets(
    problem: Problem, sets: Iterable[ProvenSet], requested: Collection[str]
) -> list[tuple[ProvenSet, list[Demand]]]:
    """Return the sets in the order in which they are tried, each with its demands."""
    return [(row, _demands(problem, row)[0]) for row in by_rank(sets, requested)]


def by_rank(sets: Iterable[ProvenSet], requested: Collection[str]) -> list[ProvenSet]:
    """Return the sets in the order in which they are tried."""

    def rank(row: ProvenSet) -> tuple[int, date, str]:
        return sum(name in row.picks for name in requested), row.date or date.min, row.id

    return sorted(sets, key=rank, reverse=True)


def first_proven(
    problem: Problem,
    sets: Iterable[tuple[ProvenSet, _Limits]],
    solve: Callable[[_Limits | None], Solution | None],
) -> tuple[Solution | None, ProvenSet | None]:
    """Return what `solve_proven` returns, for ranked sets, each with what limits a solution to it."""
    at_risk: tuple[Solution, ProvenSet] | None = None
    for row, limits in sets:
        solution = solve(limits)
        if solution is not None and not is_at_risk(problem, solution):
            return solution, row
        if solution is not None and at_risk is None:
            at_risk = solution, row
    return at_risk or (solve(None), None)


def _demands(problem: Problem, row: ProvenSet) -> tuple[list[Demand], list[str]]:
    """Return a demand for each pick of a set in the problem, and the picks that are not in the catalog."""
    demands, unknown = [], []
    for name, key in row.picks.items():
        variable = problem.variables.get(name)
        candidates = variable.candidates if variable else []
        matching = [position for position, candidate in enumerate(candidates) if candidate.key == key]
        if not matching:
            unknown.append(f"{name} {key}")
        if variable is not None:
            mask = variable.mask(matching) | ABSENT
            demands.append(Demand(variable, mask, f"the set has {name} {key}", "fact", row.source))
    return demands, unknown


def risks(problem: Problem, solution: Mapping[str, int]) -> Iterator[RelationRow]:
    """Yield a fact for each pair of picks that is allowed only at your own risk."""
    for relation in problem.relations:
        subject, other = relation.subject.name, relation.object.name
        if subject in solution and other in solution:
            rows = relation.rows_between(solution[subject], solution[other])
            if rows and all(row.risk for row in rows):
                yield rows[0]


def is_at_risk(problem: Problem, solution: Mapping[str, int]) -> bool:
    """Return whether a pair of picks is allowed only at your own risk."""
    return any(True for _ in risks(problem, solution))


class ProvenVerdict(msgspec.Struct, frozen=True):
    """Whether a proven set resolves for its own site and day."""

    verdict: Literal["resolves", "at your own risk", "does not resolve", "unknown"]
    unknown: tuple[str, ...] = ()
    """The picks, or the driver of that day, that are not in the catalog, so that the set was not tried."""
    core: tuple[CoreItem, ...] = ()


def request_of_set(catalog: Catalog, row: ProvenSet) -> Request:
    """Return the request for the components of a set, for its site and day.

    Without a date it is the start of the site's last driver window; without a site, no driver is named.
    """
    site = catalog.site[row.site or "local"]
    windows = catalog.windows_of(site.name)
    target = Target(
        site=site.name,
        date=row.date or (windows[-1].since if windows else date.max),
        backend=row.backend,
        gfx=site.gfx if row.backend == "rocm" else (),
        base_image=row.picks.get("base-image"),
    )
    requirements = tuple(Requirement(name, None, name) for name in row.picks if name != "base-image")
    return Request(target, requirements)


def judge(catalog: Catalog, row: ProvenSet) -> ProvenVerdict:
    """Return whether a set resolves with exactly its versions and variants, requested by `request_of_set`."""
    request = request_of_set(catalog, row)
    day, windows = request.target.date, catalog.windows_of(request.target.site)
    if windows and row.backend == "rocm" and day < windows[0].since:
        return ProvenVerdict("unknown", (f"the driver of {request.target.site} on {day}",))
    session = Session(compile_problem(catalog, request))
    demands, unknown = _demands(session.problem, row)
    if unknown:
        return ProvenVerdict("unknown", tuple(unknown))
    demands = [*session.problem.demands, *demands]
    solution = session.solve(demands)
    if solution is None:
        return ProvenVerdict("does not resolve", core=tuple(core_items(session, demands)))
    return ProvenVerdict("at your own risk" if is_at_risk(session.problem, solution) else "resolves")
