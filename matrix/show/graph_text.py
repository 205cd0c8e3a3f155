"""The graph of a lock, as a tree and as JSON: the requirements of each distribution, to run and to build."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import asdict

from matrix.show.json_document import JsonDocument
from matrix.show.render import PLAIN, Screen, counted
from matrix.show.resolution_text import names_of_others, others_text, title_of
from resolver.answers.graph import PIP, build_graph, edges_of_graph, generations, pick_in, roots, with_needs
from resolver.errors import UsageError, did_you_mean
from resolver.model import Edge, Target
from resolver.requirements import normalize_name
from resolver.texts import printable
from resolver.versions import shorten

if TYPE_CHECKING:
    from networkx import DiGraph

    from matrix.command_line.context import Context
    from resolver.model import Resolution

_ORIGINS = {"build": "built", PIP: "left to pip"}
"""Labels for origins that are not self-explanatory."""
LINES = "├└│─╌"
"""The characters from which the lines of the tree are drawn."""
_ASCII = str.maketrans(LINES, "|`|-.")


class GraphNode(msgspec.Struct, kw_only=True):
    """A distribution of the graph."""

    name: str
    version: str
    """Empty if pip chooses it."""
    wheel_version: str
    origin: str
    generation: int


class GraphEdge(Edge, frozen=True, omit_defaults=False):
    """An edge of the graph; its JSON has all keys, even those with an empty value."""


class GraphDocument(JsonDocument, kw_only=True):
    """The build graph."""

    status: Literal["ok"] = "ok"
    target: Target
    requirements: list[str]
    nodes: list[GraphNode]
    edges: list[GraphEdge]
    generations: list[list[str]]


def print_graph(context: Context, names: Sequence[str]) -> None:
    """Print the graph of a lock, or what these distributions require in it."""
    console, lock = context.console, context.lock
    graph = build_graph(lock)
    requirements = [requirement.text for requirement in lock.request.requirements]
    names = [*map(normalize_name, names)]
    for name in names:
        if name not in graph:
            msg = f"The graph of {context.lock_path} does not have {shorten(name)!r}."
            raise UsageError(msg, hint=did_you_mean(name, sorted(graph)))
    as_json = context.args.format == "json"
    if names:
        graph, requirements = with_needs(graph, names), names
    elif not as_json and console.verbosity <= 0 and (others := names_of_others(lock)):
        graph = graph.subgraph(set(graph) - others)
        console.info(others_text(others))
    if as_json:
        console.document(graph_document(graph, lock, requirements))
        return
    tools = {name for name in graph if pick_in(graph, name) is None} - set(names)
    if tools and console.verbosity <= 0:
        console.info(f"{counted(len(tools), 'build tool')} hidden; -v shows them.")
        graph = graph.subgraph(set(graph) - tools)
    console.data(draw_text(graph, graph_title(lock), console.out, in_ascii=not console.can_print(LINES)))


def graph_document(graph: DiGraph[str], lock: Resolution, requirements: Sequence[str]) -> GraphDocument:
    """Return the JSON document of a build graph."""
    groups = generations(graph)
    generation = {name: number for number, group in enumerate(groups, start=1) for name in group}
    nodes = []
    for name in sorted(graph):
        pick = pick_in(graph, name)
        nodes.append(
            GraphNode(
                name=name,
                version=pick.version if pick else "",
                wheel_version=pick.wheel_version if pick else "",
                origin=origin_in(graph, name),
                generation=generation[name],
            )
        )
    return GraphDocument(
        target=lock.target,
        requirements=list(requirements),
        nodes=nodes,
        edges=[GraphEdge(**asdict(edge)) for edge in edges_of_graph(graph)],
        generations=[list(group) for group in groups],
    )


def origin_in(graph: DiGraph[str], name: str) -> str:
    """Return the origin of a distribution, or `PIP`."""
    pick = pick_in(graph, name)
    return pick.origin if pick else PIP


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
