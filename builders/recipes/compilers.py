"""The host compilers of a build."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from resolver.errors import EnvironmentLacksError

if TYPE_CHECKING:
    from collections.abc import Sequence

_OLDEST = {"g++": {"14": 5, "17": 8, "20": 10}, "clang++": {"14": 4, "17": 5, "20": 10}}
"""First major release that accepts the final name of ``-std=c++NN`` (gcc.gnu.org/projects/cxx-status.html,
clang.llvm.org/cxx_status.html)."""

_CXX = re.compile(r"^(?P<family>g\+\+|clang\+\+|c\+\+)(?P<suffix>-\d+)?$")
_C = {"g++": "gcc", "clang++": "clang", "c++": "cc"}


class Program(msgspec.Struct, frozen=True):
    """A program of a runtime that builds use, such as a host compiler."""

    name: str
    """The command, such as ``g++-12``."""
    version: str
    """Its release, such as ``12.3.0``."""
    path: str
    """Its path inside the runtime."""


def choose_compilers(compilers: Sequence[Program], cxx_standard: str) -> tuple[Program, Program | None]:
    """Choose the C++ compiler of a build, and the C compiler of the same name and suffix, if there is one.

    Of the compilers that support the C++ standard, choose the first of: ``g++``, the newest ``g++-N``,
    ``c++``, ``clang++``. LUMI's SUSE images have ``g++`` 7 and ``g++-12``. `cxx_standard` is the required
    standard, such as ``17``; empty if any will do.
    """
    suitable = [
        compiler for compiler in compilers if _CXX.match(compiler.name) and _supports(compiler, cxx_standard)
    ]
    if not suitable:
        listed = ", ".join(f"{compiler.name} {compiler.version}" for compiler in compilers) or "none"
        standard = f" that supports C++{cxx_standard}" if cxx_standard else ""
        msg = f"There is no C++ compiler{standard}. Host compilers: {listed}."
        raise EnvironmentLacksError(msg, hint="Use a base image with a newer compiler.")
    cxx = min(suitable, key=_rank)
    match = _CXX.match(cxx.name)
    cc_name = _C[match["family"]] + (match["suffix"] or "") if match else ""
    return cxx, next((compiler for compiler in compilers if compiler.name == cc_name), None)


def _supports(compiler: Program, cxx_standard: str) -> bool:
    family = "clang++" if compiler.name.startswith("clang") else "g++"
    return _major(compiler) >= _OLDEST[family].get(cxx_standard, 0)


def _rank(compiler: Program) -> tuple[int, int]:
    order = ["g++", "g++-", "c++", "clang++", "clang++-"]
    family = re.sub(r"\d+$", "", compiler.name)
    return order.index(family) if family in order else len(order), -_major(compiler)


def _major(compiler: Program) -> int:
    digits = re.match(r"\d+", compiler.version)
    return int(digits[0]) if digits else 0
