"""What an audit says: findings as data, which text, JSON and provenance are made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Mapping

Severity = Literal["error", "warning", "info"]


class AuditError(MatrixError):
    """A wheel does not hold what it promises."""

    id: ClassVar[str] = "audit"
    findings: tuple[Finding, ...] = ()
    """What speaks against it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a wheel."""

    id: str
    severity: Severity
    text: str
    cure: str = ""
    """What to do about it; empty where nothing needs doing."""
    evidence: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Where it was seen: ``member``, ``section``, ``offset``, ``library`` and the like."""
