"""The build graph of a lock or of a resolution: what each distribution needs, and in which generation."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from resolver.lock import make_lock
from resolver.model import Edge, Origin
from resolver.order import generations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from resolver.lock import Lock
    from resolver.model import Resolution

PIP: Literal["pip"] = "pip"
"""Origin of a build requirement that the catalog does not version: pip chooses."""


class Node(msgspec.Struct, frozen=True):
    """A distribution of the build graph."""

    name: str
    version: str
    """Empty for what is left to pip."""
    wheel_version: str
    """For what is built: its version with the label."""
    origin: Origin | Literal["pip"]
    generation: int
    """Counted from 1: one more than the highest generation of what it needs."""

    @property
    def pinned(self) -> str:
        """The version that a consumer pins; empty for what is left to pip."""
        return self.wheel_version or self.version


class BuildGraph(msgspec.Struct, frozen=True):
    """Distributions and what they need, free of circles.

    Between two distributions there is at most one run edge and one build edge.
    """

    nodes: tuple[Node, ...]
    """Sorted by name."""
    edges: tuple[Edge, ...]
    """Sorted by subject, object and kind."""
    generations: tuple[tuple[str, ...], ...]
    """The install order."""
    requested: tuple[str, ...] = ()
    """The requirements that were asked for, as they were written."""
    added: frozenset[Edge] = frozenset()
    """Edges that come from elsewhere than the recipes."""

    def node(self, name: str) -> Node | None:
        """Find a distribution by name."""
        return next((one for one in self.nodes if one.name == name), None)

    def roots(self) -> tuple[str, ...]:
        """Give the distributions that no other one needs."""
        needed = {edge.object for edge in self.edges}
        return tuple(node.name for node in self.nodes if node.name not in needed)

    def needs(self) -> dict[str, dict[str, tuple[Edge, ...]]]:
        """Give for every distribution what it needs, each with the edges that say so."""
        needs: dict[str, dict[str, tuple[Edge, ...]]] = {node.name: {} for node in self.nodes}
        for edge in self.edges:
            before = needs[edge.subject].get(edge.object, ())
            needs[edge.subject][edge.object] = (*before, edge)
        return needs

    def part(self, names: Iterable[str], requested: Iterable[str] = ()) -> BuildGraph:
        """Give the part that these distributions need, themselves included."""
        needs = self.needs()
        kept, waiting = set(), list(names)
        while waiting:
            name = waiting.pop()
            if name not in kept:
                kept.add(name)
                waiting += needs[name]
        groups = (tuple(name for name in group if name in kept) for group in self.generations)
        return replace(
            self,
            nodes=tuple(node for node in self.nodes if node.name in kept),
            edges=tuple(edge for edge in self.edges if edge.subject in kept),
            generations=tuple(group for group in groups if group),
            requested=tuple(requested),
            added=frozenset(edge for edge in self.added if edge.subject in kept),
        )

    def with_edges(self, more: Iterable[Edge]) -> BuildGraph:
        """Give the graph with edges from elsewhere; what it has already stays as it is.

        Raises
        ------
        CycleError
            They close a circle.
        """
        known = {(edge.subject, edge.object, edge.kind) for edge in self.edges}
        new = _merged(edge for edge in more if (edge.subject, edge.object, edge.kind) not in known)
        nodes = {node.name: node for node in self.nodes}
        return _graph(nodes, [*self.edges, *new], self.requested, self.added | set(new))


def graph_of_lock(lock: Lock) -> BuildGraph:
    """Give the build graph of a lock.

    Parameters
    ----------
    lock
        Its edges count, not its install order, which may have been changed by hand.

    Returns
    -------
    BuildGraph
        Of the distributions and of what an edge names; what has no pick is left to pip.

    Raises
    ------
    CycleError
        The edges form a circle, which is named as a path.

    Examples
    --------
    >>> from datetime import date
    >>> from resolver.lock import Lock, LockedEdge, LockedTarget
    >>> edge = LockedEdge(subject="apex", object="ninja", kind="build", declared=False)
    >>> target = LockedTarget(site="lumi-g", date=date(2026, 3, 1), backend="rocm")
    >>> graph_of_lock(Lock(schema=1, target=target, edge=(edge,))).generations
    (('ninja',), ('apex',))
    """
    named = {name for edge in lock.edge for name in (edge.subject, edge.object)}
    nodes = {
        pick.name: Node(pick.name, pick.version, pick.wheel_version, pick.origin, 0)
        for pick in lock.pick
        if pick.kind == "distribution" or pick.name in named
    }
    edges = (
        Edge(one.subject, one.object, one.kind, one.declared, one.requirement)  # as the solver has it
        for one in lock.edge
    )
    return _graph(nodes, edges, lock.requirements, frozenset())


def graph_of_resolution(resolution: Resolution) -> BuildGraph:
    """Give the build graph of a resolution: the same as that of its lock."""
    return graph_of_lock(make_lock(resolution))


def _graph(
    known: Mapping[str, Node], edges: Iterable[Edge], requested: Iterable[str], added: frozenset[Edge]
) -> BuildGraph:
    merged = _merged(edges)
    groups = generations(known, merged)
    number = {name: count for count, group in enumerate(groups, start=1) for name in group}
    nodes = (
        replace(known[name], generation=count) if name in known else Node(name, "", "", PIP, count)
        for name, count in sorted(number.items())
    )
    return BuildGraph(tuple(nodes), merged, groups, tuple(requested), added)


def _merged(edges: Iterable[Edge]) -> tuple[Edge, ...]:
    """Make one edge of all that say the same; it is declared if one of them is."""
    found: dict[tuple[str, str, str], Edge] = {}
    for edge in sorted(edges, key=attrgetter("subject", "object", "kind", "requirement")):
        key = (edge.subject, edge.object, edge.kind)
        same = found.get(key)
        if same is None:
            found[key] = edge
            continue
        texts = dict.fromkeys(text for text in (same.requirement, edge.requirement) if text)
        found[key] = replace(same, declared=same.declared or edge.declared, requirement=", ".join(texts))
    return tuple(found.values())
