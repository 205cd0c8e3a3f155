"""Compare resolutions against indexes with brute force, and with uv."""

from __future__ import annotations

import dataclasses
import random
from contextlib import suppress
from pathlib import Path

import pytest
from msgspec.structs import replace
from packaging.version import Version

from resolver.answers.resolve import resolve
from resolver.errors import UsageError
from resolver.model import Resolution
from tests.resolver.open_universe import EXTRAS, OpenUniverse, open_universe, parsed, versions_of
from tests.resolver.uv_judge import answer_of_uv, serving

SEEDS = range(80)


def answer_to(universe: OpenUniverse) -> Resolution | None:
    """Return the resolution of a universe; None if there is no solution."""
    with suppress(UsageError):  # no release matches a requirement of the request
        answer = resolve(universe.catalog, universe.request, universe.indexes())
        return answer if isinstance(answer, Resolution) else None
    return None


def check_against_brute_force(universe: OpenUniverse) -> bool:
    """Check that the answer is the best solution, if there is one; return whether there is one."""
    best = universe.best()
    answer = answer_to(universe)
    if answer is None:
        assert best is None
        return False
    chosen, python = versions_of(answer), answer.version_of("python")
    assert universe.is_solution(chosen, python), chosen
    assert universe.rank(chosen, python) == best, chosen
    return True


@pytest.mark.parametrize("pythons", [("3.12",), ("3.12", "3.11", "3.10")])
def test_answer_is_best_of_all_solutions(pythons: tuple[str, ...]) -> None:
    solvable = 0
    for seed in SEEDS:
        universe = open_universe(random.Random(seed), releases=4 if len(pythons) == 1 else 3, pythons=pythons)
        solvable += check_against_brute_force(universe)
    assert len(SEEDS) // 4 < solvable < len(SEEDS) * 3 // 4


def as_uv_reads(universe: OpenUniverse) -> OpenUniverse:
    """Return a universe without upper bounds of Requires-Python, which uv ignores, and with all extras.

    For uv, an extra that a release lacks is a warning; here, that release is no candidate.
    """
    projects = {
        name: {
            version: replace(
                release,
                requires_python=release.requires_python.replace("<3.12", ""),
                extras=list(EXTRAS),
            )
            for version, release in releases.items()
        }
        for name, releases in universe.projects.items()
    }
    return dataclasses.replace(universe, projects=projects)


def uv_means_the_same(universe: OpenUniverse) -> bool:
    """Return whether uv and pip interpret every requirement of a universe in the same way.

    uv reads ``===`` as ``==``. In uv, an override whose marker does not apply still replaces a requirement.
    With ``--prerelease explicit``, it has no pre-release of a project that has no other releases.
    """
    if any(all(Version(version).is_prerelease for version in names) for names in universe.projects.values()):
        return False
    releases = [release for versions in universe.projects.values() for release in versions.values()]
    texts = [*universe.requirements, *universe.constraints, *universe.overrides]
    texts += [text for release in releases for text in release.requires]
    overridden = {parsed(text).name for text in universe.overrides}
    return not any(
        "===" in text or (parsed(text).name in overridden and parsed(text).marker) for text in texts
    )


@pytest.mark.integration
def test_uv_agrees(tmp_path: Path) -> None:
    """Compare with uv, which may prefer other versions: both are valid, and ours rank at least as high."""
    compared = 0
    with serving() as index:
        for seed in SEEDS:
            universe = as_uv_reads(open_universe(random.Random(seed), projects=6, releases=5))
            if not uv_means_the_same(universe):
                continue
            answer, other = answer_to(universe), answer_of_uv(index, universe, tmp_path)
            assert (answer is None) == isinstance(other, str), (seed, other)
            if answer is None or isinstance(other, str):
                continue
            compared += 1
            chosen = versions_of(answer)
            assert universe.is_solution(chosen, "3.12"), (seed, chosen)
            assert universe.is_solution(other, "3.12"), (seed, other)
            assert universe.rank(chosen, "3.12") <= universe.rank(other, "3.12"), (seed, chosen, other)
    assert compared > len(SEEDS) // 5
