"""Layers: wheels installed once into a read-only directory of the cache, linked by many environments.

A layer is an environment of its own without pip, so that its programs (``ninja``, ``cmake``) run with
their own packages. Another environment uses it through a ``.pth`` file that calls `site.addsitedir`:
its packages come after the environment's own, are seen by `importlib.metadata`, and its own ``.pth``
files count too (setuptools has one, without which there is no distutils).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders.cache import cache_root
from builders.containers.place import Bind, run_in
from builders.environments.kept import cache_errors, digest, keep
from builders.environments.piptool import pip_of
from builders.environments.python import python_view
from builders.environments.wheelhouse import damaged
from builders.run import CommandError
from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from builders.containers.place import Place, View
    from builders.environments.python import TargetPython
    from builders.environments.wheelhouse import Wheel

LINK = "matrix-layers.pth"


@dataclass(frozen=True, slots=True)
class Layer:
    """Installed wheels."""

    root: Path
    packages: Path
    """Its site-packages."""
    wheels: tuple[Wheel, ...]


def make_layer(
    place: Place,
    python: TargetPython,
    wheels: Sequence[Wheel],
    *,
    over: Sequence[Layer] = (),
    log: Path,
    say: Callable[[str], None],
) -> Layer:
    """Install wheels into a layer, or take it from the cache; the network is off.

    Parameters
    ----------
    place, python
        What it is for: each base image and Python has its own.
    wheels
        What is in it.
    over
        Layers that its programs see besides.

    Raises
    ------
    EnvironmentLacksError
        A wheel in the cache is damaged, or the layer cannot be made.
    """
    key = digest(python.key(place), sorted(one.sha256 for one in wheels), [one.root.name for one in over])
    root = cache_root() / "layers" / key
    layer = Layer(root, root / python.library, tuple(wheels))

    def make() -> None:
        _refuse_damaged(wheels)
        first = next((one for one in wheels if "+" in one.version), wheels[0])
        more = f" and {len(wheels) - 1} more" if len(wheels) > 1 else ""
        say(f"install {first.name} {first.version}{more}, once for all builds with this Python and image")
        new_environment(place, python, root, over, log=log)
        install(place, python, root, [one.path for one in wheels], log=log)

    keep(root, make)
    return layer


def new_environment(
    place: Place, python: TargetPython, root: Path, layers: Sequence[Layer], *, log: Path
) -> None:
    """Make an environment without pip that sees layers, the first of them first.

    Raises
    ------
    EnvironmentLacksError
        The Python cannot make one.
    """
    root.mkdir(parents=True, exist_ok=True)
    view = python_view(python, binds=[Bind(root, writable=True)])
    command = [str(python.path), "-m", "venv", "--without-pip", str(root)]
    _run(place, command, view, what=f"Making an environment with {python.path}", log=log)
    packages = root / python.library
    lines = [f"import site; site.addsitedir({str(layer.packages)!r})\n" for layer in layers]
    (packages / LINK).write_text("".join(lines), encoding="utf-8")


def install(
    place: Place,
    python: TargetPython,
    root: Path,
    wheels: Sequence[Path],
    *,
    log: Path,
    compiled: bool = True,
) -> None:
    """Install wheel files, and nothing else, into an environment.

    Raises
    ------
    EnvironmentLacksError
        pip refuses one.
    """
    pip = pip_of(place, python, log=log)
    binds = [Bind(root, writable=True), Bind(pip.parent), *(Bind(one.parent) for one in wheels)]
    view = python_view(python, binds=binds)
    command = [
        str(root / "bin" / "python"), str(pip), "install", "--isolated", "--no-index", "--no-deps",
        "--no-cache-dir", "--disable-pip-version-check", "--ignore-installed", "--no-warn-script-location",
        "--compile" if compiled else "--no-compile", *map(str, wheels),
    ]  # fmt: skip
    _run(place, command, view, what=f"Installing {', '.join(one.name for one in wheels)}", log=log)


def _run(place: Place, command: Sequence[str], view: View, *, what: str, log: Path) -> None:
    try:
        with cache_errors():
            run_in(place, command, view, what=what, log=log)
    except CommandError as error:
        raise EnvironmentLacksError(error.message, hint="The log says what was missing.") from None


def _refuse_damaged(wheels: Sequence[Wheel]) -> None:
    bad = damaged(wheels)
    if bad:
        named = ", ".join(one.file for one in bad)
        msg = f"The cache no longer holds what was fetched: {named}. The damaged files were removed."
        raise EnvironmentLacksError(msg, hint="Run the same command again with network to fetch them again.")
