"""Check a wheel that was just built: its content, the log of its build, and its import beside its torch."""

from __future__ import annotations

import secrets
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from builders.audit.contents import Expected
from builders.audit.runtime_libraries import read_torch
from builders.audit.wheel_audit import audit_wheel
from builders.building.inputs import required_wheels
from builders.building.watch import kernel_killed_since, kernel_kills
from builders.constants import OUT_OF_MEMORY
from builders.containers.runtime import Bind
from builders.diagnosis import KILLED, DiagnosisContext, explain_failure, read_log
from builders.environments.layers import make_environment
from builders.probe.ask import WheelReply, ask, wheel_question
from builders.probe.wheel import judge_wheel
from builders.source_facts.reading import learn_source
from builders.source_facts.recipe_draft import is_switch
from resolver.errors import BuildError, CommandError, EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog_files import row_to_toml
from resolver.versions import join_words, shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builders.audit.wheel_audit import WheelAudit
    from builders.building.directory import BuildDirectory
    from builders.building.plan import Task
    from builders.environments.layers import Layers
    from builders.findings import Finding
    from builders.index import Index
    from resolver.facts.schema import Recipe


_BEFORE_LABELLING = {"no-label", "plain-platform-tag", "torch-not-pinned"}
"""Findings in every wheel that a build backend produces. Labelling removes their cause."""
_KILLED = f"signal {int(signal.SIGKILL)}"
"""The error that a probe reports for a process that was killed. The wheel is not the cause."""

_SIGNALLED = range(129, 160)
"""Exit codes that a shell returns for programs that were ended by a signal."""


def diagnosis_context(task: Task) -> DiagnosisContext:
    """Return the facts about a build that are not in its log."""
    return DiagnosisContext(
        kind="build",
        package=task.pick.name,
        torch=task.torch.version if task.torch else "",
        backend=task.recipe.backend,
        network=False if task.build_host.runtime.isolates_network else None,
        drafted=task.pick.recipe,
        draft_source=task.pick.draft_source,
    )


def failed(
    message: str,
    hint: str,
    log: Path,
    context: DiagnosisContext,
    *,
    id: str = BuildError.id,  # noqa: A002  as of MatrixError
    findings: Sequence[Finding] = (),
) -> BuildError:
    """Return the error of a build, with the causes that its log shows."""
    text, diagnosis = explain_failure(message, log, context)
    error = BuildError(text, hint=hint, id=id)
    error.findings = (*findings, *diagnosis)
    if diagnosis:
        error.details = {"diagnosis": msgspec.to_builtins(diagnosis)}
    return error


@contextmanager
def diagnosed(task: Task, log: Path) -> Iterator[None]:
    """Add the causes that the log shows to an error before or after the compilation."""
    try:
        yield
    except MatrixError as error:
        code = error.code if isinstance(error, CommandError) else None
        context = replace(diagnosis_context(task), exit_code=code)
        message, diagnosis = explain_failure(error.message, log, context)
        details = {"diagnosis": msgspec.to_builtins(diagnosis)} if diagnosis else {}
        raise error.changed(message=message, **details) from error.__cause__


def was_interrupted(error: MatrixError) -> bool:
    """Return whether a build failed because a process was killed, or because memory or a tool was missing."""
    if isinstance(error, EnvironmentLacksError):
        return True
    if (
        isinstance(error, BuildError)
        and error.id == BuildError.id
        and any(finding.id in {KILLED, OUT_OF_MEMORY} for finding in error.findings)
    ):
        return True
    cause = error.__cause__
    return isinstance(cause, CommandError) and (cause.code < 0 or cause.code in _SIGNALLED)


def check_build(
    wheel: Path, task: Task, index: Index, directory: BuildDirectory, layers: Layers, *, tree: Path
) -> tuple[WheelAudit, list[Finding]]:
    """Audit a wheel, look for silent failures in the log, then import it in a fresh environment.

    `tree` is its source, as the build has left it.
    """
    log = directory.log
    library = directory.environment / task.build_host.python.library  # has the torch that we built ourselves
    audit = audit_wheel(wheel, _expected(task, layers.torch.packages if layers.torch else library))
    reject(wheel, task, log, [with_switches(error, task.recipe, tree) for error in audit.errors])
    reject(wheel, task, log, silent_failures(log, diagnosis_context(task)))
    probe = judge_wheel(_probe(wheel, task, index, directory, layers), task.recipe)
    reject(wheel, task, log, [finding for finding in probe if finding.severity == "error"])
    return audit, [
        *(finding for finding in audit.findings if finding.id not in _BEFORE_LABELLING),
        *probe,
    ]


def with_switches(error: Finding, recipe: Recipe, tree: Path) -> Finding:
    """Return the error that something was not compiled with what decides this in the build script.

    These are switches that the recipe does not set; if there are none, the conditions around extensions.
    """
    if error.id not in {"object-missing", "no-gpu-code"}:
        return error
    try:
        facts = learn_source(tree)
    except UsageError:  # the build has changed the files
        return error
    unset = [row for row in facts.flags if is_switch(row) and recipe.environment.get(row.name) in {None, "0"}]
    conditions = dict.fromkeys(
        f"`{shorten(row.condition)}` ({row.where})" for row in facts.extensions if row.condition
    )
    fix = error.fix
    if unset:
        environment = {**recipe.environment, unset[0].name: "1"}
        rows = row_to_toml(replace(recipe, environment=environment)).splitlines()
        line = next(row for row in rows if row.startswith("environment"))
        needed = join_words([f"{row.name} ({row.where})" for row in unset])
        fix = f"The build skipped it. Perhaps it needs {needed}: set it in the recipe (`{line}`)."
    elif conditions:
        listed = join_words([*conditions], joiner="and if")
        fix = f"The script compiles extensions only if {listed}; see the build's log."
    return replace(error, fix=fix)


def _probe(wheel: Path, task: Task, index: Index, directory: BuildDirectory, layers: Layers) -> WheelReply:
    """Install the wheel next to its torch and run the probe there.

    The build requirements are there as well, because no other run requirements of the wheel are installed.
    The probe reports which of them were used.
    """
    runtime, python, log = task.build_host.runtime, task.build_host.python, directory.log
    # The code of the wheel sees these paths. Fixed names would let it recognize the probe.
    root, folder = (directory.root / secrets.token_hex(4) for _ in range(2))
    with diagnosed(task, log):
        wheels = [*required_wheels(task, index), wheel]
        environment = make_environment(python, layers.all, wheels, root=root, hidden=[index.root])
    borrowed = str(layers.requirements.packages) if layers.requirements else ""
    base = environment.view
    folder.mkdir()  # only now, so that the code of the wheel could not write to it before
    binds = [*base.binds, Bind(folder, writable=True)]
    view = replace(base, env={**base.env, **task.recipe.run_environment}, cwd=root, binds=binds)
    start, question = [str(environment.python)], wheel_question(task.recipe, borrowed)
    what = f"Probing {task.title}"
    kills = kernel_kills()
    try:
        reply = ask(runtime, start, question, WheelReply, view, folder=folder, what=what, log=log)
        _check_not_killed(reply, what, log)
    except CommandError as error:
        killed = kernel_killed_since(kills)
        context = replace(diagnosis_context(task), exit_code=error.code, kernel_kills=killed)
        raise failed(error.message, "The wheel is not published.", log, context, id="audit") from error
    return reply


def reject(wheel: Path, task: Task, log: Path, errors: Sequence[Finding]) -> None:
    """Raise `BuildError` with the id ``audit`` if there are errors."""
    if not errors:
        return
    listed = "".join(f"\n  - {error}" for error in errors)
    message = f"The wheel of {task.title} failed its checks, so it is not published.{listed}\n  Log: {log}"
    ids = frozenset(error.id for error in errors)
    context = replace(diagnosis_context(task), findings=ids)
    hint = f"The wheel is kept as {wheel} until the next build."
    raise failed(message, hint, log, context, id="audit", findings=errors)


def _check_not_killed(reply: WheelReply, what: str, log: Path) -> None:
    if _KILLED in {outcome.error for outcome in (reply.torch, *reply.imports, *reply.objects)}:
        raise CommandError(what, code=-signal.SIGKILL, log=log, lines=())


def _expected(task: Task, packages: Path) -> Expected:
    directory = packages / "torch" / "lib"
    torch = read_torch(directory) if directory.is_dir() else None
    provider = task.build_host.provider
    return Expected(
        tuple(task.gfx),
        task.recipe,
        torch,
        () if provider is None else (provider,),
        str(task.build_host.python.prefix),
        cpu=task.build_host.cpu,
        no_others=True,
    )


def silent_failures(log: Path, context: DiagnosisContext) -> list[Finding]:
    """Return the known failures that only the log of a successful build shows, such as a wrong wave size."""
    return [
        replace(finding, id=f"log-{finding.id}", fix="")
        for finding in read_log(log, replace(context, exit_code=0)).findings
    ]
