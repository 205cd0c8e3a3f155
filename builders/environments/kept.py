"""Directories of the cache that are made once and shared: complete, or not there.

A kept directory is complete when its marker is there, which is written last; what a kill left is
thrown away and made again. Complete ones are read-only and need neither a lock nor a cache that can
be written, so that a site can share its cache.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from builders.cache import cache_root
from builders.files import FULL, only_one, write_atomic
from resolver.errors import CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_MARKER = "matrix-complete.json"
_REFUSED = {errno.EROFS, errno.EACCES, errno.EPERM}
_FULL_WORDS = re.compile("|".join(re.escape(os.strerror(number)) for number in sorted(FULL)))
_REFUSED_WORDS = re.compile(re.escape(os.strerror(errno.EROFS)))
_NO_ROOM = 1 << 20  # bytes; whatever failed with less free failed for that
_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def digest(*parts: Any) -> str:  # noqa: ANN401  whatever JSON can hold
    """Give the name of a kept directory from all that decides what is in it."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def is_complete(root: Path) -> bool:
    """Tell whether a kept directory is there, whole."""
    return (root / _MARKER).exists()


def keep(root: Path, make: Callable[[], None]) -> None:
    """Make a directory unless it is complete.

    Parameters
    ----------
    root
        The directory; its final path, since environments hold their own path.
    make
        Fills it; called with the directory empty and nobody else at it.

    Raises
    ------
    EnvironmentLacksError
        The cache is full or cannot be written.
    """
    if is_complete(root):
        return
    with cache_errors(), only_one(root.parent / f"{root.name}.lock"):
        if is_complete(root):
            return
        remove(root)
        root.mkdir()
        try:
            make()
            for directory, _, files in os.walk(root, topdown=False):
                for name in files:
                    _freeze(os.path.join(directory, name))  # noqa: PTH118  many thousand files
                if directory != str(root):
                    _freeze(directory)
            write_atomic(root / _MARKER, "{}\n")
            _freeze(str(root))
        except BaseException:
            remove(root)
            raise


def remove(root: Path) -> None:
    """Remove a directory whose files and directories may be read-only."""
    if not root.exists():
        return
    for directory, _, _ in os.walk(root):
        os.chmod(directory, stat.S_IRWXU)  # noqa: PTH101  as os.walk gives it
    shutil.rmtree(root)


def _freeze(path: str) -> None:
    mode = os.lstat(path).st_mode
    if not stat.S_ISLNK(mode):
        os.chmod(path, stat.S_IMODE(mode) & ~_WRITE)  # noqa: PTH101  many thousand files


@contextmanager
def cache_errors() -> Iterator[None]:
    """Turn what the system or a program says of a full or read-only cache into words for a person.

    Raises
    ------
    EnvironmentLacksError
        The cache is full or cannot be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise _no_room(str(error)) from None
        if error.errno in _REFUSED:
            raise _not_writable(str(error)) from None
        raise
    except CommandError as error:
        # ensurepip says only that something failed.
        if any(_FULL_WORDS.search(line) for line in error.lines) or _room() < _NO_ROOM:
            raise _no_room(error.message) from None
        if any(_REFUSED_WORDS.search(line) for line in error.lines):
            raise _not_writable(error.message) from None
        raise


def _room() -> int:
    """Give the bytes that are free where the cache is; many where that cannot be seen."""
    try:
        return shutil.disk_usage(cache_root()).free
    except OSError:
        return _NO_ROOM


def _no_room(what: str) -> EnvironmentLacksError:
    msg = f"There is no room left for the cache {cache_root()}: {what}"
    hint = "Free some space, or let XDG_CACHE_HOME name a directory with more; what was half made is removed."
    return EnvironmentLacksError(msg, hint=hint)


def _not_writable(what: str) -> EnvironmentLacksError:
    msg = f"The cache {cache_root()} cannot be written: {what}"
    return EnvironmentLacksError(msg, hint="Let XDG_CACHE_HOME name a directory that can be written.")
