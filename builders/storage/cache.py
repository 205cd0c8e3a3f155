"""Where cached files are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.indexes import File


def cache_root() -> Path:
    """Return ``$XDG_CACHE_HOME/matrix`` (``~/.cache/matrix`` if that is not an absolute path).

    Source: XDG Base Directory Specification 0.8.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "matrix"


def cached_file(file: File) -> Path:
    """Return the path of a file of a lock in the cache, whether or not it exists."""
    key = file.sha256
    if not key:
        import hashlib  # every command imports this module, and loading OpenSSL takes 2 ms

        key = f"url-{hashlib.sha256(file.url.encode()).hexdigest()}"
    return cache_root() / "wheels" / key / Path(file.name).name
