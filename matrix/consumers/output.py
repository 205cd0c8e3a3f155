"""The files of a consumer: one that it is named by, and companions beside that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builders.files import write_atomic
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOUNTED = Path("/mnt")
"""Where the index is bound while a container is built: base images have that directory."""
MOUNTED_INDEX = f"file://{MOUNTED}/simple"
MARK = "written by `matrix env"
"""Stands at the top of every file, and tells ours from a person's of the same name."""
_HEAD = 1000  # bytes in which the mark is looked for


@dataclass(frozen=True, slots=True)
class File:
    """A file to be written."""

    name: str
    text: str
    executable: bool = False


@dataclass(frozen=True, slots=True)
class Where:
    """Where the files will stand, and where the index is."""

    main: str
    """Name of the main file."""
    index: Path
    """The index directory of this machine, with every symbolic link followed."""
    url: str = ""
    """The index as the consumer sees it, if the user names it."""

    @property
    def local_url(self) -> str:
        """URL of the index by its own path: for whoever sees the file systems of this machine."""
        return self.url or (self.index / "simple").as_uri()

    @property
    def mounted_url(self) -> str:
        """URL of the index where it is bound into a container."""
        return self.url or MOUNTED_INDEX


def split(output: Path, default: str) -> tuple[Path, str]:
    """Give directory and name of the main file.

    Parameters
    ----------
    output
        What ``-o`` names: a directory that is there, or a file.
    default
        The consumer's own name for the file.
    """
    return (output, default) if output.is_dir() else (output.parent, output.name)


def write_files(files: Sequence[File], folder: Path, *, named: bool) -> list[Path]:
    """Write all files or, where one would replace what somebody else wrote, none.

    Parameters
    ----------
    files
        The main file, then its companions.
    folder
        Where to.
    named
        Whether the user named the main file, which then may be replaced whatever it is.

    Returns
    -------
    list of Path
        What was written.

    Raises
    ------
    UsageError
        A file of that name is there, and it is not ours.
    """
    paths = [folder / file.name for file in files]
    for path in paths[1:] if named else paths:
        if path.is_dir() or (path.exists() and not _is_ours(path)):
            msg = f"{path} is there and was not written by this command, so it is left as it is."
            raise UsageError(msg, hint="Move it away, or name a directory of its own with -o DIR.")
    for file, path in zip(files, paths, strict=True):
        write_atomic(path, file.text)
        if file.executable and path.is_file():
            path.chmod(0o755)
    return paths


def _is_ours(path: Path) -> bool:
    with path.open("rb") as source:
        return MARK.encode() in source.read(_HEAD)
