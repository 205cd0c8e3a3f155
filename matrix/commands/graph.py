"""``matrix graph``: the requirements of each distribution in a lock, to run and to build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import asdict

from matrix.command_line.options import add_format, add_lock, add_names
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted
from matrix.show.resolution_text import names_of_others, others_text
from resolver.errors import UsageError, did_you_mean
from resolver.model import Edge, Target
from resolver.requirements import normalize_name
from resolver.versions import shorten

if TYPE_CHECKING:
    import argparse

    from networkx import DiGraph

    from matrix.command_line.context import Context
    from resolver.model import Resolution

SUMMARY = "show the build graph: the run and build requirements of each distribution"
EXAMPLE = "matrix graph apex"


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="show only these and their requirements (default: all)")
    add_lock(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    # networkx takes longer to import than everything else.
    from matrix.show.drawing import LINES, draw_text, graph_title
    from resolver.answers.graph import build_graph, pick_in, with_needs

    console, lock = context.console, context.lock
    graph = build_graph(lock)
    requirements = [requirement.text for requirement in lock.request.requirements]
    names = [normalize_name(name) for name in context.args.names]
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
        return 0
    tools = {name for name in graph if pick_in(graph, name) is None} - set(names)
    if tools and console.verbosity <= 0:
        console.info(f"{counted(len(tools), 'build tool')} hidden; -v shows them.")
        graph = graph.subgraph(set(graph) - tools)
    console.data(draw_text(graph, graph_title(lock), console.out, in_ascii=not console.can_print(LINES)))
    return 0


def graph_document(graph: DiGraph[str], lock: Resolution, requirements: Sequence[str]) -> GraphDocument:
    """Return the JSON document of a build graph."""
    from matrix.show.drawing import origin_in
    from resolver.answers.graph import edges_of_graph, generations, pick_in

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
