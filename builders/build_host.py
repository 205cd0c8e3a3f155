"""The workshop: where the wheels of a lock are built, and what that place has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from builders import host
from builders.audit import image_provider
from builders.containers.inspect import inspect_image
from builders.containers.runtime import HostRuntime
from builders.environments.python import find_python
from resolver.errors import EnvironmentLacksError
from resolver.versions import minor

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builders.audit import Provider
    from builders.containers.facts import ImageFacts
    from builders.containers.runtime import Runtime
    from builders.environments.python import TargetPython
    from builders.recipes import Compiler


@dataclass(frozen=True)
class BuildHost:
    """A place with the Python that is built for, and all that a build asks of it."""

    runtime: Runtime
    python: TargetPython
    identity: Mapping[str, Any]
    """What of it determines a wheel's content, for build keys."""
    compilers: tuple[Compiler, ...] = ()
    """Host compilers of an image; none on this machine, where a source finds its own."""
    preferred: tuple[str, ...] = ()
    """Names of compilers that the catalog gives for the image."""
    rocm: str = ""
    """ROCm release in it."""
    rocm_path: str = "/opt/rocm"
    provider: Provider | None = None
    """Libraries and symbol versions that a wheel finds in it; None where nobody looked."""
    cpu: str = ""
    """CPU that host code is compiled for, as ``-march`` names it; empty: the one that builds."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What builds are told besides their recipe."""
    image: ImageFacts | None = None
    """What is in the base image; None on this machine."""

    def require_compilers(self, title: str, backend: str) -> None:
        """See that the base image can compile, so that no build begins that cannot end well.

        Parameters
        ----------
        title
            What is to be built, for the message.
        backend
            ``rocm`` or ``cpu``.

        Raises
        ------
        EnvironmentLacksError
            It lacks something for it.
        """
        missing_tools = self.image.missing_tools(rocm=backend == "rocm") if self.image else []
        if self.image and missing_tools:
            listed = "".join(f"\n  - {one}" for one in missing_tools)
            msg = f"{title} cannot be compiled in the base image {self.image.name}; it lacks{listed}"
            hint = "Take another image: matrix doctor --base-image IMAGE says what one has."
            raise EnvironmentLacksError(msg, hint=hint)


def local_build_host(version: str, *, given: Path | None = None, cpu: str = "") -> BuildHost:
    """Give the workshop that is this machine.

    Parameters
    ----------
    version
        Python's minor version.
    given
        Prefix of a Python that the user names.
    cpu
        CPU that host code is compiled for.

    Raises
    ------
    EnvironmentLacksError
        There is no such Python that can build.
    """
    runtime = HostRuntime()
    python = find_python(runtime, version, given=given)
    identity = {
        "place": "host",
        "python": python.build,
        "compiler": host.compiler_identity(),
        "glibc": host.glibc_version(),
        "cpu": cpu or host.cpu_identity(),
    }
    own = {"CXX": os.environ["CXX"]} if os.environ.get("CXX") else {}
    return BuildHost(runtime, python, identity, cpu=cpu, variables=own)


def image_build_host(
    runtime: Runtime, version: str, *, given: Path | None = None, cpu: str = ""
) -> BuildHost:
    """Give the workshop that is a base image.

    Parameters
    ----------
    place
        The image, in a container runtime.
    version
        Python's minor version.
    given
        Prefix of a Python that the user names, of the image or of this machine.
    cpu
        CPU that host code is compiled for.

    Raises
    ------
    EnvironmentLacksError
        The image cannot be looked into, or no such Python that can build runs in it.
    """
    facts = inspect_image(runtime)
    image_pythons = [Path(one.path) for one in facts.pythons if minor(one.version) == version]
    python = find_python(runtime, version, given=given, image_pythons=image_pythons)
    identity = {
        "place": facts.digest,
        "python": python.build,
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
