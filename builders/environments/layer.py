"""Layers: wheels installed once into a read-only directory of the cache, linked by many environments.

A layer is an environment of its own without pip, so that its programs (``ninja``, ``cmake``) run with
their own packages. Another environment uses it through a ``.pth`` file that calls `site.addsitedir`:
its packages come after the environment's own, are seen by `importlib.metadata`, and its own ``.pth``
files count too (setuptools has one, without which there is no distutils).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from builders.cache import cache_root
from builders.containers.runtime import Bind, run_in
from builders.environments.kept import cache_errors, digest, keep
from builders.environments.piptool import pip_of
from builders.environments.python import python_view
from builders.environments.wheelhouse import damaged
from resolver.errors import CommandError, EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython
    from builders.environments.wheelhouse import Wheel
    from resolver.reporter import Reporter

_LINK = "matrix-layers.pth"
_LISTED = "matrix-installed.json"
_LIST = """
import importlib.metadata as m, json, sys
found = {}
for one in m.distributions():
    found.setdefault(one.metadata["Name"], one.version)
with open(sys.argv[1], "w") as sink:
    json.dump(found, sink, sort_keys=True)
"""
# All in one go, because starting a container takes most of the time. $7 and on are pip and its arguments.
_MAKE = """
set -e
"$1" -m venv --without-pip "$2"
printf %s "$4" >"$3"
python=$2/bin/python list=$5 listed=$6
shift 6
if [ $# -gt 0 ]; then "$python" "$@"; fi
exec "$python" -c "$list" "$listed"
"""


@dataclass(frozen=True, slots=True)
class Layer:
    """Installed wheels."""

    root: Path
    packages: Path
    """Its site-packages."""
    wheels: tuple[Wheel, ...]


def make_layer(
    runtime: Runtime,
    python: TargetPython,
    wheels: Sequence[Wheel],
    *,
    over: Sequence[Layer] = (),
    log: Path,
    reporter: Reporter,
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
    key = digest(python.key(runtime), sorted(one.sha256 for one in wheels), [one.root.name for one in over])
    root = cache_root() / "layers" / key
    layer = Layer(root, root / python.library, tuple(wheels))

    def make() -> None:
        _refuse_damaged(wheels)
        first = next((one for one in wheels if "+" in one.version), wheels[0])
        more = f" and {len(wheels) - 1} more" if len(wheels) > 1 else ""
        reporter.step(
            f"install {first.name} {first.version}{more}, once for all builds with this Python and image"
        )
        populate(runtime, python, root, over, [one.path for one in wheels], log=log, compiled=True)

    keep(root, make)
    return layer


def populate(
    runtime: Runtime,
    python: TargetPython,
    root: Path,
    layers: Sequence[Layer],
    wheels: Sequence[Path],
    *,
    log: Path,
    compiled: bool = False,
) -> dict[str, str]:
    """Make an environment without pip that sees layers, and install wheel files, and nothing else, into it.

    Parameters
    ----------
    root
        Where; nothing is there but perhaps an empty directory.
    layers
        What it sees, the first of them first.
    compiled
        Whether modules are compiled to byte code, which takes long and pays for what is used often.

    Returns
    -------
    dict
        Every distribution that it sees, with its version, as its own Python lists them.

    Raises
    ------
    EnvironmentLacksError
        The Python cannot make one, or pip refuses a wheel.
    """
    root.mkdir(parents=True, exist_ok=True)
    seen = [Bind(one.root) for one in layers]
    command = []
    if wheels:
        pip = pip_of(runtime, python, log=log)
        seen += [Bind(pip.parent), *(Bind(one.parent) for one in wheels)]
        command = [
            str(pip), "install", "--isolated", "--no-index", "--no-deps", "--no-cache-dir",
            "--disable-pip-version-check", "--ignore-installed", "--no-warn-script-location",
            "--compile" if compiled else "--no-compile", *map(str, wheels),
        ]  # fmt: skip
    links = "".join(f"import site; site.addsitedir({str(one.packages)!r})\n" for one in layers)
    told = [
        str(python.path),
        str(root),
        str(root / python.library / _LINK),
        links,
        _LIST,
        str(root / _LISTED),
    ]
    what = f"Making an environment with {', '.join(one.name for one in wheels) or python.path}"
    view = python_view(python, binds=[*seen, Bind(root, writable=True)])
    try:
        with cache_errors():
            run_in(runtime, ["/bin/sh", "-c", _MAKE, "sh", *told, *command], view, what=what, log=log)
    except CommandError as error:
        raise EnvironmentLacksError(error.message, hint="The log says what was missing.") from None
    return msgspec.json.decode((root / _LISTED).read_bytes(), type=dict[str, str])


def _refuse_damaged(wheels: Sequence[Wheel]) -> None:
    bad = damaged(wheels)
    if bad:
        named = ", ".join(one.file for one in bad)
        msg = f"The cache no longer holds what was fetched: {named}. The damaged files were removed."
        raise EnvironmentLacksError(msg, hint="Run the same command again with network to fetch them again.")
