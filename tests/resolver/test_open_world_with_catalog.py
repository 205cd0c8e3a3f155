"""Distributions of package indexes that require distributions of the catalog, judged by brute force.

The judge tries every combination of releases. It resolves each combination's requirements on the catalog as a
closed problem. `test_judged` compares closed problems with an independent solver.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import product

import pytest
from msgspec.structs import replace
from packaging.requirements import Requirement
from packaging.version import Version

from resolver.errors import UsageError
from resolver.facts.loading import load
from resolver.model import Resolution
from resolver.requirements import parse_requirement
from resolver.resolve import resolve
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes

CATALOGUED = ("torch", "torch", "torch", "apex", "deepspeed")
SPECIFIERS = {
    "torch": ("", ">=2.8", "<2.8", "==2.7.*", "!=2.9.1", "==2.5.1+rocm6.2", "<=2.4", "==2.6.0", "<1.10"),
    "apex": ("", "<1.8", ">=1.8"),
    "deepspeed": ("", "<0.16", ">=0.17"),
}
NAMES = ("a", "b", "c")
SEEDS = range(10)

Projects = dict[str, dict[str, list[str]]]


def universe(chance: random.Random) -> tuple[Projects, list[str]]:
    """Return a request, and random projects that require one another and distributions of the catalog."""

    def requirement() -> str:
        if chance.random() < 0.6:
            name = chance.choice(CATALOGUED)
            return name + chance.choice(SPECIFIERS[name])
        return chance.choice(NAMES) + chance.choice(["", "", "<2", ">=2"])

    projects = {
        name: {version: [requirement() for _ in range(chance.choice([1, 1, 2, 2]))] for version in ("1", "2")}
        for name in NAMES
    }
    return projects, ["torch", *chance.sample(NAMES, 2)]


def combinations(projects: Projects, asked: list[str]) -> Iterator[tuple[dict[str, str], frozenset[str]]]:
    """Yield the releases that fit together, each time with their requirements on the catalog."""
    for versions in product(*projects.values()):
        chosen = dict(zip(projects, versions, strict=True))
        left, reached, required = [*map(Requirement, asked)], dict[str, str](), set[str]()
        while left:
            one = left.pop()
            if one.name not in chosen:
                required.add(str(one))
            elif not one.specifier.contains(chosen[one.name]):
                break
            elif one.name not in reached:
                reached[one.name] = chosen[one.name]
                left += map(Requirement, projects[one.name][chosen[one.name]])
        else:
            yield reached, frozenset(required)


@cache
def decided(required: frozenset[str]) -> tuple[Version, Version] | None:
    """Return ROCm and torch of the best solution for requirements of the catalog; None if there is none."""
    catalog = load()
    with suppress(UsageError):  # no version of the catalog matches a requirement
        answer = resolve(catalog, ask(catalog, " ".join(sorted(required)), prefer="newest"))
        return platform(answer) if isinstance(answer, Resolution) else None
    return None


def platform(answer: Resolution) -> tuple[Version, Version]:
    return Version(answer.version_of("rocm")), Version(answer.version_of("torch"))


@pytest.mark.slow
def test_platform_is_the_best_that_any_combination_allows() -> None:
    catalog, solvable, changed = load(), 0, 0
    newest = decided(frozenset({"torch"}))
    for seed in SEEDS:
        projects, asked = universe(random.Random(seed))
        possible = {
            (versions, frozenset(reached.items()))
            for reached, required in combinations(projects, asked)
            if (versions := decided(required))
        }
        request = ask(catalog, " ".join(asked), prefer="newest")
        answer = resolve(catalog, request, FakeIndexes(projects))
        assert isinstance(answer, Resolution) == bool(possible), seed
        if isinstance(answer, Resolution):
            solvable += 1
            changed += platform(answer) != newest
            chosen = {pick.name: pick.version for pick in answer.distributions if pick.name in NAMES}
            assert (platform(answer), frozenset(chosen.items())) in possible, (seed, chosen)
            assert platform(answer) == max(best for best, _ in possible), seed
    assert solvable > len(SEEDS) // 3
    assert changed > len(SEEDS) // 5


@pytest.mark.parametrize(("limit", "rocm"), [("", "6.4"), ("<3.4", "6.3")])
def test_requirement_of_a_distribution_may_change_rocm_alone(limit: str, rocm: str) -> None:
    catalog = load()
    request = ask(catalog, "torch==2.8.0 lib python==3.12", driver="6.4", prefer="newest")
    limits = (parse_requirement(f"lib{limit}"),) if limit else ()
    projects = {"lib": {"3.4": ["torch==2.8.0+rocm6.4"], "3.3": ["torch==2.8.0+rocm6.3"]}}
    answer = resolve(catalog, replace(request, constraints=limits), FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    assert (answer.version_of("torch"), platform(answer)[0].release[:2]) == (
        f"2.8.0+rocm{rocm}",
        Version(rocm).release,
    )


def test_note_names_distributions_built_from_git() -> None:
    catalog = load()
    answer = resolve(catalog, ask(catalog, "apex lib"), FakeIndexes({"lib": {"1": ["torch"]}}))
    assert isinstance(answer, Resolution)
    assert [note.partition(" is built")[0] for note in answer.notes] == ["apex"]
    answer = resolve(catalog, ask(catalog, "lib"), FakeIndexes({"lib": {"1": ["torch"]}}))
    assert isinstance(answer, Resolution)
    assert answer.notes == ()
