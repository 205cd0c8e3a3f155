"""Versions, specifiers (PEP 440) as intervals, and the local labels of the wheels that we build.

The intervals replace `packaging.specifiers` because they are faster: evaluating all specifiers of the
catalog for all versions takes 25 ms instead of 678 ms, with the same results (the property tests compare
both). Every resolution evaluates them before it can start.

Almost every clause compares with a plain release: ``>=2.4``, ``<3``, ``==6.2.*``. Such a clause depends only
on the release of a version, and on whether the version comes before that release (``2.4rc1``), is that
release, or comes after it (``2.4.post1``). In this order the clause allows one interval. For every other
clause (``>2.4rc1``, ``===2.4``) `packaging` decides; it is imported only then, because the import takes
longer than most resolutions.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from packaging.version import InvalidVersion, Version

from resolver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

K = TypeVar("K")
V = TypeVar("V")

_LONGEST = 1000  # characters of a specifier; anything longer is a mistake or an attack
_BARE_VERSION = re.compile(r"[vV]?\d+(\.\d+)*(\.\*|[A-Za-z].*)?(\+.*)?")

VersionKey = tuple[Any, ...]
"""A version as an ordered tuple: epoch, release without trailing zeros, and `_BEFORE`, `_AT` or `_AFTER`."""

# The key of a version before or after its release has the version itself as its fourth part. A key of three
# parts therefore sorts before all keys that begin with it, and a key extended by `_JUST_AFTER` sorts
# directly after the key of a single version.

_BEFORE, _AT, _AFTER, _PAST = -1, 0, 1, 2
_JUST_AFTER = (1,)
FIRST: VersionKey = (-1,)
LAST: VersionKey = (1 << 62,)
"""Before and after the keys of all versions."""
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]+)*")
_LOCAL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", re.ASCII)
_LONG = 1000  # characters; Python does not convert numbers with more than 4300 digits
_CLAUSE = re.compile(
    r"(?P<operator>[=!~]=|[<>]=?)\s*(?P<public>[0-9](?:[A-Za-z0-9.!_-]*[A-Za-z0-9])?)"
    r"(?P<series>\.\*)?(?P<local>\+[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)?",
    re.ASCII,
)


class SpecifierClause(msgspec.Struct, frozen=True):
    """One comparison of a specifier, as written, with the versions between two keys that it allows."""

    operator: str
    version: str
    low: VersionKey = FIRST
    high: VersionKey = LAST
    outside: bool = False
    """Whether it allows all other versions instead."""
    local: str | None = None
    """The required local version label; None allows any."""


class Specifier(msgspec.Struct, frozen=True):
    """A version specifier set: all its clauses must allow a version, which may be a pre-release."""

    text: str
    """Its clauses, sorted, as `packaging` writes them."""
    clauses: tuple[SpecifierClause, ...] = ()
    other: Any = None
    """The `SpecifierSet` of `packaging` if a clause is not an interval."""

    def __str__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[SpecifierClause]:
        return iter(self.clauses)

    def allows(self, version: str) -> bool:
        """Return whether the specifier allows a version; a text that is not a version is never allowed."""
        key = key_or_none(version)
        if key is None:
            return False
        if self.other is not None:
            return bool(self.other.contains(Version(version), prereleases=True))
        for clause in self.clauses:
            inside = clause.low <= key < clause.high
            if inside and clause.local is not None:
                inside = clause.local == _local_label(version)
            if inside is clause.outside:
                return False
        return True


@cache
def version_or_none(text: str) -> Version | None:
    """Parse a version (PEP 440); return None if the text is not a version."""
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, or a number with thousands of digits
        return None


@cache
def key_or_none(text: str) -> VersionKey | None:
    """Return the key of a version, without its local label; None if the text is not a version."""
    if is_plain(text):
        return 0, _without_trailing_zeros(tuple(map(int, text.split(".")))), _AT
    public, plus, local = text.partition("+")
    if plus and is_plain(public) and len(local) < _LONG and _LOCAL.fullmatch(local):
        return key_or_none(public)
    parsed = version_or_none(text)
    if parsed is None:
        return None
    key = parsed.epoch, _without_trailing_zeros(parsed.release)
    bare = parsed if parsed.local is None else Version(parsed.public)
    if parsed.pre is not None or (parsed.dev is not None and parsed.post is None):
        return *key, _BEFORE, bare
    if parsed.post is not None:
        return *key, _AFTER, bare
    return *key, _AT


@cache
def version_key(version: str) -> VersionKey:
    """Return the key of a valid version; its local label is ignored."""
    key = key_or_none(version)
    if key is None:
        raise InvalidVersion(version)
    return key


def is_plain(version: str) -> bool:
    """Return whether a text is a version that consists of its release only, such as ``2.4``."""
    return len(version) < _LONG and _PLAIN.fullmatch(version) is not None


@cache
def _local_label(version: str) -> str | None:
    """Return the local label of a valid version, normalized; None if it has none."""
    parts = version.strip().lower().partition("+")[2].replace("-", ".").replace("_", ".").split(".")
    return ".".join(str(int(part)) if part.isdigit() else part for part in parts) or None


def _without_trailing_zeros(release: tuple[int, ...]) -> tuple[int, ...]:
    end = len(release)
    while end and not release[end - 1]:
        end -= 1
    return release[:end]


@lru_cache(maxsize=65536)
def specifier_or_none(text: str) -> Specifier | None:
    """Parse a specifier set (PEP 440); return None if the text is invalid."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    plain = {f"{row.operator}{row.version}": row for part in parts if (row := _parse_clause(part))}
    if len(plain) < len(parts):
        return _parse_with_packaging(text)
    return Specifier(",".join(sorted(plain)), tuple(plain[key] for key in sorted(plain)))


def _parse_with_packaging(text: str) -> Specifier | None:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        other = SpecifierSet(text, prereleases=True)
    except InvalidSpecifier:
        return None
    text = str(other)  # first, because it also removes duplicate clauses
    return Specifier(text, tuple(SpecifierClause(part.operator, part.version) for part in other), other=other)


@lru_cache(maxsize=65536)
def _parse_clause(text: str) -> SpecifierClause | None:
    """Parse a clause that allows one interval; return None for any other clause."""
    match = _CLAUSE.fullmatch(text)
    key = key_or_none(match["public"]) if match else None
    if not match or not key:
        return None
    operator = match["operator"]
    is_equality = operator in {"==", "!="}
    if (match["series"] or match["local"]) and (not is_equality or (match["series"] and match["local"])):
        return None
    if key[2] == _AT:
        bounds = _bounds_for_release(operator, match["public"], key, is_series=match["series"] is not None)
    else:
        bounds = None if match["series"] else _bounds_for_other(operator, key)
    if bounds is None:
        return None
    local = _local_label(text) if match["local"] else None
    return SpecifierClause(operator, text[len(operator) :].strip(), *bounds, operator == "!=", local)


def _bounds_for_release(
    operator: str, version: str, key: VersionKey, *, is_series: bool
) -> tuple[VersionKey, VersionKey] | None:
    """Return the interval of a clause with a plain release; for ``!=`` the interval it excludes."""
    epoch, release, _ = key

    def at(stage: int) -> VersionKey:
        return epoch, release, stage

    if is_series or operator == "~=":
        series = tuple(map(int, version.rpartition("!")[2].split(".")))  # with trailing zeros
        series = series if is_series else series[:-1]
        if not series:
            return None
        return at(_BEFORE if is_series else _AT), (epoch, (*series[:-1], series[-1] + 1), _BEFORE)
    if operator in {"==", "!="}:
        return at(_AT), at(_AFTER)
    if operator in {">=", ">"}:  # PEP 440: `>1` excludes the post-releases of 1
        return at(_AT if operator == ">=" else _PAST), LAST
    return FIRST, at(_AFTER if operator == "<=" else _BEFORE)  # and `<1` excludes its pre-releases


def _bounds_for_other(operator: str, key: VersionKey) -> tuple[VersionKey, VersionKey] | None:
    if operator == "<" and key[2] == _BEFORE:
        return FIRST, key
    return {
        "==": (key, key + _JUST_AFTER),
        "!=": (key, key + _JUST_AFTER),
        ">=": (key, LAST),
        "<=": (FIRST, key + _JUST_AFTER),
    }.get(operator)


class Versions:
    """Sorted versions with bit masks, to look up the versions that a specifier allows.

    `masks` maps each version to its bits, which no other version has.
    """

    def __init__(self, masks: Mapping[str, int]) -> None:
        self._masks = {version: mask for version, mask in masks.items() if key_or_none(version)}
        self._ordered = sorted((version_key(version), version) for version in self._masks)
        self._keys = [key for key, _ in self._ordered]
        self._below = [0]  # the bits of no version, of the first, of the first two, and so on
        for _, version in self._ordered:
            self._below.append(self._below[-1] | self._masks[version])
        self._by_clause: dict[SpecifierClause, int] = {}

    def allowed_by(self, specifier: Specifier) -> int:
        """Return the bits of the versions that a specifier allows."""
        if specifier.other is not None:
            return sum(mask for version, mask in self._masks.items() if specifier.allows(version))
        allowed = self._below[-1]
        for clause in specifier.clauses:
            mask = self._by_clause.get(clause)
            if mask is None:
                mask = self._by_clause[clause] = self._mask_of(clause)
            allowed &= mask
        return allowed

    def _mask_of(self, clause: SpecifierClause) -> int:
        low, high = bisect_left(self._keys, clause.low), bisect_left(self._keys, clause.high)
        mask = self._below[high] & ~self._below[low]
        if clause.local is not None:
            inside = (version for _, version in self._ordered[low:high])
            mask = sum(self._masks[one] for one in inside if _local_label(one) == clause.local)
        return self._below[-1] & ~mask if clause.outside else mask


@cache
def sort_key(version: str) -> tuple[Any, ...]:
    """Return a key that sorts versions as in PEP 440, and other names before all versions.

    Examples
    --------
    >>> sorted(["10.0", "7.2", "7.14", "ubuntu.sif"], key=sort_key)
    ['ubuntu.sif', '7.2', '7.14', '10.0']
    """
    key = key_or_none(version)
    if key is None:
        return 0, version
    if "+" not in version:
        return 1, key
    label = version.partition("+")[2].strip().lower().replace("-", ".").replace("_", ".")
    return 1, key, tuple((int(part), "") if part.isdecimal() else (-1, part) for part in label.split("."))


def bounds_cross(specifier: Specifier) -> bool:
    """Return whether the lower and upper bounds of a specifier exclude every version.

    Examples
    --------
    >>> [bounds_cross(parse_specifier(text)) for text in (">=2.4,<2.4", ">=2.4,<=2.4", "==2.4,<3")]
    [True, False, False]
    """
    lows = [(sort_key(c.version), c.operator == ">") for c in specifier if c.operator in {">", ">="}]
    highs = [(sort_key(c.version), c.operator == "<=") for c in specifier if c.operator in {"<", "<="}]
    if not lows or not highs:
        return False
    (low, excluded), (high, included) = max(lows), min(highs)
    return low > high or (low == high and (excluded or not included))


def is_version(text: str) -> bool:
    """Return whether a text is a valid version (PEP 440)."""
    return key_or_none(text) is not None


@cache
def minor(version: str) -> str:
    """Return the major.minor line of a version.

    Examples
    --------
    >>> minor("6.2.4"), minor("10.0")
    ('6.2', '10.0')
    """
    release = (*map(int, version.split(".")), 0) if is_plain(version) else (*Version(version).release, 0)
    return f"{release[0]}.{release[1]}"


@lru_cache(maxsize=4096)
def parse_specifier(text: str) -> Specifier:
    """Parse a specifier set, or a bare version: ``6.2`` means ``==6.2.*``, ``2.5.1`` means ``==2.5.1``.

    Raise `UsageError` if the text is neither a specifier nor a version.

    Examples
    --------
    >>> [str(parse_specifier(text)) for text in ("6.2", "v6.2", "2.5.1", ">=3.11")]
    ['==6.2.*', '==6.2.*', '==2.5.1', '>=3.11']
    """
    typed = text = text.strip()
    if _BARE_VERSION.fullmatch(text):
        text = text.removeprefix("v")
        short = text.count(".") <= 1 and text.replace(".", "").isdigit()
        text = f"=={text}.*" if short else f"=={text}"
    specifier = specifier_or_none(text) if len(text) <= _LONGEST else None
    if specifier is None:
        msg = f"{shorten(typed)!r} is not a valid version specifier."
        version = re.search(r"\d+(?:\.\d+)+", typed if len(typed) <= _LONGEST else "")  # of 3.12.x, ROCm6.4
        meant = f"Write {version[0]}, or a" if version else "Write a version, or a"
        raise UsageError(msg, hint=f"{meant} range as in PEP 440, such as ==6.2.* or >=2.4,<3.")
    return specifier


def allows(specifiers: Sequence[Specifier], version: str) -> bool:
    """Return whether any of the specifiers allows the version; an empty list allows all.

    Examples
    --------
    >>> allows([parse_specifier("==2.5.1")], "2.5.1+rocm6.2")
    True
    """
    return not specifiers or any(specifier.allows(version) for specifier in specifiers)


@lru_cache(maxsize=65536)
def satisfies(version: str, specifier: str) -> bool:
    """Return whether a specifier allows a version.

    Examples
    --------
    >>> satisfies("2.5.1+rocm6.2", ">=2.4,<3")
    True
    """
    return parse_specifier(specifier).allows(version)


def newest_first(versions: Iterable[str]) -> list[str]:
    """Return the versions sorted, newest first."""
    return sorted(versions, key=sort_key, reverse=True)


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, in their order.

    Examples
    --------
    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def join_words(words: Sequence[str], *, most: int = 4, joiner: str = "or") -> str:
    """Join versions or names for a sentence; a long list is shortened in the middle.

    Examples
    --------
    >>> join_words(["3.9", "3.10"]), join_words(["1", "2", "3", "4", "5", "6"])
    ('3.9 or 3.10', '1, 2, 3 ... 6 (6 in all)')
    """
    if len(words) > most + 1:
        return f"{', '.join(words[: most - 1])} ... {words[-1]} ({len(words)} in all)"
    if len(words) > 1:
        return f"{', '.join(words[:-1])} {joiner} {words[-1]}"
    return words[0] if words else "nothing"


def shorten(text: str, most: int = 80) -> str:
    """Cut user input to a length that fits in a message."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters)"


def wheel_label(*, backend: str, torch: str = "", rocm: str = "", gfx: Sequence[str] = ()) -> str:
    """Return the local version label of a wheel in the normal form of PEP 440: pip and uv compare this text.

    `torch`, whose own label is ignored, and `rocm` are empty if the environment of the build has none.

    Examples
    --------
    >>> wheel_label(backend="rocm", torch="2.5.1+rocm6.2", rocm="6.2.3", gfx=["gfx90a"])
    'rocm6.2.torch2.5.1.gfx90a'
    >>> wheel_label(backend="cpu", torch="2.13.0+cpu")
    'cpu.torch2.13.0'
    >>> wheel_label(backend="cpu")
    'cpu.notorch'
    """
    parts = [
        f"rocm{minor(rocm)}" if backend == "rocm" and rocm else backend,
        f"torch{Version(torch).public}" if torch else "notorch",
    ]
    return ".".join([*parts, *gfx]).lower()


def labelled(version: str, label: str) -> str:
    """Return a version with its local part replaced by the label.

    Examples
    --------
    >>> labelled("0.19.8", "cpu.torch2.13.0"), labelled("1.9.0+git.e37ed12", "cpu.torch2.9.1")
    ('0.19.8+cpu.torch2.13.0', '1.9.0+cpu.torch2.9.1')
    """
    return f"{Version(version).public}+{label}"


class BuiltFor(msgspec.Struct, frozen=True):
    """The versions and GPU architectures in the label of a wheel."""

    backend: str
    rocm: str
    """Empty for the CPU backend, and if it was built without ROCm."""
    torch: str
    """Empty if it was built without torch."""
    gfx: tuple[str, ...]


_LABEL = (
    r"(?:(?P<is_rocm>rocm)(?P<rocm>[\d.]*)|cpu)\.(?:torch(?P<torch>[^+]+?)|notorch)(?P<gfx>(?:\.gfx[^.]+)*)"
)


def built_for(version: str) -> BuiltFor | None:
    """Return the content of a version's local label; None if the label is not ours.

    Examples
    --------
    >>> built_for("1.9.0+rocm6.4.torch2.9.1.gfx90a.gfx942")
    BuiltFor(backend='rocm', rocm='6.4', torch='2.9.1', gfx=('gfx90a', 'gfx942'))
    >>> built_for("0.19.8+cpu.torch2.13.0")
    BuiltFor(backend='cpu', rocm='', torch='2.13.0', gfx=())
    >>> built_for("4.0+rocm.notorch.gfx90a")
    BuiltFor(backend='rocm', rocm='', torch='', gfx=('gfx90a',))
    >>> built_for("2.9.1+rocm6.4") is None
    True
    """
    match = re.fullmatch(_LABEL, Version(version).local or "") if "+" in version else None
    if match is None:
        return None
    backend = "rocm" if match["is_rocm"] else "cpu"
    return BuiltFor(backend, match["rocm"] or "", match["torch"] or "", tuple(match["gfx"].split(".")[1:]))


def names_torch(version: str) -> bool:
    """Return whether a version's local label contains the version of torch that the wheel was built for.

    Examples
    --------
    >>> names_torch("1.9.0+rocm6.4.torch2.9.1.gfx90a"), names_torch("2.9.1+rocm6.4"), names_torch("1.0")
    (True, False, False)
    """
    return re.search(r"(?:^|\.)torch\d", Version(version).local or "") is not None


COMMIT = r"(git)?[0-9a-f]{7,40}"
"""Matches a local label that is a commit, such as ``git38164a0``, or may be one."""


def is_same_commit(label: str, commit: str) -> bool:
    """Return whether a local label is a commit, shortened or not."""
    stated = label.removeprefix("git")
    is_start = stated.startswith(commit) or commit.startswith(stated)
    return is_start and re.fullmatch(COMMIT, label) is not None
