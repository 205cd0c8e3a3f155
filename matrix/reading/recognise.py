"""The list of readers, and `read`, which chooses one for a path by its name and first bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from builders.machine.limited import limited
from matrix.reading import (
    conda_file,
    easyconfig,
    installed,
    job_script,
    listed,
    locks,
    project,
    recipe,
    requirements,
)
from resolver.errors import UsageError
from resolver.texts import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from matrix.reading.items import Reading

_SECONDS = 20
"""CPU time for any text; real ones take less than one second."""
_HEAD = 4096
"""How much of a text the readers see to recognise it, in characters."""


_UNREAD = {"Pipfile": "pipenv", "Pipfile.lock": "pipenv"}
"""Files that describe an environment and that no reader reads, with the program that does."""
READERS: tuple[ModuleType, ...] = (
    locks, project, easyconfig, job_script, recipe, conda_file, listed, requirements,
)  # fmt: skip
"""Modules with `recognises` and `read`, in this order; the last one reads what no other recognises.

Scripts and recipes come before what is recognised by its content: they may write such a file.
"""


def read(path: Path, extras: Sequence[str] = (), groups: Sequence[str] = ()) -> Reading:
    """Read what a file, tree or image installs; nothing of it is executed.

    Of a project, `extras` and dependency `groups` are read, too. Raise `UsageError` if it cannot be read at
    all.
    """
    if installed.recognises(path):
        return installed.read(path)
    text, name = read_text(path, pipes=True), str(path)
    return limited(lambda: read_described(text, name, extras, groups), name, _SECONDS)


def read_described(text: str, name: str, extras: Sequence[str] = (), groups: Sequence[str] = ()) -> Reading:
    """Read a text that describes an environment."""
    is_python = name.endswith(".py") and not project.recognises(name, text[:_HEAD])
    if program := "Python" if is_python else _UNREAD.get(Path(name).name):
        msg = f"{name} is not read: only {program} can say what it installs."
        raise UsageError(msg, hint="Name a file with the output of `pip freeze`, or a pyproject.toml.")
    reader = next(each for each in READERS if each.recognises(Path(name).name, text[:_HEAD]))
    if reader is project:
        return project.read(text, name, extras, groups)
    if extras or groups:
        msg = f"{name} is not a project, so it has no extras and no dependency groups."
        raise UsageError(msg, hint="Leave out --extra and --group.")
    reading: Reading = reader.read(text, name)
    return reading
