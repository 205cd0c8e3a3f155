"""``matrix farm builds``: the past and running builds of an index."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

from builders.building.records import build_records
from builders.building.task_state import TaskState
from builders.index import Index
from builders.storage.io_errors import not_an_index
from matrix.command_line.options import add_format, add_index, add_names
from matrix.input.request import check_names
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted, duration
from resolver.texts import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from pathlib import Path

    from matrix.command_line.context import Context
    from matrix.show.render import Cell, Screen

SUMMARY = "list past and running builds: state, node, time, memory, log, and why each was built"
EXAMPLE = "matrix farm builds apex --index index --format json"


class BuildList(JsonDocument, kw_only=True):
    """The JSON output of the command."""

    status: Literal["ok"] = "ok"
    index: str
    builds: list[TaskState]
    """The builds, in the order in which they started."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="only builds of these packages")
    add_index(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    index = Index(args.index)
    if not index.state.is_dir() and not index.simple.is_dir():
        raise not_an_index(index.root)
    result = BuildList(index=str(index.root), builds=build_records(index, check_names(args.names)))
    if args.format == "json":
        console.document(result)
    else:
        console.data(_text(result.builds, index.state / "logs", console.out))
    return 0


_STYLES = {"built": "green", "failed": "bold red", "running": "yellow"}


def _text(builds: Sequence[TaskState], logs: Path, screen: Screen) -> str:
    if not builds:
        return "There are no builds."
    head = ["STATE", "WHEEL", "NODE", "STARTED (UTC)", "TIME", "GIB", "CORES", "CACHE", "LOG", "WHY"]
    rows: list[list[Cell]] = [
        [
            (_STYLES.get(build.state, ""), build.state),
            f"{build.name} {build.version}",
            build.node or "-",
            f"{build.started:%Y-%m-%d %H:%M}" if build.started else "-",
            "-" if build.seconds is None else duration(build.seconds),
            "-" if build.memory_gib is None else f"{build.memory_gib:g}",
            str(build.cores or "-"),
            "-" if (hits := build.cache_hits) is None else f"{hits}/{hits + (build.cache_misses or 0)}",
            build.log.rpartition("/")[2] if build.log else "-",
            build.why or "the first build",
        ]
        for build in builds
    ]
    errors = [f"{build.name} {build.version}: {printable(build.error)}" for build in builds if build.error]
    counts = Counter(build.state for build in builds)
    states = ", ".join(f"{number} {state}" for state, number in counts.items())
    answer = f"{counted(len(builds), 'build')}: {states}"
    lines = [screen.styled("bold", answer), "", screen.table(rows, head, indent=""), ""]
    return "\n".join([*lines, *map(screen.wrapped, errors), f"Logs: {logs}"])
