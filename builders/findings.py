"""The result of a check, the same for audit, probe, ``check``, ``doctor``, index and diagnosis."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""From the most to the least severe."""


class Finding(msgspec.Struct, frozen=True):
    """One result of a check. JSON output is this struct, encoded."""

    id: str
    """Stable name of the kind of finding, such as ``gfx-missing``."""
    severity: Severity
    message: str
    """What was found and what follows from it."""
    fix: str = ""
    """What to do next; empty when nothing needs doing."""
    evidence: dict[str, Any] = {}
    """Where it was found and the values that show it: ``member``, ``line``, ``path`` and the like."""

    def __str__(self) -> str:
        """Message and fix in one line."""
        return f"{self.message} {self.fix}".rstrip()
