"""The part of the Python API that answers as commands do."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Unpack

from msgspec.structs import asdict

from builders.scheduling.local import Builds
from matrix.api import TargetOptions, check_build_hosts, public, settings_of, text_of
from matrix.building.completing import added, completed
from matrix.building.locked import check_sources
from matrix.building.planning import limits_of, tasks_of
from matrix.command_line.context import Context
from matrix.command_line.options import defaults_of
from matrix.commands import build_wheels
from matrix.commands import check as check_command
from matrix.commands import explain as explain_command
from matrix.commands import table as table_command
from matrix.judging.judge import judge_thing
from matrix.show.console import Console
from matrix.show.resolution_text import conflict_text
from matrix.show.table_formats import TableDocument, document_of, newest_rows
from resolver.errors import BuildError
from resolver.model import Conflict
from resolver.reporter import SILENT, Reporter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

    from builders.index import Index
    from matrix.commands.explain import ExplainDocument
    from matrix.input.settings import Settings
    from matrix.judging.verdict import Judgement
    from resolver.model import Resolution


@public
def explain(resolution: Resolution, what: str = "") -> ExplainDocument:
    """Return why the versions of a resolution were chosen, as ``matrix explain`` does.

    `what` is a component (``"torch"``), versions of one that were not chosen (``"torch==2.13.0"``), or the
    id of an error, a warning or a finding. Raise `UsageError` if it is none of them.
    """
    words = [text_of("what", what, "torch")] if what else []
    return explain_command.explanation(_context(explain_command, *words).with_lock(resolution))


@public
def table(
    requirements: str | Iterable[str] = (), *, every: bool = False, **target: Unpack[TargetOptions]
) -> TableDocument | Conflict:
    """Return which versions work together, as ``matrix table`` does: the newest torch of each ROCm, or all.

    `requirements` are the columns and the limits of the rows, by default every package. `target` and the
    errors are those of `resolve`.
    """
    found = table_command.table_of(_context(table_command, settings=settings_of(requirements, target)))
    rows = found.rows_or_conflict()
    if isinstance(rows, Conflict):
        return rows
    return document_of(found, rows if every else newest_rows(rows).values())


@public
def check(
    thing: str | Path = "",
    *,
    lock: str | Path | None = None,
    run: bool = False,
    **target: Unpack[TargetOptions],
) -> Judgement:
    """Return what a thing is, whether it works at a site, and why not, as ``matrix check`` does.

    `thing` is a file of pip, conda, uv, pixi or poetry, a log, a wheel, an environment or an image, by
    default this machine. Only with `run`, it is started. `target` is that of `resolve`. Raise `MatrixError`
    if it cannot be read.
    """
    words = [*(["--lock", str(lock)] if lock else []), *(["--run"] if run else [])]
    context = _context(check_command, *words, settings=settings_of((), target))
    return judge_thing(text_of("thing", thing, "freeze.txt"), context)[0]


@public
def build(
    resolution: Resolution,
    index: Index,
    names: Iterable[str] = (),
    *,
    runtime: Literal["host", "apptainer", "podman"] | None = None,
    base_image: str | None = None,
    python: Path | None = None,
    cpu: str = "",
    jobs: int | None = None,
    memory: float | None = None,
    offline: bool = False,
    reporter: Reporter = SILENT,
) -> list[Path]:
    """Build the wheels that a resolution needs and an index lacks, check them, and publish them.

    Build backends are asked first what their sources require. What the resolution lacks of it is resolved,
    built if it must be, and named in a warning of the reporter.

    Several wheels are built at once, as cores and memory allow, each in a process forked from this process.
    After a failure, running builds continue to their end, and no more are started.

    Parameters
    ----------
    names
        Build only these distributions; by default all that the resolution builds.
    runtime
        Where the builds run; by default the host for the CPU backend, else a container runtime.
    base_image
        Path of the base image, if it differs from the path in the resolution.
    python
        Prefix of the Python to build for, if the base image has none.
    cpu
        CPU that host code is compiled for, as in ``-march``; by default the site's, else this machine's.
    jobs, memory
        Limits in compile jobs and GiB; by default what the machine allows.
    offline
        Use only the cache.
    reporter
        Receives the steps.

    Returns
    -------
    list of Path
        The wheels in the index, in install order, including those that already existed.

    Raises
    ------
    BuildError, CommandError
        A wheel could not be built, or its content is wrong. It is not published, and the error names the log.
        Or the resolution contradicts what its sources require; then nothing was compiled.
    UsageError
        The resolution does not build one of the names, or an argument does not fit the resolution.
    LockError
        The resolution is that of a lock from elsewhere, and names files of this machine or without a hash.
    MatrixError
        The facts, the base image, a source or the index are not what the resolution needs, or another wheel
        has the name of a new wheel. `EnvironmentLacksError` among them: the machine lacks a tool, network
        access or disk space, or the index or the cache cannot be written.
    """
    names = list(names)
    if not resolution.built(names):
        return []
    given = _context(
        build_wheels,
        where=runtime,
        base_image=base_image,
        python_from=python,
        cpu=cpu,
        jobs=jobs,
        memory=memory,
        offline=offline,
    )
    context = given.with_lock(resolution)
    check_sources(resolution, context.settings, context.catalog, reporter)
    done = completed(context, index, tasks_of(context, index, names), names, reporter)
    if isinstance(done, Conflict):
        msg = f"The resolution contradicts what its sources require.\n{conflict_text(done)}"
        raise BuildError(msg, hint="Resolve again with other requirements.")
    if done.lock.distributions != resolution.distributions:
        reporter.warning(added(resolution, done.lock))
    tasks = tasks_of(done, index, names)
    missing = {task.build_key: task for task in tasks if task.wheel is None}
    check_build_hosts(missing.values())
    builds = Builds(missing, index, limits_of(done), reporter)
    builds.run()
    for error in builds.errors.values():
        raise error
    return [task.wheel or builds.wheels[task.build_key] for task in tasks]


class _Quiet(Console):
    def warning(self, message: str) -> None:
        warnings.warn(str(message), stacklevel=2)


def _context(
    command: ModuleType, *words: str, settings: Settings | None = None, **options: object
) -> Context:
    """Return the context of a command that reads no settings from files; its warnings become Python's."""
    given = asdict(settings) if settings else {}
    arguments = {**defaults_of(command, *words), **given, **options, "of_api": True}
    return Context(argparse.Namespace(**arguments), _Quiet(-1, progress="none"))
