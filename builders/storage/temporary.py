"""Create temporary directories below the cache, and remove those of processes that were killed."""

from __future__ import annotations

import secrets
import shutil
import tempfile
import weakref
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

from builders.storage.files import cache_root, exclusive_lock
from builders.storage.lease import is_abandoned
from builders.storage.modes import make_directories


class TemporaryDirectory:
    """A new directory in the cache, which is removed at the end of its block.

    If the process is killed, the next run on this machine removes the directory. A lock next to the directory
    is held while its owner runs.
    """

    def __init__(self) -> None:
        parent = cache_root() / "tmp"
        owned = ExitStack()
        try:
            make_directories(parent)
            _remove_abandoned(parent)
            self.root = parent / secrets.token_hex(8)
            # Another run may remove a directory without a lock, so the lock comes first.
            owned.enter_context(exclusive_lock(_lock(self.root)))
            self.root.mkdir(mode=0o700)
        except OSError:  # the cache cannot be written
            owned.close()
            self.root = Path(tempfile.mkdtemp(prefix="matrix-"))
        owned.callback(shutil.rmtree, self.root, ignore_errors=True)
        self._remove = weakref.finalize(self, owned.close)

    def __enter__(self) -> Self:
        """Return the directory itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the directory."""
        self._remove()


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories whose owners were killed on this machine."""
    for lease in parent.glob("*.lock.*"):
        lock = lease.with_suffix("")
        if is_abandoned(lock):
            with suppress(OSError):  # it may belong to another user
                if (root := lock.with_suffix("")).is_dir():
                    shutil.rmtree(root)
                lease.unlink(missing_ok=True)


def _lock(root: Path) -> Path:
    return root.with_suffix(".lock")
