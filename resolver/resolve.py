"""A request becomes a resolution, or a conflict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling import compile_problem
from resolver.compiling.bad import warnings_of
from resolver.compiling.draft import window_of
from resolver.compiling.kept import remarks
from resolver.model import PLATFORM, STATUS_RANK, Pick, Resolution
from resolver.order import edges_of, generations
from resolver.solve import solve_preferred

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.catalog import Catalog
    from resolver.model import Conflict, Fact, Request
    from resolver.problem import Problem, Relation

_SHOWN = [name for name in PLATFORM if name not in {"backend", "gfx"}]


def resolve(catalog: Catalog, request: Request) -> Resolution | Conflict:
    """Choose a version of everything the request needs, or say what forbids it.

    Deterministic: the same catalog and the same request give the same answer.

    Raises
    ------
    UsageError
        The request names something the catalog does not know.
    TooLargeError
        The guard on the search stopped it.
    """
    problem = compile_problem(catalog, request)
    warnings = []
    if request.prefer == "proven":
        from resolver.proven import solve_proven

        sets = [row for row in catalog.proven.values() if row.site in {"", request.target.site}]
        solution, proven = solve_proven(problem, sets, {one.name for one in request.requirements})
        warnings.append(
            f"Inside the proven set {proven.id} ({proven.source})."
            if proven
            else "No proven set fits this request; the newest versions were taken."
        )
    else:
        solution = solve_preferred(problem)
    if solution is None:
        from resolver.explain import explain_conflict

        return explain_conflict(catalog, request, problem)
    resolution = _resolution(request, problem, solution, warnings)
    versions = {pick.name: pick.version for pick in resolution.picks}
    return replace(
        resolution,
        warnings=(
            *resolution.warnings,
            *remarks(request, resolution.picks),
            *warnings_of(catalog, request.target, versions),
        ),
        window=window_of(catalog, request),
        image=catalog.image.get(versions.get("base-image", "")),
    )


def _resolution(
    request: Request, problem: Problem, solution: Mapping[str, int], warnings: list[str]
) -> Resolution:
    candidates = {name: problem.variables[name].candidate(bit) for name, bit in solution.items()}
    shown = [name for name in _SHOWN if name in candidates]
    shown += sorted(name for name, one in candidates.items() if one.kind == "distribution")
    picks = tuple(pick_of(problem, solution, name) for name in shown)
    edges = edges_of(list(candidates.values()), problem.relations)
    order = generations((p.name for p in picks if p.candidate.kind == "distribution"), edges)
    if request.target.backend == "rocm" and "kernel-driver" not in solution:
        warnings.append("No kernel driver is known for this target, so nothing was checked against one.")
    for pick in picks:
        if pick.verdict == "at-own-risk":
            reason = next((f.text for f in pick.facts if f.text.endswith("at own risk")), "see its facts")
            warnings.append(f"{pick.name} {pick.version} is at your own risk: {reason}.")
    return Resolution(request, picks, edges, order, tuple(warnings))


def pick_of(problem: Problem, solution: Mapping[str, int], name: str) -> Pick:
    """Say of one component of a solution which facts allow it, and how far they can be trusted."""
    candidate = problem.variables[name].candidate(solution[name])
    if name == "rocm" and not _is_in_image(problem, solution):
        candidate = replace(candidate, origin="published")  # it comes with torch's wheel
    facts: dict[str, Fact] = {candidate.fact.text: candidate.fact}
    risky = False
    weakest = candidate.fact.status
    for relation in problem.relations:
        if not _is_reason(relation, name, solution):
            continue
        rows = relation.rows_between(solution[relation.subject.name], solution[relation.object.name])
        if not rows:
            continue
        best = max(rows, key=lambda row: (not row.risk, STATUS_RANK[row.fact.status]))
        facts.setdefault(best.fact.text, best.fact)
        if relation.subject.name == name:
            risky = risky or best.risk
            weakest = min(weakest, best.fact.status, key=STATUS_RANK.__getitem__)
    return Pick(candidate, weakest, "at-own-risk" if risky else "supported", tuple(facts.values()))


def _is_in_image(problem: Problem, solution: Mapping[str, int]) -> bool:
    """Tell whether the base image of a solution, if it has one, holds ROCm."""
    image = solution.get("base-image", 0)
    links = [
        one for one in problem.relations if (one.subject.name, one.object.name) == ("base-image", "rocm")
    ]
    return bool(image) and any(row.subjects >> image & 1 for one in links for row in one.rows)


def _is_reason(relation: Relation, name: str, solution: Mapping[str, int]) -> bool:
    """Tell whether a relation speaks of this pick; of a platform component also as the object."""
    if relation.forbids or relation.subject.name not in solution or relation.object.name not in solution:
        return False
    if relation.object.name == "backend":
        return False  # true of every pick, and so the reason for none
    return name == relation.subject.name or (name in PLATFORM and name == relation.object.name)
