"""The build host: the machine or base image in which the wheels of a lock are built, and its properties."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders.audit import image_provider
from builders.containers.engines import choose_runtime
from builders.containers.image import locked_image
from builders.containers.inspection import ImageFacts, inspect_in
from builders.containers.runtime import HostRuntime, Runtime
from builders.environments.python import TargetPython, find_python
from builders.machine import host
from resolver.errors import EnvironmentLacksError
from resolver.versions import minor

if TYPE_CHECKING:
    from builders.audit import LibraryProvider
    from builders.recipes import Program
    from resolver.model import Resolution


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
            hint = "Use another image. `matrix doctor --base-image IMAGE` lists the tools in an image."
            raise EnvironmentLacksError(msg, hint=hint)


def local_build_host(version: str, *, given: Path | None = None, cpu: str = "") -> BuildHost:
    """Return this machine as the build host; `given` is the prefix of a Python that the user chose."""
    runtime = HostRuntime()
    python = find_python(runtime, version, given=given)
    identity = {
        "runtime": "host",
        **python.identity,
        "compiler": host.compiler_identity(),
        "mpi": host.mpi_identity(),
        "glibc": host.glibc_version(),
        "cpu": cpu or host.cpu_identity(),
    }
    variables = {"CXX": os.environ["CXX"]} if os.environ.get("CXX") else {}
    return BuildHost(runtime, python, identity, cpu=cpu, variables=variables)


def image_build_host(
    runtime: Runtime, version: str, *, given: Path | None = None, cpu: str = ""
) -> BuildHost:
    """Return a base image as the build host; `given` is the prefix of a Python, in it or on the host."""
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


def _writing_host() -> BuildHost:
    """Return this process as the build host of aliases, which are written without a program."""
    path, prefix = Path(sys.executable), Path(sys.base_prefix)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    version, machine = platform.python_version(), platform.machine()
    python = TargetPython(path, prefix, version, tag, host.glibc_version(), machine, sys.version, "host")
    return BuildHost(HostRuntime(), python, {})


def find_build_host(
    lock: Resolution,
    names: Sequence[str] = (),
    *,
    kind: str | None,
    image: str | None = None,
    python: Path | None = None,
    cpu: str = "",
) -> BuildHost:
    """Return the build host for `names` of a lock, all if empty; None as `kind` selects a runtime.

    `image` is the value of ``--base-image``: the location of the lock's image, if it is a path.
    """
    built = lock.built(names)
    if built and all(pick.alias_of for pick in built):
        return _writing_host()
    version, locked = lock.version_of("python"), lock.image
    if lock.target.backend == "cpu" and kind in {None, "host"}:
        return local_build_host(version, given=python, cpu=cpu)
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
