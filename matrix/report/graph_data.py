"""The build graph as data of the page: nodes with their state and the content of the side panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resolver.answers.graph import PIP, build_graph, edges_of_graph, generations, pick_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.model import Distribution, Resolution

_ORIGINS = {"build": "buildable", "published": "published", PIP: "pip"}


def graph_data(lock: Resolution, states: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """Return the build graph of a lock.

    Parameters
    ----------
    lock
        The lock.
    states
        The state of each build (running, built, failed, interrupted) by name and version.
    """
    graph = build_graph(lock)
    edges = edges_of_graph(graph)
    numbers = {name: number for number, group in enumerate(generations(graph), start=1) for name in group}
    return {
        "nodes": [
            {
                "name": name,
                "version": pick.pinned if pick else "",
                "state": _state(pick, states),
                "generation": numbers[name],
                "facts": [[fact.text, fact.status, fact.source, fact.note] for fact in pick.facts]
                if pick
                else [],
            }
            for name in sorted(graph)
            for pick in (pick_in(graph, name),)
        ],
        "edges": [
            {"from": edge.subject, "to": edge.object, "kind": edge.kind, "declared": edge.declared}
            for edge in edges
        ],
    }


def _state(pick: Distribution | None, states: Mapping[tuple[str, str], str]) -> str:
    if pick is None:
        return "pip"
    if pick.origin == "build":
        return states.get((pick.name, pick.pinned), "buildable")
    return _ORIGINS.get(pick.origin, "present")
