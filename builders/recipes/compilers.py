"""Which of a place's host compilers a build uses."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.recipes.build import Compiler

_OLDEST = {"g++": {"14": 5, "17": 8, "20": 10}, "clang++": {"14": 4, "17": 5, "20": 10}}
"""First major release that accepts ``-std=c++NN`` under that name (gcc.gnu.org/projects/cxx-status.html,
clang.llvm.org/cxx_status.html)."""

_CXX = re.compile(r"^(?P<family>g\+\+|clang\+\+|c\+\+)(?P<suffix>-\d+)?$")
_C = {"g++": "gcc", "clang++": "clang", "c++": "cc"}


@dataclass(frozen=True, slots=True)
class HostCompilers:
    """A C++ compiler and the C compiler that belongs to it."""

    cxx: Compiler
    cc: Compiler | None
    """None where the place has no C compiler of the same name and suffix."""


def choose_compilers(
    found: Sequence[Compiler], *, cxx_standard: str = "", preferred: Sequence[str] = ()
) -> HostCompilers:
    """Choose the host compilers for a build.

    Of those that know the C++ standard: first what the catalog names for the base image (LUMI's SUSE
    images have ``g++`` 7 and ``g++-12`` side by side), then plain ``g++``, which the image's makers
    chose, then the newest ``g++-N``, then ``c++`` and ``clang++``.

    Parameters
    ----------
    found
        The compilers of the place, C and C++.
    cxx_standard
        The standard that must be known, such as ``17``; any when empty.
    preferred
        Names to take first, in this order.

    Raises
    ------
    EnvironmentLacksError
        None of them is a C++ compiler that knows the standard.
    """
    able = [one for one in found if _CXX.match(one.name) and _knows(one, cxx_standard)]
    if not able:
        listed = ", ".join(f"{one.name} {one.version}" for one in found) or "none at all"
        standard = f" that knows C++{cxx_standard}" if cxx_standard else ""
        msg = f"There is no C++ compiler{standard}; the host compilers found are: {listed}."
        raise EnvironmentLacksError(msg, hint="Use a base image with a newer compiler, or set CXX to one.")
    cxx = min(able, key=lambda one: _rank(one, list(preferred)))
    match = _CXX.match(cxx.name)
    beside = _C[match["family"]] + (match["suffix"] or "") if match else ""
    return HostCompilers(cxx, next((one for one in found if one.name == beside), None))


def _knows(compiler: Compiler, cxx_standard: str) -> bool:
    family = "clang++" if compiler.name.startswith("clang") else "g++"
    return _major(compiler) >= _OLDEST[family].get(cxx_standard, 0)


def _rank(compiler: Compiler, preferred: list[str]) -> tuple[int, int, int]:
    if compiler.name in preferred:
        return 0, preferred.index(compiler.name), 0
    order = ["g++", "g++-", "c++", "clang++", "clang++-"]
    kind = re.sub(r"\d+$", "", compiler.name)
    return 1, order.index(kind) if kind in order else len(order), -_major(compiler)


def _major(compiler: Compiler) -> int:
    try:
        return Version(compiler.version).major
    except InvalidVersion:
        found = re.match(r"\d+", compiler.version)
        return int(found[0]) if found else 0
