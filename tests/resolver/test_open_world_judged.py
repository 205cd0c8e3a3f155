"""Compare what is resolved against indexes with brute force."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from resolver.errors import UsageError
from resolver.model import Resolution
from resolver.resolve import resolve
from tests.resolver.open_universe import OpenUniverse, open_universe, versions_of

SEEDS = range(150)


def answer_to(universe: OpenUniverse) -> Resolution | None:
    """Resolve; None if there is no solution."""
    with suppress(UsageError):  # no release matches a requirement of the request
        answer = resolve(universe.catalog, universe.request, universe.indexes())
        return answer if isinstance(answer, Resolution) else None
    return None


def check_against_brute_force(universe: OpenUniverse) -> bool:
    """Check that there is an answer if there is a solution, and that none is better; return whether."""
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
