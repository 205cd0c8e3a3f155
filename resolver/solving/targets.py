"""The Pythons and glibc versions that a solution may have, and the files that fit each of them.

A request often leaves several Pythons open until the requested distributions are chosen. So what depends on
Python (markers, Requires-Python, tags of wheels) is evaluated for all of them at once, as masks of the
candidates of ``python`` and ``glibc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import bits
from resolver.environment import Environment, names_python, tags_of
from resolver.versions import join_words, minor, newest_first

if TYPE_CHECKING:
    from resolver.compiling.problem import Variable
    from resolver.indexes import File


class Fit(msgspec.Struct, frozen=True, gc=False):
    """Where the files of a release can be installed, as masks of Pythons."""

    wheels: dict[int, int]
    """The Pythons with a wheel, by the minor version of the oldest glibc 2 that it needs; 0 if any."""
    sdist: int
    """The Pythons that may build its sdist."""

    @property
    def with_wheel(self) -> int:
        """The Pythons with a wheel, for some glibc."""
        mask = 0
        for pythons in self.wheels.values():
            mask |= pythons
        return mask

    @property
    def pythons(self) -> int:
        """The Pythons with any file."""
        return self.with_wheel | self.sdist


class Targets:
    """The Pythons and glibc versions of a problem.

    `release` is the patch release of Python, if the request names one. `all` and `allowed` are the masks of
    all Pythons and of those that the request allows.
    """

    def __init__(self, python: Variable, glibc: Variable, allowed: int, release: str = "") -> None:
        self._python = python
        self._glibc = glibc
        self._release = release
        self.all = python.present
        self.allowed = allowed & python.present
        self._fits: dict[tuple[str, str, bool], list[tuple[int, int]]] = {}
        self._markers: dict[tuple[str, str], int] = {}

    @cached_property
    def environments(self) -> dict[int, Environment]:
        """The environment of each Python that is allowed, by bit number, for any glibc."""
        return {bit: self.environment(bit) for bit in bits(self.allowed)}

    def environment(self, bit: int, glibc: str = "", *, any_patch: bool = False) -> Environment:
        """Return the environment of a Python."""
        version = self._python.candidate(bit).version
        same = self._release and minor(self._release) == version
        return Environment(self._release if same else version, glibc, any_patch=any_patch)

    @cached_property
    def _lenient(self) -> dict[int, Environment]:
        return {bit: self.environment(bit, any_patch=True) for bit in self.environments}

    def older_glibc(self, than: int) -> int:
        """Return the glibc versions before 2.`than`."""
        return self._glibc.mask(number for number, known in enumerate(self._glibcs) if known < than)

    @cached_property
    def _glibcs(self) -> list[int]:
        """The minor versions of the candidates of glibc 2."""
        return [int(candidate.version.split(".")[1]) for candidate in self._glibc.candidates]

    def applying(self, marker: str, extra: str = "") -> int:
        """Return the Pythons to which a marker applies, with one extra or without any.

        These are all Pythons if the marker does not depend on Python, else some of those that are allowed.
        Raise `ValueError` if the marker is not valid.
        """
        if not marker:
            return self.all
        key = marker, extra
        mask = self._markers.get(key)
        if mask is None:
            if names_python(marker):
                mask = sum(1 << bit for bit, one in self.environments.items() if one.applies(marker, extra))
            else:
                applies = next(iter(self.environments.values())).applies(marker, extra)
                mask = self.all if applies else 0
            self._markers[key] = mask
        return mask

    def fit(self, files: Iterable[File], *, any_patch: bool = False) -> Fit:
        """Return where files can be installed; with `any_patch`, by some patch release of a Python."""
        wheels: dict[int, int] = {}
        best: dict[int, int] = {}
        sdist = 0
        for file in files:
            is_wheel = file.name.endswith(".whl")
            key = tags_of(file.name) if is_wheel else "", file.requires_python, any_patch
            fits = self._fits.get(key)
            if fits is None:
                fits = self._fits[key] = self._fit_of(file, is_wheel=is_wheel, any_patch=any_patch)
            for bit, glibc in fits:
                if not is_wheel:
                    sdist |= 1 << bit
                elif glibc < best.get(bit, glibc + 1):
                    best[bit] = glibc
        for bit, glibc in best.items():
            wheels[glibc] = wheels.get(glibc, 0) | 1 << bit
        return Fit(wheels, sdist)

    def _fit_of(self, file: File, *, is_wheel: bool, any_patch: bool) -> list[tuple[int, int]]:
        """Return the Pythons that may install a file, each with the minor version of the oldest glibc."""
        found = [
            (bit, one.oldest_glibc(file.name) if is_wheel else 0)
            for bit, one in (self._lenient if any_patch else self.environments).items()
            if one.allows_python(file.requires_python)
        ]
        return [(bit, glibc) for bit, glibc in found if glibc is not None]

    def files(self, files: Sequence[File]) -> list[File]:
        """Return the files for any Python, the most preferred first; if none, those for any patch release."""
        found: dict[str, File] = {}
        # A file that only some patch releases may install counts only if there is no other.
        for environments in (self.environments, self._lenient):
            for environment in environments.values():
                for file in environment.installable(files):
                    found.setdefault(file.name, file)
            if found:
                break
        return list(found.values())

    def names(self, pythons: int) -> str:
        """Return Pythons as text, such as ``Python 3.9 and 3.10``."""
        versions = newest_first(candidate.version for candidate in self._python.chosen(pythons))[::-1]
        return f"Python {join_words(versions, most=8, joiner='and')}"
