"""The build graph in Graphviz's language (https://graphviz.org/doc/info/lang.html)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matrix.drawing.words import origin_of, said_of, visible

if TYPE_CHECKING:
    from resolver.graph import BuildGraph, Node
    from resolver.model import Edge

_NODE_STYLE = {"build": 'style="filled" fillcolor="#dbeafe"', "pip": 'style="dashed"'}


def draw_dot(graph: BuildGraph, title: str) -> str:
    """Draw a graph for ``dot``: a box around each generation, the last one on top."""
    lines = [
        "digraph matrix {",
        f"  label={_quoted(title)} labelloc=t rankdir=TB newrank=true",
        '  node [shape=box fontname="sans-serif"]',
        '  edge [fontname="sans-serif" fontsize=10]',
    ]
    for number, group in enumerate(graph.generations, start=1):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f'    label="generation {number}" labeljust=l color="#d1d5db" rank=same')
        lines += [f"    {_node(node)}" for node in graph.nodes if node.name in group]
        lines.append("  }")
    lines += [f"  {_edge(edge)}" for edge in graph.edges]
    return "\n".join([*lines, "}"])


def _node(node: Node) -> str:
    label = "\n".join(part for part in (node.name, node.pinned, origin_of(node)) if part)
    style = _NODE_STYLE.get(node.origin, 'style="solid"')
    return f"{_quoted(node.name)} [label={_quoted(label)} {style}]"


def _edge(edge: Edge) -> str:
    style = "solid" if edge.kind == "run" else "dashed"
    colour = "" if edge.declared else ' color="#b91c1c" fontcolor="#b91c1c"'
    label = _quoted(said_of(edge))
    return f"{_quoted(edge.subject)} -> {_quoted(edge.object)} [style={style} label={label}{colour}]"


def _quoted(text: str) -> str:
    r"""Write a quoted string in which nothing has a meaning; a line break becomes ``\n``."""
    lines = (visible(line.replace("\\", "\\\\")).replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'
