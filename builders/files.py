"""Writing files so that a crash leaves either the old or the new one, never half of it."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEMPORARY_PREFIX = ".tmp-"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""What the system says where there is no room."""
REFUSED = frozenset({errno.EACCES, errno.EIO, errno.ENOTDIR, errno.EPERM, errno.EROFS})
"""What it says of a place that cannot be written, however much room there is."""


@contextmanager
def temporary_beside(target: Path) -> Iterator[Path]:
    """Give a temporary path in the target's directory, removed at the end if it is still there.

    A kill leaves a file that begins with `TEMPORARY_PREFIX`, which every reader of these
    directories passes over.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=TEMPORARY_PREFIX, suffix=target.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def finish(temporary: Path) -> None:
    """Make a temporary file readable by all and see that its content is on the disk."""
    temporary.chmod(0o644)
    with temporary.open("rb") as written:
        os.fsync(written.fileno())


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Give a temporary path beside the target, which takes the target's name at the end.

    On an exception the temporary file is removed and the target stays as it was.
    """
    target = target.resolve()  # through a symbolic link, so that the link itself stays
    with temporary_beside(target) as temporary:
        yield temporary
        finish(temporary)
        temporary.replace(target)


def place_exclusively(temporary: Path, target: Path) -> bool:
    """Give a finished file its name unless the name is taken; tell whether it got it.

    A hard link fails if the name exists, also against a writer on another machine; where a file
    system knows no hard links, the name is looked up just before the rename.
    """
    try:
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError:
        if target.exists():
            return False
        temporary.replace(target)
    return True


def write_atomic(target: Path, text: str | bytes) -> None:
    """Write a file atomically, text as UTF-8; a device or a pipe (``/dev/stdout``) is just written to."""
    data = text.encode() if isinstance(text, str) else text
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    with atomic_path(target) as temporary:
        temporary.write_bytes(data)


@contextmanager
def only_one(path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Let one process at a time do what the lock file stands for; the kernel lets go when it dies.

    Parameters
    ----------
    path
        The lock file.
    waiting
        Called if another process is at it, before it is waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def sha256_of(path: Path) -> str:
    """Give the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
