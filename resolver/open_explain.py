"""Explain why a request has no solution if distributions outside the catalog are part of the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.changes import changes_of
from resolver.choices import ALWAYS, Link, is_prerelease
from resolver.compiling import compile_problem
from resolver.compiling.request import NEEDS_PYTHON
from resolver.errors import TooLargeError
from resolver.explain import (
    MAX_REJECTED,
    LinkGroup,
    RejectedVersion,
    core_items,
    explain_conflict,
    sentences,
)
from resolver.incompatibilities import Search
from resolver.model import Conflict, CoreItem, Resolution, Suggestion, layer
from resolver.open_resolve import solve
from resolver.problem import ABSENT, Demand, Relation
from resolver.requirements import parse_requirement
from resolver.session import Session
from resolver.suggest import MAX_SUGGESTIONS, request_arguments

if TYPE_CHECKING:
    from resolver.changes import Change
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Request, Requirement
    from resolver.open_resolve import Refuted
    from resolver.problem import Problem
    from resolver.specifiers import Specifier

_MOST_TRIALS = 12
"""Maximum number of relaxed requests to resolve in search of suggestions."""

_Item = Demand | Relation | LinkGroup
_Terms = list[dict[int, int]]


def explain_open_conflict(
    catalog: Catalog,
    request: Request,
    refuted: Refuted,
    resolves: Callable[[Request], Resolution | None],
) -> Conflict:
    """Return the conflict of a request that has no solution, with the changes that would resolve it.

    Parameters
    ----------
    catalog, request
        The facts and the request.
    refuted
        The proof that the request has no solution.
    resolves
        Resolves a relaxed request; None if it has no solution either.
    """
    if not refuted.links:
        return explain_conflict(catalog, request, Session(refuted.problem))
    core = _minimal(refuted)
    blamed = {item.variable.name for item in core if isinstance(item, Demand)}
    blamed |= {item.object.partition("[")[0] for item in core if isinstance(item, LinkGroup)}
    return Conflict(
        request=request,
        target=request.target,
        core=tuple(_sentences(refuted, core)),
        suggestions=tuple(_suggestions(catalog, request, blamed, resolves)),
    )


def rejected_in_open_world(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes,
    chosen: Resolution,
    name: str,
    *,
    specifier: Specifier | None = None,
) -> tuple[list[RejectedVersion], int]:
    """Return the reasons why newer versions were not chosen: `rejected_versions` with indexes.

    Each newer version is requested in place of the chosen version.
    """
    variables = compile_problem(catalog, request, open_world=True).variables
    variable = variables.get(name)
    if variable is not None:
        versions = [
            (candidate.version, candidate.key, candidate.variant) for candidate in variable.candidates
        ]
    else:
        project = indexes.project(name)
        listed = [release.version for release in project.releases] if project else []
        versions = [(version, version, "") for version in listed if not is_prerelease(version)]
    pick = chosen.pick(name)
    keys = [key for _, key, _ in versions]
    end = keys.index(pick.key) if pick and pick.key in keys else 0
    preferred = [row for row in reversed(versions[:end]) if specifier is None or specifier.allows(row[0])]
    rejected = []
    for version, key, variant in preferred[:MAX_REJECTED]:
        text = f"{name}{f'[{variant}]' if variant else ''}=={version}"
        pinned = replace(request, requirements=(*request.requirements, parse_requirement(text)))
        answer = solve(catalog, pinned, indexes)
        if isinstance(answer, Resolution):
            rejected.append(RejectedVersion(key, instead=_first_change(chosen, answer, name)))
            continue
        items = _sentences(answer, _minimal(answer)) if answer.links else core_items(Session(answer.problem))
        own = f"you asked for {text}"
        rejected.append(RejectedVersion(key, core=tuple(item for item in items if item.text != own)))
    return rejected, len(preferred) - len(rejected)


def working_in_open_world(
    catalog: Catalog, request: Request, indexes: PackageIndexes, requirement: Requirement
) -> str:
    """Return the preferred version that an additional requirement allows; empty if there is no solution."""
    answer = solve(catalog, replace(request, requirements=(*request.requirements, requirement)), indexes)
    return answer.version_of(requirement.name) if isinstance(answer, Resolution) else ""


def _first_change(chosen: Resolution, other: Resolution, name: str) -> tuple[str, str, str] | None:
    """Return the first component whose version differs in another resolution, with both versions."""
    for pick in sorted(chosen.picks, key=lambda pick: layer(pick.name)):
        then = other.pick(pick.name)
        if pick.name != name and then is not None and then.key != pick.key:
            return pick.name, pick.key, then.key
    return None


def _sentences(refuted: Refuted, core: Sequence[_Item]) -> list[CoreItem]:
    demands = [item for item in core if isinstance(item, Demand)]
    relations = [item for item in core if isinstance(item, Relation)]
    groups = [item for item in core if isinstance(item, LinkGroup)]
    return sentences(Session(refuted.problem), demands, relations, groups)


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


def _minimal(refuted: Refuted) -> list[_Item]:
    """Return demands, relations and links that conflict, none of which can be left out.

    The facts about the platform are left out first, then metadata, the request last.

    Raises
    ------
    TooLargeError
        The search exceeded its limit.
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
        try:
            smaller = used([*needed, *rest])
        except TooLargeError:  # so it is not known whether the item can be left out
            smaller = None
        if smaller is None:
            needed.append(item)
            left = rest
        else:
            left = [other for other in smaller if other not in needed]
    return [item for item in needed if not (isinstance(item, Demand) and item.text == NEEDS_PYTHON)]


def _used(
    items: Sequence[_Item],
    terms: dict[int, _Terms],
    always: Iterable[dict[int, int]],
    everything: Iterable[int],
) -> list[_Item] | None:
    """Return the items used in a proof that they conflict; None if they do not conflict."""
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

    failed = search.solve([], choose)
    if failed is None:
        return None
    reasons = {id(reason) for reason in failed.reasons()}
    return [item for item in items if id(item) in reasons]


def _terms_of_items(refuted: Refuted) -> dict[int, tuple[_Item, _Terms]]:
    """Return everything that can be left out, with its incompatibilities; the least informative first."""
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
    """Return the values of a component that at least one of the incompatibilities allows."""
    if name not in numbers:
        return 0
    everything = problem.variables[name].everything
    allowed = 0
    for stated in incompatibilities:  # without the component, all its values are excluded
        allowed |= everything & ~stated.get(numbers[name], everything)
    return allowed


def _pair(one: int, mask: int, other: int, excluded: int) -> dict[int, int]:
    """Return the terms of two variables, which may be the same."""
    return {one: mask & excluded} if one == other else {one: mask, other: excluded}
