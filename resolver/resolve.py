"""Resolve a request to a resolution or a conflict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling import compile_problem
from resolver.errors import EnvironmentLacksError, MatrixError
from resolver.inferred import widened
from resolver.labelled import with_labelled_wheels
from resolver.model import Resolution
from resolver.resolution import preferred_solution, resolution_of
from resolver.session import Session

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.indexes import PackageIndexes
    from resolver.model import Conflict, Request
    from resolver.open_resolve import Refuted


def resolve(
    catalog: Catalog,
    request: Request,
    indexes: PackageIndexes | None = None,
    *,
    keep: Mapping[str, str] | None = None,
) -> Resolution | Conflict:
    """Return a resolution with a version of every component that the request needs, or the conflict.

    The result is deterministic: it depends only on the arguments and the state of the indexes.

    Parameters
    ----------
    catalog, request
        The facts and the request.
    indexes
        Package indexes for distributions outside the catalog, and for releases that the catalog does not list
        if no listed release can be chosen. Without indexes, or if no index can be reached, only the platform
        and the catalog are resolved, and all other distributions are left open.
    keep
        Version and variant (`Distribution.key`) to prefer, by name, such as from an earlier resolution.

    Raises
    ------
    UsageError
        The request names something that is neither in the catalog nor on an index.
    EnvironmentLacksError
        An index failed after an earlier request to it had succeeded.
    SourceError
        A page of an index is broken.
    TooLargeError
        The search exceeded its limit.
    """
    if indexes is None:
        return _resolve_closed(catalog, request, keep)
    catalog = widened(catalog, request, indexes)
    if not request.no_prebuilt:
        catalog = with_labelled_wheels(catalog, request, indexes)
    return _resolve_open(catalog, request, indexes, keep)


def _resolve_closed(
    catalog: Catalog, request: Request, keep: Mapping[str, str] | None
) -> Resolution | Conflict:
    session = Session(compile_problem(catalog, request, keep=keep))
    solution, notes = preferred_solution(catalog, request, session)
    if solution is None:
        from resolver.explain import explain_conflict

        return explain_conflict(catalog, request, session)
    return resolution_of(catalog, request, session.problem, solution, notes)


def _resolve_open(
    catalog: Catalog, request: Request, indexes: PackageIndexes, keep: Mapping[str, str] | None
) -> Resolution | Conflict:
    from resolver.open_resolve import Refuted, solve

    answer = solve(catalog, request, indexes, keep)
    if isinstance(answer, Refuted) and answer.links:
        answer = solve(catalog, request, indexes, keep, any_patch=True)
    warnings = []
    while isinstance(answer, Refuted):
        try:
            wider = _widened_by_conflict(catalog, request, indexes, answer)
        except EnvironmentLacksError as error:
            warnings.append(f"Releases that the catalog does not list were not considered: {error.message}")
            break
        if wider is catalog:
            break
        catalog = wider
        answer = solve(catalog, request, indexes, keep)
    if isinstance(answer, Resolution):
        return answer
    from resolver.open_explain import explain_open_conflict

    def resolves(relaxed: Request) -> Resolution | None:
        try:
            outcome = solve(catalog, relaxed, indexes)
        except MatrixError:
            return None
        return outcome if isinstance(outcome, Resolution) else None

    conflict = explain_open_conflict(catalog, request, answer, resolves)
    warnings += answer.world.refused_for_cuda(item.text for item in conflict.core)
    return replace(conflict, warnings=tuple(warnings))


def _widened_by_conflict(
    catalog: Catalog, request: Request, indexes: PackageIndexes, refuted: Refuted
) -> Catalog:
    """Return a catalog with more releases of the components in a conflict, if there are any."""
    if request.support != "any":  # the requested support excludes the facts of such releases
        return catalog
    demands, relations = Session(refuted.narrowed).explain()
    names = {demand.variable.name for demand in demands}
    names |= {end.name for relation in relations for end in (relation.subject, relation.object)}
    names |= {name.partition("[")[0] for link in refuted.links for name in (link.subject, link.object)}
    return widened(catalog, request, indexes, names)
