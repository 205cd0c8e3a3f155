"""Write files so that a crash leaves either the old or the new file, never a partial one."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEMPORARY_PREFIX = ".tmp-"


@contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """Yield a new temporary file in the target's directory; remove it at the end if it still exists.

    A kill leaves a file whose name begins with `TEMPORARY_PREFIX`; all readers of these directories
    skip such files.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.parent / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}{target.suffix}"
    try:
        temporary.touch(mode=0o600, exist_ok=False)
    except OSError as error:
        error.filename = str(target)  # people do not know the temporary file
        raise
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def finish(temporary: Path) -> None:
    """Make a temporary file readable by all users and flush it to disk."""
    temporary.chmod(0o644)
    with temporary.open("rb") as written:
        os.fsync(written.fileno())


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to the target at the end.

    After an exception the target is unchanged and the temporary file removed.
    """
    target = target.resolve()  # a symbolic link stays one
    with temporary_sibling(target) as temporary:
        yield temporary
        finish(temporary)
        temporary.replace(target)


def link_exclusively(temporary: Path, target: Path) -> bool:
    """Rename a finished file to its final name; return False if the name exists already.

    A hard link fails if the name exists, even if another machine creates it at the same moment. On file
    systems without hard links, the name is checked just before the rename.
    """
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:
        if os.path.lexists(target):
            return False
        temporary.replace(target)
    return True


def link_or_copy(source: Path, target: Path) -> None:
    """Replace a file with a hard link to another one, or with a copy on another file system; atomic."""
    with temporary_sibling(target) as temporary:
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            shutil.copyfile(source, temporary)
            finish(temporary)
        temporary.replace(target)


def write_atomic(target: Path, text: str | bytes) -> None:
    """Write a file atomically, text as UTF-8; write directly to a device or pipe (``/dev/stdout``)."""
    data = text.encode() if isinstance(text, str) else text
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)


@contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock file; the kernel releases it when the process dies.

    Parameters
    ----------
    on_wait
        Called before waiting if another process holds the lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if on_wait is not None:
                on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
