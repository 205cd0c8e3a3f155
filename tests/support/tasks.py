"""Build tasks without a resolution, a catalog or a runtime behind them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

from builders.building.plan import BuildHost, Task
from builders.containers.runtime import HostRuntime
from builders.environments.python import TargetPython
from resolver.facts.schema import Backend, Recipe
from resolver.model import Distribution, Request, Resolution, Target

PYTHON = TargetPython(
    Path("/usr/bin/python3"), Path("/usr"), "3.12.3", "cp312", "2.39", "x86_64", "3.12.3", "host"
)


def make_distribution(name: str, version: str = "1.0", **fields: Any) -> Distribution:
    """Return a distribution that is built."""
    known = {"kind": "distribution", "origin": "build", "support": "observed", "verdict": "supported"}
    return Distribution(name=name, version=version, **{**known, **fields})


def make_recipe(backend: Backend = "rocm", **fields: Any) -> Recipe:
    """Return a recipe for `tiny`."""
    return Recipe(**{"package": "tiny", "status": "observed", "source": "a test", **fields}, backend=backend)


def make_resolution(
    *picks: Distribution, backend: Backend = "rocm", gfx: tuple[str, ...] = (), **fields: Any
) -> Resolution:
    """Return a resolution with these picks."""
    target = Target(backend=backend, gfx=gfx, site="local", date=datetime.date(2026, 3, 1))
    return Resolution(request=Request(target, ()), target=target, picks=picks, **fields)


def make_host(**fields: Any) -> BuildHost:
    """Return this machine as a build host with no known properties."""
    return BuildHost(**{"runtime": HostRuntime(), "python": PYTHON, "identity": {}, **fields})


def make_task(
    recipe: Recipe,
    *gfx: str,
    version: str = "1.0",
    torch: str = "",
    cxx_standard: str = "",
    pip_rocm: str = "",
    pick: Distribution | None = None,
    **host: Any,
) -> Task:
    """Return the task that builds a package for GPU architectures; other fields are fields of the host."""
    pick = pick or make_distribution(recipe.package, version)
    picks = [pick, make_distribution("torch", torch, origin="published")] if torch else [pick]
    resolution = make_resolution(*picks, backend=recipe.backend, gfx=gfx)
    return Task(pick, recipe, make_host(**host), resolution, cxx_standard=cxx_standard, pip_rocm=pip_rocm)
