"""The workshop: where the wheels of a lock are built, and what that place has."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builders import host
from builders.containers.place import HostPlace
from builders.environments.python import find_python

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builders.audit import Provider
    from builders.containers.place import Place
    from builders.environments.python import TargetPython
    from builders.recipes import Compiler


@dataclass(frozen=True)
class Workshop:
    """A place with the Python that is built for, and all that a build asks of it."""

    place: Place
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


def host_workshop(version: str, *, given: Path | None = None, cpu: str = "") -> Workshop:
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
    place = HostPlace()
    python = find_python(place, version, given=given)
    identity = {
        "place": "host",
        "python": python.build,
        "compiler": host.compiler_identity(),
        "glibc": host.glibc_version(),
        "cpu": cpu or host.cpu_identity(),
    }
    own = {"CXX": os.environ["CXX"]} if os.environ.get("CXX") else {}
    return Workshop(place, python, identity, cpu=cpu, variables=own)


def image_workshop(place: Place, version: str, *, given: Path | None = None, cpu: str = "") -> Workshop:
    """TRIAL."""
    assert place.image
    python = find_python(place, version, given=given)
    return Workshop(place, python, {"place": place.image.sha256, "python": python.build, "cpu": cpu or host.cpu_identity()}, cpu=cpu, rocm="7.2.4")
