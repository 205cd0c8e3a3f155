"""What an inspection says of a base image, and what follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from builders.recipes.build import Compiler
from builders.recipes.compilers import choose_compilers
from resolver.errors import EnvironmentLacksError
from resolver.facts import schema
from resolver.versions import is_version, minor, newest_first

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog

_FIRST_GCC = {
    "3.4.22": "6.1", "3.4.23": "7.1", "3.4.24": "7.2", "3.4.25": "8.1", "3.4.26": "9.1", "3.4.27": "9.2",
    "3.4.28": "9.3", "3.4.29": "11.1", "3.4.30": "12.1", "3.4.31": "13.1", "3.4.32": "13.2", "3.4.33": "14.1",
    "3.4.34": "15.1",
}  # fmt: skip
"""``GLIBCXX`` version to the first GCC release that has it.
Source: gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html."""
_STANDARD = "17"
"""C++ standard of the headers of every torch that has ROCm wheels today."""


class ImagePython(msgspec.Struct, frozen=True, kw_only=True):
    """A Python in a base image."""

    path: str
    version: str
    prefix: str
    base: str
    """Prefix of the Python that it is a virtual environment of; else its own."""
    headers: bool
    venv: bool
    """Whether it can make environments that have pip."""
    holds: dict[str, str] = {}
    """Every distribution that it can import, with the version."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A program that builds use."""

    path: str
    version: str


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is in a base image. Text is empty, and a list too, where there is no such thing."""

    name: str
    path: str
    digest: str
    os: str = ""
    """The distribution as it calls itself, such as ``Ubuntu 24.04.3 LTS``."""
    os_id: str = ""
    os_version: str = ""
    architecture: str = ""
    glibc: str = ""
    glibcxx: str = ""
    """Newest symbol version of libstdc++, such as ``3.4.33``."""
    cxxabi: str = ""
    gcc: str = ""
    """Newest symbol version of libgcc_s."""
    libstdcxx: str = ""
    """First GCC release that has ``glibcxx``; empty for one that is newer than our table."""
    rocm: str = ""
    rocm_path: str = ""
    hipcc: str = ""
    """HIP version that hipcc says."""
    clang: str = ""
    """Release of the clang behind hipcc."""
    gpu_tools: dict[str, str] = {}
    """``rocminfo``, ``amdgpu-arch`` and the like, with their paths."""
    compilers: tuple[Compiler, ...] = ()
    tools: dict[str, Tool] = {}
    pythons: tuple[ImagePython, ...] = ()
    conda: tuple[str, ...] = ()
    """Prefixes of conda and its environments."""
    labels: dict[str, str] = {}
    libraries: tuple[str, ...] = ()
    """Sonames that the loader finds, ROCm's libraries included."""

    @property
    def torch(self) -> dict[str, str]:
        """Path of each Python that can import torch, and its version."""
        return {one.path: one.holds["torch"] for one in self.pythons if "torch" in one.holds}

    def missing_tools(self, *, rocm: bool = True) -> list[str]:
        """Name what a build needs of the image and is not there.

        Parameters
        ----------
        rocm
            Whether it is a build for ROCm, or one for the CPU.
        """
        found = []
        if rocm and not self.hipcc:
            found.append(
                "no hipcc: it holds ROCm's runtime only; take the image with the compiler (-dev, -complete)"
                if self.rocm
                else "no ROCm: neither /opt/rocm/.info/version nor hipcc"
            )
        try:
            choose_compilers(self.compilers, cxx_standard=_STANDARD)
        except EnvironmentLacksError as error:
            found.append(error.message.removesuffix(".")[:1].lower() + error.message.removesuffix(".")[1:])
        if self.architecture and self.architecture != "x86_64":
            found.append(f"it is for {self.architecture}; AMD's GPUs and torch's ROCm wheels are for x86_64")
        if not self.glibc:
            found.append("no glibc: torch's wheels do not run with another C library")
        return found


def as_row(facts: ImageFacts, catalog: Catalog) -> schema.Image:
    """Give an inspected image as a row of the catalog.

    What only documents say, as the MPI that it is for, is taken from a row of the same name.
    """
    documented = catalog.image.get(facts.name)
    return schema.Image(
        name=facts.name,
        rocm=facts.rocm if is_version(facts.rocm) else "",
        os=facts.os,
        glibc=facts.glibc,
        libstdcxx=facts.libstdcxx,
        path=facts.path,
        digest=facts.digest,
        dockerhash=documented.dockerhash if documented else "",
        compilers=_host_compilers(facts),
        python=tuple(newest_first({minor(one.version) for one in facts.pythons})),
        mpi=documented.mpi if documented else "",
        holds=_known_of(facts, catalog),
        status="observed",
        source=f"{schema.INSPECTED}{facts.path.rpartition('/')[2]} {facts.digest}",
    )


def _host_compilers(facts: ImageFacts) -> tuple[str, ...]:
    try:
        chosen = choose_compilers(facts.compilers, cxx_standard=_STANDARD)
    except EnvironmentLacksError:
        return ()
    return tuple(one.name for one in (chosen.cc, chosen.cxx) if one)


def _known_of(facts: ImageFacts, catalog: Catalog) -> dict[str, str]:
    """Give what of the catalog's distributions the Python with torch holds."""
    for one in facts.pythons:
        if "torch" in one.holds:
            known = {*catalog.package, "torch", "torchvision", "torchaudio"}
            return {
                name: version
                for name, version in sorted(one.holds.items())
                if name in known and is_version(version)
            }
    return {}


def gcc_of(glibcxx: str) -> str:
    """Give the first GCC release whose libstdc++ has a symbol version; empty if it is not in the table.

    Examples
    --------
    >>> gcc_of("3.4.32")
    '13.2'
    >>> gcc_of("3.4.99")
    ''
    """
    return _FIRST_GCC.get(glibcxx, "")
