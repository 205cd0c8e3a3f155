"""Open the files and directories of an index without following links.

Every user who can write to a shared index can put a link, a pipe or a device in the place of a page or a
wheel. Links are not followed, so that no user can make another user read or write a file elsewhere. Pipes
are not opened, because a program could wait for one forever. The path of the index itself may contain links.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from builders.storage.files import NotRegularError, make_directories, open_regular, share
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@contextmanager
def directory(root: Path, path: Path, *, create: bool = False) -> Iterator[Path]:
    """Open a directory below an index, or create it, and yield a path that leads to it.

    Raise `MatrixError` if a part of the path is a link or a file. Errors name the real paths of files in it.
    """
    if create:
        make_directories(root)
    opened = os.open(root, _DIRECTORY)
    try:
        at = root
        for name in path.relative_to(root).parts:
            at /= name
            inner = _enter(opened, name, at, create=create)
            os.close(opened)
            opened = inner
        # The descriptor leads to the same directory even if another user replaces this one, or one above it,
        # with a link.
        through = f"/proc/self/fd/{opened}"
        try:
            yield Path(through)
        except OSError as error:
            _rename_in(error, through, path)
            raise
    finally:
        os.close(opened)


def _enter(parent: int, name: str, path: Path, *, create: bool) -> int:
    made = False
    if create:
        try:
            os.mkdir(name, dir_fd=parent)
            made = True
        except FileExistsError:
            pass
        except OSError as error:
            error.filename = str(path)
            raise
    try:
        # Below the descriptor of its parent, not by a path whose parts could be replaced in the meantime.
        opened = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            refuse(path, "is a link or a file, but must be a directory")
        error.filename = str(path)
        raise
    if made:
        share(opened, os.fstat(parent))
    return opened


def refuse(path: Path, problem: str) -> NoReturn:
    """Raise the error for a file that does not belong in an index."""
    msg = f"{path} {problem}."
    raise MatrixError(
        msg, hint="List all problems of the index with `matrix index check`.", id="index-damaged"
    )


def _rename_in(error: OSError, through: str, path: Path) -> None:
    for attribute in ("filename", "filename2"):
        value = getattr(error, attribute)
        if value is not None and os.fsdecode(value).startswith(through):
            setattr(error, attribute, str(path) + os.fsdecode(value).removeprefix(through))


NOT_A_FILE = (FileNotFoundError, NotADirectoryError, NotRegularError)
"""Exceptions of `open_regular` if there is no regular file."""


def read_regular(path: Path, *, largest: int) -> bytes:
    """Return the content of a file; empty if it does not exist or has more than `largest` bytes."""
    try:
        file = open_regular(path)
    except NOT_A_FILE:
        return b""
    with os.fdopen(file, "rb") as source:
        content = source.read(largest + 1)
    return content if len(content) <= largest else b""


def sha256_of_regular(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal; empty if it is missing or not a regular file."""
    try:
        file = open_regular(path)
    except NOT_A_FILE:
        return ""
    with os.fdopen(file, "rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def is_regular(path: Path) -> bool:
    """Return whether a path is a regular file, and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
