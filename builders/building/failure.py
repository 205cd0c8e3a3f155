"""The errors of a build, with the known failures that its log shows."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from builders.diagnosis import KILLED, OUT_OF_MEMORY, DiagnosisContext, explain_failure
from resolver.errors import BuildError, CommandError, EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builders.building.plan import Task
    from builders.findings import Finding

_SIGNALLED = range(129, 160)
"""Exit codes that a shell returns for programs that were ended by a signal."""


def diagnosis_context(task: Task) -> DiagnosisContext:
    """Return the facts about a build that are not in its log."""
    build_host = task.build_host
    return DiagnosisContext(
        package=task.pick.name,
        torch=task.torch.version if task.torch else "",
        rocm=task.rocm,
        backend=task.recipe.backend,
        python=build_host.python.version,
        network=False if build_host.runtime.isolates_network else None,
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
