"""Explain disk-full and permission errors, of this program or of a program that it started."""

from __future__ import annotations

import errno
import os
import pwd
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builders.constants import DISK_FULL
from builders.storage.files import cache_root
from resolver.errors import (
    BuildError,
    CommandError,
    EnvironmentLacksError,
    MatrixError,
    UsageError,
)
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_WRITABLE = frozenset({errno.EACCES, errno.EIO, errno.ENOTDIR, errno.EPERM, errno.EROFS})

_CACHE_HINT = "Free some space, or set XDG_CACHE_HOME to a writable directory with more space."
_DISK_FULL_DIAGNOSES = {"disk-full", "quota"}
"""Ids in `builders.diagnosis` of a build whose own programs ran out of disk space."""
_LEAST_FREE = 1 << 20  # bytes; a program that fails with less free space failed because of it
_NO_THREAD = "can't start new thread"  # CPython raises a RuntimeError without a number (thread_run)
_PROCESSES_HINT = "Wait until other programs of this user have ended, or raise the limit with `ulimit -u`."
_UNUSABLE_NAMES = {
    errno.EISDIR: "is a directory, not a file",
    errno.ENAMETOOLONG: "is too long for a file name",
}


# Other programs report these errors as text only.
_DISK_FULL_TEXTS = [os.strerror(number) for number in DISK_FULL]
_READ_ONLY_TEXT = os.strerror(errno.EROFS)


class DiskFullError(EnvironmentLacksError):
    """A directory that is written to has no space left."""

    def __init__(self, directory: Path, label: str, reason: str, *, hint: str) -> None:
        super().__init__(f"No space left in {_title(directory, label)}: {reason.rstrip('.')}.", hint=hint)
        self.directory = directory
        self.reason = reason


@contextmanager
def explain_io_errors(directory: Path, label: str = "", *, hint: str) -> Iterator[None]:
    """Raise `EnvironmentLacksError` if `directory`, named `label` in the message, is full or not writable."""
    try:
        yield
    except (OSError, CommandError) as error:
        if isinstance(error, OSError):
            explained = _explain_os_error(error, directory, label, hint)
        else:
            explained = _explain_command_error(error, directory, label, hint)
        if explained is None:
            raise
        raise explained from None


@contextmanager
def explain_cache_errors() -> Iterator[None]:
    """Raise `EnvironmentLacksError` if the cache turns out to be full or not writable."""
    with explain_io_errors(cache_root(), "cache", hint=_CACHE_HINT):
        yield


@contextmanager
def explain_index_errors(index: Path, work: Path) -> Iterator[None]:
    """Raise `EnvironmentLacksError` if an index is full, also for a build in it, or not writable.

    `work` is the build directory below the index. It is removed when the disk is full.
    """
    hint = (
        "Free some space, such as with `matrix index prune --builds`, which removes the directories of "
        "unfinished builds, or choose another directory: --index DIR."
    )
    try:
        with explain_io_errors(index, "index", hint=hint):
            yield
    except DiskFullError as error:
        if not error.directory.is_relative_to(index):
            raise
        shutil.rmtree(work, ignore_errors=True)
        raise DiskFullError(index, "index", error.reason, hint=hint) from None
    except BuildError as error:
        if not any(finding.id in _DISK_FULL_DIAGNOSES for finding in error.findings[:1]):
            raise
        shutil.rmtree(work, ignore_errors=True)
        explained = DiskFullError(index, "index", error.message, hint=hint)
        explained.details = error.details
        raise explained from None


def explain_any_lack(error: Exception) -> MatrixError | None:
    """Return the error to report for an exception that nothing explained; None if it is a bug."""
    if isinstance(error, BlockingIOError) or str(error) == _NO_THREAD:
        return EnvironmentLacksError("No more processes or threads can be started.", hint=_PROCESSES_HINT)
    if isinstance(error, MemoryError):
        return EnvironmentLacksError("Out of memory.", hint="Run this where more memory is available.")
    if isinstance(error, OSError):
        return explain_any_os_error(error)
    if isinstance(error, RuntimeError) and not _has_home():
        return EnvironmentLacksError("This user has no home directory.", hint="Set HOME to a directory.")
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":  # it has every other character
        path = os.fsencode(error.object).decode(errors="backslashreplace")
        msg = f"A name is not valid UTF-8: {shorten(path)}."
        return EnvironmentLacksError(msg, hint="Rename the file or directory.")
    return None


def explain_any_os_error(error: OSError) -> MatrixError:
    """Return the error to report for an `OSError` that no other code explained."""
    path = str(error.filename or "")
    in_cache = bool(path) and _is_in_cache(Path(path))
    if path and error.errno in _UNUSABLE_NAMES and not in_cache:
        return UsageError(f"{shorten(path)} {_UNUSABLE_NAMES[error.errno]}.", hint="Name another file.")
    reason = f"{error.strerror or error}: {path}." if path else f"{error.strerror or error}."
    if path and error.errno in DISK_FULL and not in_cache:
        return DiskFullError(Path(path).parent, "", reason, hint="Free some space there.")
    if error.errno == errno.ENOENT and _is_directory_deleted():
        return EnvironmentLacksError(
            "The working directory was deleted.", hint="Change to another directory."
        )
    return EnvironmentLacksError(reason, hint=f"This is the cache. {_CACHE_HINT}" if in_cache else "")


def _has_home() -> bool:
    try:
        Path.home()
    except RuntimeError:
        return False
    return True


def _is_directory_deleted() -> bool:
    try:
        os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return True
    return False


def _is_in_cache(path: Path) -> bool:
    try:
        return path.is_relative_to(cache_root())
    except RuntimeError:  # no home directory
        return False


def _explain_os_error(error: OSError, directory: Path, label: str, hint: str) -> EnvironmentLacksError | None:
    path = (
        Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes | os.PathLike) else None
    )
    if path is not None and path.is_absolute() and not path.is_relative_to(directory):
        return None
    reason = f"{error.strerror} ({path})" if path is not None else str(error.strerror)
    if error.errno in DISK_FULL:
        return DiskFullError(directory, label, reason, hint=hint)
    if error.errno in {errno.EACCES, errno.EPERM}:
        return _not_writable(directory, label, reason, _of_another_user(path or directory) or hint)
    if error.errno in NOT_WRITABLE:
        return _not_writable(directory, label, reason, hint)
    return None


def _of_another_user(path: Path) -> str:
    """Return what to do if a directory belongs to another user; empty if it is the user's own."""
    owned = next((each for each in (path, *path.parents) if each.exists()), path)
    if owned.is_file():
        owned = owned.parent
    owner = owned.stat().st_uid if owned.exists() else os.getuid()
    if owner == os.getuid():
        return ""
    return f"{owned} belongs to {_name_of(owner)}, who can let the group write: chmod -R g+rwX {owned}"


def _name_of(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return f"user {user}"


def _explain_command_error(
    error: CommandError, directory: Path, label: str, hint: str
) -> EnvironmentLacksError | None:
    output = "\n".join(error.lines)
    # Some programs only report that they failed.
    if (
        error.code == -signal.SIGXFSZ
        or any(text in output for text in _DISK_FULL_TEXTS)
        or _free_bytes(directory) < _LEAST_FREE
    ):
        return DiskFullError(directory, label, error.message, hint=hint)
    if _READ_ONLY_TEXT in output:
        return _not_writable(directory, label, error.message, hint)
    return None


def _not_writable(directory: Path, label: str, reason: str, hint: str) -> EnvironmentLacksError:
    return EnvironmentLacksError(f"Cannot write to {_title(directory, label)}: {reason}.", hint=hint)


def _title(directory: Path, label: str) -> str:
    return f"the {label} {directory}" if label else str(directory)


def _free_bytes(directory: Path) -> int:
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return _LEAST_FREE


def not_an_index(path: Path) -> UsageError:
    """Return the error for a directory that a user named as an index."""
    message = f"{path} is not an index: it has no directory simple/."
    return UsageError(message, hint="`matrix build-wheels` creates one; name its path with --index.")
