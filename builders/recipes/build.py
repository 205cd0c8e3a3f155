"""What a recipe is applied to, and what comes of it, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.facts.schema import Backend

SOURCE_DATE_EPOCH = "315532800"
"""1980-01-01, the oldest time that a zip archive can hold: no clock enters what is built."""


@dataclass(frozen=True, slots=True)
class Compiler:
    """A host compiler in the place where a build runs."""

    name: str
    """As it is called, such as ``g++-12``."""
    version: str
    """Its release, such as ``12.3.0``."""
    path: str
    """Where it is, as the place itself sees it."""


@dataclass(frozen=True, slots=True)
class Build:
    """One build, as far as it matters to a recipe."""

    name: str
    version: str
    backend: Backend
    gfx: tuple[str, ...] = ()
    """Offload targets, with features where asked (``gfx90a:xnack+``)."""
    torch: str = ""
    """Version of the torch that is compiled against, with its local label."""
    cxx_standard: str = ""
    """Oldest C++ standard that this torch's headers compile with, such as ``17``; empty if unknown."""
    rocm: str = ""
    """ROCm release of the base image."""
    rocm_path: str = "/opt/rocm"
    compilers: tuple[Compiler, ...] = ()
    """Host compilers of the place; none means that the source finds its own."""
    preferred: tuple[str, ...] = ()
    """Names of compilers that the catalog gives for the base image, such as ``g++-12``."""
    cpu: str = ""
    """CPU that host code is compiled for, as ``-march`` names it (``znver3``); empty: that which builds."""
    jobs: int = 1
    """Compile jobs that may run at once."""
    moved: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Directories of this build to the names that stand for them in what is compiled."""

    @property
    def title(self) -> str:
        """Name and version for messages."""
        return f"{self.name} {self.version}"

    @property
    def rocm_line(self) -> str:
        """The ROCm line (major.minor) of torch's label, or else of the base image.

        Names that a source computes must be those which the torch that runs will ask for.
        """
        label = self.torch.partition("+rocm")[2] or self.rocm
        return ".".join(label.split(".")[:2])


@dataclass(frozen=True, slots=True)
class Application:
    """What a build is run with."""

    environment: Mapping[str, str]
    """All variables that recipe and build set, over the place's clean environment."""
    options: tuple[str, ...] = ()
    """Build options for setuptools (``--build-option``)."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """Commands to run in the source tree before the backend is called."""
    programs: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Stand-ins: name to the text of a shell script, in a directory that comes first on PATH."""
    covers: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Files of the image that a source calls by their path: path to the stand-in that must lie there."""
    only_at: tuple[str, ...] = ()
    """Those of `covers` that the source finds there or not at all."""
    notes: tuple[str, ...] = ()
    """What a person should know of this build, one sentence each."""
