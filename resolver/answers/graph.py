"""The build graph of a resolution, as a networkx graph.

An edge goes from a distribution to a distribution that it needs. A node has the attribute `pick`: its
`Distribution`, or None if pip chooses the version. An edge has the attribute `needs`: the run `Edge`, the
build `Edge` or both. Names and edges are in sorted order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.answers.resolution import generations as install_order
from resolver.model import Distribution, Edge, Resolution

PIP = "pip"
"""The origin of a build requirement whose version pip chooses."""


if TYPE_CHECKING:
    import networkx


def build_graph(resolution: Resolution) -> networkx.DiGraph[str]:
    """Return the build graph of a resolution; raise `CycleError` if the edges form a cycle."""
    import networkx

    edges = _merged(resolution.edges)
    names = {name for edge in edges for name in (edge.subject, edge.object)}
    names |= {pick.name for pick in resolution.distributions}
    picks = {pick.name: pick for pick in resolution.picks}
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    for name in sorted(names):
        graph.add_node(name, pick=picks.get(name))
    for edge in edges:
        before = graph.edges.get((edge.subject, edge.object), {"needs": ()})
        graph.add_edge(edge.subject, edge.object, needs=(*before["needs"], edge))
    generations(graph)
    return graph


def generations(graph: networkx.DiGraph[str]) -> tuple[tuple[str, ...], ...]:
    """Return the install order: each generation needs only members of earlier generations."""
    return install_order(graph, edges_of_graph(graph))


def with_needs(graph: networkx.DiGraph[str], names: Collection[str]) -> networkx.DiGraph[str]:
    """Return the part of the graph that these distributions need, including themselves."""
    import networkx

    needed = set(names)
    needed.update(*(networkx.descendants(graph, name) for name in names if name in graph))
    return graph.subgraph(needed)


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
