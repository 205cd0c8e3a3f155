"""Write files so that a crash leaves the old or the new file, with modes that suit shared directories.

The umask decides about modes, as for any program. One case is different: a directory with the set-group-ID
bit that its group can write is meant to be shared. New files in it also get the permissions of that group,
because a umask such as 027 would otherwise lock out the other members.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builders.constants import DISK_FULL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.facts.schema import Sdist
    from resolver.indexes import File


TEMPORARY_PREFIX = ".tmp-"

ABANDONED = 3600.0
"""Age in seconds from which a temporary file counts as abandoned."""
_FILE_RIGHTS = stat.S_IRGRP | stat.S_IWGRP
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def create_file(path: Path) -> int:
    """Create a file that must not exist yet, and return a descriptor to read and write it."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    share(file, path.parent.stat())
    return file


def is_shared(folder: os.stat_result) -> bool:
    """Return whether a directory is meant for all members of its group."""
    return bool(folder.st_mode & stat.S_ISGID and folder.st_mode & stat.S_IWGRP)


def share(file: int, parent: os.stat_result) -> None:
    """Add the group permissions of a shared directory to a new file or directory in it."""
    if not is_shared(parent):
        return
    mode = os.fstat(file).st_mode
    rights = parent.st_mode & (stat.S_IRWXG if stat.S_ISDIR(mode) else _FILE_RIGHTS)
    os.fchmod(file, stat.S_IMODE(mode) | rights)


def share_finished(path: Path) -> None:
    """Give the group of a shared directory the owner's rights to read and execute what a program made in it.

    Links are not followed.
    """
    if not is_shared(path.parent.stat()):
        return
    for each in (path, *(path.rglob("*") if path.is_dir() else ())):
        mode = each.lstat().st_mode
        if not stat.S_ISLNK(mode):
            each.chmod(stat.S_IMODE(mode) | (mode & (stat.S_IRUSR | stat.S_IXUSR)) >> 3)


def make_directories(path: Path) -> None:
    """Create a directory and its parents unless they exist."""
    if path.is_dir():
        return
    if path.parent != path:
        make_directories(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():
            raise
        return
    made = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        share(made, path.parent.stat())
    finally:
        os.close(made)


def make_read_only(path: str | Path) -> None:
    """Remove all write permissions of a file or directory; a link is not followed."""
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        os.chmod(path, stat.S_IMODE(mode) & ~_WRITE)  # noqa: PTH101  used for many thousands of files


@contextmanager
def temporary_sibling(target: Path) -> Iterator[Path]:
    """Yield a new temporary file in the target's directory; remove it at the end if it still exists.

    Readers of these directories skip names that begin with `TEMPORARY_PREFIX`, which killed processes leave.
    Errors about the file name the target, which users know.
    """
    make_directories(target.parent)
    temporary = target.parent / f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}{target.suffix}"
    try:
        os.close(create_file(temporary))
        try:
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        if error.filename in {None, temporary, str(temporary)}:
            error.filename = str(target)
        raise


def flush(path: Path) -> None:
    """Write a file to disk; errors that were delayed, such as an exceeded quota, appear here."""
    with path.open("rb") as written:
        os.fsync(written.fileno())


def copy_file(source: Path, target: Path) -> None:
    """Copy the content of a file. If the disk is full, the error names the target, not the source."""
    import shutil

    try:
        shutil.copyfile(source, target)
    except OSError as error:
        if error.errno in DISK_FULL:
            error.filename = str(target)
        raise


@contextmanager
def atomic_path(target: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to the target at the end; after an exception, it is removed."""
    with temporary_sibling(target.resolve()) as temporary:  # a symbolic link is kept
        yield temporary
        flush(temporary)
        temporary.replace(target.resolve())


def link_or_copy(source: Path, target: Path) -> None:
    """Replace a file atomically with a hard link to another file, or with a copy on another file system."""
    with temporary_sibling(target) as temporary:
        # A link needs a free name.
        temporary.unlink()
        try:
            os.link(source, temporary)
        except OSError:
            copy_file(source, temporary)
            # Before the rename: after a crash, the name must not lead to an empty file.
            flush(temporary)
        temporary.replace(target)


def replace_file(target: Path, data: bytes, *, flushed: bool = True) -> None:
    """Write a file atomically. A link of that name is replaced, not followed.

    What is worth nothing after a power failure need not be `flushed`, which takes milliseconds.
    """
    with temporary_sibling(target) as temporary:
        temporary.write_bytes(data)
        if flushed:
            flush(temporary)
        temporary.replace(target)


def write_atomic(target: Path, text: str | bytes) -> None:
    """Write a file atomically, text as UTF-8. Write directly to a device or pipe (``/dev/stdout``)."""
    data = text.encode() if isinstance(text, str) else text
    if target.exists() and not target.is_file():
        target.write_bytes(data)
        return
    replace_file(target.resolve(), data)  # a symbolic link is kept
    _remove_abandoned(target.resolve())


def _remove_abandoned(target: Path) -> None:
    """Remove the temporary files with a target's ending that killed commands left in its directory."""
    for path in target.parent.glob(f"{TEMPORARY_PREFIX}{'[0-9a-f]' * 16}{target.suffix}"):
        with suppress(OSError):  # another process was faster, or it belongs to another user
            if path.lstat().st_mtime < time.time() - ABANDONED:
                path.unlink()


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


class NotRegularError(OSError):
    """A path is a link, a pipe, a device, a socket or a directory, not a file."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(errno.EINVAL, "Not a regular file", str(path))


def open_regular(path: str | Path, *, directory: int | None = None) -> int:
    """Open a file that strangers can replace, without following links or waiting for pipes.

    `directory` is the descriptor of that of a relative path. Raise `NotRegularError` if it is not a regular
    file.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO}:
            raise NotRegularError(path) from None
        raise
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotRegularError(path)
    return file


def make_readable(path: Path) -> None:
    """Set the mode of another program's file: the mode of a new file, without write permission."""
    # The umask cannot be read without changing it, for all threads. So a new file shows what it allows.
    sample = path.with_name(f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}")
    file = create_file(sample)
    path.chmod(stat.S_IMODE(os.fstat(file).st_mode))
    os.close(file)
    sample.unlink()
    make_read_only(path)


def remove_tree(root: Path) -> None:
    """Remove a directory, even if directories in it are read-only or belong to another user.

    If it cannot be removed, it is renamed to begin with `TEMPORARY_PREFIX`, which frees its name.
    """
    import shutil

    if not os.path.lexists(root):
        return
    try:
        for directory, _, _ in os.walk(root):
            os.chmod(directory, stat.S_IRWXU)  # noqa: PTH101  many thousand files
        shutil.rmtree(root)
    except PermissionError:
        root.rename(root.with_name(f"{TEMPORARY_PREFIX}{os.urandom(8).hex()}"))


def cache_root() -> Path:
    """Return ``$XDG_CACHE_HOME/matrix`` (XDG Base Directory Specification 0.8; ``~/.cache/matrix``)."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "matrix"


def sdist_path(pin: Sdist) -> Path:
    """Return the path of a pinned sdist in the cache, whether or not it exists."""
    return cache_root() / "sources" / pin.sha256[:16] / pin.file


def cached_file(file: File) -> Path:
    """Return the path of a file of a lock in the cache, whether or not it exists."""
    key = file.sha256
    if not key:
        key = f"url-{hashlib.sha256(file.url.encode()).hexdigest()}"
    return cache_root() / "wheels" / key / Path(file.name).name
