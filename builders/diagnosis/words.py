"""A diagnosis as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.diagnosis.diagnose import diagnose
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builders.diagnosis.diagnose import Context
    from builders.findings import Finding

_MOST = 3  # in the message of a failed build; the first one is nearly always the cause


def diagnosis_text(diagnosis: Sequence[Finding], *, sources: bool = False) -> str:
    """Return a diagnosis as text, the most specific finding first.

    Parameters
    ----------
    diagnosis
        The recognised failures.
    sources
        Whether to add the source of each and its status.
    """
    return "\n\n".join(_text(finding, sources=sources) for finding in diagnosis)


def _text(finding: Finding, *, sources: bool) -> str:
    evidence = finding.evidence
    lines = [f"What this is: {finding.message}", f"Why: {evidence['cause']}", f"What to do: {finding.fix}"]
    lines += [f"  line {line['line']}: {line['text']}" for line in evidence["text"]]
    if sources:
        lines.append(f"  known from ({evidence['status']}): {evidence['source']} [{finding.id}]")
    return "\n".join(lines)


def explain_failure(message: str, log: Path, context: Context) -> tuple[str, list[Finding]]:
    """Return the message of a failed build with the causes that its log shows, and the diagnosis itself."""
    try:
        diagnosis = diagnose(log, context)
    except UsageError:  # there is no log
        diagnosis = []
    return "\n".join(filter(None, [message, diagnosis_text(diagnosis[:_MOST])])), diagnosis
