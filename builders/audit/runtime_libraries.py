"""The libraries that a wheel runs with: those of torch, the base image and a conda environment."""

from __future__ import annotations

import ast
import mmap
import re
from typing import TYPE_CHECKING, Any

import msgspec

from builders.audit.elf import read_object
from builders.wheels.wheel import DamagedError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


_LIBRARY = re.compile(r".+\.so(\.\d+)*")
LIBRARIES_WITH_SYMBOLS = ("libc10", "libtorch", "libcaffe2", "libshm")
_ROCM_LINE = re.compile(r"\d+\.\d+")


class TorchLibraries(msgspec.Struct, frozen=True):
    """The torch that a wheel is for; unknown values are not compared."""

    version: str = ""
    rocm: str = ""
    """Major and minor of the ROCm that it was built for, such as ``7.2``; empty for a CPU torch."""
    libraries: frozenset[str] | None = None
    """File names and sonames in its library directory; None if unknown."""
    exports: frozenset[str] | None = None
    """Symbols of torch that its libraries define; None if unknown."""


class LibraryProvider(msgspec.Struct, frozen=True):
    """An image or environment that provides libraries."""

    name: str
    """For messages: ``the base image``."""
    versions: Mapping[str, str] = {}
    """The newest symbol versions that it has, by family, as in `SharedObject.versions`."""
    libraries: frozenset[str] | None = None
    """Sonames that its loader finds; None if unknown."""
    is_image: bool = True
    """An environment runs in an image, which may have more libraries."""


def read_torch(directory: Path) -> TorchLibraries:
    """Read torch from its directory ``torch/lib``, with the libraries of ROCm's pip packages beside it."""
    libraries: set[str] = set()
    exports: frozenset[str] | None = None
    for path in sorted(directory.iterdir()):
        if not _LIBRARY.fullmatch(path.name) or not path.is_file():
            continue
        libraries.add(path.name)
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                library = read_object(path.name, data)
        except (DamagedError, OSError, ValueError):
            continue
        if library.soname:
            libraries.add(library.soname)
        if path.name.startswith(LIBRARIES_WITH_SYMBOLS):
            exports = (exports or frozenset()) | library.exports
    for package in ("core", "libraries"):
        for path in directory.parent.parent.glob(f"_rocm_sdk_{package}*/lib/**/*.so*"):
            libraries.add(path.name)
    version, rocm = _torch_version(directory.parent / "version.py")
    return TorchLibraries(version, rocm, frozenset(libraries), exports)


def _torch_version(path: Path) -> tuple[str, str]:
    """Read torch's version, and ROCm's major and minor, from ``torch/version.py`` without running it."""
    try:
        values = literals(path.read_bytes())
    except OSError:
        return "", ""
    line = _ROCM_LINE.match(str(values.get("hip") or ""))
    return str(values.get("__version__") or ""), line[0] if line else ""


def literals(source: bytes) -> dict[str, Any]:
    """Return the literal values that a Python module assigns to names, without running it.

    >>> literals(b"a = 1; b: str = 'x'; c = open('/etc/passwd')")
    {'a': 1, 'b': 'x'}
    """
    values: dict[str, Any] = {}
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too deeply nested
        return values
    for statement in statements:
        names: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            names = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            names = [statement.target]
        expression = getattr(statement, "value", None)
        for name in names:
            if isinstance(name, ast.Name) and expression is not None:
                try:
                    values[name.id] = ast.literal_eval(expression)
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
    return values


def image_provider(facts: Mapping[str, Any]) -> LibraryProvider:
    """Return the libraries and symbol versions of a base image as a provider.

    The facts are ``glibc``, ``glibcxx``, ``cxxabi``, ``gcc`` and ``fabric`` as versions, and ``libraries`` as
    sonames; each may be missing.
    """
    families = ("GLIBC", "GLIBCXX", "CXXABI", "GCC", "FABRIC")
    versions = {family: facts[family.lower()] for family in families if facts.get(family.lower())}
    libraries = frozenset(facts["libraries"]) if "libraries" in facts else None
    return LibraryProvider("the base image", versions, libraries)
