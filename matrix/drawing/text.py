"""The build graph as a tree, from what nobody needs down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from matrix.console import table
from matrix.drawing.words import origin_of, said_of, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resolver.graph import BuildGraph, Node
    from resolver.model import Edge


@dataclass(frozen=True, slots=True)
class Lines:
    """What the branches of the tree are drawn with; each is as wide as the others."""

    run: str
    run_last: str
    build: str
    build_last: str
    through: str
    blank: str


BOX = Lines("├── ", "└── ", "├╌╌ ", "└╌╌ ", "│   ", "    ")
ASCII = Lines("|-- ", "`-- ", "|.. ", "`.. ", "|   ", "    ")
CHARACTERS = f"{BOX.run}{BOX.run_last}{BOX.build}{BOX.through}"
"""What an output must be able to show for `BOX`."""


def draw_text(graph: BuildGraph, title: str, lines: Lines = BOX) -> str:
    """Draw a graph as text.

    Parameters
    ----------
    graph
        What to draw.
    title
        The first line.
    lines
        `BOX`, or `ASCII` where the output has no box characters.

    Returns
    -------
    str
        Each line has the generation, the distribution, where it comes from and why the one above
        needs it. What a distribution needs is drawn once and referred to after that.
    """
    parts = [visible(title), ""]
    if graph.nodes:
        head = ["gen.", "distribution", "from", "needed to"]
        parts += [table([head, *_rows(graph, lines)], indent=""), "", "Generations"]
    else:
        parts += ["Nothing is installed with pip.", ""]
    for number, group in enumerate(graph.generations, start=1):
        parts.append(f"  {number}. {', '.join(map(visible, group))}")
    if graph.edges:
        words = f"{lines.run[1:]}needed to run   {lines.build[1:]}needed only to build"
        parts += ["", f"{words}   undeclared: the source does not say so"]
    return "\n".join(parts).rstrip()


def _rows(graph: BuildGraph, lines: Lines) -> Iterator[list[str]]:
    """Give the lines of the tree, without recursion: a chain may be long."""
    nodes = {node.name: node for node in graph.nodes}
    needs = graph.needs()
    drawn: set[str] = set()
    waiting: list[tuple[str, str, str, Sequence[Edge]]] = [
        (name, "", "", ()) for name in reversed(graph.roots())
    ]
    while waiting:
        name, branch, below, edges = waiting.pop()
        node, needed = nodes[name], needs[name]
        again = " (see above)" if name in drawn and needed else ""
        why = "; ".join(_why(edge) for edge in _run_first(edges))
        yield [str(node.generation), f"{branch}{_label(node)}{again}", origin_of(node), why]
        if name in drawn:
            continue
        drawn.add(name)
        last = max(needed, default="")
        for other in sorted(needed, reverse=True):
            to_run = any(edge.kind == "run" for edge in needed[other])
            if other == last:
                line, through = lines.run_last if to_run else lines.build_last, lines.blank
            else:
                line, through = lines.run if to_run else lines.build, lines.through
            waiting.append((other, below + line, below + through, needed[other]))


def _why(edge: Edge) -> str:
    more = f" ({visible(edge.requirement)})" if edge.requirement not in {"", edge.object} else ""
    return f"{said_of(edge)}{more}"


def _run_first(edges: Sequence[Edge]) -> list[Edge]:
    return sorted(edges, key=lambda edge: edge.kind == "build")


def _label(node: Node) -> str:
    return visible(f"{node.name} {node.pinned}".rstrip())
