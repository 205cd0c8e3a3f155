"""The build graph of a lock or of a resolution: what each distribution needs, and in which generation."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from resolver.model import Edge, Origin
from resolver.order import generations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
        )


def graph_of_lock(lock: Resolution) -> BuildGraph:
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
    """
    named = {name for edge in lock.edges for name in (edge.subject, edge.object)}
    nodes = {
        pick.name: Node(pick.name, pick.version, pick.wheel_version, pick.origin, 0)
        for pick in lock.picks
        if pick.kind == "distribution" or pick.name in named
    }
    requested = [requirement.text for requirement in lock.request.requirements]
    return _graph(nodes, lock.edges, requested)


def _graph(known: Mapping[str, Node], edges: Iterable[Edge], requested: Iterable[str]) -> BuildGraph:
    merged = _merged(edges)
    groups = generations(known, merged)
    number = {name: count for count, group in enumerate(groups, start=1) for name in group}
    nodes = (
        replace(known[name], generation=count) if name in known else Node(name, "", "", PIP, count)
        for name, count in sorted(number.items())
    )
    return BuildGraph(tuple(nodes), merged, groups, tuple(requested))


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
