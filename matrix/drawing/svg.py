"""The build graph as a picture: one SVG file that needs nothing else.

A layered layout (Sugiyama, Tagawa, Toda 1981): the generations are the layers, so no edge stays
within one; an edge over several layers passes each of them at a place of its own; within a layer
everything stands by the mean place of its neighbours, sweep after sweep. The layouts of networkx
know no such places and need numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from matrix.drawing.words import origin_of, said_of, visible

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resolver.graph import BuildGraph, Node
    from resolver.model import Edge

_CHARACTER = 7.3
"""Width of a character of the 12-pixel monospace font."""
_LINE, _BOX, _ROW = 16, 58, 150
"""Heights in pixels: of a line of text, of a box, and from one layer to the next."""
_GAP, _PASSAGE, _MARGIN, _LEFT = 20, 12, 24, 110
"""Widths in pixels: between boxes, of a passing edge, around all, and of the column of generations."""
_SWEEPS = 8
_MOST_PASSAGES = 20_000
"""In a larger graph edges go straight, past nothing."""

_STYLE = """
text { font: 12px monospace; fill: #111827 }
.name { font-weight: bold }
.box { fill: #ffffff; stroke: #374151 }
.box.build { fill: #dbeafe; stroke: #1d4ed8 }
.box.pip { stroke: #9ca3af; stroke-dasharray: 4 3 }
.edge { fill: none; stroke: #374151 }
.edge.build { stroke-dasharray: 6 4 }
.edge.undeclared { stroke: #b91c1c }
.layer { stroke: #e5e7eb }
""".strip()

_ROLE = 'role="img" aria-labelledby="graph-title graph-description"'
_ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0,0 L8,4 L0,8 z" fill="#374151"/></marker>'
)

Place = tuple[str, str, str, int]
"""A box, as ("", "", name, 0), or where an edge passes a layer: subject, object, kind and the layer."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where everything stands, in pixels."""

    layers: int
    """Their number; they are counted from the top."""
    layer_of: Mapping[Place, int]
    paths: Mapping[Edge, Sequence[Place]]
    """For each edge the places from its subject to its object."""
    x: Mapping[Place, float]
    """The middle of each place."""
    width: float

    def top(self, layer: int) -> float:
        """Give the upper side of the boxes of a layer."""
        return _MARGIN + 2 * _LINE + layer * _ROW


def draw_svg(graph: BuildGraph, title: str) -> str:
    """Draw a graph as SVG, with a title and a description for those who cannot see it."""
    layout = _lay_out(graph)
    count = layout.layers
    bottom = layout.top(max(count - 1, 0)) + _BOX + _MARGIN
    width, height = round(layout.width), round(bottom + 3 * _LINE)
    size = f'width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {width} {height}" {_ROLE}>',
        f'<title id="graph-title">{_escaped(title)}</title>',
        f'<desc id="graph-description">{_escaped(_description(graph))}</desc>',
        f"<style>{_STYLE}</style>",
        f"<defs>{_ARROW}</defs>",
        f'<rect {size} fill="#ffffff"/>',
        _text(_MARGIN, _MARGIN + 4, title, "name"),
    ]
    for layer in range(count):
        y = layout.top(layer)
        parts.append(_text(_MARGIN, y + _BOX / 2, f"generation {count - layer}"))
        if layer:
            line = y - (_ROW - _BOX) / 2
            parts.append(f'<path class="layer" d="M{_MARGIN},{line:g} H{width - _MARGIN}"/>')
    ports = _ports(layout)
    parts += [_edge(edge, layout, ports) for edge in graph.edges]
    parts += [_box(node, layout) for node in graph.nodes]
    parts += [*_legend(bottom), "</svg>"]
    return "\n".join(parts)


def _lay_out(graph: BuildGraph) -> _Layout:
    count = len(graph.generations)
    layer_of = {node.name: count - node.generation for node in graph.nodes}
    spans = [layer_of[edge.object] - layer_of[edge.subject] - 1 for edge in graph.edges]
    short = sum(spans) > _MOST_PASSAGES
    paths: dict[Edge, list[Place]] = {}
    layers: list[list[Place]] = [[_place(name) for name in group] for group in reversed(graph.generations)]
    for edge in graph.edges:
        passed = () if short else range(layer_of[edge.subject] + 1, layer_of[edge.object])
        passages = [(edge.subject, edge.object, edge.kind, layer) for layer in passed]
        for passage in passages:
            layers[passage[3]].append(passage)
        paths[edge] = [_place(edge.subject), *passages, _place(edge.object)]
    _order(layers, paths)
    widths = {_place(node.name): _width(node) for node in graph.nodes}
    rows = [sum(widths.get(one, _PASSAGE) + _GAP for one in layer) - _GAP for layer in layers]
    widest = max([*rows, 90 * _CHARACTER])  # never narrower than the title and the legend
    x: dict[Place, float] = {}
    for layer, row in zip(layers, rows, strict=True):
        left = _LEFT + _MARGIN + (widest - row) / 2
        for one in layer:
            width = widths.get(one, _PASSAGE)
            x[one] = left + width / 2
            left += width + _GAP
    number = {one: count for count, layer in enumerate(layers) for one in layer}
    return _Layout(len(layers), number, paths, x, _LEFT + widest + 2 * _MARGIN)


def _place(name: str) -> Place:
    return ("", "", name, 0)


def _width(node: Node) -> float:
    longest = max(len(visible(text)) for text in (node.name, node.pinned, origin_of(node)))
    return longest * _CHARACTER + 20


def _order(layers: list[list[Place]], paths: Mapping[Edge, Sequence[Place]]) -> None:
    """Order each layer by the mean place of its neighbours in the one before, down and up in turn."""
    above: dict[Place, list[Place]] = {}
    below: dict[Place, list[Place]] = {}
    for path in paths.values():
        for upper, lower in pairwise(path):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    for sweep in range(_SWEEPS):
        neighbours, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        place: dict[Place, float] = {}
        for layer in order:
            means = {}
            for index, one in enumerate(layer):
                near = [place[other] for other in neighbours.get(one, ()) if other in place]
                means[one] = sum(near) / len(near) if near else (index + 0.5) / len(layer)
            layer.sort(key=means.__getitem__)
            place |= {one: (index + 0.5) / len(layer) for index, one in enumerate(layer)}


def _ports(layout: _Layout) -> dict[tuple[Edge, Place], float]:
    """Give each edge a place of its own on the sides of its boxes, so that no two of them lie together."""
    ends: dict[tuple[Place, bool], list[tuple[float, int, Edge]]] = {}
    for number, (edge, path) in enumerate(layout.paths.items()):
        ends.setdefault((path[0], True), []).append((layout.x[path[1]], number, edge))
        ends.setdefault((path[-1], False), []).append((layout.x[path[-2]], number, edge))
    ports = {}
    for (place, _), edges in ends.items():
        room = min(16, 80 / len(edges))
        for index, (_, _, edge) in enumerate(sorted(edges, key=lambda one: one[:2])):
            ports[edge, place] = layout.x[place] + (index - (len(edges) - 1) / 2) * room
    return ports


def _edge(edge: Edge, layout: _Layout, ports: Mapping[tuple[Edge, Place], float]) -> str:
    path = layout.paths[edge]
    x, y = ports[edge, path[0]], layout.top(layout.layer_of[path[0]]) + _BOX
    steps = [f"M{x:.1f},{y:g}"]
    for place in path[1:]:
        last = place == path[-1]
        to_x = ports[edge, place] if last else layout.x[place]
        to_y = layout.top(layout.layer_of[place])
        middle = (y + to_y) / 2
        steps.append(f"C{x:.1f},{middle:g} {to_x:.1f},{middle:g} {to_x:.1f},{to_y:g}")
        x, y = to_x, to_y
        if not last:
            y += _BOX
            steps.append(f"V{y:g}")
    classes = " ".join(("edge", edge.kind, *(() if edge.declared else ("undeclared",))))
    said = f"{edge.subject} needs {edge.object}: {said_of(edge)}"
    return (
        f'<path class="{classes}" marker-end="url(#arrow)" d="{" ".join(steps)}">'
        f"<title>{_escaped(said)}</title></path>"
    )


def _box(node: Node, layout: _Layout) -> str:
    place = _place(node.name)
    width, x, y = _width(node), layout.x[place], layout.top(layout.layer_of[place])
    lines = [(node.name, "name"), (node.pinned, ""), (origin_of(node), "")]
    texts = [
        _text(x, y + _LINE * (number + 1), text, name, middle=True)
        for number, (text, name) in enumerate((text, name) for text, name in lines if text)
    ]
    return (
        f'<g class="node"><rect class="box {node.origin}" x="{x - width / 2:.1f}" y="{y:g}" '
        f'width="{width:.1f}" height="{_BOX}" rx="4"/>{"".join(texts)}</g>'
    )


def _legend(y: float) -> list[str]:
    entries = (("run", "needed to run"), ("build", "to build"), ("build undeclared", "to build, undeclared"))
    parts = []
    x = float(_MARGIN)
    for classes, words in entries:
        parts.append(f'<path class="edge {classes}" d="M{x:g},{y:g} h40"/>')
        parts.append(_text(x + 48, y + 4, words))
        x += 48 + len(words) * _CHARACTER + 2 * _GAP
    return parts


def _description(graph: BuildGraph) -> str:
    groups = (f"{number}: {', '.join(group)}" for number, group in enumerate(graph.generations, start=1))
    built = [node.name for node in graph.nodes if node.origin == "build"]
    edges = (f"{edge.subject} needs {edge.object} ({said_of(edge)})" for edge in graph.edges)
    return (
        f"{len(graph.nodes)} distributions in {len(graph.generations)} generations. "
        f"Generation {'; '.join(groups) or 'none'}. Built: {', '.join(built) or 'none'}. "
        f"{'; '.join(edges) or 'No edges'}."
    )


def _text(x: float, y: float, text: str, name: str = "", *, middle: bool = False) -> str:
    classes = f' class="{name}"' if name else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return f'<text{classes} x="{x:.1f}" y="{y:.1f}"{anchor}>{_escaped(text)}</text>'


def _escaped(text: str) -> str:
    """Write text so that the file is ASCII and needs no word about its encoding."""
    return escape(visible(text)).encode("ascii", "xmlcharrefreplace").decode("ascii")
