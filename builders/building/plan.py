"""Turn a lock into build tasks, find the wheels that the index has, and the machine or image to build in."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from builders.containers.engines import choose_runtime
from builders.containers.image import locked_image
from builders.containers.inspection import ImageFacts, inspect_in
from builders.containers.runtime import HostRuntime, Runtime
from builders.environments.python import TargetPython, find_python, this_python
from builders.machine import host
from builders.network.urls import without_password
from builders.recipes import patches_of, with_ops
from builders.wheels.labelling import Pin, alias_requirement, runtime_pins
from resolver.errors import EnvironmentLacksError, LockError
from resolver.facts.schema import Recipe, Site, Torch
from resolver.requirements import TRITON_NAMES
from resolver.versions import minor

if TYPE_CHECKING:
    from builders.audit.runtime_libraries import LibraryProvider
    from builders.index import Index
    from builders.recipes import Program
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution


_KEY_FIELDS = (
    "declared", "undeclared", "match_runtime", "environment", "options", "prepare", "must_contain",
)  # fmt: skip
"""The fields of a recipe that determine the wheel. Sources and notes do not."""
_LONG = 1.0
"""Core hours from which on a build is announced with a warning."""


class BuildHost(msgspec.Struct, frozen=True):
    """A runtime with the Python to build for, and the other properties that a build uses."""

    runtime: Runtime
    python: TargetPython
    identity: Mapping[str, Any]
    """The properties that determine a wheel's content, for build keys."""
    compilers: tuple[Program, ...] = ()
    """Host compilers of an image; empty on the host itself, where a source finds its own."""
    rocm: str = ""
    rocm_path: str = "/opt/rocm"
    provider: LibraryProvider | None = None
    """Libraries and symbol versions that a wheel finds in the image; None if unknown."""
    cpu: str = ""
    """CPU that host code is compiled for, as ``-march`` names it; empty for the CPU of the build machine."""
    variables: Mapping[str, str] = {}
    """In addition to those of the recipe."""
    image: ImageFacts | None = None

    def require_compilers(self, title: str, *, rocm: bool) -> None:
        """Check that the base image has all tools for compiling, with `rocm` also ROCm and its compiler."""
        missing = self.image.missing_tools(rocm=rocm) if self.image else []
        if self.image and missing:
            listed = "".join(f"\n  - {tool}" for tool in missing)
            msg = f"{title} cannot be compiled in the base image {self.image.name}:{listed}"
            hint = "Use another image. `matrix check --base-image IMAGE` lists the tools in an image."
            raise EnvironmentLacksError(msg, hint=hint)


def local_build_host(
    version: str, *, given: Path | None = None, cpu: str = "", site: Site | None = None
) -> BuildHost:
    """Return this machine as the build host; `given` is the prefix of a Python that the user chose.

    The modules of `site` are loaded, if this machine has them.
    """
    runtime = HostRuntime()
    modules = site.build_modules if site else ()
    loaded = host.load_modules(modules, (*site.build_variables.items(),)) if site and modules else {}
    python = find_python(runtime, version, given=given)
    identity: dict[str, Any] = {
        "runtime": "host",
        **python.identity,
        "compiler": host.compiler_identity(),
        "mpi": host.mpi_identity(),
        "glibc": host.glibc_version(),
        "cpu": cpu or host.cpu_identity(),
    }
    if site and loaded:  # other variables differ between users
        identity["modules"] = loaded.get("LOADEDMODULES", "").split(":")
        identity["variables"] = {name: loaded[name] for name in sorted(site.build_variables)}
    variables = loaded | ({"CXX": os.environ["CXX"]} if os.environ.get("CXX") else {})
    return BuildHost(runtime, python, identity, cpu=cpu, variables=variables)


def image_build_host(
    runtime: Runtime, version: str, *, given: Path | None = None, cpu: str = ""
) -> BuildHost:
    """Return a base image as the build host; `given` is the prefix of a Python, in it or on the host."""
    from builders.audit.runtime_libraries import image_provider

    facts = inspect_in(runtime)
    image_pythons = [Path(python.path) for python in facts.pythons if minor(python.version) == version]
    python = find_python(runtime, version, given=given, image_pythons=image_pythons)
    identity = {
        "runtime": facts.digest,
        **python.identity,
        "glibc": facts.glibc,
        "cpu": cpu or host.cpu_identity(),
    }
    return BuildHost(
        runtime,
        python,
        identity,
        compilers=facts.compilers,
        rocm=facts.rocm,
        rocm_path=facts.rocm_path or "/opt/rocm",
        provider=image_provider(msgspec.to_builtins(facts)),
        cpu=cpu,
        image=facts,
    )


def find_build_host(
    lock: Resolution,
    names: Sequence[str] = (),
    *,
    kind: str | None,
    image: str | None = None,
    python: Path | None = None,
    cpu: str = "",
    site: Site | None = None,
) -> BuildHost:
    """Return the build host for `names` of a lock, all if empty; None as `kind` selects a runtime.

    Without `cpu`, host code is compiled for the CPU of the `site`.
    `image` is the value of ``--base-image``: the location of the lock's image, if it is a path.
    """
    cpu = cpu or (site.cpu if site else "")
    built = lock.built(names)
    if built and all(pick.alias_of for pick in built):
        return BuildHost(HostRuntime(), this_python(), {})  # aliases are written without a program
    version, locked = lock.version_of("python"), lock.image
    is_pure = all(pick.alias_of or pick.is_pure_source for pick in built)
    on_host = lock.target.backend == "cpu" or (is_pure and (kind == "host" or locked is None))
    if on_host and kind in {None, "host"}:
        return local_build_host(version, given=python, cpu=cpu, site=site)
    if locked is None and lock.target.backend == "cpu":
        choose_runtime(kind, None)  # raises: a container requires an image
    if locked is None:
        msg = "Wheels for ROCm are compiled in a base image, and the lock has none."
        raise EnvironmentLacksError(msg, hint="Resolve with --base-image NAME or PATH.")
    if kind == "host":
        msg = f"Wheels for {', '.join(lock.target.gfx)} are compiled in a base image, not on the host."
        raise EnvironmentLacksError(msg, hint="Omit --in, or use --in apptainer or --in podman.")
    path = Path(image) if image and Path(image).exists() else None
    runtime = choose_runtime(kind, locked_image(locked, path))
    return image_build_host(runtime, version, given=python, cpu=cpu)


class Task(msgspec.Struct, frozen=True, dict=True):
    """One wheel to build."""

    pick: Distribution
    recipe: Recipe
    build_host: BuildHost
    resolution: Resolution
    wheel: Path | None = None
    """That in the index that was built from the same inputs."""
    patches: tuple[Path, ...] = ()
    cxx_standard: str = ""
    """Oldest C++ standard that the headers of torch compile with, if known."""
    other_recipes: tuple[Recipe, ...] = ()
    """All recipes of the package, to name the one that fits the source."""
    requires: tuple[Task, ...] = ()
    """Those whose wheels are installed for this task."""
    pip_rocm: str = ""
    """The release of ROCm's pip packages (``7.14.0``, ``7.14.*``) that torch requires; empty for any other
    ROCm."""

    @property
    def title(self) -> str:
        """Name and version, for messages."""
        return f"{self.pick.name} {self.pick.pinned}"

    @property
    def gfx(self) -> tuple[str, ...]:
        """The GPU architectures to compile for."""
        return self.resolution.target.gfx

    @property
    def torch(self) -> Distribution | None:
        """The torch of the resolution."""
        return self.resolution.pick("torch")

    @property
    def needs_torch(self) -> bool:
        """Whether the wheel imports torch. Such a wheel is tested with torch, even if it is built without.

        One from a pure source is not: torch would cost more than everything else in its build.
        """
        return not self.pick.is_pure_source and any(
            (edge.subject, edge.object, edge.kind) == (self.pick.name, "torch", "run")
            for edge in self.resolution.edges
        )

    @property
    def runtime_versions(self) -> dict[str, str]:
        """The distributions that the wheel must require in the version it was built against."""
        picks = map(self.resolution.pick, (*self.recipe.match_runtime, *TRITON_NAMES))
        return {pick.name: pick.pinned for pick in picks if pick and pick.version and not pick.alias_of}

    @property
    def pins(self) -> tuple[Pin, ...]:
        """What the wheel requires in the version that it was built against, whatever its source requires."""
        others = {name: version for name, version in self.runtime_versions.items() if name != "torch"}
        torch = self.torch.pinned if self.torch else ""
        return runtime_pins(torch, others, add_torch="torch" in self.runtime_versions)

    @property
    def _pinned_at_run_time(self) -> dict[str, str]:
        """Those besides torch that the wheel itself requires, in exactly these versions."""
        rows = {edge.object for edge in self.resolution.edges if edge.subject == self.pick.name}
        names = (rows | {*self.recipe.match_runtime}) - {"torch"}
        return {name: version for name, version in self.runtime_versions.items() if name in names}

    @property
    def rocm(self) -> str:
        """The ROCm that the wheel is compiled with, as far as it is known."""
        return self.pip_rocm.removesuffix(".*") or self.build_host.rocm

    @property
    def needs_rocm_in_image(self) -> bool:
        """Whether the base image must have the ROCm that the wheel is compiled with."""
        return self.recipe.backend == "rocm" and not self.pip_rocm

    @property
    def least_standard(self) -> str:
        """The oldest C++ standard that the compiler must support; empty if any will do."""
        return max(self.recipe.cxx_standard, self.cxx_standard, key=lambda text: int(text or 0))

    @property
    def rocm_series(self) -> str:
        """The ROCm series (major.minor) of torch's label, or else of the base image.

        A build computes names of libraries from it, which are loaded at run time with this torch.
        """
        label = (self.torch.version if self.torch else "").partition("+rocm")[2] or self.rocm
        return ".".join(label.split(".")[:2])

    @property
    def inputs(self) -> dict[str, Any]:
        """Everything that determines the content of the wheel."""
        if self.pick.alias_of:
            requires = alias_requirement(self.pick, self.resolution)
            return {"name": self.pick.name, "version": self.pick.pinned, "requires": requires}
        source = msgspec.to_builtins(self.pick.sdist or self.pick.git)
        if self.pick.git is not None:
            source["url"] = without_password(source["url"])  # inputs are published
        inputs = {
            "name": self.pick.name,
            "version": self.pick.pinned,
            "source": source,
            "patches": [patch.sha256 for patch in self.pick.patches],
            "recipe": {name: msgspec.to_builtins(getattr(self.recipe, name)) for name in _KEY_FIELDS},
            "torch": self.torch.version if self.torch else "",
            "backend": self.recipe.backend,
            "gfx": list(self.gfx),
            **self.build_host.identity,
        }
        if not self.recipe.native_cpu:
            inputs.pop("cpu", None)  # the code does not depend on it
        if not self.recipe.mpi:
            inputs.pop("mpi", None)
        if self.pip_rocm:
            inputs["pip_rocm"] = self.pip_rocm
        if self.build_host.compilers:
            inputs["cxx_standard"] = self.least_standard  # it decides which compiler of the image is used
        if pins := self._pinned_at_run_time:
            inputs["run_requires"] = pins
        if self.requires:
            inputs["requires"] = {task.pick.name: task.build_key for task in self.requires}
        return inputs

    @cached_property  # the keys of required tasks are inputs, so they would be computed again on each path
    def build_key(self) -> str:
        """The digest of all inputs."""
        return hashlib.sha256(json.dumps(self.inputs, sort_keys=True).encode()).hexdigest()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Notes for the user before the build starts."""
        hours = self.recipe.core_hours
        if hours < _LONG:
            return ()
        return (f"Compiling {self.title} takes at least {hours:g} core hours (docs/howto/heavy-builds.md).",)


def plan(
    resolution: Resolution,
    catalog: Catalog,
    index: Index,
    build_host: BuildHost,
    names: Sequence[str] = (),
) -> list[Task]:
    """Return a task for each of `names` in a lock, all if empty, and for what they need, in install order."""
    picks = _with_build_requirements(resolution, names)
    torch = resolution.pick("torch")
    compiled = any(not pick.alias_of for pick in picks)
    if compiled and torch is not None and torch.origin == "preinstalled" and not torch.index:
        msg = f"torch {torch.version} is installed in the base image, but no index offers its wheel."
        raise EnvironmentLacksError(msg, hint="Put the wheel into a directory and set PIP_FIND_LINKS to it.")
    torch_row = catalog.torch.get(torch.version) if torch else None
    tasks: dict[str, Task] = {}
    for pick in picks:
        task = Task(
            pick,
            recipe_of(pick, resolution, catalog),
            build_host,
            resolution,
            patches=patches_of(pick, catalog),
            cxx_standard=torch_row.cxx_standard if torch_row else "",
            other_recipes=tuple(row for row in catalog.recipe if row.package == pick.name),
            requires=tuple(tasks[name] for name in _build_requirements(resolution, pick) if name in tasks),
            pip_rocm=_pip_rocm(resolution, torch_row),
        )
        published = index.find(pick.name, task.build_key)
        tasks[pick.name] = replace(task, wheel=published.path) if published else task
    return list(tasks.values())


def _pip_rocm(resolution: Resolution, torch: Torch | None) -> str:
    if torch is None or not torch.pip_rocm:
        return ""
    locked = (pick.version for pick in resolution.distributions if pick.name == "rocm")
    return next(locked, torch.rocm if torch.rocm.count(".") > 1 else f"{torch.rocm}.*")


def _build_requirements(resolution: Resolution, pick: Distribution) -> list[str]:
    """Return the names that are needed to build and test a distribution; torch, too, if it imports torch."""
    rows = (edge for edge in resolution.edges if edge.subject == pick.name)
    return sorted({edge.object for edge in rows if edge.kind == "build" or edge.object == "torch"})


def _with_build_requirements(resolution: Resolution, names: Sequence[str]) -> list[Distribution]:
    built = {pick.name: pick for pick in resolution.built()}
    needed = [pick.name for pick in resolution.built(names)]
    for name in needed:
        others = _build_requirements(resolution, built[name])
        needed += [other for other in others if other in built and other not in needed]
    return [pick for name, pick in built.items() if name in needed]


def recipe_of(pick: Distribution, resolution: Resolution, catalog: Catalog) -> Recipe:
    """Return the recipe of a distribution that a lock builds, with the ops that the request names.

    Raise `LockError` if the catalog has no recipe for it, and `MatrixError` if its recipe cannot compile the
    ops.
    """
    ops = resolution.request.ops_of(pick.name)
    if pick.alias_of and not ops:
        backend = resolution.target.backend
        return Recipe(
            package=pick.name, backend=backend, compiles=False, status="documented", source="its name"
        )
    release = catalog.release.get((pick.name, pick.version, pick.variant))
    recipe = catalog.recipe_for(release, resolution.target.backend) if release else None
    if recipe is None and pick.lacks_recipe:
        why = f": {pick.source.evidence}" if pick.source else ""
        msg = f"There is no recipe for {pick}: its source was not read{why}."
        command = f"matrix catalog draft {pick.draft_source}"
        raise LockError(
            msg, hint=f"Write one with `{command}`, and resolve again with --catalog {pick.name}.toml."
        )
    if recipe is None:
        msg = f"The lock builds {pick.name} {pick.version}, but the catalog has no recipe for it."
        raise LockError(msg, hint="If the lock was made with another --catalog, resolve again.")
    return with_ops(recipe, ops, pick.version) if ops else recipe
