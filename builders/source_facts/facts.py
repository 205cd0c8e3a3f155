"""The facts about its build that a source tree states."""

from __future__ import annotations

import msgspec

from builders.source_facts.build_script import BuildVariable, Extension
from resolver.indexes import SourceClass


class CMake(msgspec.Struct, frozen=True):
    """Facts in the project's own CMake files."""

    files: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    """The languages in ``project()``, which every build enables."""
    minimum: tuple[int, int] | None = None
    uses_torch: bool = False
    downloads: bool = False


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts in a source tree about its build. JSON output is this struct, encoded."""

    name: str
    """Empty if it is computed. This is also true of `version`."""
    version: str
    summary: str
    import_name: str
    """The import package; empty if it could not be determined."""
    requires_python: str
    requires: tuple[str, ...]
    """Run requirements that are stated literally."""
    backend: str
    read: tuple[str, ...]
    """The build scripts that were read."""
    torch: tuple[str, ...]
    """The places where the build imports torch."""
    declared: tuple[str, ...]
    undeclared: tuple[str, ...]
    optional: tuple[str, ...]
    """Modules that the build uses if they are installed."""
    extensions: tuple[Extension, ...]
    cmake: CMake
    architectures: tuple[BuildVariable, ...]
    flags: tuple[BuildVariable, ...]
    """The other environment variables that the build reads."""
    sets: tuple[str, ...]
    """Environment variables that the build sets itself."""
    files: dict[str, int]
    """Number of files by suffix of kernels and host code."""
    missing: tuple[str, ...]
    """Source files of extensions that are not in the source."""
    submodules: dict[str, bool]
    """Git submodules, and whether their files are present."""
    mentions_hip: bool
    native_cpu: bool
    """Whether the build scripts mention ``-march=native``."""
    passes_host_compiler: bool
    """Whether they mention ``-ccbin``, with which nvcc gets the compiler in CC; hipcc rejects it."""
    cxx_standards: tuple[str, ...]
    """The C++ standards that the build sets, such as ``17``."""
    compiles: bool
    """Whether the build compiles something, as far as is known."""
    downloads: tuple[str, ...]
    """Places in Python scripts that use the network, as far as no condition decides."""
    gates: tuple[str, ...]
    """Places that end every build with a torch that is not for CUDA."""
    undetermined: tuple[str, ...]
    source: SourceClass = SourceClass("unread", "")
    """What kind of source it is, with evidence."""

    @property
    def builds_with_torch(self) -> bool:
        """Whether the build needs torch."""
        return bool(self.torch) or self.cmake.uses_torch

    @property
    def without_cpu_path(self) -> str:
        """The reason why the build needs a GPU compiler; empty if it can compile without one."""
        if self.extensions and all(extension.uses_gpu_compiler for extension in self.extensions):
            return f"all its extensions are {self.extensions[0].kind}"
        needed = {"CUDA", "HIP"} & set(self.cmake.languages)
        return f"its CMake project requires {' and '.join(sorted(needed))}" if needed else ""
