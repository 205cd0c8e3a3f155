"""The edges between chosen distributions, and the install order that follows from them."""

from __future__ import annotations

import graphlib
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import astuple

from resolver.errors import CycleError
from resolver.model import Edge
from resolver.requirements import required_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.compiling.problem import Relation
    from resolver.model import Candidate


def edges_of(candidates: Sequence[Candidate], relations: Iterable[Relation]) -> tuple[Edge, ...]:
    """Return the run and build edges among chosen distributions and their build requirements.

    A relation between two chosen distributions becomes a run edge, or a build edge if only a build requires
    the other; torch is also imported by everything that is compiled against it. A build requirement on a
    distribution that is not chosen has the text of the recipe in `requirement`; pip chooses its version.
    """
    chosen = {candidate.name: candidate for candidate in candidates if candidate.kind == "distribution"}
    edges: set[Edge] = set()
    for_builds: set[tuple[str, str]] = set()
    for relation in relations:
        subject, target = relation.subject.name, relation.object.name
        if subject in chosen and target in chosen and _needs(relation, chosen[subject]):
            if relation.kind == "run" or target == "torch":
                edges.add(Edge(subject, target, "run", declared=True))
            elif chosen[subject].origin == "build":
                for_builds.add((subject, target))
    for name, candidate in chosen.items():
        recipe = candidate.recipe if candidate.origin == "build" else None
        if recipe is None:
            continue
        for declared, requirements in ((True, recipe.declared), (False, recipe.undeclared)):
            for requirement in requirements:
                required = required_name(requirement)
                left_to_pip = "" if required in chosen else requirement
                edges.add(Edge(name, required, "build", declared, left_to_pip))
                for_builds.discard((name, required))
    edges |= {Edge(*pair, "build", declared=True) for pair in for_builds}
    return tuple(sorted(edges, key=astuple))


def _needs(relation: Relation, subject: Candidate) -> bool:
    bit = 1 << (relation.subject.candidates.index(subject) + 1)
    return not relation.when_present and any(row.subjects & bit for row in relation.rows)


def generations(names: Iterable[str], edges: Iterable[Edge]) -> tuple[tuple[str, ...], ...]:
    """Return the install order: each group needs only members of earlier groups.

    Uses `graphlib` instead of `resolver.answers.graph`, because importing networkx takes longer than
    resolving.
    `names` are installed even if no edge contains them.

    Raise `CycleError` if the edges form a cycle.

    Examples
    --------
    >>> generations(["apex", "torch"], [Edge("apex", "torch", "build", declared=False)])
    (('torch',), ('apex',))
    """
    sorter: TopologicalSorter[str] = TopologicalSorter(dict.fromkeys(names, ()))
    edges = sorted(edges, key=astuple)
    for edge in edges:
        sorter.add(edge.subject, edge.object)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        needed_first: list[str] = error.args[1]
        path = needed_first[::-1]
        steps = set(pairwise(path))
        to_build = any(edge.kind == "build" and (edge.subject, edge.object) in steps for edge in edges)
        raise CycleError(path, to_build=to_build) from None
    groups = []
    while sorter.is_active():
        group = sorter.get_ready()
        sorter.done(*group)
        groups.append(tuple(sorted(group)))
    return tuple(groups)


def without_cycles(edges: tuple[Edge, ...]) -> tuple[Edge, ...]:
    """Return the edges without one edge of each run cycle: pip installs such distributions in any order.

    A cycle with a build edge stays, so that `generations` reports it.
    """
    while True:
        sorter: TopologicalSorter[str] = TopologicalSorter()
        for edge in edges:
            sorter.add(edge.subject, edge.object)
        try:
            sorter.prepare()
        except graphlib.CycleError as error:
            steps = set(pairwise(error.args[1][::-1]))
            closing = [edge for edge in edges if (edge.subject, edge.object) in steps]
            if any(edge.kind == "build" for edge in closing):
                return edges
            edges = tuple(edge for edge in edges if edge is not closing[-1])
        else:
            return edges
