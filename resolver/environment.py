"""The environment that pip has on the target: markers, tags of wheels, Requires-Python.

A target has only the minor version of Python, so decisions that depend on the patch release are conservative.
A requirement counts if some patch release needs it. A file may be installed if every patch release may
install it.
"""

from __future__ import annotations

import re
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING

from resolver.requirements import normalize_name
from resolver.versions import shorten, specifier_or_none

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from packaging.markers import Marker

    from resolver.indexes import File

_MOST_NESTED = 100
"""Parentheses; `packaging` judges markers with more, and rejects those with more than 200."""
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>[()]|(?:and|or)\b)"""
    r"""|(?P<name>\w+)\s*(?P<operator>==|!=|<=|>=|<|>|in\b|not\s+in\b)\s*(?P<quote>["'])(?P<value>[^"']*)(?P=quote))"""
)
"""A part of a marker: a comparison of a variable with a text, a parenthesis, ``and`` or ``or``."""
_TEXTS = {
    "implementation_name",
    "os_name",
    "platform_machine",
    "platform_python_implementation",
    "platform_system",
    "sys_platform",
}
"""Variables that are never compared as versions."""
NEWEST_PATCH = 99
"""Higher than the patch number of any Python release."""
_MACHINE = "x86_64"
_OLDEST_GLIBC = 5  # manylinux1
_NAMED_MANYLINUX = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
_WHEEL_TAGS = 3
Kind = tuple[str, str]
"""The tags of a wheel, none of an sdist, and Requires-Python: what decides where a file can be installed."""
_Alternatives = list[list["tuple[str, str, str] | _Alternatives"]]
"""A parsed marker: comparisons and groups in parentheses, joined by ``and``, and these lists by ``or``."""


class Environment:
    """A CPython (``3.12`` or ``3.12.4``) on Linux with its glibc (``2.31``).

    If glibc is empty, every manylinux wheel counts. With `any_patch`, a file may be installed if only some
    patch releases of the Python may install it.
    """

    def __init__(self, python: str, glibc: str = "", *, any_patch: bool = False) -> None:
        self._enough = any if any_patch else all
        self._release = python
        self.python = ".".join(python.split(".")[:2])
        self.glibc = glibc
        self._markers: dict[tuple[str, str], bool] = {}
        self._parsed: dict[str, Marker] = {}
        self._pythons: dict[str, bool] = {}
        self._ranks: dict[str, int | None] = {}
        self._glibcs: dict[str, int | None] = {}

    def applies(self, marker: str, extra: str = "") -> bool:
        """Return whether a marker (PEP 508) is true, with one extra or without any.

        Raise `ValueError` if the marker is not valid.
        """
        if not marker:
            return True
        key = (marker, extra)
        applies = self._markers.get(key)
        if applies is None:
            patches = self.patches if "python_full_version" in marker else self.patches[:1]
            simple = [self._simple(marker, extra, patch) for patch in patches]
            applies = self._evaluated(marker, extra) if None in simple else any(simple)
            self._markers[key] = applies
        return applies

    def _simple(self, marker: str, extra: str, patch: str) -> bool | None:
        """Evaluate a marker that only compares common variables; return None for other or invalid markers."""
        # Almost all markers are of this kind, and loading `packaging.markers` takes longer than all of them.
        alternatives = _alternatives(marker)
        return None if alternatives is None else self._any(alternatives, extra, patch)

    def _any(self, alternatives: _Alternatives, extra: str, patch: str) -> bool | None:
        values = [
            [
                self._any(clause, extra, patch)
                if isinstance(clause, list)
                else self._compared(*clause, extra, patch)
                for clause in clauses
            ]
            for clauses in alternatives
        ]
        return None if any(None in clauses for clauses in values) else any(map(all, values))

    def _compared(self, name: str, operator: str, value: str, extra: str, patch: str) -> bool | None:
        """Evaluate a comparison; return None if `packaging` must evaluate it."""
        if operator[-1] == "n":
            own = (
                self.python if name == "python_version" else self.variables[name] if name in _TEXTS else None
            )
            return None if own is None else (own in value) == (operator == "in")
        if name in {"python_version", "python_full_version"}:
            allowed = specifier_or_none(operator + value)
            version = self.python if name == "python_version" else patch
            return None if allowed is None else allowed.allows(version)
        if operator not in {"==", "!="}:
            return None
        if name == "extra":
            is_same = bool(extra) and normalize_name(value) == extra
        elif name in _TEXTS:
            is_same = self.variables[name] == value
        else:
            return None
        return is_same == (operator == "==")

    def _evaluated(self, marker: str, extra: str) -> bool:
        from packaging.markers import Marker, UndefinedComparison

        try:
            parsed = self._parsed.get(marker)
            if parsed is None:
                parsed = self._parsed[marker] = Marker(marker)
            return any(
                parsed.evaluate({**self.variables, "python_full_version": full, "extra": extra})
                for full in self.patches
            )
        except UndefinedComparison as error:
            raise ValueError(str(error)) from None
        except RecursionError:
            msg = f"the marker {shorten(marker)!r} is nested too deeply"
            raise ValueError(msg) from None

    @property
    def patches(self) -> tuple[str, str]:
        """The oldest and the newest patch release that it may be."""
        if self._release != self.python:
            return self._release, self._release
        return f"{self.python}.0", f"{self.python}.{NEWEST_PATCH}"

    @cached_property
    def variables(self) -> dict[str, str]:
        """The variables of markers that do not depend on the patch release."""
        return {
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.{NEWEST_PATCH}",
            "os_name": "posix",
            "platform_machine": _MACHINE,
            "platform_python_implementation": "CPython",
            "platform_release": "",
            "platform_system": "Linux",
            "platform_version": "",
            "python_version": self.python,
            "sys_platform": "linux",
        }

    def allows_python(self, requires_python: str) -> bool:
        """Return whether Requires-Python allows the Python; an invalid specifier allows every Python."""
        if not requires_python:
            return True
        allowed = self._pythons.get(requires_python)
        if allowed is None:
            specifier = specifier_or_none(requires_python)
            allowed = specifier is None or self._enough(map(specifier.allows, self.patches))
            self._pythons[requires_python] = allowed
        return allowed

    def rank(self, tags: str) -> int | None:
        """Return the rank of a wheel's best tag (0 is the most specific); None if pip cannot install it.

        It is the order of `packaging.tags`: first by Python, then by platform.
        """
        if tags not in self._ranks:
            pythons, platforms = _parts_of(tags)
            on_linux, anywhere = self._orders
            ranks = []
            for python in pythons:
                if python in on_linux:
                    places = [self._platforms[one] for one in platforms if one in self._platforms]
                    ranks += [on_linux[python] * len(self._platforms) + place for place in places]
                if python in anywhere and "any" in platforms:
                    ranks.append(anywhere[python] * len(self._platforms))
            self._ranks[tags] = min(ranks, default=None)
        return self._ranks[tags]

    @cached_property
    def _platforms(self) -> Mapping[str, int]:
        return platform_tags(self.glibc or f"2.{NEWEST_PATCH}")

    @cached_property
    def _orders(self) -> tuple[dict[str, int], dict[str, int]]:
        """The order of `packaging.tags`, which imports subprocess: on Linux, and on any platform."""
        major, minor = map(int, self.python.split("."))
        this = f"cp{major}{minor}"
        older = [f"{major}{number}" for number in range(minor - 1, -1, -1)]
        pure = [f"py{major}{minor}-none", f"py{major}-none", *(f"py{number}-none" for number in older)]
        stable = [f"cp{number}-abi3" for number in older[:-2]]  # since Python 3.2
        linux = [f"{this}-{this}", f"{this}-abi3", f"{this}-none", *stable, *pure]
        on_linux = {tag: order for order, tag in enumerate(linux)}
        return on_linux, {tag: order for order, tag in enumerate([f"{this}-none", *pure], start=len(linux))}

    def oldest_glibc(self, tags: str) -> int | None:
        """Return the minor version of the oldest glibc 2 that a wheel runs on: 0 if any, None if none."""
        if tags not in self._glibcs:
            pythons, platforms = _parts_of(tags)
            on_linux, anywhere = self._orders
            if "any" in platforms and not anywhere.keys().isdisjoint(pythons):
                self._glibcs[tags] = 0
            elif on_linux.keys().isdisjoint(pythons):
                self._glibcs[tags] = None
            else:
                known = platform_tags(f"2.{NEWEST_PATCH}")
                parts = (_glibc_of(one) for one in platforms if one in known)
                self._glibcs[tags] = min(parts, default=None)
        return self._glibcs[tags]

    def installable(self, files: Sequence[File]) -> list[File]:
        """Return the files that pip may install: wheels, the best first, or else an sdist."""
        kinds = kinds_of(files)
        allowed = [place for place, (_, python) in enumerate(kinds) if self.allows_python(python)]
        return [files[place] for place in self.ordered(kinds, allowed)]

    def ordered(self, kinds: tuple[Kind, ...], places: Sequence[int]) -> list[int]:
        """Return the places of wheels, the best first, or else of an sdist; ignore Requires-Python."""
        wheels = [
            (rank, one) for one in places if kinds[one][0] and (rank := self.rank(kinds[one][0])) is not None
        ]
        return [place for _, place in sorted(wheels)] or [one for one in places if not kinds[one][0]][:1]

    def __str__(self) -> str:
        glibc = f" and glibc {self.glibc}" if self.glibc else ""
        return f"Python {self.python}{glibc} on {_MACHINE}"


@cache
def _alternatives(marker: str) -> _Alternatives | None:
    """Parse a marker; return None if it has anything else than comparisons of a variable with a text."""
    groups: list[_Alternatives] = [[[]]]  # the alternatives of each open parenthesis, with clauses
    end, marker = 0, marker.rstrip()
    is_clause_next = True
    while end < len(marker):
        token = _TOKEN.match(marker, end)
        if token is None or is_clause_next != (token["sign"] in {None, "("}):
            return None
        end = token.end()
        match token["sign"]:
            case None:
                groups[-1][-1].append((token["name"], token["operator"], token["value"]))
                is_clause_next = False
            case "(":
                if len(groups) > _MOST_NESTED:
                    return None
                groups.append([[]])
            case ")":
                alternatives = groups.pop()
                if not groups:
                    return None
                groups[-1][-1].append(alternatives)
            case sign:
                is_clause_next = True
                if sign == "or":
                    groups[-1].append([])
    return None if is_clause_next or len(groups) > 1 else groups[0]


def kinds_of(files: Sequence[File]) -> tuple[Kind, ...]:
    """Return the kinds of files."""
    return tuple(
        [(tags_of(file.name) if file.name.endswith(".whl") else "", file.requires_python) for file in files]
    )


@lru_cache(maxsize=10_000)
def tags_of(wheel: str) -> str:
    """Return the tags in the name of a wheel, in lower case."""
    return "-".join(wheel.removesuffix(".whl").lower().rsplit("-", _WHEEL_TAGS)[1:])


@cache
def _parts_of(tags: str) -> tuple[list[str], list[str]]:
    """Return the tags of Python with the ABI, and those of the platform."""
    interpreters, abis, platforms = (part.split(".") for part in tags.split("-"))
    return [f"{one}-{abi}" for one in interpreters for abi in abis], platforms


@cache
def platform_tags(glibc: str) -> Mapping[str, int]:
    """Return the platform tags of wheels that run with a glibc, with their places: the newest is the first.

    Examples
    --------
    >>> list(platform_tags("2.18"))[:3]
    ['manylinux_2_18_x86_64', 'manylinux_2_17_x86_64', 'manylinux2014_x86_64']
    """
    tags = []
    for number in range(int(glibc.split(".")[1]), _OLDEST_GLIBC - 1, -1):
        tags.append(f"manylinux_2_{number}_{_MACHINE}")
        if number in _NAMED_MANYLINUX:
            tags.append(f"{_NAMED_MANYLINUX[number]}_{_MACHINE}")
    return {tag: place for place, tag in enumerate([*tags, f"linux_{_MACHINE}"])}


def _glibc_of(platform: str) -> int:
    if platform.startswith("manylinux_2_"):
        return int(platform.split("_")[2])
    name = platform.partition("_")[0]
    return next((minor for minor, named in _NAMED_MANYLINUX.items() if named == name), 0)


def names_python(marker: str) -> bool:
    """Return whether a marker may depend on the Python."""
    return "python_" in marker or "implementation_version" in marker
