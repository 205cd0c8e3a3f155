"""``matrix build-wheels --executor slurm|hq``: submit jobs, follow them and collect the results."""

from __future__ import annotations

import math
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from builders.building.inputs import wheels_of
from builders.constants import INDEX_DIRECTORY
from builders.probe.slurm import hours_of
from builders.scheduling.batch import Run
from builders.scheduling.hyperqueue import HyperQueue
from builders.scheduling.slurm import Slurm, partition_of
from builders.sources import obtain
from builders.storage.files import cache_root
from matrix.building.planning import limits_of, make_plan
from matrix.show.render import counted
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from builders.building.plan import Task
    from builders.index import Index
    from builders.scheduling.batch import BatchSystem
    from matrix.command_line.context import Context
    from resolver.facts.catalog import Catalog


EXECUTORS: dict[str, type[BatchSystem]] = {kind.name: kind for kind in (Slurm, HyperQueue)}
_OF_SLURM = ("partition", "account", "time")


def add_batch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of batch systems."""
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
    group = parser.add_argument_group("in Slurm jobs or HyperQueue (--executor slurm or hq)")
    group.add_argument(
        "--attach", action="store_true", help="follow the jobs that an earlier command submitted"
    )
    group.add_argument(
        "--cancel", action="store_true", help="cancel the jobs that an earlier command submitted"
    )


def check_batch_options(args: argparse.Namespace) -> None:
    """Check that the options of batch systems do not contradict other options."""
    given = [name for name in (*_OF_SLURM, "attach", "cancel") if getattr(args, name)]
    if args.executor in EXECUTORS and (args.time_limit is not None or args.signal is not None):
        msg = (
            "--time-limit and --signal are for builds on this machine. "
            "Builds in Slurm jobs stop before the job ends."
        )
        raise UsageError(msg, hint="Omit --time-limit and --signal.")
    for name in given:
        if args.executor != "slurm" and (name in _OF_SLURM or args.executor not in EXECUTORS):
            alternative = "" if name in _OF_SLURM else " or hq"
            msg = f"--{name} requires --executor slurm{alternative}."
            raise UsageError(msg)
    for action in ("attach", "cancel"):
        others = [name for name in given if name != action]
        if action in given and others:
            msg = f"--{action} and --{others[0]} cannot be combined."
            raise UsageError(msg)


def executor_of(index: Index, context: Context) -> BatchSystem:
    """Return the batch system that the options name."""
    return EXECUTORS[context.args.executor](index, context.console)


def cancel(executor: BatchSystem, context: Context) -> int:
    """Cancel the jobs of an earlier command; return the exit code."""
    numbers = executor.cancel()
    if numbers:
        context.console.data(f"Cancelled {counted(len(numbers), 'job')}: {', '.join(numbers)}")
    else:
        context.console.data("There are no jobs to cancel.")
    return 0


def attach(executor: BatchSystem, context: Context) -> Run:
    """Follow the jobs of an earlier command until all have ended; return the run."""
    with _saying_that_jobs_go_on(executor, context):
        return executor.follow()


def build_in_jobs(
    tasks_of_locks: Sequence[tuple[Context, Sequence[Task]]],
    catalog: Catalog,
    executor: BatchSystem,
    context: Context,
) -> Run:
    """Fetch the inputs of tasks, build the tasks in jobs, and return the run when all jobs have ended.

    With ``--keep-going``, only the tasks fail whose inputs cannot be fetched.
    """
    run = _run(tasks_of_locks, catalog, executor.index, context)
    tasks = {task.build_key: task for _, tasks in tasks_of_locks for task in tasks}
    errors = _fetch(tasks.values(), context)
    for key, error in errors.items():
        task = run.by_key[key]
        task.state, task.why, task.exit_code = "failed", f"{error.message}{_hint(error)}", error.exit_code
    if len(errors) == len(tasks):
        return run
    with _saying_that_jobs_go_on(executor, context):
        return executor.start(run)


def _run(
    tasks_of_locks: Sequence[tuple[Context, Sequence[Task]]], catalog: Catalog, index: Index, context: Context
) -> Run:
    args = context.args
    plan = make_plan(tasks_of_locks, index)
    lock = tasks_of_locks[0][0]
    row = partition_of(catalog, lock.lock.target.site, args.partition)
    return Run(
        directory=plan.directory,
        tasks=tuple(replace(task, inputs={}) for task in plan.missing),  # jobs do not need them
        partition=args.partition or (row.name if row else ""),
        account=context.settings.account,
        minutes=math.ceil(60 * hours_of(args.time)) if args.time else 0,
        most_minutes=math.floor(60 * row.max_hours) if row else 0,
        most_jobs=row.max_jobs if row else 0,
        most_cores=args.jobs or 0,
        memory=args.memory or 0.0,
        keep_going=args.keep_going,
    )


def _fetch(tasks: Iterable[Task], context: Context) -> dict[str, MatrixError]:
    """Fetch the inputs of the jobs, which may have no network. Return the errors by build key."""
    limits = limits_of(context)
    log = cache_root() / "logs" / "fetch.log"
    errors: dict[str, MatrixError] = {}
    with context.console.task("fetch"):
        for task in tasks:
            if task.pick.alias_of:
                continue
            context.console.step(f"inputs of {task.title}")
            try:
                _check_torch(task, context)
                obtain(task.pick, offline=limits.offline, mirrors=limits.mirrors, patches=task.patches)
                wheels_of(task, limits, log, context.console)
            except MatrixError as error:
                if not context.args.keep_going:
                    raise
                errors[task.build_key] = error
    return errors


def _check_torch(task: Task, context: Context) -> None:
    """Check that the requirements of the torch of a task are known: jobs do not use the network.

    A torch that is built from a commit lists them only in its wheel.
    """
    torch = next((required for required in task.requires if required.pick.name == "torch"), None)
    if torch is None or torch.wheel is not None or torch.pick.git is None:
        return
    if not any((edge.subject, edge.kind) == ("torch", "run") for edge in task.resolution.edges):
        command = f"matrix build-wheels torch --executor {context.args.executor}"
        msg = (
            f"{torch.title} is not built. Only its wheel lists the requirements of torch, so they cannot be "
            f"fetched for the build of {task.pick.name}, and jobs do not use the network."
        )
        hint = f"Build torch first with `{command}`. Then resolve again, and repeat this command."
        raise EnvironmentLacksError(msg, hint=hint)


def _hint(error: MatrixError) -> str:
    return f"\n  hint: {error.hint}" if error.hint else ""


@contextmanager
def _saying_that_jobs_go_on(executor: BatchSystem, context: Context) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        command = f"matrix build-wheels --executor {executor.name}"
        if Path(context.args.index) != INDEX_DIRECTORY:
            command += f" --index {shlex.quote(str(context.args.index))}"
        context.console.info(f"The {executor.title} jobs continue. To follow them: `{command} --attach`")
        context.console.info(f"To cancel them: `{command} --cancel`")
        raise
