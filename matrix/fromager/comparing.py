"""What fromager knows of the distributions of a lock and the recipes do not, and the other way round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from packaging.version import InvalidVersion, Version

from resolver.graph import PIP
from resolver.model import Edge

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matrix.fromager.reading import Found
    from resolver.graph import BuildGraph, Node

FindingKind = Literal["unknown-edge", "missing-edge", "other-version", "not-in-graph"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference between the recipes and a graph of fromager."""

    kind: FindingKind
    name: str
    """The distribution of the lock."""
    text: str
    edge: Edge | None = None


def compare(graph: BuildGraph, found: Iterable[Found]) -> tuple[Finding, ...]:
    """Compare the distributions of a build graph with a graph of fromager.

    Parameters
    ----------
    graph
        What the recipes know.
    found
        What fromager knows. Of a distribution only the version of the graph counts; a local label
        counts only where fromager names one.

    Returns
    -------
    tuple of Finding
        By distribution. ``unknown-edge``: fromager found it, the recipes do not have it;
        ``missing-edge``: the other way round; ``other-version`` and ``not-in-graph``: fromager says
        nothing of this version, or of this distribution. Build edges count only of what is built,
        and are missing only where fromager built it, too.
    """
    versions: dict[str, list[Found]] = {}
    for one in found:
        versions.setdefault(one.name, []).append(one)
    findings: list[Finding] = []
    for node in graph.nodes:
        if node.origin == PIP:
            continue
        known = versions.get(node.name, [])
        same = _same_version(node, known)
        if same is not None:
            findings += _edges(node, same, graph)
        elif known:
            others = ", ".join(str(one.version) for one in known)
            text = f"fromager knows {node.name} {others}, the lock has {node.version}: edges not compared"
            findings.append(Finding("other-version", node.name, text))
        else:
            text = f"fromager's graph has no {node.name}"
            findings.append(Finding("not-in-graph", node.name, text))
    return tuple(findings)


def unknown_edges(findings: Iterable[Finding]) -> tuple[Edge, ...]:
    """Give the edges that only fromager knows."""
    return tuple(one.edge for one in findings if one.kind == "unknown-edge" and one.edge is not None)


def _same_version(node: Node, known: Sequence[Found]) -> Found | None:
    try:
        wanted = {Version(text) for text in (node.version, node.wheel_version) if text}
    except InvalidVersion:
        return None
    public = {version.public for version in wanted}
    same = [one for one in known if one.version in wanted]
    same += [one for one in known if one.version.local is None and one.version.public in public]
    return same[0] if same else None


def _edges(node: Node, found: Found, graph: BuildGraph) -> Iterator[Finding]:
    ours = {(edge.object, edge.kind): edge for edge in graph.edges if edge.subject == node.name}
    theirs = {(one.name, one.kind): one for one in found.needs}
    for key, needed in sorted(theirs.items()):
        if key in ours or (needed.kind == "build" and node.origin != "build"):
            continue
        edge = Edge(node.name, needed.name, needed.kind, declared=True, requirement=needed.requirement)
        text = f"{_said(edge)}, says fromager ({needed.requirement}); the recipes do not"
        yield Finding("unknown-edge", node.name, text, edge)
    for key, edge in sorted(ours.items()):
        if key in theirs or (edge.kind == "build" and found.pre_built):
            continue
        hidden = "" if edge.declared else ", undeclared"
        text = f"{_said(edge)}{hidden}, say the recipes; fromager's graph does not"
        yield Finding("missing-edge", node.name, text, edge)


def _said(edge: Edge) -> str:
    return f"{edge.subject} needs {edge.object} to {'run' if edge.kind == 'run' else 'be built'}"
