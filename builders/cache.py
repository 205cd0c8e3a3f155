"""The directory of cached files."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """Return ``$XDG_CACHE_HOME/matrix`` (``~/.cache/matrix`` if that is not set).

    Source: XDG Base Directory Specification 0.8.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "matrix"
