"""Directories of the cache that are built once and shared: complete or absent.

A marker file, written last, marks a directory as complete; what a killed process left is built again.
Complete directories are read-only and need neither a lock nor a writable cache, so a site can share its
cache.
"""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

from builders.storage.files import make_directories, make_read_only, remove_tree, write_atomic
from builders.storage.io_errors import explain_cache_errors
from builders.storage.lease import exclusive_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MARKER = "matrix-complete.json"


def digest(*parts: Any) -> str:  # noqa: ANN401  any JSON value
    """Return a name for a cached directory or file, derived from everything that determines its content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def is_complete(root: Path) -> bool:
    """Return whether a cached directory exists and is complete."""
    return (root / _MARKER).exists()


def ensure_cached(root: Path, build: Callable[[], None]) -> None:
    """Build a directory of the cache in place, unless it is complete; environments contain their path."""
    if is_complete(root):
        return
    with explain_cache_errors(), exclusive_lock(root.parent / f"{root.name}.lock"):
        if is_complete(root):
            return
        remove_tree(root)
        make_directories(root)
        try:
            build()
            for directory, _, files in os.walk(root, topdown=False):
                for name in files:
                    make_read_only(os.path.join(directory, name))  # noqa: PTH118  many thousand files
                if directory != str(root):
                    make_read_only(directory)
            write_atomic(root / _MARKER, "{}\n")
            make_read_only(str(root))
        except BaseException:
            remove_tree(root)
            raise
