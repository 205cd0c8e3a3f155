"""The pip of a target Python: in a small environment of its own, never in those that are built in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.cache import cache_root
from builders.containers.runtime import Bind, run_in
from builders.environments.kept import cache_errors, keep
from builders.environments.python import python_view
from resolver.errors import CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from pathlib import Path

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython


def pip_of(runtime: Runtime, python: TargetPython, *, log: Path) -> Path:
    """Give the directory of pip, as ensurepip installs it, which any Python of that version can run.

    ``python DIRECTORY install ...`` runs pip for the environment of that python: so does pip itself for
    its option ``--python`` (``pip/_internal/cli/main_parser.py``).

    Raises
    ------
    EnvironmentLacksError
        The Python cannot make an environment with pip.
    """
    root = cache_root() / "tools" / python.key(runtime)

    def make() -> None:
        view = python_view(python, binds=[Bind(root, writable=True)])
        command = [str(python.path), "-m", "venv", str(root)]
        try:
            with cache_errors():
                run_in(runtime, command, view, what=f"Making an environment with {python.path}", log=log)
        except CommandError as error:
            hint = f"It needs a venv module with pip; is `{python.path} -m ensurepip --version` all right?"
            raise EnvironmentLacksError(error.message, hint=hint) from None

    keep(root, make)
    return root / python.library / "pip"
