"""A base image: a file or an unpacked directory, known by its digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path  # noqa: TC003


@dataclass(frozen=True, slots=True)
class Image:
    """A base image on this machine."""

    name: str
    """As the catalog and the lock name it."""
    path: Path
    """The real file or directory, with no symbolic link left: sites repoint theirs without warning."""
    sha256: str
    """Of the file."""
