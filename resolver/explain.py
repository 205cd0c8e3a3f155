"""A conflict as a proof that a person can read, and the nearest requests that do resolve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from resolver.compiling import compile_problem
from resolver.core import minimal_core
from resolver.errors import MatrixError
from resolver.model import PLATFORM, Conflict, CoreItem, Suggestion
from resolver.network import propagate
from resolver.problem import ABSENT, Demand, Relation
from resolver.solve import solve
from resolver.versions import sort_key, spell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import date

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Window
    from resolver.model import Request, Requirement
    from resolver.problem import Problem, Row

MOST_SUGGESTIONS = 3


def explain_conflict(catalog: Catalog, request: Request, problem: Problem) -> Conflict:
    """Say why a problem without a solution has none, and what would help."""
    demands, relations = minimal_core(problem)
    items = _in_words(problem, demands, relations)
    suggestions = []
    for suggestion in _suggest(catalog, request, demands):
        suggestions.append(suggestion)
        if len(suggestions) == MOST_SUGGESTIONS:
            break
    return Conflict(request, tuple(items), tuple(suggestions))


def core_of(problem: Problem) -> list[CoreItem]:
    """Say why a problem without a solution has none."""
    return _in_words(problem, *minimal_core(problem))


def _in_words(problem: Problem, demands: list[Demand], relations: list[Relation]) -> list[CoreItem]:
    core = problem.restricted(demands, relations)
    items = [CoreItem(demand.text, demand.kind, demand.source) for demand in demands]
    items += [_describe(core, relation) for relation in relations]
    return sorted(items, key=lambda item: item.kind != "request")


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
    one = "s" if len(named) == 1 else ""
    verb = f"go{'es' if one else ''} with" if relation.when_present else f"need{one}"
    subject = f"{relation.subject.name} {spell(named, joiner='and')}"
    return f"{subject} {verb} {relation.object.name} {spell(allowed)}"


def _suggest(catalog: Catalog, request: Request, core: Sequence[Demand]) -> Iterator[Suggestion]:
    """Yield changes after which the request resolves, the cheapest first; each one was solved.

    One change that touches the core comes first. Only if none of them is enough, two are tried
    together, then all pins at once; of these the first that resolves is given.
    """
    blamed = {demand.variable.name for demand in core if demand.kind == "request"}
    changes = _changes(catalog, request)
    touching = [one for one in changes if one.name in blamed or not one.name]
    found = False
    for change in touching:
        for suggestion in _tried(catalog, request, [change]):
            found = True
            yield suggestion
    if found:
        return
    pins = [one for one in changes if one.frees_a_pin]
    together: list[list[_Change]] = [
        [one, other] for one in touching for other in changes if one is not other
    ]
    together += [pins, *([*pins, one] for one in changes if not one.name)]
    for several in together:
        for suggestion in _tried(catalog, request, several):
            yield suggestion
            return


def _tried(catalog: Catalog, request: Request, changes: Sequence[_Change]) -> Iterator[Suggestion]:
    """Yield the suggestion that these changes make, if they lead to a solution."""
    other = request
    for change in changes:
        other = change.apply(other)
    if not other.requirements:
        return
    try:
        problem = compile_problem(catalog, other)
    except MatrixError:
        return
    solution = solve(problem)
    if solution is not None:
        text = ", and ".join(change.text for change in changes)
        yield Suggestion(text + _outcome(problem, solution), request_arguments(other))


def _outcome(problem: Problem, solution: Mapping[str, int]) -> str:
    """Name the torch and ROCm that a suggestion would lead to."""
    named = [
        problem.variables[name].candidate(solution[name]) for name in ("torch", "rocm") if name in solution
    ]
    return f" (gives {' and '.join(map(str, named))})" if named else ""


@dataclass(frozen=True)
class _Change:
    """Something that could be asked for instead."""

    text: str
    apply: Callable[[Request], Request]
    name: str = ""
    """The component whose requirement it changes; empty when it changes the target."""
    frees_a_pin: bool = False


def _changes(catalog: Catalog, request: Request) -> list[_Change]:
    """Give every single change there is, the cheapest first."""
    asked, target = request.requirements, request.target
    changes = [_free(one) for one in asked if one.specifier is not None]
    for window in catalog.windows_of(target.site) if not target.driver else []:
        if not window.since <= target.date < (window.until or target.date + timedelta(days=1)):
            day = _last_day(catalog, window)
            text = f"{target.site} as it was on {day} (driver {window.driver})"
            changes.append(_Change(text, partial(_retarget, date=day)))
    if target.base_image:
        changes.append(_Change("any base image of the site", partial(_retarget, base_image=None)))
    if request.support != "any":
        changes.append(_Change("trust also what is inferred", lambda one: replace(one, support="any")))
    changes += [_leave_out(one) for one in asked if one.name not in PLATFORM and len(asked) > 1]
    return changes


def _free(wanted: Requirement) -> _Change:
    freed = replace(wanted, specifier=None, text=wanted.name)

    def apply(request: Request) -> Request:
        kept = (freed if one == wanted else one for one in request.requirements)
        return replace(request, requirements=tuple(kept))

    return _Change(
        f"any version of {wanted.name} instead of {wanted.text}", apply, wanted.name, frees_a_pin=True
    )


def _leave_out(wanted: Requirement) -> _Change:
    def apply(request: Request) -> Request:
        kept = (one for one in request.requirements if one.name != wanted.name)
        return replace(request, requirements=tuple(kept))

    return _Change(f"without {wanted.text}", apply, wanted.name)


def _retarget(request: Request, *, date: date | None = None, base_image: str | None = "") -> Request:
    target = request.target
    image = target.base_image if base_image == "" else base_image
    return replace(request, target=replace(target, date=date or target.date, base_image=image))


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
        "--site": request.site_file or target.site,
        "--date": target.date.isoformat(),
        "--backend": target.backend if target.backend == "cpu" else "",
        "--gfx": ",".join(target.gfx),
        "--driver": target.driver or "",
        "--base-image": target.base_image or "",
        "--support": request.support if request.support != "any" else "",
        "--prefer": request.prefer if request.prefer != "newest" else "",
    }
    given = [word for option, value in options.items() if value for word in (option, value)]
    given += [word for name in request.catalogs for word in ("--catalog", name)]
    return (*(one.text for one in request.requirements), *given)
