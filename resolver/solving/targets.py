"""The Pythons and glibc versions that a solution may have, and the files that fit each of them.

A request often leaves several Pythons open until the requested distributions are chosen. So what depends on
Python (markers, Requires-Python, tags of wheels) is evaluated for all of them at once, as masks of the
candidates of ``python`` and ``glibc``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from resolver.compiling.problem import bits
from resolver.environment import Environment, kinds_of, names_python
from resolver.versions import join_words, minor, newest_first

if TYPE_CHECKING:
    from resolver.compiling.problem import Variable
    from resolver.environment import Kind
    from resolver.indexes import File


class Fit(msgspec.Struct, frozen=True, gc=False):
    """Where the files of a release can be installed, as masks of Pythons."""

    wheels: dict[int, int]
    """The Pythons with a wheel, by the minor version of the oldest glibc 2 that it needs; 0 if any."""
    with_wheel: int
    """The Pythons with a wheel, for some glibc."""
    sdist: int
    """The Pythons that may build its sdist."""

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
        self._fits: dict[tuple[tuple[Kind, ...], bool], Fit] = {}
        """By the kinds of the files of a release, which many releases share."""
        self._allowing: dict[tuple[str, bool], int] = {}
        self._glibcs_of: dict[str, list[tuple[int, int]]] = {}
        """By the tags of a wheel."""
        self._places: dict[tuple[Kind, ...], list[int]] = {}
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

    def allowing(self, requires_python: str, *, any_patch: bool = False) -> int:
        """Return the Pythons that Requires-Python allows."""
        key = requires_python, any_patch
        if key not in self._allowing:
            pythons = (self._lenient if any_patch else self.environments).items()
            self._allowing[key] = sum(1 << bit for bit, one in pythons if one.allows_python(requires_python))
        return self._allowing[key]

    def fit(self, files: Sequence[File], *, any_patch: bool = False) -> Fit:
        """Return where files can be installed; with `any_patch`, by some patch release of a Python."""
        key = kinds_of(files), any_patch
        if key not in self._fits:
            self._fits[key] = self._fit_of(key[0], any_patch=any_patch)
        return self._fits[key]

    def _fit_of(self, kinds: Iterable[Kind], *, any_patch: bool) -> Fit:
        wheels: dict[int, int] = {}
        best: dict[int, int] = {}
        sdist = 0
        for kind in kinds:
            for bit, glibc in self._fits_of(kind, any_patch=any_patch):
                if not kind[0]:
                    sdist |= 1 << bit
                elif glibc < best.get(bit, glibc + 1):
                    best[bit] = glibc
        for bit, glibc in best.items():
            wheels[glibc] = wheels.get(glibc, 0) | 1 << bit
        return Fit(wheels, sum(1 << bit for bit in best), sdist)

    def _fits_of(self, kind: Kind, *, any_patch: bool) -> list[tuple[int, int]]:
        """Return the Pythons that may install a file, each with the minor version of the oldest glibc."""
        tags, requires_python = kind
        if tags not in self._glibcs_of:
            pythons = self.environments.items()
            glibcs = [(bit, one.oldest_glibc(tags) if tags else 0) for bit, one in pythons]
            self._glibcs_of[tags] = [(bit, glibc) for bit, glibc in glibcs if glibc is not None]
        allowing = self.allowing(requires_python, any_patch=any_patch)
        return [(bit, glibc) for bit, glibc in self._glibcs_of[tags] if allowing >> bit & 1]

    def files(self, files: Sequence[File]) -> list[File]:
        """Return the files for any Python, the most preferred first; if none, those for any patch release."""
        kinds = kinds_of(files)
        if kinds not in self._places:
            # A file that only some patch releases may install counts only if there is no other.
            self._places[kinds] = self._places_of(kinds) or self._places_of(kinds, any_patch=True)
        return [files[place] for place in self._places[kinds]]

    def _places_of(self, kinds: tuple[Kind, ...], *, any_patch: bool = False) -> list[int]:
        fitting: dict[int, list[int]] = {bit: [] for bit in self.environments}
        for place, kind in enumerate(kinds):
            for bit, _ in self._fits_of(kind, any_patch=any_patch):
                fitting[bit].append(place)
        ordered = (self.environments[bit].ordered(kinds, found) for bit, found in fitting.items() if found)
        return [*dict.fromkeys(chain.from_iterable(ordered))]

    def names(self, pythons: int) -> str:
        """Return Pythons as text, such as ``Python 3.9 and 3.10``."""
        versions = newest_first(candidate.version for candidate in self._python.chosen(pythons))[::-1]
        return f"Python {join_words(versions, most=8, joiner='and')}"
