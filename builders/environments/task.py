"""Environments on top of layers: one to build in, one to try a wheel in; both made in a moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builders.containers.runtime import Bind, View
from builders.environments.kept import remove
from builders.environments.layer import make_layer, populate
from builders.environments.python import QUIET
from builders.environments.wheelhouse import fetch_wheels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from builders.containers.runtime import Runtime
    from builders.environments.layer import Layer
    from builders.environments.python import TargetPython
    from builders.environments.wheelhouse import Wheel, Wheelhouse
    from resolver.reporter import Reporter


@dataclass(frozen=True, slots=True)
class BuildEnvironment:
    """An environment that was made and answered."""

    root: Path
    path: tuple[Path, ...]
    """Directories for PATH: its own programs first, then those of its layers."""
    binds: tuple[Bind, ...]
    """What it needs of this machine: its Python and its layers, which are read-only, and itself."""
    installed: dict[str, str]
    """Every distribution that it sees, with its version, as its own Python lists them."""
    wheels: dict[str, str]
    """The wheel files that it was made from, with their SHA-256."""

    @property
    def python(self) -> Path:
        """Its interpreter, as the place knows it."""
        return self.root / "bin" / "python"

    @property
    def view(self) -> View:
        """What a program that runs in it sees at least; the network is off."""
        return View(env={**QUIET, "VIRTUAL_ENV": str(self.root)}, path=self.path, binds=self.binds)


@dataclass(frozen=True, slots=True)
class Layers:
    """What the builds of one set share."""

    torch: Layer | None
    requirements: Layer | None

    @property
    def all(self) -> tuple[Layer, ...]:
        """In the order in which packages are looked up: what a build asked for shadows torch's needs."""
        return tuple(one for one in (self.requirements, self.torch) if one is not None)


@dataclass(frozen=True, slots=True)
class Fetching:
    """Where wheels come from, and who is told."""

    log: Path
    reporter: Reporter
    indexes: Sequence[str] = ()
    mirrored: Callable[[str], str] = str
    offline: bool = False


def fetch_for(
    runtime: Runtime, python: TargetPython, *, torch: str | None, requirements: Sequence[str], how: Fetching
) -> tuple[Wheel, ...]:
    """Fetch the wheels of the torch layer and of the build requirements: all of a build's network.

    Parameters
    ----------
    torch
        Pinned with its local version label, such as ``torch==2.9.1+rocm6.4``; None without torch.
    requirements
        The build requirements besides torch.

    Raises
    ------
    EnvironmentLacksError
        Something could not be had.
    """
    base, rest = _houses(runtime, python, torch, requirements, how)
    return tuple(one for house in (base, rest) if house is not None for one in house.wheels)


def make_layers(
    runtime: Runtime, python: TargetPython, *, torch: str | None, requirements: Sequence[str], how: Fetching
) -> Layers:
    """Give the layers of a build, made from fetched wheels if they are not there.

    Raises
    ------
    EnvironmentLacksError
        Something could not be had, or there is no room.
    """
    base, rest = _houses(runtime, python, torch, requirements, how)
    lower = make_layer(runtime, python, base.wheels, log=how.log, reporter=how.reporter) if base else None
    over = [lower] if lower is not None and rest is not None and rest.above else []
    upper = (
        make_layer(runtime, python, rest.wheels, over=over, log=how.log, reporter=how.reporter)
        if rest
        else None
    )
    return Layers(lower, upper)


def _houses(
    runtime: Runtime, python: TargetPython, torch: str | None, requirements: Sequence[str], how: Fetching
) -> tuple[Wheelhouse | None, Wheelhouse | None]:
    def fetch(wanted: Sequence[str], indexes: Sequence[str], over: Sequence[Wheel] = ()) -> Wheelhouse:
        return fetch_wheels(
            runtime,
            python,
            wanted,
            log=how.log,
            reporter=how.reporter,
            indexes=indexes,
            mirrored=how.mirrored,
            over=over,
            offline=how.offline,
        )

    if torch is None:
        return None, fetch(requirements, how.indexes) if requirements else None
    base = fetch([torch], how.indexes)
    # torch's own index holds old copies of common build requirements as well: they come from elsewhere.
    return base, fetch(requirements, (), base.wheels) if requirements else None


def task_environment(
    runtime: Runtime, python: TargetPython, layers: Sequence[Layer], *, root: Path, log: Path
) -> BuildEnvironment:
    """Make the environment of one build.

    Parameters
    ----------
    layers
        What it sees, the first of them first.
    root
        Where it is made; what is there is removed. Its directory must exist.

    Raises
    ------
    EnvironmentLacksError
        It cannot be made.
    """
    return fresh_environment(runtime, python, layers, (), root=root, log=log)


def fresh_environment(
    runtime: Runtime,
    python: TargetPython,
    layers: Sequence[Layer],
    wheels: Sequence[Path],
    *,
    root: Path,
    log: Path,
) -> BuildEnvironment:
    """Make an environment with wheel files installed on top of layers, to try them in.

    Raises
    ------
    EnvironmentLacksError
        It cannot be made, or pip refuses a wheel.
    """
    remove(root)
    installed = populate(runtime, python, root, layers, wheels, log=log)
    path = (root / "bin", *(one.root / "bin" for one in layers))
    binds = (*python.binds, *(Bind(one.root) for one in layers), Bind(root, writable=True))
    hashes = {one.file: one.sha256 for layer in layers for one in layer.wheels}
    return BuildEnvironment(root, path, binds, installed, hashes)
