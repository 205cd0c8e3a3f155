"""The result of a check: one type for audit, probe, ``check``, ``doctor``, index and diagnosis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal

import msgspec

_MOST_OF_ONE_KIND = 100  # a hostile wheel can cause millions
Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""From the most to the least severe."""


class Finding(msgspec.Struct, frozen=True):
    """One result of a check. JSON output is this struct, encoded."""

    id: str
    """Stable name of the kind of finding, such as ``target-missing``."""
    severity: Severity
    message: str
    """The problem and its consequence."""
    fix: str = ""
    """What to do next; empty if no action is needed."""
    evidence: dict[str, Any] = {}
    """The location and the values that show the problem: ``member``, ``line``, ``path`` and the like."""

    def __str__(self) -> str:
        """Return message and fix in one line."""
        return f"{self.message} {self.fix}".rstrip()


def limited(findings: Iterable[Finding], most: int = _MOST_OF_ONE_KIND) -> list[Finding]:
    """Return the first findings of each kind, and a finding with the number of the others."""
    kept: list[Finding] = []
    counts = Counter[tuple[str, Severity]]()
    for finding in findings:
        kind = finding.id, finding.severity
        counts[kind] += 1
        if counts[kind] <= most:
            kept.append(finding)
    for (id_, severity), count in counts.items():
        if count > most:
            more = count - most
            text = f"There are {more} more findings of this kind."
            kept.append(Finding(id_, severity, text, "", {"count": str(more)}))
    return kept
