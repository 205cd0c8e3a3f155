"""One thing that was looked at."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

State = Literal["ok", "note", "lack"]


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was looked at on a machine."""

    topic: str
    """Stable name, such as ``kernel-driver``."""
    state: State
    """``lack`` for what is missing, ``note`` for what should be known."""
    found: str
    """What is there, as a sentence without its end."""
    means: str = ""
    """What follows from a lack."""
    cure: str = ""
    """What to do about it."""
    data: dict[str, Any] = {}
    """The same for programs."""
