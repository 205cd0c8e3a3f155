"""What is wrong in an index, and where that is kept which was taken out for it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from resolver.errors import MatrixError

if TYPE_CHECKING:
    from pathlib import Path

    from builders.index.directory import Directory


MEND = "matrix index check --repair puts it aside."


class DamagedIndexError(MatrixError):
    """An index holds what it should not, or says what is not so."""

    id: ClassVar[str] = "index-damaged"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing that is wrong in an index."""

    id: str
    path: str
    """Relative to the index."""
    text: str
    repaired: str = ""
    """What was done about it; empty if nothing was."""


def put_aside(index: Directory, damage: Damage) -> Damage:
    """Take what is damaged out of the index, and keep it for whoever wants to look."""
    return replace(damage, repaired=f"put aside as {aside(index, index.root / damage.path)}")


def aside(index: Directory, source: Path) -> str:
    """Move a file to where damaged ones are kept, over none of them; give its place in the index."""
    folder = index.state / "damaged"
    folder.mkdir(parents=True, exist_ok=True)
    target, number = folder / source.name, 0
    while os.path.lexists(target):
        number += 1
        target = folder / f"{source.name}.{number}"
    source.rename(target)
    return str(target.relative_to(index.root))
