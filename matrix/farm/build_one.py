"""``matrix farm build-one``: execute tasks of a plan, on any machine, even several times at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from builders.index import Index
from builders.scheduling.local import Builds
from matrix.api import check_build_hosts
from matrix.building.completing import complete_lock
from matrix.building.locked import check_sources
from matrix.building.planning import (
    SHORT_KEY,
    contexts_of_locks,
    limits_of,
    refresh_published,
    report_failures,
    tasks_of,
)
from matrix.command_line.options import (
    add_base_image,
    add_build_host_options,
    add_catalog,
    add_format,
    add_index,
    add_limits,
    add_locks,
    stop_time,
)
from matrix.show.json_document import JsonDocument
from resolver.errors import UsageError
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from builders.building.plan import Task
    from matrix.command_line.context import Context

SUMMARY = "execute a task of a plan: build, check and publish its wheel, or record why it failed"
EXAMPLE = "matrix farm build-one 3f1c9a52 --lock matrix.lock --index index"


class TaskResult(JsonDocument, kw_only=True):
    """The JSON output of the command for one key."""

    status: Literal["ok"] = "ok"
    key: str
    name: str
    version: str
    state: Literal["up to date", "built"]
    wheel: str
    """Path in the index."""


class TaskResults(JsonDocument, kw_only=True):
    """The JSON output of the command for several keys."""

    status: Literal["ok"] = "ok"
    tasks: list[TaskResult]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "keys", metavar="KEY", nargs="+", help="the key of a task, or its first digits if they are unique"
    )
    add_locks(parser)
    add_index(parser)
    add_build_host_options(parser)
    add_base_image(parser)
    add_catalog(parser)
    add_limits(parser)
    add_format(parser)


def execute(context: Context) -> int:
    """Run the command."""
    index = Index(context.args.index)
    locks = contexts_of_locks(context)
    for lock in locks:
        check_sources(lock.lock, lock.settings, lock.catalog, context.console)
    tasks = _tasks(locks, index, context.args.keys)
    for number, lock in enumerate(locks):
        names = [task.pick.name for task in tasks.values() if task.resolution is lock.lock]
        completed = complete_lock(lock, index, tasks_of(lock, index, names), names) if names else lock
        if completed is None:
            return 1
        locks[number] = completed
    tasks = _tasks(locks, index, context.args.keys)
    missing = {key: task for key, task in tasks.items() if task.wheel is None}
    refresh_published(tasks.values(), index)
    check_build_hosts(missing.values())
    limits = replace(limits_of(context), until=stop_time(context.console))
    builds = Builds(missing, index, limits, context.console)
    if missing:
        builds.run(keep_going=True)
    results = [
        TaskResult(
            key=key,
            name=task.pick.name,
            version=task.pick.pinned,
            state="built" if key in missing else "up to date",
            wheel=str(builds.wheels.get(key) or task.wheel),
        )
        for key, task in tasks.items()
        if key not in missing or key in builds.wheels
    ]
    _print(results, context)
    return report_failures(builds, context)


def _tasks(locks: Sequence[Context], index: Index, keys: Sequence[str]) -> dict[str, Task]:
    every = {task.build_key: task for lock in locks for task in tasks_of(lock, index)}
    listed = join_words([str(lock.lock_path) for lock in locks])
    return {task.build_key: task for task in (_task(key, every, listed) for key in keys)}


def _task(prefix: str, tasks: Mapping[str, Task], locks: str) -> Task:
    key = prefix.lower()
    matches = [full for full in tasks if full.startswith(key)]
    if key and len(matches) == 1:
        return tasks[matches[0]]
    listed = "".join(f"\n  {full[:SHORT_KEY]}  {tasks[full].title}" for full in matches or tasks)
    if matches:
        msg = f"Several tasks of {locks} have keys that begin with {shorten(key)!r}:{listed}"
        raise UsageError(msg, hint="Use more digits.")
    msg = f"No task of {locks} has the key {shorten(key)!r} on this machine.{listed}"
    hint = (
        "A key depends on the lock, the recipes and the base image; on the host also on its compiler, its "
        "glibc and, without --cpu, its CPU. If one of them has changed, plan again with `matrix farm plan`."
    )
    raise UsageError(msg, hint=hint)


def _print(results: Sequence[TaskResult], context: Context) -> None:
    console = context.console
    if context.args.format == "text":
        for result in results:
            console.text(f"{result.name} {result.version}  {result.state}: {result.wheel}")
    elif results:
        console.document(TaskResults(tasks=list(results)) if len(context.args.keys) > 1 else results[0])
