"""The build graph as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from matrix.show.render import PLAIN, Screen
from matrix.show.resolution_text import title_of
from resolver.answers.graph import PIP, generations, pick_in, roots
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
        pick, origin = pick_in(graph, name), origin_in(graph, name)
        label = f"{name} {pick.pinned}" if pick else name
        needed = sorted(graph[name])
        again = " (see above)" if name in drawn and needed else ""
        reasons = "; ".join(
            edge.kind
            + ("" if edge.declared else ", undeclared")
            + (f" ({printable(edge.requirement)})" if edge.requirement not in {"", edge.object} else "")
            for edge in sorted(edges, key=lambda edge: edge.kind == "build")
        )
        branch = branch.translate(_ASCII) if in_ascii else branch
        yield [
            str(generation[name]),
            f"{branch}{printable(label)}{again}",
            _ORIGINS.get(origin, origin),
            reasons,
        ]
        if name in drawn:
            continue
        drawn.add(name)
        for other in reversed(needed):
            needs = graph.edges[name, other]["needs"]
            corner, through = ("└", "    ") if other == needed[-1] else ("├", "│   ")
            line = "──" if any(edge.kind == "run" for edge in needs) else "╌╌"
            waiting.append((other, f"{below}{corner}{line} ", below + through, needs))


def graph_title(lock: Resolution) -> str:
    """Return the heading of a drawing: the target, ROCm and Python."""
    components = [(word, lock.version_of(name)) for name, word in (("rocm", "ROCm"), ("python", "Python"))]
    versions = [f"{word} {version}" for word, version in components if version]
    return ", ".join([title_of(lock.target), *versions])
