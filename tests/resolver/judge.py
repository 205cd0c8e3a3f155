"""Compare our solver with nab-resolver, an independent PubGrub implementation.

An absent component has version 0, so that absence is a choice like any other: a relation that only applies if
the object is present also permits 0. The input is computed from the universe itself, not from the masks that
our search reads.
"""

from __future__ import annotations

from benchmarks.pubgrub import Needs, Provider, as_range, resolve
from resolver.compiling.problem import Problem
from tests.resolver.universe import Assignment, Universe


def judged(universe: Universe) -> Assignment | None:
    """Return a solution of nab-resolver, or None if it proves that there is none."""
    versions = {name: range(size + 1) for name, size in universe.sizes.items()}
    domains = {name: set(candidates) for name, candidates in versions.items()}
    for limit in universe.limits:
        domains[limit.name] &= _versions(limit.allowed, absent=limit.optional)
    if not all(domains.values()):
        return None  # a range without versions is not a requirement
    permitted: dict[tuple[str, int], dict[str, set[int]]] = {}
    for link in universe.links:
        for position in range(universe.sizes[link.subject]):
            speaking = [objects for subjects, objects in link.rows if position in subjects]
            if speaking:
                allowed = _versions(frozenset().union(*speaking), absent=link.when_present)
                needs = permitted.setdefault((link.subject, position + 1), {})
                needs[link.object] = needs.get(link.object, allowed) & allowed
    ranges: dict[tuple[str, int], Needs] = {
        which: {name: as_range(allowed) for name, allowed in needs.items()}
        for which, needs in permitted.items()
    }
    solution = resolve(
        Provider(versions, ranges), {name: as_range(candidates) for name, candidates in domains.items()}
    )
    if solution is None:
        return None
    return {name: version - 1 if version else None for name, version in solution.items()}


def _versions(positions: frozenset[int], *, absent: bool) -> set[int]:
    return {position + 1 for position in positions} | ({0} if absent else set())


def has_solution(problem: Problem) -> bool:
    """Return whether nab-resolver solves a problem compiled from a catalog; bit 0 means absence."""
    versions = {name: range(len(variable.candidates) + 1) for name, variable in problem.variables.items()}
    masks = dict.fromkeys(versions, -1)
    for demand in problem.demands:
        masks[demand.variable.name] &= demand.mask
    allowed = {name: {bit for bit in versions[name] if mask >> bit & 1} for name, mask in masks.items()}
    if not all(allowed.values()):
        return False
    permitted: dict[tuple[str, int], dict[str, int]] = {}
    for relation in problem.relations:
        for bit, mask in enumerate(relation.table):
            if mask != relation.object.everything:
                needs = permitted.setdefault((relation.subject.name, bit), {})
                needs[relation.object.name] = needs.get(relation.object.name, -1) & mask
    ranges: dict[tuple[str, int], Needs] = {
        which: {
            name: as_range({bit for bit in versions[name] if mask >> bit & 1}) for name, mask in needs.items()
        }
        for which, needs in permitted.items()
    }
    return (
        resolve(
            Provider(versions, ranges), {name: as_range(candidates) for name, candidates in allowed.items()}
        )
        is not None
    )
