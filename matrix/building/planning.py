"""The build tasks of a lock, as the commands plan them, and execute them in Slurm jobs."""

from __future__ import annotations

import argparse
import math
import shlex
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from builders.building.expected_time import Resources
from builders.building.inputs import Limits, wheels_of
from builders.building.plan import plan
from builders.building.records import changes_since_last_build, explain_changes
from builders.building.task_state import State, TaskState
from builders.constants import INDEX_DIRECTORY, LOCK_FILE
from builders.machine.cluster import memory_gib
from builders.machine.host import find_compiler_cache
from builders.scheduling.batch import Run
from builders.scheduling.scheduler import estimates, remaining_paths, task_graph
from builders.scheduling.slurm import Slurm, hours_of, partition_limits, partition_of
from builders.storage.files import cache_root
from matrix.building.locked import build_host_of
from matrix.command_line.arguments import command_arguments
from matrix.command_line.context import Context
from matrix.command_line.options import add_build_host_options
from matrix.input.settings import in_project
from matrix.show.json_document import JsonDocument
from matrix.show.resolution_text import time_text
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from builders.building.plan import Task
    from builders.index import Index
    from builders.scheduling.local import Builds


SHORT_KEY = 16
"""Digits of a build key in commands and messages."""
_SPARE = 900
"""Seconds added to a time limit, for fetching and for layers that are created once."""
_UNKNOWN = 7200
"""Seconds allowed for a build with an unknown time."""

_STATES: tuple[State, ...] = ("built", "failed", "skipped", "identical", "different", "up to date")
"""In the order of the answer."""
_OF_SLURM = ("partition", "account", "time")


class Plan(JsonDocument, kw_only=True):
    """The JSON output of ``matrix farm plan``."""

    status: Literal["ok"] = "ok"
    index: str
    directory: str
    """That in which to run the commands; its `matrix.toml` has the mirrors."""
    tasks: tuple[TaskState, ...]
    """Each task comes after those that it requires."""
    critical_path: tuple[str, ...]
    """Keys of the tasks that determine the minimum total time."""
    critical_path_seconds: float
    max_jobs: int = 0
    """Jobs that the site admits in its partition; 0 if that is not known."""

    @property
    def missing(self) -> list[TaskState]:
        """The tasks whose wheels the index does not have."""
        return [task for task in self.tasks if task.state == "to build"]


def contexts_of_locks(context: Context) -> list[Context]:
    """Return a context for each lock that the options name; without options, for the default lock."""
    return [context.with_options(lock=path) for path in context.args.locks or [in_project(LOCK_FILE)]]


def limits_of(context: Context) -> Limits:
    """Return the limits on builds from the options and settings."""
    args, settings = vars(context.args), context.settings
    compiler_cache = args.get("compiler_cache")
    find_compiler_cache(compiler_cache)
    return Limits(
        args.get("jobs"),
        args.get("memory"),
        offline=bool(settings.offline),
        compiler_cache=compiler_cache,
        mirrors=settings.mirrors,
        strategy=settings.index_strategy or "unsafe-best-match",
    )


def report_failures(builds: Builds, context: Context) -> int:
    """Print the failures; return the highest exit code, or raise the first without ``--keep-going``."""
    errors = list(builds.errors.values())
    first = [] if getattr(context.args, "keep_going", False) else errors[:1]
    for error in errors[len(first) :]:
        context.console.error(error.message, error.hint)
    for error in first:
        raise error
    return max((error.exit_code for error in errors), default=0)


def tasks_of(context: Context, index: Index, names: Sequence[str] = ()) -> list[Task]:
    """Return the tasks of the lock, in install order."""
    lock = context.lock
    if not lock.built(names):
        return []
    try:
        build_host = build_host_of(context, names)
    except EnvironmentLacksError as error:
        listed = "".join(f"\n  - {pick.name} {pick.pinned}" for pick in lock.built(names))
        target = ", ".join(lock.target.gfx) or "this machine's CPU"
        image = lock.version_of("base-image")
        where = f"\nBase image: {image}" if image else ""
        message = f"{error.message}\nNothing was built for {target}.{where}\nTo build:{listed}"
        raise EnvironmentLacksError(message, hint=error.hint) from None
    return plan(lock, context.catalog_of_lock, index, build_host, names)


def answer(wheels: Sequence[TaskState]) -> str:
    """Return the result for all wheels, in one line."""
    if not wheels:
        return "The lock builds nothing: everything in it is published."
    counts = Counter(wheel.state for wheel in wheels)
    if counts["up to date"] == len(wheels):
        return "Nothing to build."
    parts = [f"{counts[state]} {state}" for state in _STATES if counts[state]]
    if counts["to build"]:
        times = [wheel.estimate for wheel in wheels if wheel.state == "to build"]
        parts.insert(0, f"{len(times)} to build, {time_text(times, cores=True)}")
    return "; ".join(parts)


def refresh_published(tasks: Iterable[Task], index: Index) -> None:
    """Refresh the pages of finished wheels: an interrupted run may have left a wheel that is not listed."""
    index.refresh_all(dict.fromkeys(task.pick.name for task in tasks if task.wheel is not None))


def node_of(context: Context, site: str) -> Resources | None:
    """Return what a job may use of a node, as catalog and Slurm state it; None if neither does."""
    args, catalog = context.args, context.catalog
    job, row = catalog.job.get(site), partition_of(catalog, site, args.partition)
    _, cores, mebibytes = partition_limits(args.partition or (row.name if row else ""))
    all_cores = [*([job.cpus * job.ranks] if job else []), *filter(None, [cores, args.jobs])]
    if not all_cores:
        return None
    memory = job.memory * job.ranks * 1e9 / 2**30 if job else 0.0
    limits = filter(None, [memory, mebibytes / 1024, args.memory])
    return Resources(min(all_cores), min(limits, default=memory_gib()))


def make_plan(
    tasks_of_locks: Sequence[tuple[Context, Sequence[Task]]], index: Index, node: Resources | None = None
) -> Plan:
    """Return the plan for one or several locks, for a node, else this machine, or with the given limits."""
    from builders.scheduling.local import machine

    tasks: dict[str, Task] = {}
    contexts: dict[str, Context] = {}
    for context, planned_tasks in tasks_of_locks:
        for task in planned_tasks:
            tasks.setdefault(task.build_key, task)
            contexts.setdefault(task.build_key, context)
    limits = limits_of(tasks_of_locks[0][0])
    expected = estimates(tasks, index, node or machine(limits))
    planned = []
    for key, task in tasks.items():
        state, estimate, context = state_of(task, index), expected[key], contexts[key]
        state.inputs, state.network = task.inputs, not limits.offline
        state.lock, state.command = str(context.lock_path.absolute()), _command(key, context, index)
        state.cores, state.memory_gib = estimate.cores, round(estimate.memory, 2)
        state.seconds, state.seconds_from = round(estimate.seconds, 1), estimate.source
        state.time_limit = round(3 * estimate.seconds) + _SPARE
        if estimate.source != "record":  # a recipe's time may be the least that is known
            state.time_limit = max(_UNKNOWN, state.time_limit)
        planned.append(state)
    first = next(iter(contexts.values()), None)
    partition = partition_of(first.catalog_of_lock, first.lock.target.site) if first else None
    path = _critical_path([task for task in tasks.values() if task.wheel is None], expected)
    return Plan(
        index=str(index.root),
        directory=str(Path.cwd()),
        tasks=tuple(planned),
        critical_path=path,
        critical_path_seconds=round(sum(expected[key].seconds for key in path), 1),
        max_jobs=partition.max_jobs if partition else 0,
    )


def state_of(task: Task, index: Index) -> TaskState:
    """Return the state of a task before it is built."""
    last, changed = ("", ()) if task.wheel else changes_since_last_build(task, index)
    return TaskState(
        key=task.build_key,
        name=task.pick.name,
        version=task.pick.pinned,
        state="up to date" if task.wheel else "to build",
        why=explain_changes(last, changed) if last else "" if task.wheel else "the index has no wheel for it",
        requires=tuple(required.build_key for required in task.requires),
        wheel=str(task.wheel) if task.wheel else None,
        warnings=() if task.wheel else task.warnings,
        changed=changed,
    )


def _critical_path(tasks: Sequence[Task], expected: Mapping[str, Resources]) -> tuple[str, ...]:
    graph = task_graph(tasks)
    remaining = remaining_paths(graph, expected)
    path: list[str] = []
    choices = list(graph)
    while choices:
        path.append(max(choices, key=lambda key: remaining[key]))
        choices = list(graph[path[-1]])
    return tuple(path)


def _command(key: str, context: Context, index: Index) -> tuple[str, ...]:
    """Return the command that executes a task; it finds the facts of the lock by its name."""
    args = context.args
    image = args.base_image
    values = {
        "keys": key[:SHORT_KEY],
        "locks": [context.lock_path.absolute()],
        "index": index.root,
        "where": args.where,
        "cpu": args.cpu,
        "compiler_cache": args.compiler_cache,
        "base_image": Path(image).absolute() if image and Path(image).exists() else image,
        "python_from": args.python_from and args.python_from.absolute(),
        "catalog": [Path(catalog).absolute() for catalog in context.settings.catalog],
        "offline": args.offline,
    }
    return ("matrix", "farm", "build-one", *command_arguments("farm.build_one", values))


def add_build_options(parser: argparse.ArgumentParser, *, executor: str | None, default: str) -> None:
    """Add the options that say where wheels are built; `default` is the help for the default `executor`."""
    add_build_host_options(parser)
    parser.add_argument(
        "--executor",
        choices=("local", "slurm"),
        default=executor,
        help=f"build wheels on this machine or in Slurm jobs (default: {default})",
    )
    parser.add_argument("--keep-going", action="store_true", help="continue when a wheel fails")
    group = parser.add_argument_group("in Slurm jobs (--executor slurm)")
    group.add_argument(
        "--partition", metavar="NAME", default="", help="default: the site's with the longest time limit"
    )
    group.add_argument(
        "--account", metavar="NAME", default="", help="default: that of matrix.toml, else Slurm's default"
    )
    group.add_argument(
        "--time",
        metavar="TIME",
        default="",
        help="time limit of each job (default: from the recipe and earlier builds)",
    )


def check_batch_options(args: argparse.Namespace) -> None:
    """Check that the options of Slurm do not contradict other options."""
    given = [name for name in (*_OF_SLURM, "attach", "cancel") if getattr(args, name, False)]
    if given and args.executor != "slurm":
        raise UsageError(f"--{given[0]} requires --executor slurm.")
    for action in ("attach", "cancel"):
        others = [name for name in given if name != action]
        if action in given and others:
            msg = f"--{action} and --{others[0]} cannot be combined."
            raise UsageError(msg)


def attach(executor: Slurm, context: Context) -> Run:
    """Follow the jobs of an earlier command until all have ended; return the run."""
    with _saying_that_jobs_go_on(context):
        return executor.follow()


def build_in_jobs(tasks: Sequence[Task], executor: Slurm, context: Context) -> Run:
    """Fetch the inputs of tasks, build the tasks in jobs, and return the run when all jobs have ended.

    With ``--keep-going``, only the tasks fail whose inputs cannot be fetched.
    """
    args = context.args
    node = node_of(context, context.lock.target.site)
    plan = make_plan([(context, tasks)], executor.index, node)
    row = partition_of(context.catalog_of_lock, context.lock.target.site, args.partition)
    run = Run(
        directory=plan.directory,
        tasks=tuple(replace(task, inputs={}) for task in plan.missing),  # jobs do not need them
        partition=args.partition or (row.name if row else ""),
        account=context.settings.account,
        minutes=math.ceil(60 * hours_of(args.time)) if args.time else 0,
        most_minutes=math.floor(60 * row.max_hours) if row else 0,
        most_jobs=row.max_jobs if row else 0,
        most_cores=node.cores if node else 0,
        memory=args.memory or 0.0,
        keep_going=args.keep_going,
    )
    errors = _fetch(tasks, context)
    for key, error in errors.items():
        task = run.by_key[key]
        hint = f"\n  hint: {error.hint}" if error.hint else ""
        task.state, task.why, task.exit_code = "failed", f"{error.message}{hint}", error.exit_code
    if len(errors) == len(tasks):
        return run
    with _saying_that_jobs_go_on(context):
        return executor.start(run)


def _fetch(tasks: Iterable[Task], context: Context) -> dict[str, MatrixError]:
    """Fetch the inputs of the jobs, which may have no network. Return the errors by build key."""
    from builders.sources.source import obtain

    limits = limits_of(context)
    log = cache_root() / "logs" / "fetch.log"
    errors: dict[str, MatrixError] = {}
    with context.console.task("fetch"):
        for task in tasks:
            if task.pick.alias_of:
                continue
            context.console.step(f"inputs of {task.title}")
            try:
                _check_torch(task)
                obtain(task.pick, offline=limits.offline, mirrors=limits.mirrors, patches=task.patches)
                wheels_of(task, limits, log, context.console)
            except MatrixError as error:
                if not context.args.keep_going:
                    raise
                errors[task.build_key] = error
    return errors


def _check_torch(task: Task) -> None:
    """Check that the requirements of the torch of a task are known: jobs do not use the network.

    A torch that is built from a commit lists them only in its wheel.
    """
    torch = next((required for required in task.requires if required.pick.name == "torch"), None)
    if torch is None or torch.wheel is not None or torch.pick.git is None:
        return
    if not any((edge.subject, edge.kind) == ("torch", "run") for edge in task.resolution.edges):
        msg = (
            f"{torch.title} is not built. Only its wheel lists the requirements of torch, so they cannot be "
            f"fetched for the build of {task.pick.name}, and jobs do not use the network."
        )
        hint = "Build torch first: `matrix build-wheels torch --executor slurm`. Then resolve again."
        raise EnvironmentLacksError(msg, hint=hint)


@contextmanager
def _saying_that_jobs_go_on(context: Context) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        command = "matrix build-wheels --executor slurm"
        if Path(context.args.index) != in_project(INDEX_DIRECTORY):
            command += f" --index {shlex.quote(str(context.args.index))}"
        context.console.info(f"The Slurm jobs continue. To follow them: `{command} --attach`")
        context.console.info(f"To cancel them: `{command} --cancel`")
        raise
