"""The build graph as a Mermaid flowchart (https://mermaid.js.org/syntax/flowchart.html)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from matrix.drawing.words import origin_of, said_of, visible

if TYPE_CHECKING:
    from resolver.graph import BuildGraph, Node
    from resolver.model import Edge

_CLASSES = (
    ("build", "fill:#dbeafe,stroke:#1d4ed8,color:#111827"),
    ("published", "fill:#ffffff,stroke:#374151,color:#111827"),
    ("pip", "fill:#ffffff,stroke:#9ca3af,stroke-dasharray:4 3,color:#374151"),
)


def draw_mermaid(graph: BuildGraph, title: str) -> str:
    """Draw a graph as a flowchart: a subgraph for each generation, the last one on top."""
    ids = {node.name: f"n{number}" for number, node in enumerate(graph.nodes)}
    lines = [f"%% {visible(title).replace('{', '(').replace('}', ')')}", "flowchart TB"]
    for number, group in reversed(list(enumerate(graph.generations, start=1))):
        lines.append(f'  subgraph g{number}["generation {number}"]')
        lines += [f"    {ids[node.name]}{_label(node)}" for node in graph.nodes if node.name in group]
        lines.append("  end")
    for edge in graph.edges:
        lines.append(f"  {ids[edge.subject]} {_arrow(edge)} {ids[edge.object]}")
    for name, style in _CLASSES:
        members = [ids[node.name] for node in graph.nodes if node.origin == name]
        lines += [f"  classDef {name} {style}", f"  class {','.join(members)} {name}"] if members else []
    return "\n".join(lines)


def _label(node: Node) -> str:
    parts = (part for part in (node.name, node.pinned, origin_of(node)) if part)
    return '["' + "<br/>".join(map(_escaped, parts)) + '"]'


def _arrow(edge: Edge) -> str:
    line = "-->" if edge.kind == "run" else "-.->"
    return f'{line}|"{said_of(edge)}"|'


def _escaped(text: str) -> str:
    """Write every character that could mean something to Mermaid or to HTML by its number."""
    return re.sub(r"[^a-zA-Z0-9_ .+-]", lambda one: f"#{ord(one[0])};", visible(text))
