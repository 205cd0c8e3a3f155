"""Why a request has no solution when distributions outside the catalog are part of the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from resolver.changes import changes_of
from resolver.compiling.request import NEEDS_PYTHON
from resolver.errors import TooLargeError
from resolver.explain import LinkGroup, explain_conflict, sentences
from resolver.incompatibilities import Search
from resolver.model import Conflict, Suggestion
from resolver.open_world import ALWAYS, Link
from resolver.problem import ABSENT, Demand, Relation
from resolver.session import Session
from resolver.suggest import MAX_SUGGESTIONS, request_arguments

if TYPE_CHECKING:
    from resolver.changes import Change
    from resolver.facts.catalog import Catalog
    from resolver.model import Request, Resolution
    from resolver.open_resolve import Refuted
    from resolver.problem import Problem

_MOST_TRIALS = 12
"""Relaxed requests to resolve in search of suggestions."""

_Item = Demand | Relation | LinkGroup
_Terms = list[dict[int, int]]


def explain_open_conflict(
    catalog: Catalog,
    request: Request,
    refuted: Refuted,
    resolves: Callable[[Request], Resolution | None],
) -> Conflict:
    """Return why a request has no solution, and which changes would give it one.

    Parameters
    ----------
    catalog, request
        The facts and what is asked for.
    refuted
        The request as it was explored.
    resolves
        Resolves a relaxed request; None if it has no solution either.
    """
    session = Session(refuted.problem)
    core = _minimal(refuted) if refuted.links else None
    if core is None:
        return explain_conflict(catalog, request, session)
    demands = [item for item in core if isinstance(item, Demand)]
    relations = [item for item in core if isinstance(item, Relation)]
    groups = [item for item in core if isinstance(item, LinkGroup)]
    blamed = {demand.variable.name for demand in demands} | {
        group.object.partition("[")[0] for group in groups
    }
    return Conflict(
        request=request,
        target=request.target,
        core=tuple(sentences(session, demands, relations, groups)),
        suggestions=tuple(_suggestions(catalog, request, blamed, resolves)),
    )


def _suggestions(
    catalog: Catalog, request: Request, blamed: set[str], resolves: Callable[[Request], Resolution | None]
) -> Iterable[Suggestion]:
    """Yield the first changes with which the request resolves."""
    changes = changes_of(catalog, request, sited=False)
    near = [change for change in changes if not change.last and (not change.name or change.name in blamed)]
    near.sort(key=lambda change: not change.name)
    suggested = 0
    for change in near[:_MOST_TRIALS]:
        relaxed = change.apply(request)
        resolution = resolves(relaxed) if relaxed.requirements else None
        if resolution:
            yield _suggestion(change, relaxed, resolution)
            suggested += 1
        if suggested == MAX_SUGGESTIONS:
            return


def _suggestion(change: Change, relaxed: Request, resolution: Resolution) -> Suggestion:
    names = ("torch", "rocm", "python")
    picks = [str(pick) for name in names if (pick := resolution.pick(name))]
    gives = f" (gives {' and '.join(picks[:2])})" if picks else ""
    return Suggestion(f"{change.text}{gives}", request_arguments(relaxed))


def _minimal(refuted: Refuted) -> list[_Item] | None:
    """Return demands, relations and links that conflict, none of which can be left out.

    The facts about the platform are left out first, then metadata, the request last. None if the conflict is
    too large to be looked at again.
    """
    terms = _terms_of_items(refuted)
    always = [stated.terms for stated in refuted.world.stated() if stated.reason is ALWAYS]
    everything = refuted.world.everything()

    def used(items: Sequence[_Item]) -> list[_Item] | None:
        return _used(items, {id(item): terms[id(item)][1] for item in items}, always, everything)

    left = used([item for item, _ in terms.values()])
    needed: list[_Item] = []
    while left:
        item, *rest = left
        smaller = used([*needed, *rest])
        if smaller is None:
            needed.append(item)
            left = rest
        else:
            left = [other for other in smaller if other not in needed]
    return [item for item in needed if not (isinstance(item, Demand) and item.text == NEEDS_PYTHON)] or None


def _used(
    items: Sequence[_Item],
    terms: dict[int, _Terms],
    always: Iterable[dict[int, int]],
    everything: Iterable[int],
) -> list[_Item] | None:
    """Return the items with a part in a proof that they conflict; None if they do not."""
    search = Search()
    for mask in everything:
        search.add_variable(mask)
    for stated in always:
        search.add(stated, ALWAYS)
    for item in items:
        for stated in terms[id(item)]:
            search.add(stated, item)

    def choose() -> tuple[int, int] | None:
        for number, domain in enumerate(search.domains):
            if not domain & ABSENT and domain & (domain - 1):
                return number, domain & -domain
        return None

    try:
        failed = search.solve([], choose)
    except TooLargeError:
        return None
    if failed is None:
        return None
    reasons = {id(reason) for reason in failed.reasons()}
    return [item for item in items if id(item) in reasons]


def _terms_of_items(refuted: Refuted) -> dict[int, tuple[_Item, _Terms]]:
    """Return everything that can be left out, with its incompatibilities; what is least telling first."""
    problem = refuted.problem
    numbers = {name: number for number, name in enumerate(problem.variables)}
    terms: dict[int, tuple[_Item, _Terms]] = {}
    for relation in problem.relations:
        subject, other = numbers[relation.subject.name], numbers[relation.object.name]
        by_allowed: dict[int, int] = {}
        for bit in range(1, len(relation.table)):
            by_allowed[relation.table[bit]] = by_allowed.get(relation.table[bit], 0) | 1 << bit
        excluded = relation.object.everything
        terms[id(relation)] = (
            relation,
            [_pair(subject, mask, other, excluded & ~allowed) for allowed, mask in by_allowed.items()],
        )
    used = {id(link) for link in refuted.links}
    groups: dict[tuple[str, str, str], tuple[list[Link], _Terms]] = {}
    for stated in refuted.world.stated():
        link = stated.reason
        if isinstance(link, Link) and id(link) in used and link is not ALWAYS:
            key = (link.subject, link.object, "" if link.subject and link.object else link.predicate)
            links, incompatibilities = groups.setdefault(key, ([], []))
            links.append(link)
            incompatibilities.append(stated.terms)
    made = [
        (
            LinkGroup(
                tuple(links),
                refuted.world.number_of_releases(links[0].subject),
                _allowed(problem, links[0].object, numbers, incompatibilities),
            ),
            incompatibilities,
        )
        for links, incompatibilities in groups.values()
    ]
    stated_by_user = [pair for pair in made if not pair[0].subject]
    for group, incompatibilities in [*(pair for pair in made if pair[0].subject), *stated_by_user]:
        terms[id(group)] = group, incompatibilities
    for demand in sorted(problem.demands, key=lambda demand: demand.kind == "request"):
        number = numbers[demand.variable.name]
        terms[id(demand)] = demand, [{number: demand.variable.everything & ~demand.mask}]
    return terms


def _allowed(problem: Problem, name: str, numbers: dict[str, int], incompatibilities: _Terms) -> int:
    """Return the values of a component that not all of some incompatibilities exclude."""
    if name not in numbers:
        return 0
    everything = problem.variables[name].everything
    allowed = 0
    for stated in incompatibilities:  # one without the component excludes all its values
        allowed |= everything & ~stated.get(numbers[name], everything)
    return allowed


def _pair(one: int, mask: int, other: int, excluded: int) -> dict[int, int]:
    """Return the terms of two variables, which may be the same."""
    return {one: mask & excluded} if one == other else {one: mask, other: excluded}
