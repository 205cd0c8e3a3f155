"""The list of readers, and `read`, which chooses one for a path by its name and first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from builders.machine.limited import limited
from matrix.reading import (
    conda_file,
    conda_list,
    easyconfig,
    installed,
    job_script,
    locks,
    pip_output,
    project,
    recipe,
    requirements,
)
from resolver.texts import read_text

if TYPE_CHECKING:
    from matrix.reading.items import Reading

_SECONDS = 20
"""CPU time for any text; real ones take less than one second."""
_HEAD = 4096
"""How much of a text the readers see to recognise it, in characters."""


class _Reader(Protocol):
    def recognises(self, name: str, head: str, /) -> bool: ...

    def read(self, text: str, name: str, /) -> Reading: ...


READERS: tuple[_Reader, ...] = (
    locks, project, easyconfig, conda_file, conda_list, pip_output, job_script, recipe, requirements,
)  # fmt: skip
"""In this order; the last one reads what no other recognises."""


def read(path: Path) -> Reading:
    """Read what a file, tree or image installs; nothing of it is executed.

    Raise `UsageError` if it cannot be read at all.
    """
    if installed.recognises(path):
        return installed.read(path)
    text = read_text(path, pipes=True)
    # What a reader returns cannot leave a child (ruamel.yaml). Read again here, it takes as little as there.
    limited(lambda: bool(read_described(text, str(path))), str(path), _SECONDS)
    return read_described(text, str(path))


def read_described(text: str, name: str) -> Reading:
    """Read a text that describes an environment."""
    reader = next(each for each in READERS if each.recognises(Path(name).name, text[:_HEAD]))
    return reader.read(text, name)
