"""What is wrong in an index, as data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong in an index."""

    id: str
    path: str
    """Relative to the index."""
    text: str
    repaired: str = ""
    """What was done about it; empty if nothing was."""
