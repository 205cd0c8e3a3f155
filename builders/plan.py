"""Lock to build tasks: what is already in the index under the same build key is not a task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from builders.constants import TRITON_NAMES
from builders.recipes import with_ops
from builders.sources import patches_of
from resolver.errors import EnvironmentLacksError, LockError, UsageError, did_you_mean
from resolver.facts.catalog import recipe_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from builders.build_host import BuildHost
    from builders.index import Index
    from builders.labelling import PinStyle
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Recipe
    from resolver.model import Distribution, Resolution

_DECIDING = (
    "declared", "undeclared", "match_runtime", "environment", "options", "prepare", "must_contain",
)  # fmt: skip
"""The parts of a recipe that determine what comes out; its sources and notes do not."""


@dataclass(frozen=True, slots=True)
class Task:
    """One wheel that the lock needs."""

    pick: Distribution
    recipe: Recipe
    build_host: BuildHost
    torch: Distribution | None
    """The lock's torch."""
    inputs: dict[str, Any]
    """Everything that determines the wheel's content."""
    wheel: Path | None = None
    """The wheel in the index that was built from the same inputs, if there is one."""
    gfx: tuple[str, ...] = ()
    patches: tuple[Path, ...] = ()
    cxx_standard: str = ""
    """Oldest C++ standard that torch's headers compile with; empty where it is not known."""
    others: tuple[Recipe, ...] = field(default=(), repr=False)
    """Other recipes of the package, to name the right one where this one does not fit the source."""
    runtime: Mapping[str, str] = field(default_factory=dict)
    """Distributions that must be the very ones that will run, with their locked versions."""
    beside_torch: bool = False
    """Whether it runs beside torch, and so is proven beside it, even if it is built without."""
    pinning: PinStyle = "exact"
    """How strictly the wheel's metadata requires those."""

    @property
    def build_key(self) -> str:
        """The digest of all inputs."""
        text = json.dumps(self.inputs, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def title(self) -> str:
        """Name and version for messages."""
        return f"{self.pick.name} {self.pick.pinned}"


def plan(
    lock: Resolution,
    catalog: Catalog,
    index: Index,
    build_host: BuildHost,
    names: Sequence[str] = (),
    *,
    ops: Mapping[str, Sequence[str]] | None = None,
    pinning: PinStyle = "exact",
) -> list[Task]:
    """Say for every wheel that the lock builds whether the index has it.

    Parameters
    ----------
    lock
        What to build.
    catalog
        Where the recipes stand.
    index
        Where finished wheels are.
    workshop
        Where it is built.
    names
        Only these; all when empty.
    ops
        Package to the ops that are to be compiled, instead of the recipe's own choice.
    pinning
        How strictly the wheels are to require the torch that they are built against.

    Returns
    -------
    list of Task
        In install order.

    Raises
    ------
    UsageError, LockError
        A name that the lock does not build, or a lock that the catalog does not fit.
    """
    chosen_ops = ops or {}
    picks = lock.built(names)
    for name in chosen_ops:
        if name not in {pick.name for pick in picks}:
            msg = f"Ops of {name} were asked for, and {name} is not built."
            raise UsageError(msg, hint=did_you_mean(name, [pick.name for pick in picks]))
    tasks = [
        _task(pick, lock, catalog, build_host, ops=chosen_ops.get(pick.name, ()), pinning=pinning)
        for pick in picks
    ]
    found = [index.find(task.pick.name, task.build_key) for task in tasks]
    return [
        task if one is None else replace(task, wheel=one.path) for task, one in zip(tasks, found, strict=True)
    ]


def _task(
    pick: Distribution,
    lock: Resolution,
    catalog: Catalog,
    build_host: BuildHost,
    *,
    ops: Sequence[str],
    pinning: PinStyle,
) -> Task:
    release = catalog.release.get((pick.name, pick.version, pick.variant))
    recipe = recipe_for(catalog, release, lock.target.backend) if release else None
    if recipe is None:
        msg = f"The lock builds {pick.name} {pick.version}, for which the catalog has no recipe."
        raise LockError(msg, hint="Was it resolved with another --catalog? Resolve again with this one.")
    if ops:
        recipe = with_ops(recipe, ops, pick.version)
    torch = lock.pick("torch")
    if torch is not None and torch.origin == "preinstalled" and not torch.index:
        msg = f"torch {torch.version} is what the base image holds, and nobody offers its wheel."
        raise EnvironmentLacksError(msg, hint="Put the wheel into a directory and name it in PIP_FIND_LINKS.")
    inputs: dict[str, Any] = {
        "name": pick.name,
        "version": pick.pinned,
        "source": msgspec.to_builtins(pick.sdist or pick.git),
        "patches": [patch.sha256 for patch in pick.patches],
        "recipe": {name: msgspec.to_builtins(getattr(recipe, name)) for name in _DECIDING},
        "torch": torch.version if torch else "",
        "backend": lock.target.backend,
        "gfx": list(lock.target.gfx),
        **build_host.identity,
    }
    if not recipe.native_cpu:
        inputs.pop("cpu", None)  # nothing of it is in such a wheel
    if pinning != "exact":
        inputs["pinning"] = pinning
    row = catalog.torch.get(torch.version) if torch else None
    return Task(
        pick,
        recipe,
        build_host,
        torch,
        inputs,
        gfx=lock.target.gfx,
        patches=patches_of(pick, catalog),
        cxx_standard=row.cxx_standard if row else "",
        others=tuple(one for one in catalog.recipe if one.package == pick.name),
        runtime={
            name: found.version
            for name in (*recipe.match_runtime, *TRITON_NAMES)
            if (found := lock.pick(name)) is not None
        },
        beside_torch=any(
            (one.subject, one.object, one.kind) == (pick.name, "torch", "run") for one in lock.edges
        ),
        pinning=pinning,
    )
