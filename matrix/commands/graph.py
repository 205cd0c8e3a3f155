"""``matrix graph``: the requirements of each distribution in a lock, to run and to build."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import asdict

from matrix.command_line.options import add_lock, add_names, add_target_options, output_path
from matrix.input.locking import names_target, same_target
from matrix.show.json_document import JsonDocument
from matrix.show.render import PLAIN, counted
from matrix.show.resolution_text import names_of_others, others_text, show_conflict
from resolver.errors import UsageError, did_you_mean
from resolver.model import Conflict, Edge, Target
from resolver.requirements import parse_requirement
from resolver.versions import allows, shorten

if TYPE_CHECKING:
    import argparse

    from networkx import DiGraph

    from matrix.command_line.context import Context
    from matrix.show.console import Console
    from resolver.model import Resolution

SUMMARY = "show the build graph: the run and build requirements of each distribution"
EXAMPLE = "matrix graph --format svg -o graph.svg"
FORMATS = ("text", "dot", "mermaid", "svg", "json")


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
    add_names(
        parser,
        "requirements",
        metavar="REQ",
        help="with a lock: show only these and their requirements (default: all); without: resolve these",
    )
    add_lock(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=output_path, help="where to write (default: stdout)"
    )
    parser.add_argument("--format", choices=FORMATS, default="text")
    parser.add_argument(
        "--build-tools",
        action="store_true",
        help="also show build requirements whose versions pip chooses; JSON always has them",
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    # networkx takes longer to import than everything else.
    from matrix.show.drawing import LINES, draw_dot, draw_mermaid, draw_svg, draw_text, graph_title
    from resolver.answers.graph import build_graph, with_needs

    args, console = context.args, context.console
    lock = _lock(context)
    if lock is None:
        return 1
    graph = build_graph(lock)
    requirements = [requirement.text for requirement in lock.request.requirements]
    names: list[str] = []
    if context.has_lock and (names := _required_names(graph, lock, context)):
        graph, requirements = with_needs(graph, names), args.requirements
    elif args.format != "json" and console.verbosity <= 0 and (others := names_of_others(lock)):
        graph = graph.subgraph(set(graph) - others)
        console.info(others_text(others))
    if args.format != "json" and not args.build_tools:
        graph = _without_build_tools(graph, names, console)
    title = graph_title(lock)
    match args.format:
        case "json":
            console.document(graph_document(graph, lock, requirements), args.output)
            return 0
        case "dot":
            text = draw_dot(graph, title)
        case "mermaid":
            text = draw_mermaid(graph, title)
        case "svg":
            text = draw_svg(graph, title)
        case _:
            in_ascii = args.output is None and not console.can_print(LINES)
            screen = console.out if args.output is None else PLAIN
            text = draw_text(graph, title, screen, in_ascii=in_ascii)
    console.result(text, args.output)
    return 0


def _without_build_tools(graph: DiGraph[str], names: Sequence[str], console: Console) -> DiGraph[str]:
    """Return the graph without distributions that pip chooses, except those that the user named."""
    from matrix.show.drawing import build_tools

    tools = build_tools(graph) - set(names)
    if tools:
        console.info(f"{counted(len(tools), 'build tool')} hidden; --build-tools shows them.")
    part: DiGraph[str] = graph.subgraph(set(graph) - tools)
    return part


def _lock(context: Context) -> Resolution | None:
    """Return the lock; without one, resolve the request. None if there is no resolution."""
    args, console = context.args, context.console
    if context.has_lock:
        if names_target(args):
            same_target(context.lock, args, context.catalog_of_lock)
        return context.lock
    answer = context.resolve()
    if isinstance(answer, Conflict):
        show_conflict(answer, context, args.lock)
        return None
    text = f"There is no {args.lock}, so the request was resolved for this graph only."
    console.info(f"{text} `matrix resolve` writes a lock.")
    for warning in answer.warnings:
        console.warning(warning)
    return answer


def _required_names(graph: DiGraph[str], lock: Resolution, context: Context) -> list[str]:
    names = []
    path = context.lock_path
    for requirement in map(parse_requirement, context.args.requirements):
        name, version = requirement.name, lock.version_of(requirement.name)
        if not version and name not in graph:
            msg = f"The lock {path} does not have {shorten(name)!r}."
            raise UsageError(msg, hint=did_you_mean(name, [*(pick.name for pick in lock.picks), *graph]))
        if version and requirement.specifier is not None and not allows([requirement.specifier], version):
            msg = f"You asked for {shorten(requirement.text)}, but {path} has {name} {version}."
            raise UsageError(msg, hint="Resolve that request first, or name another file with --lock.")
        if name in graph:
            names.append(name)
    return names


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
