"""``matrix plan``: the build tasks of a lock as data, for people, batch systems and CI."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.index import Index
from matrix.options import (
    add_base_image,
    add_catalog,
    add_format,
    add_index,
    add_limits,
    add_locks,
    add_names,
    add_wheel_options,
)
from matrix.plan_formats import FORMATS
from matrix.planning import SHORT_KEY, contexts_of_locks, make_plan, tasks_of
from matrix.render import duration
from matrix.request import check_names
from matrix.screen import PLAIN, Screen

if TYPE_CHECKING:
    import argparse

    from matrix.context import Context
    from matrix.planning import Plan

SUMMARY = "print the build tasks of a lock: key, command, cores, memory, expected time"
EXAMPLE = "matrix plan --jobs 16 --memory 64 --format sbatch -o build.sh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="plan only these, and what is needed to build them")
    add_locks(parser)
    add_index(parser)
    add_wheel_options(parser)
    add_base_image(parser)
    add_catalog(parser)
    add_limits(parser)
    add_format(parser, ("text", "json", *FORMATS))
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="where to write (default: stdout)")


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    names = check_names(args.names)
    index = Index(args.index)
    plan = make_plan(
        [
            (lock, tasks_of(lock.lock, lock.catalog_of_lock(), index, args, names))
            for lock in contexts_of_locks(context)
        ],
        index,
    )
    if args.format == "json":
        text = msgspec.json.format(msgspec.json.encode(plan), indent=2).decode()
    elif args.format == "text":
        text = _text(plan, PLAIN if args.output else console.out)
    else:
        text = FORMATS[args.format](plan).rstrip("\n")
    console.result(text, args.output)
    return 0


def _text(plan: Plan, screen: Screen) -> str:
    if not plan.tasks:
        return "The plan has no tasks: everything in the lock is published."
    names = {task.key: task.name for task in plan.tasks}
    head = ["KEY", "WHEEL", "STATE", "CORES", "GIB", "TIME", "FROM", "AFTER", "WHY"]
    rows = [
        [
            task.key[:SHORT_KEY],
            f"{task.name} {task.version}",
            task.state,
            str(task.cores),
            f"{task.memory_gib:g}",
            duration(task.seconds),
            task.seconds_from,
            ", ".join(names[key] for key in task.requires) or "-",
            task.why,
        ]
        for task in plan.tasks
    ]
    lines = [screen.table(rows, head, indent="")]
    if plan.missing:
        path = " -> ".join(names[key] for key in plan.critical_path)
        lines += [f"Critical path: {duration(plan.critical_path_seconds)} ({path})"]
    else:
        lines += ["Nothing to build."]
    return "\n".join([*lines, f"Index: {plan.index}"])
