"""Sets that somebody ran together: solutions inside them, and whether they still resolve."""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Literal

import msgspec

from resolver.compiling import compile_problem
from resolver.explain import core_of
from resolver.model import Request, Requirement, Target
from resolver.problem import ABSENT, Demand
from resolver.solve import solve_preferred

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import ProvenSet
    from resolver.model import CoreItem, Support
    from resolver.problem import Problem


def solve_proven(
    problem: Problem, sets: Iterable[ProvenSet], asked: Collection[str]
) -> tuple[dict[str, int] | None, ProvenSet | None]:
    """Find a solution inside a set that somebody ran.

    Sets that name more of what was asked for come first, of these the newest. Each pick of a set
    that concerns a component of the problem becomes a demand; the first set under which the problem
    is solvable without anything at own risk decides, else the first under which it is solvable.
    Without any, the newest solution is taken.

    Parameters
    ----------
    problem
        The problem.
    sets
        The sets to look in.
    asked
        Names of the components that were asked for.

    Returns
    -------
    tuple
        The solution as `solve_preferred` gives it, and the set it lies in, or None.
    """

    def solve(demands: Sequence[Demand]) -> dict[str, int] | None:
        return solve_preferred(problem.restricted([*problem.demands, *demands], problem.relations))

    return first_proven(problem, in_order(problem, sets, asked), solve)


def in_order(
    problem: Problem, sets: Iterable[ProvenSet], asked: Collection[str]
) -> list[tuple[ProvenSet, list[Demand]]]:
    """Give the sets in the order in which they are tried, each with what it demands."""

    def rank(row: ProvenSet) -> tuple[int, date, str]:
        return sum(name in row.picks for name in asked), row.date or date.min, row.id

    return [(row, demands_of(problem, row)[0]) for row in sorted(sets, key=rank, reverse=True)]


def first_proven(
    problem: Problem,
    sets: Iterable[tuple[ProvenSet, list[Demand]]],
    solve: Callable[[Sequence[Demand]], dict[str, int] | None],
) -> tuple[dict[str, int] | None, ProvenSet | None]:
    """Find the set that decides, as `solve_proven` says, with a solver for further demands."""
    at_risk: tuple[dict[str, int], ProvenSet] | None = None
    for proven, demands in sets:
        solution = solve(demands)
        if solution is not None and not is_at_risk(problem, solution):
            return solution, proven
        if solution is not None and at_risk is None:
            at_risk = solution, proven
    return at_risk or (solve([]), None)


def demands_of(problem: Problem, proven: ProvenSet) -> tuple[list[Demand], list[str]]:
    """Give a demand for each pick that concerns the problem, and the picks that nobody offers."""
    demands, unknown = [], []
    for name, key in proven.picks.items():
        variable = problem.variables.get(name)
        matching = [i for i, one in enumerate(variable.candidates) if one.key == key] if variable else []
        if not matching:
            unknown.append(f"{name} {key}")
        if variable is not None:
            mask = variable.mask(matching) | ABSENT
            demands.append(Demand(variable, mask, f"the set has {name} {key}", "fact", proven.source))
    return demands, unknown


def is_at_risk(problem: Problem, solution: Mapping[str, int]) -> bool:
    """Tell whether a solution rests on a fact that says "at own risk"."""
    for relation in problem.relations:
        subject, other = relation.subject.name, relation.object.name
        if subject in solution and other in solution:
            rows = relation.rows_between(solution[subject], solution[other])
            if rows and all(row.risk for row in rows):
                return True
    return False


class Judgement(msgspec.Struct, frozen=True):
    """Whether a set that somebody ran resolves for its own site and day.

    Attributes
    ----------
    verdict
        ``unknown``: the catalog lacks a pick or the driver of that day, so it was not tried.
    unknown
        What the catalog lacks.
    core
        Why it does not resolve.
    """

    verdict: Literal["resolves", "at own risk", "does not resolve", "unknown"]
    unknown: tuple[str, ...] = ()
    core: tuple[CoreItem, ...] = ()


def judge(catalog: Catalog, proven: ProvenSet, support: Support = "observed") -> Judgement:
    """Resolve a set, with every version and variant as it was, for its site on its day.

    A set without a day is judged for the last day that the site's facts speak of, one without a site
    for no driver at all. Of a day before the site's first window nothing is known.
    """
    site = catalog.site[proven.site or "local"]
    windows = catalog.windows_of(site.name)
    day = proven.date or (windows[-1].since if windows else date.max)
    gfx = site.gfx if proven.backend == "rocm" else ()
    target = Target(
        site=site.name,
        date=day,
        backend=proven.backend,
        gfx=gfx,
        base_image=proven.picks.get("base-image"),
    )
    wanted = tuple(Requirement(name, None, name) for name in proven.picks if name != "base-image")
    if windows and proven.backend == "rocm" and day < windows[0].since:
        return Judgement("unknown", (f"the driver of {site.name} on {day}",))
    problem = compile_problem(catalog, Request(target, wanted, support=support))
    demands, unknown = demands_of(problem, proven)
    if unknown:
        return Judgement("unknown", tuple(unknown))
    problem = problem.restricted([*problem.demands, *demands], problem.relations)
    solution = solve_preferred(problem)
    if solution is None:
        return Judgement("does not resolve", core=tuple(core_of(problem)))
    return Judgement("at own risk" if is_at_risk(problem, solution) else "resolves")
