"""Temporary directories below the cache; the next run removes what a killed one left."""

from __future__ import annotations

import fcntl
import secrets
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO, Self

from builders.cache import cache_root


class TemporaryDirectory:
    """A new directory that is removed at the end of its block.

    If the process is killed, the next run removes it: the lock file next to it is locked while its owner
    lives.

    Parameters
    ----------
    parent
        Where to create it; ``tmp`` in the cache when None.
    """

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or cache_root() / "tmp"
        try:
            parent.mkdir(parents=True, exist_ok=True)
            _remove_abandoned(parent)
            self.root = parent / secrets.token_hex(8)
            lock = _lock(self.root)  # before the directory exists, or another run may remove it
            self.root.mkdir(mode=0o700)
        except OSError:  # the cache cannot be written
            self.root, lock = Path(tempfile.mkdtemp(prefix="matrix-")), None
        self._remove = weakref.finalize(self, _remove, self.root, lock)

    def __enter__(self) -> Self:
        """Return the directory itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it."""
        self._remove()


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories whose owners were killed."""
    for path in parent.glob("*.lock"):
        root = path.with_suffix("")
        lock = _lock(root) if root.is_dir() else None
        if lock is not None:
            _remove(root, lock)


def _lock(root: Path) -> IO[str] | None:
    """Lock the file next to a directory until it is closed; return None if another process holds it."""
    handle = root.with_suffix(".lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        return None
    return handle


def _remove(root: Path, lock: IO[str] | None) -> None:
    shutil.rmtree(root, ignore_errors=True)
    if lock is not None:
        root.with_suffix(".lock").unlink(missing_ok=True)
        lock.close()
