"""The build graph of a resolution, as a networkx graph.

An edge goes from a distribution to a distribution that it needs. A node has the attribute `pick`: its
`Distribution`, or None if pip chooses the version. An edge has the attribute `needs`: the run `Edge`, the
build `Edge` or both. Names and edges are in sorted order.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

import networkx
from msgspec.structs import replace

from resolver.errors import CycleError
from resolver.model import Distribution, Edge, Resolution
from resolver.notebook import html_table

PIP = "pip"
"""The origin of a build requirement whose version pip chooses."""


if TYPE_CHECKING:
    _StrGraph = networkx.DiGraph[str]
else:
    _StrGraph = networkx.DiGraph  # at run time it takes no parameter


class BuildGraph(_StrGraph):
    """A build graph, which notebooks show as a table."""

    def __repr__(self) -> str:
        return f"<BuildGraph: {len(self)} distributions in {len(generations(self))} generations>"

    def _repr_html_(self) -> str:
        rows = []
        for number, group in enumerate(generations(self), start=1):
            for name in group:
                pick = pick_in(self, name)
                needs = ", ".join(sorted(self.successors(name)))
                rows.append(
                    [str(number), name, pick.pinned if pick else "", pick.origin if pick else PIP, needs]
                )
        return html_table("Build graph", ["generation", "name", "version", "origin", "requires"], rows)


def build_graph(resolution: Resolution) -> networkx.DiGraph[str]:
    """Return the build graph of a resolution.

    Raises
    ------
    CycleError
        The edges form a cycle.
    """
    edges = _merged(resolution.edges)
    names = {name for edge in edges for name in (edge.subject, edge.object)}
    names |= {pick.name for pick in resolution.distributions}
    picks = {pick.name: pick for pick in resolution.picks}
    graph = BuildGraph()
    for name in sorted(names):
        graph.add_node(name, pick=picks.get(name))
    for edge in edges:
        before = graph.edges.get((edge.subject, edge.object), {"needs": ()})
        graph.add_edge(edge.subject, edge.object, needs=(*before["needs"], edge))
    if not networkx.is_directed_acyclic_graph(graph):
        raise _cycle_error(graph)
    return graph


def generations(graph: networkx.DiGraph[str]) -> tuple[tuple[str, ...], ...]:
    """Return the install order: each generation needs only members of earlier generations."""
    groups = networkx.topological_generations(graph.reverse(copy=False))
    return tuple(tuple(sorted(group)) for group in groups)


def with_needs(graph: networkx.DiGraph[str], names: Iterable[str]) -> networkx.DiGraph[str]:
    """Return the part of the graph that these distributions need, including themselves."""
    part = set(names)
    for name in names:
        part |= networkx.descendants(graph, name)
    return graph.subgraph(part)


def roots(graph: networkx.DiGraph[str]) -> list[str]:
    """Return the distributions that no other distribution needs."""
    return sorted(name for name, degree in graph.in_degree() if degree == 0)


def edges_of_graph(graph: networkx.DiGraph[str]) -> list[Edge]:
    """Return all edges, sorted by subject, object and kind."""
    edges: list[Edge] = [edge for data in graph.edges.values() for edge in data["needs"]]
    return sorted(edges, key=attrgetter("subject", "object", "kind"))


def pick_in(graph: networkx.DiGraph[str], name: str) -> Distribution | None:
    """Return the distribution of a node; None if pip chooses its version."""
    pick: Distribution | None = graph.nodes[name]["pick"]
    return pick


def _merged(edges: Iterable[Edge]) -> list[Edge]:
    """Merge edges with the same ends and kind. The merged edge is declared if any of them is."""
    merged: dict[tuple[str, str, str], Edge] = {}
    for edge in sorted(edges, key=attrgetter("subject", "object", "kind", "requirement")):
        key = (edge.subject, edge.object, edge.kind)
        if key in merged:
            same = merged[key]
            texts = dict.fromkeys(text for text in (same.requirement, edge.requirement) if text)
            declared = same.declared or edge.declared
            edge = replace(same, declared=declared, requirement=", ".join(texts))  # noqa: PLW2901
        merged[key] = edge
    return list(merged.values())


def _cycle_error(graph: networkx.DiGraph[str]) -> CycleError:
    steps = networkx.find_cycle(graph)
    needs = [edge for step in steps for edge in graph.edges[step[:2]]["needs"]]
    path = [steps[0][0], *(step[1] for step in steps)]
    return CycleError(path, to_build=any(edge.kind == "build" for edge in needs))
