"""A diagnosis in words, as data, and on an error on its way to a person."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from builders.diagnosis.diagnose import diagnose
from resolver.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from builders.diagnosis.diagnose import Context, Diagnosis

_TOLD = 3  # in a message; the first is nearly always the cause


def as_text(found: Sequence[Diagnosis], *, sources: bool = False) -> str:
    """Write diagnoses for a person, the most specific first.

    Parameters
    ----------
    found
        What was recognised.
    sources
        Whether to say for each where it is known from, and how far that can be trusted.
    """
    return "\n\n".join(_text(one, sources=sources) for one in found)


def _text(one: Diagnosis, *, sources: bool) -> str:
    lines = [f"What this is: {one.what}", f"Why: {one.cause}", f"What to do: {one.cure}"]
    lines += [f"  line {seen.line}: {seen.text}" for seen in one.evidence]
    if sources:
        lines.append(f"  known from ({one.status}): {one.source} [{one.id}]")
    return "\n".join(lines)


def as_document(found: Sequence[Diagnosis]) -> list[dict[str, Any]]:
    """Give diagnoses as data for JSON."""
    return [asdict(one) | {"evidence": list(map(asdict, one.evidence))} for one in found]


@contextmanager
def explained(log: Path, context: Context) -> Iterator[None]:
    """Add to any failure in here what its log says about the cause.

    The message gets the words of `as_text`; ``details["diagnosis"]`` of the error gets the data.

    Parameters
    ----------
    log
        The log of what is done in here; it need not exist yet.
    context
        What is being built. The error's own ``code`` and ``findings``, where it has them, are added.
    """
    try:
        yield
    except MatrixError as error:
        found = _diagnose(log, _with_error(context, error))
        if found:
            error.message = f"{error.message}\n{as_text(found[:_TOLD])}"
            error.args = (error.message,)
            error.details = {**error.details, "diagnosis": as_document(found)}
        raise


def _with_error(context: Context, error: MatrixError) -> Context:
    code, findings = getattr(error, "code", None), getattr(error, "findings", ())
    found = context.findings | {one.id for one in findings}
    return replace(context, exit_code=context.exit_code if code is None else code, findings=found)


def _diagnose(log: Path, context: Context) -> list[Diagnosis]:
    """Diagnose; a log that is not there must not cover up the failure itself."""
    try:
        return diagnose(log, context)
    except UsageError:
        return []
