"""Lock to build tasks: what is already in the index under the same build key is not a task."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from builders import host
from resolver.errors import EnvironmentLacksError, LockError, UsageError, did_you_mean
from resolver.facts.selecting import recipe_for

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builders.index import Index
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Recipe
    from resolver.lock import Lock, LockedPick

_DECIDING = ("declared", "undeclared", "match_runtime", "environment", "options", "must_contain")
"""The parts of a recipe that determine what comes out; its sources and notes do not."""


@dataclass(frozen=True, slots=True)
class Task:
    """One wheel that the lock needs."""

    pick: LockedPick
    recipe: Recipe
    python: Path
    torch: LockedPick | None
    inputs: dict[str, Any]
    """Everything that determines the wheel's content."""
    wheel: Path | None
    """The wheel in the index that was built from the same inputs, if there is one."""
    gfx: tuple[str, ...] = ()

    @property
    def build_key(self) -> str:
        """The digest of all inputs."""
        text = json.dumps(self.inputs, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def title(self) -> str:
        """Name and version for messages."""
        return f"{self.pick.name} {self.pick.pinned}"


def plan(lock: Lock, catalog: Catalog, index: Index, names: Sequence[str] = ()) -> list[Task]:
    """Say for every wheel that the lock builds whether the index has it.

    Parameters
    ----------
    lock
        What to build.
    catalog
        Where the recipes stand.
    index
        Where finished wheels are.
    names
        Only these; all when empty.

    Returns
    -------
    list of Task
        In install order.

    Raises
    ------
    EnvironmentLacksError
        The lock is for ROCm, whose builds run in a base image: this version has no containers.
    UsageError, LockError
        A name that the lock does not build, or a lock that the catalog does not fit.
    """
    built = lock.built()
    for name in names:
        if name not in {pick.name for pick in built}:
            msg = f"The lock does not build {name!r}."
            hint = did_you_mean(name, [pick.name for pick in built]) or "Nothing in it is built."
            raise UsageError(msg, hint=hint)
    if built and lock.target.backend == "rocm":
        raise _no_containers(lock, built)
    wanted = [pick for pick in built if not names or pick.name in names]
    return [_task(pick, lock, catalog, index) for pick in wanted]


def _no_containers(lock: Lock, built: Sequence[LockedPick]) -> EnvironmentLacksError:
    image = lock.version_of("base-image") or "a ROCm base image"
    wheels = "".join(f"\n  - {pick.name} {pick.pinned}" for pick in built)
    msg = (
        f"Wheels for {', '.join(lock.target.gfx)} are compiled inside the base image, which needs "
        f"a container runtime; this version cannot build in containers yet. Nothing was built.\n"
        f"Base image: {image}\nWaiting to be built:{wheels or ' nothing'}"
    )
    return EnvironmentLacksError(
        msg, hint="--backend cpu builds for this machine's CPU, under another label."
    )


def _task(pick: LockedPick, lock: Lock, catalog: Catalog, index: Index) -> Task:
    release = catalog.release.get((pick.name, pick.version, pick.variant))
    recipe = recipe_for(catalog, release, lock.target.backend) if release else None
    if recipe is None:
        msg = f"The lock builds {pick.name} {pick.version}, for which the catalog has no recipe."
        raise LockError(msg, hint="Was it resolved with another --catalog? Resolve again with this one.")
    version = lock.version_of("python")
    torch = lock.find("torch")
    if torch is not None and torch.origin == "base-image" and not torch.index:
        msg = f"torch {torch.version} is what the base image holds; to build against it needs that image."
        raise EnvironmentLacksError(msg, hint="This version cannot build in containers yet.")
    inputs: dict[str, Any] = {
        "name": pick.name,
        "version": pick.pinned,
        "source": msgspec.to_builtins(pick.sdist or pick.git),
        "recipe": {name: msgspec.to_builtins(getattr(recipe, name)) for name in _DECIDING},
        "torch": torch.version if torch else "",
        "backend": lock.target.backend,
        "gfx": list(lock.target.gfx),
        "python": host.python_abi(version),
        "compiler": host.compiler_identity(),
        "glibc": host.glibc_version(),
        "cpu": host.cpu_identity() if recipe.native_cpu else "",
    }
    if pick.patches:
        inputs["patches"] = [patch.sha256 for patch in pick.patches]
    task = Task(pick, recipe, host.find_python(version), torch, inputs, None, lock.target.gfx)
    found = index.find(pick.name, task.build_key)
    return (
        task if found is None else Task(pick, recipe, task.python, torch, inputs, found.path, lock.target.gfx)
    )
