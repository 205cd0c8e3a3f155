"""Create files and directories with modes that suit shared directories.

The umask decides, as for any program. One case is different: a directory with the set-group-ID bit that its
group can write is meant to be shared. New files in it also get the permissions of that group, because a umask
such as 027 would otherwise lock out the other members.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

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
    """Let the group of a shared directory read and start what another program made in it, whatever the umask.

    The group gets the owner's rights to read and to execute, not to write. Links are not followed.
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
