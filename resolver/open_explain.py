"""Explain why a request has no solution if distributions outside the catalog are part of the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.changes import changes_of
from resolver.choices import ALWAYS, Link, is_prerelease
from resolver.compiling import compile_problem
from resolver.compiling.request import NEEDS_PYTHON
from resolver.explain import (
    MAX_REJECTED,
    LinkGroup,
    RejectedVersion,
    core_items,
    explain_conflict,
    sentences,
)
from resolver.model import Conflict, CoreItem, Resolution, Suggestion, layer
from resolver.problem import Demand, Relation
from resolver.requirements import parse_requirement
from resolver.resolve import solve
from resolver.search import Search
from resolver.session import Session, conflicting, minimal, state
from resolver.suggest import MAX_SUGGESTIONS, request_arguments

if TYPE_CHECKING:
    from resolver.changes import Change
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Request, Requirement
    from resolver.solver import Refuted
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
        return explain_conflict(catalog, request, Session(refuted.session.problem))
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
        items = (
            _sentences(answer, _minimal(answer))
            if answer.links
            else core_items(Session(answer.session.problem))
        )
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
    return sentences(refuted.session, demands, relations, groups)


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
    """
    session = refuted.session
    links = _grouped(refuted)
    always = [stated.terms for stated in session.search.stated if stated.reason is ALWAYS]

    def used(items: Sequence[_Item]) -> list[_Item] | None:
        search = Search()
        for everything in session.search.everything:
            search.add_variable(everything)
        for terms in always:
            search.add(terms, ALWAYS)
        for item in items:
            if isinstance(item, LinkGroup):
                for terms in links[id(item)][1]:
                    search.add(terms, item)
            else:
                state(search, session.number, item)
        return conflicting(search, items)

    groups = [group for group, _ in links.values()]
    items: list[_Item] = [
        *session.problem.relations,
        *(group for group in groups if group.subject),
        *(group for group in groups if not group.subject),
        *sorted(session.problem.demands, key=lambda demand: demand.kind == "request"),
    ]
    core = minimal(items, used)
    return [item for item in core if not (isinstance(item, Demand) and item.text == NEEDS_PYTHON)]


def _grouped(refuted: Refuted) -> dict[int, tuple[LinkGroup, _Terms]]:
    """Return the statements of the proof about projects, each group with its incompatibilities."""
    session = refuted.session
    used = {id(link) for link in refuted.links}
    grouped: dict[tuple[str, str, str], tuple[list[Link], _Terms]] = {}
    for stated in session.search.stated:
        link = stated.reason
        if isinstance(link, Link) and id(link) in used:
            key = (link.subject, link.object, "" if link.subject and link.object else link.predicate)
            links, terms = grouped.setdefault(key, ([], []))
            links.append(link)
            terms.append(stated.terms)
    groups = {}
    for links, terms in grouped.values():
        size = refuted.releases.get(links[0].subject, 0)
        group = LinkGroup(tuple(links), size, _allowed(session, links[0].object, terms))
        groups[id(group)] = group, terms
    return groups


def _allowed(session: Session, name: str, terms: _Terms) -> int:
    """Return the values of a component that at least one of the incompatibilities allows."""
    if name not in session.number:
        return 0
    everything = session.problem.variables[name].everything
    allowed = 0
    for stated in terms:  # without the component, all its values are excluded
        allowed |= everything & ~stated.get(session.number[name], everything)
    return allowed
