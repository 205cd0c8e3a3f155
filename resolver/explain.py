"""A conflict as a proof that a person can read, and the nearest requests that do resolve."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from resolver.compiling import compile_problem
from resolver.errors import MatrixError
from resolver.model import PLATFORM, Conflict, CoreItem, Suggestion
from resolver.problem import ABSENT, Demand, Relation, propagate
from resolver.solve import solve
from resolver.versions import sort_key, spell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Window
    from resolver.model import Request, Requirement
    from resolver.problem import Problem, Row

MOST_SUGGESTIONS = 3


def explain_conflict(catalog: Catalog, request: Request, problem: Problem) -> Conflict:
    """Say why a problem without a solution has none, and what would help."""
    demands, relations = minimal_core(problem)
    core = problem.restricted(demands, relations)
    items = [CoreItem(demand.text, demand.kind, demand.source) for demand in demands]
    items += [_describe(core, relation) for relation in relations]
    items.sort(key=lambda item: item.kind != "request")
    suggestions = []
    for suggestion in _suggest(catalog, request, demands):
        suggestions.append(suggestion)
        if len(suggestions) == MOST_SUGGESTIONS:
            break
    return Conflict(request, tuple(items), tuple(suggestions))


def minimal_core(problem: Problem) -> tuple[list[Demand], list[Relation]]:
    """Find demands and relations that cannot hold together, none of which can be left out.

    Deletion: leave out one after another, facts about kinds of edges last, and keep out each
    without which there is still no solution. What is left is minimal: without any one of them
    the rest has a solution.
    """

    def impossible(demands: Sequence[Demand], relations: Sequence[Relation]) -> bool:
        return solve(problem.restricted(demands, relations)) is None

    demands, relations = list(problem.demands), list(problem.relations)
    for demand in sorted(problem.demands, key=lambda one: one.kind != "request"):
        without = [one for one in demands if one is not demand]
        if impossible(without, relations):
            demands = without
    for relation in problem.relations:
        fewer = [one for one in relations if one is not relation]
        if impossible(demands, fewer):
            relations = fewer
    return demands, relations


def _describe(core: Problem, relation: Relation) -> CoreItem:
    """Say what a relation does to the candidates that everything else in the core leaves."""
    others = core.restricted(core.demands, [one for one in core.relations if one is not relation])
    domains = propagate(others) or {name: one.everything for name, one in core.variables.items()}
    subjects = domains[relation.subject.name] & ~ABSENT
    rows = [row for row in relation.rows if row.subjects & subjects]
    if len({row.fact.text for row in rows}) == 1:
        return CoreItem(rows[0].fact.text, "fact", rows[0].fact.source)
    return CoreItem(
        _summary(relation, subjects, rows), "fact", rows[0].fact.source if rows else "the catalog"
    )


def _summary(relation: Relation, subjects: int, rows: Sequence[Row]) -> str:
    objects = 0
    for row in rows:
        objects |= row.objects
    allowed = sorted({one.version for one in relation.object.chosen(objects)}, key=sort_key)
    if not allowed:
        return f"{rows[0].fact.text}; and so it is for {len(rows) - 1} more"
    left = sorted(relation.subject.chosen(subjects), key=lambda one: (sort_key(one.version), one.variant))
    named = list(dict.fromkeys(one.key for one in left))
    verb = "go with" if relation.when_present else "need"
    subject = f"{relation.subject.name} {spell(named, joiner='and')}"
    return f"{subject} {verb} {relation.object.name} {spell(allowed)}"


def _suggest(catalog: Catalog, request: Request, core: Sequence[Demand]) -> Iterator[Suggestion]:
    """Yield changes after which the request resolves, the cheapest first; each one was solved."""
    blamed = {demand.variable.name for demand in core if demand.kind == "request"}
    for change, other in _relaxations(catalog, request, blamed):
        try:
            problem = compile_problem(catalog, other)
        except MatrixError:
            continue
        solution = solve(problem) if other.requirements else None
        if solution is not None:
            yield Suggestion(change + _outcome(problem, solution), request_arguments(other))


def _outcome(problem: Problem, solution: Mapping[str, int]) -> str:
    """Name the torch and ROCm that a suggestion would lead to."""
    named = [
        problem.variables[name].candidate(solution[name]) for name in ("torch", "rocm") if name in solution
    ]
    return f" (gives {' and '.join(map(str, named))})" if named else ""


def _relaxations(catalog: Catalog, request: Request, blamed: set[str]) -> Iterator[tuple[str, Request]]:
    asked, target = request.requirements, request.target

    def swapped(position: int, by: Requirement | None) -> Request:
        kept = [*asked[:position], *([by] if by else []), *asked[position + 1 :]]
        return replace(request, requirements=tuple(kept))

    for position, one in enumerate(asked):
        if one.name in blamed and one.specifier is not None:
            freed = replace(one, specifier=None, text=one.name)
            yield f"any version of {one.name} instead of {one.text}", swapped(position, freed)
    for window in catalog.windows_of(target.site) if not target.driver else []:
        day = _last_day(catalog, window)
        if not window.since <= target.date < (window.until or target.date + timedelta(days=1)):
            other = replace(request, target=replace(target, date=day))
            yield f"{target.site} as it was on {day} (driver {window.driver})", other
    if target.base_image:
        yield "any base image of the site", replace(request, target=replace(target, base_image=None))
    if request.support != "any":
        yield "trust also what is inferred", replace(request, support="any")
    for position, one in enumerate(asked):
        if one.name in blamed and one.name not in PLATFORM and len(asked) > 1:
            yield f"without {one.text}", swapped(position, None)


def _last_day(catalog: Catalog, window: Window) -> date:
    """Give the day in a driver window on which most of what is known of the site holds."""
    if window.until:
        return window.until - timedelta(days=1)
    images = [row.since for row in catalog.site_image.values() if row.site == window.site and row.since]
    return max([window.since, *images])


def request_arguments(request: Request) -> tuple[str, ...]:
    """Write a request as the arguments of ``matrix resolve``."""
    target = request.target
    options = {
        "--site": target.site,
        "--date": target.date.isoformat(),
        "--backend": target.backend if target.backend == "cpu" else "",
        "--gfx": ",".join(target.gfx),
        "--driver": target.driver or "",
        "--base-image": target.base_image or "",
        "--support": request.support if request.support != "any" else "",
        "--prefer": request.prefer if request.prefer != "newest" else "",
    }
    given = [word for option, value in options.items() if value for word in (option, value)]
    return (*(one.text for one in request.requirements), *given)
