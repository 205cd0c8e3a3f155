"""The build tasks of a lock, as the commands plan and execute them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from builders.build_host import find_build_host
from builders.compiler_cache import find_compiler_cache
from builders.constants import LOCK_FILE
from builders.expected_time import TimeSource
from builders.plan import plan
from builders.records import changes_since_last_build, explain_changes
from builders.scheduling.estimates import estimates, task_graph
from builders.scheduling.local import machine
from builders.scheduling.scheduler import remaining_paths
from builders.task import Limits
from matrix.context import Context
from matrix.json_document import JsonDocument
from matrix.locking import overlays_of
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from builders.build_host import BuildHost
    from builders.index import Index
    from builders.plan import Task
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution

SHORT_KEY = 16
"""Digits of a build key in commands and messages."""
_SPARE = 900
"""Seconds added to a time limit, for fetching and for layers that are created once."""
_UNKNOWN = 7200
"""Seconds allowed for a build with an unknown time."""


class PlannedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One task of a plan. JSON output is this struct, encoded."""

    key: str
    name: str
    version: str
    state: Literal["up to date", "to build"]
    why: str
    """The reason why it will be built; empty if it is up to date."""
    requires: tuple[str, ...]
    """Keys of the tasks whose wheels are installed for this task."""
    inputs: dict[str, Any]
    """Everything that determines the key, which is its digest."""
    lock: str
    """Path of the lock that it belongs to."""
    command: tuple[str, ...]
    """The words of the command that executes it, on any machine that has the lock and the index."""
    cores: int
    memory_gib: float
    seconds: float
    """The expected time with that number of cores."""
    seconds_from: TimeSource
    time_limit: int
    """Seconds after which the task has certainly failed."""
    network: bool
    """Whether it may fetch files that the cache lacks, before anything is compiled."""


class Plan(JsonDocument, kw_only=True):
    """The JSON output of ``matrix plan``."""

    status: Literal["ok"] = "ok"
    index: str
    directory: str
    """The directory in which to run the commands; its `matrix.toml` has the mirrors."""
    tasks: tuple[PlannedTask, ...]
    """Each task comes after those that it requires."""
    critical_path: tuple[str, ...]
    """Keys of the tasks that determine the minimum total time."""
    critical_path_seconds: float

    @property
    def missing(self) -> list[PlannedTask]:
        """The tasks whose wheels the index does not have."""
        return [task for task in self.tasks if task.state == "to build"]


def contexts_of_locks(context: Context) -> list[Context]:
    """Return a context for each lock that the options name; without options, for the default lock."""
    return [context.with_options(lock=path) for path in context.args.locks or [LOCK_FILE]]


def limits_of(context: Context) -> Limits:
    """Return the limits on builds from the options and settings."""
    args, settings = context.args, context.settings
    find_compiler_cache(args.compiler_cache)
    return Limits(
        args.jobs,
        args.memory,
        offline=bool(settings.offline),
        compiler_cache=args.compiler_cache,
        mirrors=settings.mirrors,
    )


def tasks_of(
    lock: Resolution, catalog: Catalog, index: Index, args: argparse.Namespace, names: Sequence[str] = ()
) -> list[Task]:
    """Return the tasks of a lock, in install order.

    Raises
    ------
    EnvironmentLacksError
        There is no build host; the error lists the distributions that cannot be built.
    MatrixError
        As for `builders.build_host.find_build_host` and `builders.plan.plan`.
    """
    if not lock.built(names):
        return []
    build_host = _build_host(lock, names, args)
    return plan(lock, catalog, index, build_host, names, ops=dict(args.ops), pin_style=args.torch_pin)


def build_host_of(lock: Resolution, args: argparse.Namespace, names: Sequence[str] = ()) -> BuildHost:
    """Return the build host for a lock that the options choose."""
    return find_build_host(
        lock, names, kind=args.where, image=args.base_image, python=args.python_from, cpu=args.cpu
    )


def _build_host(lock: Resolution, names: Sequence[str], args: argparse.Namespace) -> BuildHost:
    try:
        return build_host_of(lock, args, names)
    except EnvironmentLacksError as error:
        listed = "".join(f"\n  - {pick.name} {pick.pinned}" for pick in lock.built(names))
        target = ", ".join(lock.target.gfx) or "this machine's CPU"
        image = lock.version_of("base-image")
        where = f"\nBase image: {image}" if image else ""
        message = f"{error.message}\nNothing was built for {target}.{where}\nTo build:{listed}"
        raise EnvironmentLacksError(message, hint=error.hint) from None


def why_to_build(task: Task, index: Index) -> str:
    """Return why the index has no wheel for a task, as part of a sentence."""
    last, changes = changes_since_last_build(task, index)
    return explain_changes(last, changes) if last else "the index has no wheel for it"


def refresh_published(tasks: Iterable[Task], index: Index) -> None:
    """Refresh the pages of finished wheels: an interrupted run may have left a wheel that is not listed."""
    for task in tasks:
        if task.wheel is not None:
            index.refresh(task.pick.name)


def make_plan(tasks_of_locks: Sequence[tuple[Context, Sequence[Task]]], index: Index) -> Plan:
    """Return the plan for one or several locks, for a machine like this machine, or with the given limits.

    Parameters
    ----------
    tasks_of_locks
        The context of each lock, with its tasks.
    """
    tasks: dict[str, Task] = {}
    contexts: dict[str, Context] = {}
    for context, planned_tasks in tasks_of_locks:
        for task in planned_tasks:
            tasks.setdefault(task.build_key, task)
            contexts.setdefault(task.build_key, context)
    limits = limits_of(tasks_of_locks[0][0])
    expected = estimates(tasks, index, machine(limits), alone=True)
    planned = []
    for key, task in tasks.items():
        estimate = expected[key]
        demand = estimate.demand
        limit = round(3 * demand.seconds) + _SPARE
        if estimate.source != "record":  # a recipe's time may be the least that is known
            limit = max(_UNKNOWN, limit)
        planned.append(
            PlannedTask(
                key=key,
                name=task.pick.name,
                version=task.pick.pinned,
                state="up to date" if task.wheel else "to build",
                why="" if task.wheel else why_to_build(task, index),
                requires=tuple(required.build_key for required in task.requires),
                inputs=task.inputs,
                lock=str(contexts[key].lock_path.absolute()),
                command=_command(key, contexts[key], index),
                cores=demand.cores,
                memory_gib=round(demand.memory, 2),
                seconds=round(demand.seconds, 1),
                seconds_from=estimate.source,
                time_limit=limit,
                network=not limits.offline,
            )
        )
    missing = {key: task for key, task in tasks.items() if task.wheel is None}
    path = _critical_path(missing, {key: expected[key].demand for key in missing})
    return Plan(
        index=str(index.root),
        directory=str(Path.cwd()),
        tasks=tuple(planned),
        critical_path=path,
        critical_path_seconds=round(sum(expected[key].demand.seconds for key in path), 1),
    )


def _critical_path(tasks: Mapping[str, Task], demands: Mapping[str, Any]) -> tuple[str, ...]:
    graph = task_graph(list(tasks.values()))
    remaining = remaining_paths(graph, demands)
    path: list[str] = []
    choices = list(graph)
    while choices:
        path.append(max(choices, key=lambda key: remaining[key]))
        choices = list(graph.successors(path[-1]))
    return tuple(path)


def _command(key: str, context: Context, index: Index) -> tuple[str, ...]:
    """Return the command that executes a task; all paths are absolute."""
    lock = str(context.lock_path.absolute())
    return ("matrix", "build-one", key[:SHORT_KEY], "--lock", lock, *options_of(context, index))


def options_of(context: Context, index: Index) -> tuple[str, ...]:
    """Return the options of the commands that execute the tasks of a lock, without the lock itself."""
    args = context.args
    words = ["--index", str(index.root)]
    for option, value in (
        ("--in", args.where),
        ("--cpu", args.cpu),
        ("--torch-pin", args.torch_pin),
        ("--compiler-cache", args.compiler_cache),
    ):
        if value and value != "exact":
            words += [option, value]
    if args.base_image:
        path = Path(args.base_image)
        words += ["--base-image", str(path.absolute()) if path.exists() else args.base_image]
    if args.python_from:
        words += ["--python-from", str(args.python_from.absolute())]
    for name, ops in args.ops:
        words += ["--ops", f"{name}:{','.join(ops)}"]
    for catalog in context.settings.catalog or overlays_of(context.lock, context.lock_path):
        words += ["--catalog", str(Path(catalog).absolute())]
    return (*words, *(["--offline"] if args.offline else []))
