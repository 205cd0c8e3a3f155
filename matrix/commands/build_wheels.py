"""``matrix build-wheels``: build, check and publish the wheels of a lock that the index does not have."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.building.expected_time import Resources, expected_time
from builders.building.task_state import TaskState
from builders.containers.image import with_pinned_image
from builders.findings import Finding
from builders.index import Index
from builders.machine import cluster
from builders.scheduling.scheduler import recorded
from builders.scheduling.slurm import Slurm
from builders.storage.files import cached_file
from matrix.api import check_build_hosts, write_lock
from matrix.building.completing import complete_lock
from matrix.building.locked import check_sources
from matrix.building.planning import (
    add_build_options,
    answer,
    attach,
    build_in_jobs,
    check_batch_options,
    limits_of,
    node_of,
    refresh_published,
    report_failures,
    state_of,
    tasks_of,
)
from matrix.command_line.conflict import show_conflict
from matrix.command_line.options import (
    add_format,
    add_index,
    add_limits,
    add_lock,
    add_names,
    add_ops,
    add_target_options,
    stop_time,
)
from matrix.input.locking import exclude_pick, same_target
from matrix.input.request import check_names
from matrix.show.json_document import JsonDocument
from matrix.show.render import counted, findings_text
from resolver.errors import UsageError
from resolver.facts.catalog import prebuilt
from resolver.model import Conflict
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.building.plan import Task
    from builders.scheduling.batch import Run
    from matrix.command_line.context import Context

SUMMARY = "build, check and publish the wheels that the lock needs and the index does not have"
EXAMPLE = "matrix build-wheels --backend cpu --index index"
MOST_USED = ("--index", "--site", "--jobs", "--dry-run", "--keep-going")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_names(parser, "names", metavar="NAME", help="build only these (default: everything the lock builds)")
    add_lock(parser)
    add_index(parser)
    add_ops(parser)
    add_limits(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="show for each wheel whether and why it will be built"
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="build published wheels again in another directory, and compare them byte for byte; publish "
        "nothing",
    )
    add_format(parser)
    add_build_options(parser, executor="local", default="local")
    parser.add_argument(
        "--attach", action="store_true", help="follow the jobs that an earlier command submitted"
    )
    parser.add_argument(
        "--cancel", action="store_true", help="cancel the jobs that an earlier command submitted"
    )
    add_target_options(parser)


class BuildResult(JsonDocument, kw_only=True):
    """The JSON output of the command."""

    status: Literal["ok", "failed"]
    index: str
    wheels: list[TaskState]


def execute(context: Context) -> int:
    """Run the command."""
    args, console = context.args, context.console
    check_batch_options(args)
    _check_rebuild(args)
    names = check_names(args.names)
    if args.attach or args.cancel:
        return _earlier_jobs(context)
    index = Index(args.index)
    executor = Slurm(index, console) if args.executor == "slurm" and not args.dry_run else None
    if executor is not None:
        executor.check()
    of_lock = _with_lock(context, names)
    if of_lock is None:
        return 1
    if not args.dry_run:
        fetch_prebuilt(of_lock, names)
    node = node_of(context, of_lock.lock.target.site) if executor else None
    tasks, wheels = planned_wheels(of_lock, index, names, node.cores if node else 0)
    if not (args.dry_run or args.rebuild):
        completed = complete_lock(of_lock, index, tasks, names)
        if completed is None:
            return 1
        if completed is not of_lock:
            of_lock = completed
            tasks, wheels = planned_wheels(of_lock, index, names, node.cores if node else 0)
    if args.rebuild:
        exit_code = _rebuild(tasks, wheels, index, of_lock)
        _print(wheels, index, context)
        return exit_code
    _announce(wheels, context)
    exit_code = 0 if args.dry_run else build_missing(tasks, wheels, executor, of_lock)
    is_built = any(task.wheel is None for task in tasks) and not (args.dry_run or exit_code)
    if of_lock.lock.incomplete and is_built:  # what only the new wheels state
        exit_code = int(complete_lock(of_lock, index, tasks_of(of_lock, index, names), names) is None)
    _print(wheels, index, context)
    return exit_code


def _check_rebuild(args: argparse.Namespace) -> None:
    if args.rebuild and (args.dry_run or args.executor == "slurm"):
        other = "--dry-run" if args.dry_run else "--executor slurm"
        msg = f"--rebuild and {other} cannot be combined."
        raise UsageError(msg, hint="To rebuild on a compute node, run the command in a job.")


def _announce(wheels: Sequence[TaskState], context: Context) -> None:
    """Print what will be built; with --dry-run, the warnings that a build would print."""
    console = context.console
    if context.args.dry_run:
        for wheel in wheels:
            for warning in wheel.warnings:
                console.warning(warning)
    elif any(wheel.state == "to build" for wheel in wheels):
        console.info(answer(wheels))
        for wheel in wheels:
            if wheel.changed:
                console.info(f"{wheel.title} is built again: {wheel.why}.")


def planned_wheels(
    context: Context, index: Index, names: Sequence[str] = (), cores: int = 0
) -> tuple[list[Task], list[TaskState]]:
    """Return the tasks of the lock, and for each task whether and why its wheel will be built.

    Times are for that number of cores, else for those of this machine.
    """
    tasks = tasks_of(context, index, names)
    refresh_published(tasks, index)
    cores = cores or cluster.cores()
    return tasks, [_planned(task, index, cores) for task in tasks]


def build_missing(
    tasks: Sequence[Task], wheels: Sequence[TaskState], executor: Slurm | None, context: Context
) -> int:
    """Build the wheels that the index lacks and record the results; raise without ``--keep-going``."""
    missing = [task for task in tasks if task.wheel is None]
    if not missing:
        return 0
    if executor:
        finished = build_in_jobs(missing, executor, context)
        return record(finished, wheels, executor.index, context)
    from builders.scheduling.local import Builds

    limits = replace(limits_of(context), until=stop_time(context.console))
    builds = Builds(
        {task.build_key: task for task in missing}, Index(context.args.index), limits, context.console
    )
    check_build_hosts(missing)
    outcome = builds.run(keep_going=context.args.keep_going)
    for wheel in wheels:
        key = wheel.key
        if path := builds.wheels.get(key):
            wheel.state, wheel.wheel = "built", str(path)
        elif key in builds.errors:
            wheel.state, wheel.why = "failed", builds.errors[key].message
            diagnosis = builds.errors[key].details.get("diagnosis", ())
            wheel.diagnosis = tuple(msgspec.convert(diagnosis, list[Finding]))
        elif key in outcome.skipped:
            wheel.state = "skipped"
            wheel.why = f"it requires {builds.tasks[outcome.skipped[key]].title}, which failed"
    return report_failures(builds, context)


def _rebuild(tasks: Sequence[Task], wheels: Sequence[TaskState], index: Index, context: Context) -> int:
    """Build published wheels again, one after the other, and record whether they are the same."""
    missing = [task.title for task in tasks if task.wheel is None]
    if missing:
        listed = join_words(missing)
        msg = f"{index.root} has no wheel of {listed} with the inputs that this lock has on this machine."
        hint = "`matrix build-wheels --dry-run` shows which inputs differ. Rebuild where the wheel was built."
        raise UsageError(msg, hint=hint)
    from builders.building.rebuild import rebuild_wheel

    check_build_hosts(tasks)
    names = context.args.names or [task.pick.name for task in tasks]
    for task, wheel in zip(tasks, wheels, strict=True):
        if task.wheel is None or task.pick.name not in names:
            continue
        with context.console.task(f"rebuild {task.title}"):
            found = rebuild_wheel(task, task.wheel, index, limits_of(context), context.console)
        wheel.state, wheel.diagnosis = "different" if found else "identical", tuple(found)
        wheel.why = "a rebuild has other bytes" if found else "a rebuild has the same bytes"
    return int(any(wheel.state == "different" for wheel in wheels))


def _with_lock(context: Context, names: Sequence[str]) -> Context | None:
    """Return the context with a lock; resolve if there is none. None if there is no resolution."""
    args, console = context.args, context.console
    if context.has_lock:
        same_target(context.lock, args, context.catalog_of_lock)
        check_sources(context.lock, context.settings, context.catalog, console)
        return context
    if names and not context.settings.has_requirements:
        context = context.with_settings(requirements=list(names))
    answer = context.resolve()
    if isinstance(answer, Conflict):
        show_conflict(answer, context, args.lock)
        return None
    lock = with_pinned_image(answer, args.lock)
    if not args.dry_run:
        write_lock(lock, args.lock)
        console.info(f"There was no lock; resolved and wrote {args.lock}.")
    return context.with_lock(lock)


def fetch_prebuilt(context: Context, names: Sequence[str] = ()) -> None:
    """Fetch, audit and judge wheels that others compiled; raise `MatrixError` if one is unsound or unfit."""
    settings, lock, catalog = context.settings, context.lock, context.catalog_of_lock
    picks = [pick for pick in prebuilt(lock, catalog) if not names or pick.name in names]
    if not picks:
        return
    from builders.environments.wheelhouse import check_of
    from builders.network.download import Downloads
    from builders.sources.fetch import fetch_file

    check = check_of(lock, catalog, partial(exclude_pick, context.lock_path))
    downloads = Downloads(settings.mirrors, context.console)
    for pick in picks:
        file = pick.files[0]
        with context.console.task(f"fetch {file.name}"):
            fetch_file(file, downloads, offline=settings.offline)
        check(pick, cached_file(file))


def _planned(task: Task, index: Index, cores: int) -> TaskState:
    state = state_of(task, index)
    if task.wheel is not None:
        state.why = "the index has a wheel built from the same inputs"
        return state
    seconds, source = expected_time(task.recipe, recorded(task.pick, index), cores)
    state.expect(Resources(cores, 0, seconds, source=source))
    return state


def _earlier_jobs(context: Context) -> int:
    index = Index(context.args.index)
    executor = Slurm(index, context.console)
    if context.args.cancel:
        numbers = executor.cancel()
        cancelled = f"Cancelled {counted(len(numbers), 'job')}: {', '.join(numbers)}"
        context.console.data(cancelled if numbers else "There are no jobs to cancel.")
        return 0
    finished = attach(executor, context)
    wheels = list(finished.tasks)
    exit_code = record(finished, wheels, index, context)
    _print(wheels, index, context)
    return exit_code


def record(finished: Run, wheels: Sequence[TaskState], index: Index, context: Context) -> int:
    """Record the results of jobs, print the failures, and return the exit code."""
    for wheel in wheels:
        result = finished.by_key.get(wheel.key)
        if result is None:
            continue
        wheel.state, wheel.exit_code = result.state, result.exit_code
        if result.state != "built":
            wheel.why = result.why
        if result.state == "failed":
            context.console.error(f"{wheel.title}: {result.why}")
        elif published := index.find(wheel.name, wheel.key):
            wheel.wheel = str(published.path)
    return max((task.exit_code for task in finished.tasks), default=0)


def _print(wheels: list[TaskState], index: Index, context: Context) -> None:
    console = context.console
    if context.args.format == "json":
        failed = any(wheel.state in {"failed", "different"} for wheel in wheels)
        console.document(
            BuildResult(status="failed" if failed else "ok", index=str(index.root), wheels=wheels)
        )
        return
    console.answer(answer(wheels))
    for wheel in wheels:
        why = f": {wheel.why}" if wheel.state not in {"built", "failed"} else ""
        console.text(f"  {wheel.title}  {wheel.state}{why}")
        if wheel.state == "different":
            console.text(findings_text(wheel.diagnosis, indent="    ", screen=console.out))
    console.data(f"Index: {index.simple.as_uri()}")
