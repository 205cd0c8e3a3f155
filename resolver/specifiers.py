"""Version specifiers (PEP 440) as intervals, so that what they allow of many versions is looked up.

Nearly every clause that somebody writes compares with a plain release: ``>=2.4``, ``<3``, ``==6.2.*``.
Of a version such a clause looks at the release and at whether it comes before it (``2.4rc1``), is it, or
comes after it (``2.4.post1``), and it allows those between two places in that order. Where that does not
say it all (``<2.4rc1``, ``===2.4``), `packaging` decides; it is imported only then, because that takes
longer than most resolutions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Place = tuple[Any, ...]
"""Epoch, release without zeros at its end, and `_BEFORE`, `_AT` or `_AFTER` that release.

What comes before or after a release has itself as a fourth part. So a place of three parts stands
before all that begin with the same, and `_AFTER_IT` makes one that stands behind a single version.
"""

_BEFORE, _AT, _AFTER, _PAST = -1, 0, 1, 2
_AFTER_IT = (1,)
_FIRST: Place = (-1,)
_LAST: Place = (1 << 62,)
_CLAUSE = re.compile(
    r"(?P<operator>==|!=|<=|>=|<|>|~=)\s*(?P<public>[0-9](?:[a-z0-9.!_-]*[a-z0-9])?)"
    r"(?P<series>\.\*)?(?P<local>\+[a-z0-9]+(?:[._-][a-z0-9]+)*)?",
    re.IGNORECASE | re.ASCII,
)


class Clause(msgspec.Struct, frozen=True):
    """One comparison of a specifier, as it is written."""

    operator: str
    version: str


class _Between(msgspec.Struct, frozen=True):
    """What a clause allows: what stands from one place up to another, or all but that."""

    low: Place
    high: Place
    outside: bool = False
    local: str | None = None
    """The local version label that is wanted; any where it is None."""


class Specifier(msgspec.Struct, frozen=True):
    """A version specifier set: what all its clauses allow.

    Pre-releases are versions like any other, and a local version label counts only where a clause
    names one.
    """

    text: str
    """Its clauses, sorted, as `packaging` writes them."""
    clauses: tuple[Clause, ...] = ()
    between: tuple[_Between, ...] = ()
    other: Any = None
    """`packaging`'s form of it where a clause is not plain."""

    def __str__(self) -> str:
        """Give its clauses."""
        return self.text

    def __iter__(self) -> Iterator[Clause]:
        """Yield its clauses."""
        return iter(self.clauses)

    def allows(self, version: str) -> bool:
        """Tell whether it allows a version; a text that is none is never allowed."""
        parsed = parsed_version(version)
        if parsed is None:
            return False
        if self.other is not None:
            return bool(self.other.contains(parsed, prereleases=True))
        place = place_of(version)
        return all(
            (one.low <= place < one.high and one.local in {None, parsed.local}) is not one.outside
            for one in self.between
        )


@cache
def parsed_version(text: str) -> Version | None:
    """Read a version (PEP 440); None if it is none."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


@cache
def place_of(version: str) -> Place:
    """Say where a version that can be read stands, its local label left aside."""
    parsed = Version(version)
    place = parsed.epoch, _trimmed(parsed.release)
    if parsed.pre is not None or (parsed.dev is not None and parsed.post is None):
        return *place, _BEFORE, Version(parsed.public)
    if parsed.post is not None:
        return *place, _AFTER, Version(parsed.public)
    return *place, _AT


def _trimmed(release: tuple[int, ...]) -> tuple[int, ...]:
    """Leave out zeros at the end: 2.4.0 is 2.4."""
    end = len(release)
    while end and not release[end - 1]:
        end -= 1
    return release[:end]


@lru_cache(maxsize=65536)
def read_specifier(text: str) -> Specifier | None:
    """Read a specifier set (PEP 440); None if it is none."""
    parts = [part for one in text.split(",") if (part := one.strip())]
    found = {f"{one[0].operator}{one[0].version}": one for part in parts if (one := _plain(part))}
    if len(found) < len(parts):
        return _left_to_packaging(text)
    clauses, between = [], []
    for _, (clause, allowed) in sorted(found.items()):
        clauses.append(clause)
        between.append(allowed)
    return Specifier(",".join(sorted(found)), tuple(clauses), tuple(between))


def _left_to_packaging(text: str) -> Specifier | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        other = SpecifierSet(text, prereleases=True)
    except InvalidSpecifier:
        return None
    return Specifier(str(other), tuple(Clause(one.operator, one.version) for one in other), other=other)


@lru_cache(maxsize=65536)
def _plain(text: str) -> tuple[Clause, _Between] | None:
    """Read a clause that allows what stands between two places; None for any other."""
    found = _CLAUSE.fullmatch(text)
    parsed = parsed_version(found["public"]) if found else None
    if not found or not parsed:
        return None
    operator = found["operator"]
    is_equality = operator in {"==", "!="}
    if (found["series"] or found["local"]) and (not is_equality or (found["series"] and found["local"])):
        return None
    place = place_of(found["public"])
    if place[2] == _AT:
        ends = _about_release(operator, parsed, in_series=found["series"] is not None)
    else:
        ends = None if found["series"] else _about_version(operator, place)
    if ends is None:
        return None
    local = Version(f"0{found['local']}").local if found["local"] else None
    clause = Clause(operator, text[len(operator) :].strip())
    return clause, _Between(*ends, operator == "!=", local)


def _about_release(operator: str, version: Version, *, in_series: bool) -> tuple[Place, Place] | None:
    """Say from where up to where a clause allows (or refuses) what it says of a plain release."""
    release, epoch = version.release, version.epoch

    def at(stage: int) -> Place:
        return epoch, _trimmed(release), stage

    def behind_series(series: tuple[int, ...]) -> Place:
        return epoch, (*series[:-1], series[-1] + 1), _BEFORE

    if operator == "~=":
        return (at(_AT), behind_series(release[:-1])) if len(release) > 1 else None
    if in_series:
        return at(_BEFORE), behind_series(release)
    return {
        "==": (at(_AT), at(_AFTER)),
        "!=": (at(_AT), at(_AFTER)),
        ">=": (at(_AT), _LAST),
        ">": (at(_PAST), _LAST),
        "<=": (_FIRST, at(_AFTER)),
        "<": (_FIRST, at(_BEFORE)),
    }[operator]


def _about_version(operator: str, place: Place) -> tuple[Place, Place] | None:
    """Say it for a version that comes before or after a release."""
    return {
        "==": (place, place + _AFTER_IT),
        "!=": (place, place + _AFTER_IT),
        ">=": (place, _LAST),
        "<=": (_FIRST, place + _AFTER_IT),
    }.get(operator)


class Versions:
    """Some versions in order, each with a mask: what a specifier allows of them is looked up.

    Parameters
    ----------
    masks
        Version to its bits, which no other version has. What cannot be read as a version is never
        allowed.
    """

    def __init__(self, masks: Mapping[str, int]) -> None:
        self._masks = {version: mask for version, mask in masks.items() if parsed_version(version)}
        ordered = sorted((place_of(version), mask) for version, mask in self._masks.items())
        self._places = [place for place, _ in ordered]
        self._below = [0]
        """The bits of the first version, of the first two, and so on."""
        for _, mask in ordered:
            self._below.append(self._below[-1] | mask)
        self._found: dict[_Between, int] = {}

    def allowed_by(self, specifier: Specifier) -> int:
        """Give the bits of the versions that a specifier allows."""
        if specifier.other is not None:
            return sum(mask for version, mask in self._masks.items() if specifier.allows(version))
        allowed = self._below[-1]
        for one in specifier.between:
            mask = self._found.get(one)
            if mask is None:
                mask = self._found[one] = self._between(one)
            allowed &= mask
        return allowed

    def _between(self, one: _Between) -> int:
        low, high = bisect_left(self._places, one.low), bisect_left(self._places, one.high)
        mask = self._below[high] & ~self._below[low]
        if one.local is not None:
            mask &= sum(
                bits
                for version, bits in self._masks.items()
                if (parsed := parsed_version(version)) and parsed.local == one.local
            )
        return self._below[-1] & ~mask if one.outside else mask
