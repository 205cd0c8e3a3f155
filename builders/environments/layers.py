"""Layers, wheels installed once into a read-only directory, and the environments on top of them.

A layer is a virtual environment without pip, so its programs (``ninja``, ``cmake``) run with their own
packages. Another environment uses it through a ``.pth`` file that calls `site.addsitedir`: the layer's
packages come after the environment's own, `importlib.metadata` sees them, and the layer's own ``.pth``
files are processed too (setuptools has one that provides distutils).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from builders.cache import cache_root
from builders.containers.runtime import Bind, View, run_in
from builders.environments.cached import digest, ensure_cached
from builders.environments.pip import ensure_pip
from builders.environments.python import QUIET, python_view
from builders.environments.wheelhouse import Wheelhouse, fetch_wheels, remove_damaged
from builders.files import open_regular, remove_tree
from builders.io_errors import explain_cache_errors, explain_io_errors
from resolver.errors import CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython
    from builders.environments.wheelhouse import FetchOptions, Wheel
    from resolver.reporter import Reporter

_LINK = "matrix-layers.pth"
_INSTALLED = "matrix-installed.json"
_LIST_INSTALLED = """
import importlib.metadata as m, json, sys
versions = {}
for distribution in m.distributions():
    versions.setdefault(distribution.metadata["Name"], distribution.version)
with open(sys.argv[1], "w") as sink:
    json.dump(versions, sink, sort_keys=True)
"""
# One script, because starting a container takes most of the time. From $7 on: pip and its arguments.
_CREATE = """
set -e
"$1" -m venv --without-pip "$2"
printf %s "$4" >"$3"
python=$2/bin/python list=$5 installed=$6
shift 6
if [ $# -gt 0 ]; then "$python" "$@"; fi
exec "$python" -c "$list" "$installed"
"""


@dataclass(frozen=True, slots=True)
class Layer:
    """Wheels installed into a shared directory."""

    root: Path
    packages: Path
    """Its site-packages."""
    wheels: tuple[Wheel, ...]


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a build."""

    torch: Layer | None
    requirements: Layer | None

    @property
    def all(self) -> tuple[Layer, ...]:
        """In lookup order: build requirements shadow what torch depends on."""
        return tuple(layer for layer in (self.requirements, self.torch) if layer is not None)


@dataclass(frozen=True, slots=True)
class BuildEnvironment:
    """A virtual environment on top of layers."""

    root: Path
    path: tuple[Path, ...]
    """Directories for PATH: its own programs first, then those of its layers."""
    binds: tuple[Bind, ...]
    """The files of this machine that it needs: its Python and its layers, read-only, and itself."""
    installed: dict[str, str]
    """Name and version of every distribution that its Python can import."""
    wheels: dict[str, str]
    """File name and SHA-256 of the wheels in its layers."""
    hidden: tuple[Path, ...] = ()
    """Directories that its programs must not see."""

    @property
    def python(self) -> Path:
        """Its interpreter, as a path in the runtime."""
        return self.root / "bin" / "python"

    @property
    def view(self) -> View:
        """The minimal view of an untrusted program that runs in it; the network is off."""
        return View(
            env={**QUIET, "VIRTUAL_ENV": str(self.root)},
            path=self.path,
            binds=self.binds,
            untrusted=True,
            hidden=self.hidden,
        )


def fetch_build_wheels(
    runtime: Runtime,
    python: TargetPython,
    *,
    torch: str | None,
    requirements: Sequence[str],
    options: FetchOptions,
) -> tuple[Wheel, ...]:
    """Download the wheels of torch and of the build requirements, or take them from the cache.

    No later step of a build uses the network.

    Parameters
    ----------
    torch
        Pinned with its local version, such as ``torch==2.9.1+rocm6.4``; None without torch.
    requirements
        The other build requirements.

    Raises
    ------
    EnvironmentLacksError
        A wheel cannot be found or downloaded.
    """
    base, rest = _fetch(runtime, python, torch, requirements, options)
    return tuple(wheel for house in (base, rest) if house is not None for wheel in house.wheels)


def make_layers(
    runtime: Runtime,
    python: TargetPython,
    *,
    torch: str | None,
    requirements: Sequence[str],
    options: FetchOptions,
) -> Layers:
    """Return the layers of a build; fetch and install what is missing.

    Raises
    ------
    EnvironmentLacksError
        A wheel cannot be found, downloaded or installed.
    """
    base, rest = _fetch(runtime, python, torch, requirements, options)
    log, reporter = options.log, options.reporter
    lower = make_layer(runtime, python, base.wheels, log=log, reporter=reporter) if base else None
    if rest is None:
        return Layers(lower, None)
    below = [lower] if lower is not None and rest.depends_on_base else []
    return Layers(lower, make_layer(runtime, python, rest.wheels, base=below, log=log, reporter=reporter))


def _fetch(
    runtime: Runtime,
    python: TargetPython,
    torch: str | None,
    requirements: Sequence[str],
    options: FetchOptions,
) -> tuple[Wheelhouse | None, Wheelhouse | None]:
    if torch is None:
        return None, fetch_wheels(runtime, python, requirements, options) if requirements else None
    base = Wheelhouse((torch,), options.torch) if options.torch else None
    base = base or fetch_wheels(runtime, python, [torch], options)
    if not requirements:
        return base, None
    # torch's own index also has old versions of common build requirements, so it is not used for them.
    elsewhere = options.without_indexes()
    return base, fetch_wheels(runtime, python, requirements, elsewhere, constraints=base.wheels)


def make_layer(
    runtime: Runtime,
    python: TargetPython,
    wheels: Sequence[Wheel],
    *,
    base: Sequence[Layer] = (),
    log: Path,
    reporter: Reporter,
) -> Layer:
    """Install wheels into a layer, or take the layer from the cache; the network is off.

    Parameters
    ----------
    runtime, python
        Each base image and each Python has its own layers.
    base
        Layers that the programs of this one can import from.

    Raises
    ------
    EnvironmentLacksError
        A wheel in the cache is damaged, or pip cannot install it.
    """
    hashes = sorted(wheel.sha256 for wheel in wheels)
    key = digest(python.key(runtime), hashes, [layer.root.name for layer in base])
    root = cache_root() / "layers" / key

    def build() -> None:
        _check_hashes(wheels)
        first = next((wheel for wheel in wheels if "+" in wheel.version), wheels[0])
        more = f" and {len(wheels) - 1} more" if len(wheels) > 1 else ""
        reporter.step(f"install {first.name} {first.version}{more}, once for this Python and image")
        _create(runtime, python, root, base, [wheel.path for wheel in wheels], log=log, compiled=True)

    ensure_cached(root, build)
    return Layer(root, root / python.library, tuple(wheels))


def make_environment(
    runtime: Runtime,
    python: TargetPython,
    layers: Sequence[Layer],
    wheels: Sequence[Path] = (),
    *,
    root: Path,
    log: Path,
    hidden: Sequence[Path] = (),
) -> BuildEnvironment:
    """Create an environment on top of layers, to build in or to test wheels in.

    Parameters
    ----------
    layers
        Layers that it sees, in lookup order.
    wheels
        Wheel files to install into it, without their dependencies.
    root
        Its directory, which is replaced if it exists. The parent directory must exist.
    hidden
        Directories that its programs must not see.

    Raises
    ------
    EnvironmentLacksError
        The Python cannot create it, or pip rejects a wheel.
    """
    remove_tree(root)
    installed = _create(runtime, python, root, layers, wheels, log=log, hidden=hidden)
    path = (root / "bin", *(layer.root / "bin" for layer in layers))
    binds = (*python.binds, *(Bind(layer.root) for layer in layers), Bind(root, writable=True))
    hashes = {wheel.file: wheel.sha256 for layer in layers for wheel in layer.wheels}
    return BuildEnvironment(root, path, binds, installed, hashes, tuple(hidden))


def _create(
    runtime: Runtime,
    python: TargetPython,
    root: Path,
    layers: Sequence[Layer],
    wheels: Sequence[Path],
    *,
    log: Path,
    compiled: bool = False,
    hidden: Sequence[Path] = (),
) -> dict[str, str]:
    """Create an environment without pip, install wheel files, and return all distributions it sees.

    Byte compilation is slow and pays off only for files that are used often. The code of the wheels may
    run: Python executes lines of ``.pth`` files when it starts.
    """
    root.mkdir(parents=True, exist_ok=True)
    binds = [Bind(layer.root) for layer in layers]
    command = []
    if wheels:
        pip = ensure_pip(runtime, python, log=log)
        binds += [Bind(pip.parent), *(Bind(wheel.parent) for wheel in wheels)]
        command = [
            str(pip), "install", "--isolated", "--no-index", "--no-deps", "--no-cache-dir",
            "--disable-pip-version-check", "--ignore-installed", "--no-warn-script-location",
            "--compile" if compiled else "--no-compile", *map(str, wheels),
        ]  # fmt: skip
    links = "".join(f"import site; site.addsitedir({str(layer.packages)!r})\n" for layer in layers)
    arguments = [
        str(python.path), str(root), str(root / python.library / _LINK), links,
        _LIST_INSTALLED, str(root / _INSTALLED),
    ]  # fmt: skip
    what = f"Creating an environment with {', '.join(wheel.name for wheel in wheels) or python.path}"
    view = python_view(python, binds=[*binds, Bind(root, writable=True)])
    in_cache = root.is_relative_to(cache_root())
    hint = "Free some space, or choose another directory."
    explaining = explain_cache_errors() if in_cache else explain_io_errors(root, hint=hint)
    try:
        view = replace(view, untrusted=True, hidden=hidden)
        with explaining:
            run_in(runtime, ["/bin/sh", "-c", _CREATE, "sh", *arguments, *command], view, what=what, log=log)
    except CommandError as error:
        raise EnvironmentLacksError(error.message, hint="The log shows the reason.") from None
    return _read_installed(root / _INSTALLED)


def _read_installed(path: Path) -> dict[str, str]:
    """Read the list of distributions, which the code of a wheel may have replaced by anything."""
    try:
        with os.fdopen(open_regular(path), "rb") as source:
            return msgspec.json.decode(source.read(), type=dict[str, str])
    except (OSError, msgspec.MsgspecError) as error:
        msg = f"The list of installed distributions cannot be read: {error}."
        raise EnvironmentLacksError(msg, hint="A wheel may have damaged it. The log shows more.") from None


def _check_hashes(wheels: Sequence[Wheel]) -> None:
    damaged = remove_damaged(wheels)
    if damaged:
        files = ", ".join(wheel.file for wheel in damaged)
        msg = f"Damaged files in the cache were removed: {files}."
        raise EnvironmentLacksError(
            msg, hint="Run the same command again with network access to download them."
        )
