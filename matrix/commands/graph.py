"""``matrix graph``: what each distribution of a lock needs, to run and to be built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.files import write_atomic
from matrix.console import can_encode
from matrix.locking import names_target, same_target
from matrix.options import add_lock, add_names, add_target_options
from matrix.resolution_text import show_conflict
from resolver.errors import CycleError, UsageError, did_you_mean
from resolver.graph import graph_of_lock
from resolver.model import Conflict
from resolver.requirements import parse_requirement
from resolver.versions import allows, shorten

if TYPE_CHECKING:
    import argparse

    from matrix.context import Context
    from resolver.graph import BuildGraph
    from resolver.model import Resolution

SUMMARY = "show the build graph: what each distribution requires to run and to build"
EXAMPLE = "matrix graph --format svg -o graph.svg"
FORMATS = ("text", "dot", "mermaid", "svg", "json")
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
    text = _drawn(graph, lock, args)
    if args.output is None:
        console.data(text)
    else:
        write_atomic(args.output, text + "\n")
        console.info(f"Wrote {args.output}")
    return 0


def _lock(context: Context) -> Resolution | None:
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
    return answer


def _part(graph: BuildGraph, lock: Resolution, args: argparse.Namespace) -> BuildGraph:
    """Give what the requirements of the command line need, or all without any.

    Raises
    ------
    UsageError
        The lock has no such distribution, or another version of it.
    """
    names = []
    for one in map(parse_requirement, args.requirements):
        version = next((pick.version for pick in lock.picks if pick.name == one.name), None)
        if version is None and graph.node(one.name) is None:
            msg = f"The lock {args.lock} has no {shorten(one.name)!r}."
            known = [*(pick.name for pick in lock.picks), *(node.name for node in graph.nodes)]
            raise UsageError(msg, hint=did_you_mean(one.name, known))
        if version is not None and one.specifier is not None and not allows([one.specifier], version):
            msg = f"You asked for {shorten(one.text)}, but {args.lock} has {one.name} {version}."
            raise UsageError(msg, hint="Resolve for it first, or name another file with --lock.")
        if graph.node(one.name) is not None:
            names.append(one.name)
    return graph.part(names, args.requirements) if names else graph


def _drawn(
    graph: BuildGraph,
    lock: Resolution,
    args: argparse.Namespace,
) -> str:
    title = _title(lock)
    match args.format:
        case "json":
            return _json(graph_document(graph, lock), args)
        case "dot":
            from matrix.drawing.dot import draw_dot

            return draw_dot(graph, title)
        case "mermaid":
            from matrix.drawing.mermaid import draw_mermaid

            return draw_mermaid(graph, title)
        case "svg":
            from matrix.drawing.svg import draw_svg

            return draw_svg(graph, title)
    return _text(graph, title, args)


def _text(graph: BuildGraph, title: str, args: argparse.Namespace) -> str:
    from matrix.drawing.text import ASCII, BOX, CHARACTERS, draw_text

    shows_boxes = args.output is not None or can_encode(CHARACTERS)
    return draw_text(graph, title, BOX if shows_boxes else ASCII)


def graph_document(graph: BuildGraph, lock: Resolution) -> dict[str, Any]:
    """Give a build graph as JSON; the keys are a contract.

    Parameters
    ----------
    graph
        The graph.
    lock
        The lock it is of.
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
        "edges": [{"requirement": "", **msgspec.to_builtins(edge)} for edge in graph.edges],
        "generations": [list(group) for group in graph.generations],
    }
    return document


def _json(document: object, args: argparse.Namespace) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False)
    return text if args.output is not None or can_encode(text) else json.dumps(document, indent=2)


def _title(lock: Resolution) -> str:
    target = lock.target
    known = [f"{word} {lock.version_of(name)}" for name, word in _SHOWN.items() if lock.version_of(name)]
    return ", ".join([f"For {target.site} on {target.date}: {target.backend}", *target.gfx, *known])
