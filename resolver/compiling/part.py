"""The part of a problem that concerns some of the packages it was compiled for.

A table asks the same of many packages. Their problem is compiled once; what each of them is answered
with is the problem that would have been compiled for it alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.compiling.bad import WAY_OUT
from resolver.compiling.draft import PAIRED, reachable
from resolver.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Collection

    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Backend
    from resolver.problem import Relation


def part_for(problem: Problem, catalog: Catalog, backend: Backend, names: Collection[str]) -> Problem:
    """Leave out what these packages cannot bring in, as `Draft.reachable` says it.

    Parameters
    ----------
    problem
        A problem compiled for these packages and others.
    catalog, backend
        What it was compiled from and for.
    names
        The packages.

    Returns
    -------
    Problem
        The problem of these packages alone, save that torch wheels of another backend may be among
        its candidates, which no solution has.
    """
    found = reachable(catalog, backend, names)
    foreign = {name for name in problem.variables if name in {*catalog.package, *PAIRED}} - found
    companions = {
        one.object.name
        for one in problem.relations
        if one.subject.name == "torch" and not (one.when_present or one.forbids)
    }
    absent = foreign - companions
    absent |= {
        one.object.name
        for one in problem.relations
        if one.subject.name in absent and one.object.name.startswith(WAY_OUT)
    }

    def concerns(relation: Relation) -> bool:
        ends = {relation.subject.name, relation.object.name}
        of_package = relation.subject.name in foreign and not relation.forbids
        return not (of_package or ends & absent)

    return Problem(
        {name: variable for name, variable in problem.variables.items() if name not in absent},
        [one for one in problem.demands if one.variable.name not in absent],
        [one for one in problem.relations if concerns(one)],
        problem.favours,
    )
