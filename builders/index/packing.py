"""One file of an index: a squashfs image that is mounted or bound where the wheels are needed."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from builders.files import atomic_path
from builders.process import run
from resolver.errors import DamagedIndexError, EnvironmentLacksError

if TYPE_CHECKING:
    from pathlib import Path

    from builders.index.store import Index

_MOST_NAMES = 3


def pack(index: Index, target: Path, *, log: Path) -> None:
    """Write an index into one squashfs file; thousands of small files weigh on a parallel file system.

    Wheels are compressed already, so they are stored; times and owners are constants, so the same
    index gives the same bytes.

    Parameters
    ----------
    target
        The file to write; an older one is replaced when the new one is whole.
    log
        Where the output of mksquashfs goes.

    Raises
    ------
    EnvironmentLacksError
        mksquashfs is not there.
    DamagedIndexError
        There is a link in the index, which would lead nowhere from the packed one.
    CommandError
        It failed; the error names the log.
    """
    program = shutil.which("mksquashfs")
    if program is None:
        msg = "mksquashfs is not on PATH, and packing an index into one file needs it."
        raise EnvironmentLacksError(msg, hint="It comes with squashfs-tools; without it, copy the directory.")
    links = [path for path in (index.simple, *sorted(index.simple.rglob("*"))) if path.is_symlink()]
    if links:
        named = ", ".join(str(path.relative_to(index.root)) for path in links[:_MOST_NAMES])
        more = f" and {len(links) - _MOST_NAMES} more" if len(links) > _MOST_NAMES else ""
        msg = f"Links would lead nowhere from the packed index: {named}{more}."
        raise DamagedIndexError(msg, hint="Put the files themselves there; matrix index check says more.")
    with atomic_path(target) as temporary:
        temporary.unlink()  # mksquashfs would append to what is there
        command = [
            program, str(index.root), str(temporary), "-no-progress", "-noappend", "-all-root",
            "-noI", "-noD", "-reproducible", "-mkfs-time", "0", "-all-time", "0",
            "-wildcards", "-e", ".matrix", "-e", "simple/*/.tmp-*",
        ]  # fmt: skip
        run(command, what=f"Packing {index.root}", log=log)
