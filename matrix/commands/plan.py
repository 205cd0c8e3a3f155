"""``matrix plan``: the build tasks of a lock, as text or as data for batch systems and CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.index import Index
from matrix.building.coverage import add_table, check_table_options, cover
from matrix.building.plan_formats import FORMATS
from matrix.building.planning import SHORT_KEY, contexts_of_locks, make_plan, tasks_of
from matrix.command_line.options import (
    add_format,
    add_index,
    add_limits,
    add_locks,
    add_names,
    add_ops,
    add_target_options,
    add_wheel_options,
    output_path,
)
from matrix.input.locking import same_target
from matrix.input.request import check_names
from matrix.show.render import duration
from matrix.show.resolution_text import show_conflict, time_text
from matrix.show.screen import PLAIN, Screen
from resolver.model import Conflict

if TYPE_CHECKING:
    import argparse

    from builders.building.plan import Task
    from matrix.building.planning import Plan
    from matrix.command_line.context import Context

SUMMARY = "print the build tasks of a lock: key, command, cores, memory, expected time"
EXAMPLE = "matrix plan --jobs 16 --memory 64 --format sbatch -o build.sh"
MOST_USED = ("--lock", "--index", "--jobs", "--format", "--output")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="plan only these, and their build requirements")
    add_locks(parser)
    add_index(parser)
    add_wheel_options(parser)
    add_ops(parser)
    add_table(parser)
    add_limits(parser)
    add_format(parser, ("text", "json", *FORMATS))
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=output_path, help="where to write (default: stdout)"
    )
    add_target_options(parser)


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    check_table_options(args)
    index = Index(args.index)
    if args.table is not None:
        coverage = cover(context, index)
        if isinstance(coverage, Conflict):
            show_conflict(coverage, console, as_json=args.format == "json")
            return 1
        if coverage.obstacle:
            raise coverage.obstacle
        tasks = [(context, []), *coverage.tasks_of_locks()]
    else:
        tasks = _tasks_of_locks(context, index)
    plan = make_plan(tasks, index)
    if args.format == "json":
        console.document(plan, args.output)
        return 0
    if args.format == "text":
        text = _text(plan, PLAIN if args.output else console.out)
    else:
        text = FORMATS[args.format](plan).rstrip("\n")
    console.result(text, args.output)
    return 0


def _tasks_of_locks(context: Context, index: Index) -> list[tuple[Context, list[Task]]]:
    names = check_names(context.args.names)
    tasks = []
    for lock in contexts_of_locks(context):
        catalog = lock.catalog_of_lock
        same_target(lock.lock, lock.args, catalog)
        tasks.append((lock, tasks_of(lock.lock, catalog, index, lock.args, names)))
    return tasks


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
            "unknown" if task.estimate.source == "guess" else duration(task.estimate.seconds),
            "-" if task.estimate.source == "guess" else task.estimate.source,
            ", ".join(names[key] for key in task.requires) or "-",
            task.why,
        ]
        for task in plan.tasks
    ]
    times = {task.key: task.estimate for task in plan.missing}
    answer = "Nothing to build."
    lines = ["", screen.table(rows, head, indent=""), ""]
    if times:
        done = len(plan.tasks) - len(times)
        answer = f"{len(times)} to build, {time_text(times.values())}" + (
            f"; {done} up to date" if done else ""
        )
        path = " -> ".join(names[key] for key in plan.critical_path)
        critical = time_text(times[key] for key in plan.critical_path)
        lines.append(screen.wrapped(f"Critical path: {critical} ({path})"))
    return "\n".join([screen.styled("bold", answer), *lines, f"Index: {plan.index}"])
