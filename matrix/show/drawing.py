"""The build graph as a tree, in Graphviz's language, as a Mermaid flowchart, and as SVG."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from builders.machine.process import bytes_of
from builders.storage.lease import TemporaryDirectory
from matrix.show.render import PLAIN, Screen
from matrix.show.resolution_text import names_of_others, title_of
from resolver.answers.graph import PIP, build_graph, edges_of_graph, generations, pick_in, roots
from resolver.errors import EnvironmentLacksError, MatrixError
from resolver.texts import printable

if TYPE_CHECKING:
    from networkx import DiGraph

    from resolver.model import Edge, Resolution

_ORIGINS = {"build": "built", PIP: "left to pip"}
"""Labels for origins that are not self-explanatory."""


def origin_in(graph: DiGraph[str], name: str) -> str:
    """Return the origin of a distribution, or `PIP`."""
    pick = pick_in(graph, name)
    return pick.origin if pick else PIP


def _lines(graph: DiGraph[str], name: str) -> list[str]:
    """Return the lines of a box: name, version if there is one, and origin."""
    pick, origin = pick_in(graph, name), origin_in(graph, name)
    return [name, *([pick.pinned] if pick else []), _ORIGINS.get(origin, origin)]


def _kind(edge: Edge) -> str:
    return edge.kind if edge.declared else f"{edge.kind}, undeclared"


LINES = "├└│─╌"
"""The characters from which the lines of the tree are drawn."""
_ASCII = str.maketrans(LINES, "|`|-.")


def draw_text(graph: DiGraph[str], title: str, screen: Screen = PLAIN, *, in_ascii: bool = False) -> str:
    """Return the graph as a tree. The requirements of each distribution are drawn only once."""
    run, build = (line.translate(_ASCII) if in_ascii else line for line in ("──", "╌╌"))
    groups = generations(graph)
    parts = [screen.wrapped(printable(title)), ""]
    if graph:
        head = ["gen.", "distribution", "from", "needed to"]
        tree = screen.table(list(_rows(graph, groups, in_ascii=in_ascii)), head, indent="")
        parts += [tree, "", "Generations"]
    else:
        parts += ["pip installs nothing.", ""]
    for number, group in enumerate(groups, start=1):
        parts.append(screen.wrapped(f"  {number}. {', '.join(map(printable, group))}"))
    if graph.edges:
        legend = f"{run} needed to run   {build} needed only to build"
        parts += ["", screen.wrapped(f"{legend}   undeclared: the source does not declare it")]
    return "\n".join(parts).rstrip()


def _rows(graph: DiGraph[str], groups: Sequence[Sequence[str]], *, in_ascii: bool) -> Iterator[list[str]]:
    """Yield the lines of the tree, without recursion, because chains may be long."""
    generation = {name: number for number, group in enumerate(groups, start=1) for name in group}
    drawn: set[str] = set()
    waiting: list[tuple[str, str, str, Sequence[Edge]]] = [
        (name, "", "", ()) for name in reversed(roots(graph))
    ]
    while waiting:
        name, branch, below, edges = waiting.pop()
        *label, origin = _lines(graph, name)
        needed = sorted(graph[name])
        again = " (see above)" if name in drawn and needed else ""
        reasons = "; ".join(map(_reason, sorted(edges, key=lambda edge: edge.kind == "build")))
        branch = branch.translate(_ASCII) if in_ascii else branch
        yield [str(generation[name]), f"{branch}{printable(' '.join(label))}{again}", origin, reasons]
        if name in drawn:
            continue
        drawn.add(name)
        for other in reversed(needed):
            needs = graph.edges[name, other]["needs"]
            corner, through = ("└", "    ") if other == needed[-1] else ("├", "│   ")
            line = "──" if any(edge.kind == "run" for edge in needs) else "╌╌"
            waiting.append((other, f"{below}{corner}{line} ", below + through, needs))


def _reason(edge: Edge) -> str:
    requirement = f" ({printable(edge.requirement)})" if edge.requirement not in {"", edge.object} else ""
    return f"{_kind(edge)}{requirement}"


_DOT_STYLES = {"build": 'style="filled" fillcolor="#dbeafe"', PIP: 'style="dashed"'}


def draw_dot(graph: DiGraph[str], title: str) -> str:
    """Return the graph in Graphviz's language: a box around each generation, the last generation on top."""
    lines = [
        "digraph matrix {",
        f"  label={_quoted(title)} labelloc=t rankdir=TB newrank=true",
        '  node [shape=box fontname="sans-serif"]',
        '  edge [fontname="sans-serif" fontsize=10]',
    ]
    for number, group in enumerate(generations(graph), start=1):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f'    label="generation {number}" labeljust=l color="#d1d5db" rank=same')
        for name in group:
            label = _quoted("\n".join(_lines(graph, name)))
            style = _DOT_STYLES.get(origin_in(graph, name), 'style="solid"')
            lines.append(f"    {_quoted(name)} [label={label} {style}]")
        lines.append("  }")
    for edge in edges_of_graph(graph):
        style = "solid" if edge.kind == "run" else "dashed"
        colour = "" if edge.declared else ' color="#b91c1c" fontcolor="#b91c1c"'
        ends = f"{_quoted(edge.subject)} -> {_quoted(edge.object)}"
        lines.append(f"  {ends} [style={style} label={_quoted(_kind(edge))}{colour}]")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    r"""Return a quoted string in which no character is special; a line break becomes ``\n``."""
    lines = (printable(line.replace("\\", "\\\\")).replace('"', '\\"') for line in text.split("\n"))
    return '"' + "\\n".join(lines) + '"'


def draw_svg(graph: DiGraph[str], title: str) -> str:
    """Return the graph as SVG, drawn by Graphviz."""
    program = shutil.which("dot")
    if program is None:
        msg = "SVG output requires Graphviz, whose program `dot` is not installed."
        hint = "Install Graphviz (package `graphviz`), or use --format dot, which does not need it."
        raise EnvironmentLacksError(msg, hint=hint)
    with TemporaryDirectory() as directory:
        path = directory.root / "graph.dot"
        path.write_text(draw_dot(graph, title), encoding="utf-8")
        svg = bytes_of([program, "-Tsvg", str(path)])
    if svg is None:
        msg = "Graphviz could not draw the graph: `dot -Tsvg` failed."
        raise MatrixError(msg, hint="To see the error, run `matrix graph --format dot | dot -Tsvg`.")
    return svg.decode().rstrip().encode("ascii", "xmlcharrefreplace").decode()


def svg_of_lock(lock: Resolution) -> str:
    """Return the SVG that ``matrix graph --format svg`` writes; raise `MatrixError` without Graphviz."""
    graph = build_graph(lock)
    hidden = names_of_others(lock) | build_tools(graph)
    return draw_svg(graph.subgraph(set(graph) - hidden), graph_title(lock))


def build_tools(graph: DiGraph[str]) -> set[str]:
    """Return the distributions whose version pip chooses."""
    return {name for name in graph if pick_in(graph, name) is None}


def graph_title(lock: Resolution) -> str:
    """Return the heading of a drawing: the target, ROCm and Python."""
    components = [(word, lock.version_of(name)) for name, word in (("rocm", "ROCm"), ("python", "Python"))]
    versions = [f"{word} {version}" for word, version in components if version]
    return ", ".join([title_of(lock.target), *versions])


_MERMAID_STYLES = (
    ("build", "fill:#dbeafe,stroke:#1d4ed8,color:#111827"),
    ("published", "fill:#ffffff,stroke:#374151,color:#111827"),
    (PIP, "fill:#ffffff,stroke:#9ca3af,stroke-dasharray:4 3,color:#374151"),
)


def draw_mermaid(graph: DiGraph[str], title: str) -> str:
    """Return the graph as a Mermaid flowchart: a subgraph for each generation, the last generation on top."""
    ids = {name: f"n{number}" for number, name in enumerate(sorted(graph))}
    lines = [f"%% {printable(title).replace('{', '(').replace('}', ')')}", "flowchart TB"]
    for number, group in reversed(list(enumerate(generations(graph), start=1))):
        lines.append(f'  subgraph g{number}["generation {number}"]')
        for name in group:
            label = "<br/>".join(map(_mermaid_escaped, _lines(graph, name)))
            lines.append(f'    {ids[name]}["{label}"]')
        lines.append("  end")
    for edge in edges_of_graph(graph):
        line = "-->" if edge.kind == "run" else "-.->"
        lines.append(f'  {ids[edge.subject]} {line}|"{_kind(edge)}"| {ids[edge.object]}')
    for origin, style in _MERMAID_STYLES:
        members = [ids[name] for name in sorted(graph) if origin_in(graph, name) == origin]
        if members:
            lines += [f"  classDef {origin} {style}", f"  class {','.join(members)} {origin}"]
    return "\n".join(lines)


def _mermaid_escaped(text: str) -> str:
    """Return a text with every character that is special in Mermaid or HTML replaced by its number."""
    return re.sub(r"[^a-zA-Z0-9_ .+-]", lambda match: f"#{ord(match[0])};", printable(text))
