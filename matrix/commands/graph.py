"""``matrix graph``: what each distribution of a lock needs, to run and to be built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.files import write_atomic
from matrix.answers import show_conflict
from matrix.console import can_encode
from matrix.locking import names_target, same_target
from matrix.options import add_lock, add_names, add_target_options
from resolver.errors import CycleError, UsageError, did_you_mean
from resolver.graph import graph_of_lock
from resolver.lock import make_lock
from resolver.model import Conflict
from resolver.requirements import parse_requirement
from resolver.versions import allows, shorten

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from matrix.console import Console
    from matrix.context import Context
    from matrix.fromager.comparing import Finding
    from resolver.graph import BuildGraph
    from resolver.lock import Lock
    from resolver.model import Edge

SUMMARY = "show the build graph: what each distribution requires to run and to build"
EXAMPLE = "matrix graph --format svg -o graph.svg"
FORMATS = ("text", "dot", "mermaid", "svg", "json", "fromager")
_SHOWN = {"rocm": "ROCm", "python": "Python"}
"""Platform components that the title names."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(
        parser,
        "requirements",
        metavar="REQ",
        help="with a lock: show only what these require (default: all); without one: resolve these",
    )
    add_lock(parser)
    parser.add_argument(
        "--edges-from",
        metavar="FILE",
        type=Path,
        help="a graph.json of fromager: add its edges and say what differs",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: stdout)")
    parser.add_argument("--format", choices=FORMATS, default="text")
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    locked = context.has_lock
    lock = _lock(context)
    if lock is None:
        return 1
    try:
        graph = graph_of_lock(lock)
    except CycleError as error:
        if args.format != "json":
            raise
        said = {"id": error.id, "message": error.message, "hint": error.hint, "cycle": list(error.path)}
        console.document({"schema": 1, "status": "error", **said})
        return error.exit_code
    if locked:
        graph = _part(graph, lock, args)
    findings: tuple[Finding, ...] | None = None
    if args.edges_from is not None:
        graph, findings = _with_edges_from(args.edges_from, graph)
    text = _drawn(graph, lock, findings, args, console)
    if args.output is None:
        console.data(text)
    else:
        write_atomic(args.output, text + "\n")
        console.info(f"Wrote {args.output}")
    if findings and args.format not in {"text", "json"}:
        console.info(f"{args.edges_from} differs from the recipes in {len(findings)} points: --format text")
    return 0


def _lock(context: Context) -> Lock | None:
    """Read the lock, or resolve when there is none; a lock for another target is refused."""
    args, console = context.args, context.console
    if context.has_lock:
        if names_target(args):
            same_target(context.lock, args, context.catalog_of_lock())
        return context.lock
    answer = context.resolve()
    if isinstance(answer, Conflict):
        show_conflict(answer, console, as_json=args.format == "json")
        return None
    console.info(f"There is no {args.lock}; resolved for this answer only. matrix resolve writes a lock.")
    for warning in answer.warnings:
        console.warning(warning)
    return make_lock(answer)


def _part(graph: BuildGraph, lock: Lock, args: argparse.Namespace) -> BuildGraph:
    """Give what the requirements of the command line need, or all without any.

    Raises
    ------
    UsageError
        The lock has no such distribution, or another version of it.
    """
    names = []
    for one in map(parse_requirement, args.requirements):
        version = next((pick.version for pick in lock.pick if pick.name == one.name), None)
        if version is None and graph.node(one.name) is None:
            msg = f"The lock {args.lock} has no {shorten(one.name)!r}."
            known = [*(pick.name for pick in lock.pick), *(node.name for node in graph.nodes)]
            raise UsageError(msg, hint=did_you_mean(one.name, known))
        if version is not None and one.specifier is not None and not allows([one.specifier], version):
            msg = f"You asked for {shorten(one.text)}, but {args.lock} has {one.name} {version}."
            raise UsageError(msg, hint="Resolve for it first, or name another file with --lock.")
        if graph.node(one.name) is not None:
            names.append(one.name)
    return graph.part(names, args.requirements) if names else graph


def _with_edges_from(path: Path, graph: BuildGraph) -> tuple[BuildGraph, tuple[Finding, ...]]:
    """Add the edges that only a graph of fromager knows.

    Raises
    ------
    GraphFileError
        The file cannot be used, or its edges close a circle among the distributions of the lock.
    """
    from matrix.fromager.comparing import compare, unknown_edges
    from matrix.fromager.reading import GraphFileError, read_graph

    findings = compare(graph, read_graph(path))
    try:
        return graph.with_edges(unknown_edges(findings)), findings
    except CycleError as error:
        msg = f"With the edges of {path} distributions of the lock need each other in a circle: "
        raise GraphFileError(
            f"{msg}{' -> '.join(error.path)}.", hint="Without --edges-from the lock's own edges are shown."
        ) from None


def _drawn(
    graph: BuildGraph,
    lock: Lock,
    findings: Sequence[Finding] | None,
    args: argparse.Namespace,
    console: Console,
) -> str:
    title = _title(lock)
    match args.format:
        case "json":
            return _json(graph_document(graph, lock, findings), args)
        case "fromager":
            from matrix.fromager.writing import fromager_document, left_out

            if names := left_out(graph):
                said = "Left out, as the lock leaves their versions to pip and fromager needs one: "
                console.warning(f"{said}{', '.join(names)}.")
            return json.dumps(fromager_document(graph, lock), indent=2)
        case "dot":
            from matrix.drawing.dot import draw_dot

            return draw_dot(graph, title)
        case "mermaid":
            from matrix.drawing.mermaid import draw_mermaid

            return draw_mermaid(graph, title)
        case "svg":
            from matrix.drawing.svg import draw_svg

            return draw_svg(graph, title)
    return _text(graph, title, findings, args)


def _text(graph: BuildGraph, title: str, findings: Sequence[Finding] | None, args: argparse.Namespace) -> str:
    from matrix.drawing.text import ASCII, BOX, CHARACTERS, draw_text
    from matrix.drawing.words import visible

    shows_boxes = args.output is not None or can_encode(CHARACTERS)
    parts = [draw_text(graph, title, BOX if shows_boxes else ASCII)]
    if findings is not None:
        parts += ["", f"Recipes and {args.edges_from}"]
        parts += [f"  - {visible(one.text)}" for one in findings] or ["  have the same edges."]
    return "\n".join(parts)


def graph_document(
    graph: BuildGraph, lock: Lock, findings: Sequence[Finding] | None = None
) -> dict[str, Any]:
    """Give a build graph as JSON; the keys are a contract.

    Parameters
    ----------
    graph
        The graph.
    lock
        The lock it is of.
    findings
        How it differs from a graph of fromager, where it was compared with one.
    """
    target = lock.target
    document: dict[str, Any] = {
        "schema": 1,
        "target": {
            "site": target.site,
            "date": target.date.isoformat(),
            "backend": target.backend,
            "gfx": list(target.gfx),
        },
        "requirements": list(graph.requested),
        "nodes": [
            {
                "name": node.name,
                "version": node.version,
                "wheel_version": node.wheel_version,
                "origin": node.origin,
                "generation": node.generation,
            }
            for node in graph.nodes
        ],
        "edges": [_edge(edge) | {"added": edge in graph.added} for edge in graph.edges],
        "generations": [list(group) for group in graph.generations],
    }
    if findings is not None:
        document["findings"] = [
            {
                "kind": one.kind,
                "name": one.name,
                "text": one.text,
                "edge": _edge(one.edge) if one.edge else None,
            }
            for one in findings
        ]
    return document


def _edge(edge: Edge) -> dict[str, Any]:
    return {
        "from": edge.subject,
        "to": edge.object,
        "kind": edge.kind,
        "declared": edge.declared,
        "requirement": edge.requirement,
    }


def _json(document: object, args: argparse.Namespace) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return text if args.output is not None or can_encode(text) else json.dumps(document, indent=2)


def _title(lock: Lock) -> str:
    target = lock.target
    known = [f"{word} {lock.version_of(name)}" for name, word in _SHOWN.items() if lock.version_of(name)]
    return ", ".join([f"For {target.site} on {target.date}: {target.backend}", *target.gfx, *known])
