"""Small random universes of package indexes, and their meaning computed with `packaging` alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from functools import cache, cached_property
from itertools import product

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from resolver.facts import schema
from resolver.facts.catalog import Catalog
from resolver.model import Request, Resolution, Target
from resolver.requirements import parse_requirement
from tests.support.indexes import FakeIndexes, FakeRelease

NAMES = ("a", "b", "c", "d", "e", "f")
VERSIONS = ("1", "1.1", "2", "2.post1", "3a1", "3", "1!0.5")
SPECIFIERS = (
    *(">=2", "<2", "==1", "!=2", "~=1.0", "==1.*", ">1", "<=2", "<3", ">=1,!=2", "===1.1"),
    *("==3a1", ">=3a1", "==2.post1", ">2", "!=1.*", ">=1!0", "==2"),
)
MARKERS = (
    "python_version < '3.12'",
    "python_version >= '3.12'",
    "sys_platform == 'win32'",
    "platform_system == 'Linux' and implementation_name == 'cpython'",
    "os_name == 'posix' or python_version < '3'",
)
EXTRAS = ("x", "y")
REQUIRES_PYTHON = (">=3.8", "<3.12", ">=3.12", "~=3.11", "!=3.11.*")
TAGS = {
    "py3-none-any": ("3.10", "3.11", "3.12"),
    "py2.py3-none-any": ("3.10", "3.11", "3.12"),
    "cp38-abi3-manylinux1_x86_64": ("3.10", "3.11", "3.12"),
    "cp312-cp312-manylinux_2_28_x86_64": ("3.12",),
    "cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64": ("3.12",),
    "cp310-cp310-manylinux_2_28_x86_64": ("3.10",),
    "cp312-cp312-manylinux_2_39_x86_64": (),
    "cp312-cp312-manylinux_2_28_aarch64": (),
    "cp312-cp312-macosx_11_0_arm64": (),
    "cp312-cp312-musllinux_1_2_x86_64": (),
    "py2-none-any": (),
}
"""Tags of wheels, and the Pythons that can install them with glibc 2.36 on x86_64."""
GLIBC = "2.36"
DAY = date(2026, 11, 21)

Chosen = dict[str, str]
"""Name to version."""


@dataclass(frozen=True)
class OpenUniverse:
    """The projects on the indexes, and a request."""

    projects: Mapping[str, Mapping[str, FakeRelease]]
    requirements: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    pythons: tuple[str, ...] = field(default=("3.12",))
    """The minor versions of Python that the target may have, newest first."""

    def indexes(self) -> FakeIndexes:
        """Return the indexes."""
        return FakeIndexes(self.projects)

    @property
    def catalog(self) -> Catalog:
        """A catalog with only these Pythons and a site."""
        return catalog_of_pythons(self.pythons)

    @property
    def request(self) -> Request:
        """The request for the resolver."""
        return Request(
            Target(site="here", date=DAY, backend="cpu", glibc=GLIBC),
            tuple(map(parse_requirement, self.requirements)),
            tuple(map(parse_requirement, self.constraints)),
            tuple(map(parse_requirement, self.overrides)),
        )

    def solutions(self, python: str) -> Iterator[Chosen]:
        """Yield all solutions for a Python, some repeatedly, by trying every combination of releases."""
        usable = {
            name: [version for version in self.preferred(name) if self.may_use(name, version, python)]
            for name in self.projects
        }
        some = {name: versions or [""] for name, versions in usable.items()}
        for combination in product(*some.values()):
            chosen = self.reached(dict(zip(some, combination, strict=True)), python)
            if chosen is not None:
                yield chosen

    def best(self) -> tuple[int, ...] | None:
        """Return the smallest rank of a solution; None if there is none."""
        ranks = (self.rank(chosen, python) for python in self.pythons for chosen in self.solutions(python))
        return min(ranks, default=None)

    def rank(self, chosen: Chosen, python: str) -> tuple[int, ...]:
        """Return the ranks of a solution in the order of decisions.

        First the projects that are requested for every Python, by name, then Python, then the projects that
        are requested for this Python only.
        """
        requested = {one: self._requested(one) for one in self.pythons}
        always = set.intersection(*requested.values())
        first = [self.preferred(name).index(chosen[name]) for name in sorted(always)]
        then = [self.preferred(name).index(chosen[name]) for name in sorted(requested[python] - always)]
        return *first, self.pythons.index(python), *then

    def _requested(self, python: str) -> set[str]:
        return {
            requirement.name
            for text in self.requirements
            for requirement in self._replaced(parsed(text), python)
        }

    def is_solution(self, chosen: Chosen, python: str) -> bool:
        """Return whether pip would install exactly these releases together."""
        if not all(self.may_use(name, version, python) for name, version in chosen.items()):
            return False
        return self.reached(chosen, python) == chosen

    def preferred(self, name: str) -> list[str]:
        """Return the versions of a project, newest first, without pre-releases unless they are requested."""
        versions = sorted(self.projects[name], key=Version, reverse=True)
        final = [version for version in versions if not Version(version).is_prerelease]
        return versions if any(map(_names_prerelease, self._stated(name))) else final or versions

    def may_use(self, name: str, version: str, python: str) -> bool:
        """Return whether a release can be installed, and is not yanked."""
        release = self.projects.get(name, {}).get(version)
        if (
            release is None
            or version not in self.preferred(name)
            or not any(python in TAGS[tag] for tag in release.wheels)
        ):
            return False
        if release.requires_python and not SpecifierSet(release.requires_python).contains(f"{python}.5"):
            return False
        return release.yanked is None or any(
            _is_pin(stated) and stated.contains(version) for stated in self._stated(name)
        )

    def _lacks(self, name: str, version: str, extra: str, python: str) -> bool:
        """Return whether a release lacks an extra that was asked for, although another one has it."""
        if extra in self.projects[name][version].extras:
            return False
        asked = [
            one for text in self.requirements if (one := parsed(text)).name == name and extra in one.extras
        ]
        if not any(_applies(one.marker, python) for one in asked):
            return False
        if any(
            _is_pin(stated) and stated.contains(version, prereleases=True) for stated in self._stated(name)
        ):
            return False
        return any(
            extra in release.extras and self.may_use(name, other, one)
            for other, release in self.projects[name].items()
            for one in self.pythons
        )

    def _stated(self, name: str) -> list[SpecifierSet]:
        return self._specifiers.get(name, [])

    @cached_property
    def _specifiers(self) -> dict[str, list[SpecifierSet]]:
        stated: dict[str, list[SpecifierSet]] = {}
        for text in (*self.requirements, *self.constraints, *self.overrides):
            stated.setdefault(parsed(text).name, []).append(parsed(text).specifier)
        return stated

    def _replaced(self, requirement: Requirement, python: str, extra: str = "") -> list[Requirement]:
        """Return a requirement or its overrides, as far as markers permit."""
        if not _applies(requirement.marker, python, extra):
            return []
        overrides = [one for text in self.overrides if (one := parsed(text)).name == requirement.name]
        return (
            [override for override in overrides if _applies(override.marker, python)]
            if overrides
            else [requirement]
        )

    def reached(self, versions: Chosen, python: str) -> Chosen | None:
        """Return the releases that the request needs; None if they violate a requirement or are missing."""
        left = [one for text in self.requirements for one in self._replaced(parsed(text), python)]
        limits = [one for text in self.constraints if _applies((one := parsed(text)).marker, python)]
        reached: Chosen = {}
        loaded: set[tuple[str, str]] = set()
        while left:
            requirement = left.pop()
            name, version = requirement.name, versions.get(requirement.name)
            if not version or not _contains(requirement.specifier, version):
                return None
            if name not in reached:
                reached[name] = version
                if not all(_contains(limit.specifier, version) for limit in limits if limit.name == name):
                    return None
            for extra in ("", *sorted(requirement.extras)):
                if (name, extra) not in loaded:
                    if extra and self._lacks(name, version, extra, python):
                        return None
                    loaded.add((name, extra))
                    for text in self.projects[name][version].requires:
                        left += self._replaced(parsed(text), python, extra)
        return reached


@cache
def parsed(text: str) -> Requirement:
    """Parse a requirement."""
    return Requirement(text)


@cache
def _contains(specifier: SpecifierSet, version: str) -> bool:
    return specifier.contains(version, prereleases=True)


def _names_prerelease(specifier: SpecifierSet) -> bool:
    versions = (one.version.removesuffix(".*") for one in specifier)
    return any(Version(version).is_prerelease for version in versions)


def _is_pin(specifier: SpecifierSet) -> bool:
    return any(one.operator in {"==", "==="} and not one.version.endswith(".*") for one in specifier)


def _applies(marker: Marker | None, python: str, extra: str = "") -> bool:
    return marker is None or _evaluated(str(marker), python, extra)


@cache
def _evaluated(marker: str, python: str, extra: str) -> bool:
    target = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_system": "Linux",
        "python_full_version": f"{python}.5",
        "python_version": python,
        "sys_platform": "linux",
    }
    return Marker(marker).evaluate({**target, "extra": extra})


@cache
def catalog_of_pythons(pythons: tuple[str, ...]) -> Catalog:
    """Return a catalog with some minor versions of Python, and a site."""
    known = {"status": "documented", "source": "made up for a test"}
    return Catalog.from_rows(
        schema.CatalogFile(
            schema=1,
            python=[schema.Python(version=version, **known) for version in pythons],  # type: ignore[arg-type]
            site=[schema.Site(name="here", title="a site", backend="cpu", **known)],  # type: ignore[arg-type]
        )
    )


def versions_of(resolution: Resolution) -> Chosen:
    """Return the version of each distribution of a resolution."""
    return {pick.name: pick.version for pick in resolution.distributions}


def open_universe(
    chance: random.Random, *, projects: int = 4, releases: int = 4, pythons: tuple[str, ...] = ("3.12",)
) -> OpenUniverse:
    """Return random indexes and a request, which may require a project that no index has."""
    names = NAMES[: chance.randint(1, projects)]
    required = (*names, *names, "missing") if chance.random() < 0.1 else names
    offered: dict[str, dict[str, FakeRelease]] = {}
    for name in names:
        versions = chance.sample(VERSIONS, chance.randint(1, releases))
        offered[name] = {version: _release(chance, required) for version in sorted(versions)}

    def matches(text: str) -> bool:
        requirement = parsed(text)
        return any(_contains(requirement.specifier, version) for version in offered[requirement.name])

    return OpenUniverse(
        offered,
        tuple(
            next(text for text in iter(lambda: _requirement(chance, names, limited=0.5), "") if matches(text))
            for _ in range(chance.randint(1, 3))
        ),
        tuple(_requirement(chance, names, is_plain=True) for _ in range(chance.choice([0, 0, 0, 1, 2]))),
        tuple(_requirement(chance, names, limited=0.3) for _ in range(chance.choice([0, 0, 0, 0, 1]))),
        pythons,
    )


def _release(chance: random.Random, names: tuple[str, ...]) -> FakeRelease:
    extras = [extra for extra in EXTRAS if chance.random() < 0.8]
    requires = [_requirement(chance, names, extras=extras) for _ in range(chance.choice([0, 0, 1, 1, 2, 3]))]
    tags = ["py3-none-any"] if chance.random() < 0.8 else chance.sample(list(TAGS), chance.randint(1, 3))
    return FakeRelease(
        requires=requires,
        extras=extras,
        requires_python=chance.choice(REQUIRES_PYTHON) if chance.random() < 0.2 else "",
        wheels=tags,
        yanked="broken" if chance.random() < 0.1 else None,
    )


def _requirement(
    chance: random.Random,
    names: tuple[str, ...],
    *,
    limited: float = 0.6,
    is_plain: bool = False,
    extras: list[str] | None = None,
) -> str:
    """Return a random requirement, with extras and a marker unless it is plain."""
    text = chance.choice(names)
    markers = []
    if not is_plain:
        text += chance.choice(["", "", "", "", "[x]", "[y]", "[x,y]"])
        if chance.random() < 0.15:
            markers.append(chance.choice(MARKERS))
        if extras and chance.random() < 0.3:
            markers.append(f"extra == '{chance.choice(extras)}'")
    if is_plain or chance.random() < limited:
        text += chance.choice(SPECIFIERS)
    joined = chance.choice([" and ", " or "]).join(f"({marker})" for marker in markers)
    return f"{text}; {joined}" if joined else text
