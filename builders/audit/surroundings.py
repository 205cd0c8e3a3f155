"""What a wheel will run beside: torch, the libraries of the image, a conda environment.

A wheel is right or wrong only beside a certain torch in a certain image. What they provide is read
from their files here, or from what an inspection of the image said; the checks compare with it.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerDefSection

from builders.audit.directory import DamagedError
from builders.audit.elf import raise_floor, read_object
from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LIBRARY = re.compile(r".+\.so(\.\d+)*")
_SYMBOLS_FROM = ("libc10", "libtorch", "libcaffe2", "libshm")
_ROCM_LINE = re.compile(r"\d+\.\d+")
_CONDA_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1")


@dataclass(frozen=True, slots=True)
class Torch:
    """The torch that a wheel is for; what is not known of it is not compared."""

    version: str = ""
    rocm: str = ""
    """Major and minor of the ROCm that it was built for, such as ``7.2``; empty for a CPU torch."""
    libraries: frozenset[str] | None = None
    """File names and sonames in its library directory; None when nobody looked."""
    exports: frozenset[str] | None = field(default=None, repr=False)
    """Symbols of torch's own that its libraries define; None when nobody looked."""


@dataclass(frozen=True, slots=True)
class Provider:
    """An image or environment, and what it provides to a wheel's objects."""

    name: str
    """As in a sentence: ``the base image``."""
    floors: Mapping[str, str] = field(default_factory=dict, hash=False)
    """``GLIBC``, ``GLIBCXX``, ``CXXABI`` and ``GCC`` to the newest symbol version that it has."""
    libraries: frozenset[str] | None = None
    """Sonames that its loader finds; None when that is not known."""
    image: bool = True
    """Whether it is all that is there; an environment lies over an image that may have more."""


def read_torch(directory: Path) -> Torch:
    """Read what a torch provides.

    Parameters
    ----------
    directory
        Its library directory, ``torch/lib`` where it is installed.

    Raises
    ------
    UsageError
        There is no torch.
    """
    if not directory.is_dir():
        msg = f"There is no directory {directory}."
        raise UsageError(msg, hint="It is torch/lib in the environment that the wheels are for.")
    libraries: set[str] = set()
    exports: set[str] = set()
    looked = False
    for path in sorted(directory.iterdir()):
        if not _LIBRARY.fullmatch(path.name) or not path.is_file():
            continue
        libraries.add(path.name)
        try:
            with path.open("rb") as file:
                one, symbols = read_object(path.name, file)
        except (DamagedError, OSError):
            continue
        if one.soname:
            libraries.add(one.soname)
        if path.name.startswith(_SYMBOLS_FROM):
            looked = True
            exports |= symbols.gives
    if not looked:
        msg = f"{directory} holds no library of torch."
        raise UsageError(msg, hint="It is torch/lib in the environment that the wheels are for.")
    version, rocm = _version_of(directory.parent / "version.py")
    return Torch(version, rocm, frozenset(libraries), frozenset(exports))


def _version_of(path: Path) -> tuple[str, str]:
    """Read torch's version, and ROCm's major and minor, from ``torch/version.py``; nothing is run."""
    try:
        said = literals(path.read_bytes())
    except OSError:
        return "", ""
    line = _ROCM_LINE.match(str(said.get("hip") or ""))
    return str(said.get("__version__") or ""), line[0] if line else ""


def literals(source: bytes) -> dict[str, Any]:
    """Give the literal values that a Python module assigns to names; what is computed is left out.

    Examples
    --------
    >>> literals(b"a = 1; b: str = 'x'; c = open('/etc/passwd')")
    {'a': 1, 'b': 'x'}
    """
    found: dict[str, Any] = {}
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    for one in statements:
        names: list[ast.expr] = []
        if isinstance(one, ast.Assign):
            names = one.targets
        elif isinstance(one, ast.AnnAssign):
            names = [one.target]
        value = getattr(one, "value", None)
        for name in names:
            if isinstance(name, ast.Name) and value is not None:
                try:
                    found[name.id] = ast.literal_eval(value)
                except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
                    continue
    return found


def read_conda(prefix: Path) -> Provider:
    """Read which symbol versions the C++ and GCC libraries of a conda environment have.

    Parameters
    ----------
    prefix
        The environment's directory. Its libraries are found before the image's.

    Raises
    ------
    UsageError
        There is none, or what it has cannot be read.
    """
    floors: dict[str, str] = {}
    if not prefix.is_dir():
        msg = f"There is no directory {prefix}."
        raise UsageError(msg, hint="Name the directory of the conda environment.")
    for name in _CONDA_LIBRARIES:
        path = prefix / "lib" / name
        if path.exists():
            for version in _defined_versions(path):
                raise_floor(floors, version)
    libraries = frozenset(path.name for path in (prefix / "lib").glob("*.so*"))
    return Provider(f"the conda environment {prefix.name}", floors, libraries, image=False)


def _defined_versions(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            section = ELFFile(file).get_section_by_name(".gnu.version_d")
            if not isinstance(section, GNUVerDefSection):
                return []
            return [str(one.name) for _, names in section.iter_versions() for one in names]
    except (OSError, ELFError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UsageError(msg) from None


def read_image_facts(path: Path, also: Mapping[str, str]) -> Provider:
    """Read what an inspection of a base image wrote as JSON.

    Parameters
    ----------
    path
        The file. Its keys ``glibc``, ``glibcxx``, ``cxxabi``, ``gcc`` (versions) and ``libraries``
        (sonames) are read where they are there, at the top or under ``image``.
    also
        Facts of the same kind that rule over those of the file.

    Raises
    ------
    UsageError
        It cannot be read or says something else.
    """
    hint = "Write it with: matrix doctor --base-image IMAGE --format json"
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        msg = f"Cannot read {path}: {error}."
        raise UsageError(msg, hint=hint) from None
    if isinstance(said, dict) and isinstance(said.get("image"), dict):
        said = said["image"]
    if not isinstance(said, dict):
        msg = f"{path} does not hold the facts of an image."
        raise UsageError(msg, hint=hint)
    return image_provider({**cast("Mapping[str, object]", said), **also})


def image_provider(facts: Mapping[str, object]) -> Provider:
    """Give what a base image provides, from the facts of its inspection.

    Parameters
    ----------
    facts
        ``glibc``, ``glibcxx``, ``cxxabi``, ``gcc`` as versions (``2.31``, or with the name before
        it), ``libraries`` as sonames; each may be missing.

    Raises
    ------
    UsageError
        A value is no version, or there is nothing to compare with.
    """
    floors: dict[str, str] = {}
    for family in ("GLIBC", "GLIBCXX", "CXXABI", "GCC"):
        text = facts.get(family.lower())
        if text:
            version = str(text).upper().removeprefix(f"{family}_")
            if not re.fullmatch(r"\d+(\.\d+)*", version):
                msg = f"{text!r} is no version of {family.lower()}."
                raise UsageError(msg, hint="Write it as 2.31.")
            floors[family] = version
    listed = facts.get("libraries")
    libraries = frozenset(map(str, listed)) if isinstance(listed, list | tuple | set | frozenset) else None
    if not floors and libraries is None:
        msg = "The facts of the image name neither its glibc nor its libraries."
        raise UsageError(msg, hint="Write them with: matrix doctor --base-image IMAGE --format json")
    return Provider("the base image", floors, libraries)
