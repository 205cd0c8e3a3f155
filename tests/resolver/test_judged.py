"""Compare the search with nab-resolver: solvability, the preferred solution, and minimal cores.

Universes of eight components with up to six candidates have too many assignments for brute force.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given

from resolver.compiling.problem import Demand, Problem, Relation
from resolver.solving import session
from tests.resolver.judge import judged
from tests.resolver.solving import minimal_core, solve, solve_preferred
from tests.resolver.universe import EXAMPLES, FEWER, Limit, Universe, random_universe, universes

SEEDS = range(90)


@pytest.mark.slow
@EXAMPLES
@given(universes(cycles=True))
def test_judge_agrees_with_brute_force(universe: Universe) -> None:
    """Check the judge, and the translation to its input, by brute force."""
    judgement = judged(universe)
    assert (judgement is not None) == universe.solvable()
    assert judgement is None or universe.holds(judgement)


@pytest.mark.parametrize("cycles", [False, True])
def test_search_agrees_with_judge(cycles: bool) -> None:
    solvable = 0
    for seed in SEEDS:
        universe = random_universe(seed, cycles=cycles)
        judgement = judged(universe)
        solution, preferred = solve(universe.problem()), solve_preferred(universe.problem())
        assert (solution is not None, preferred is not None) == (judgement is not None,) * 2, seed
        if judgement is not None and solution is not None and preferred is not None:
            solvable += 1
            assert universe.holds(judgement), seed
            assert universe.holds(universe.read(solution)), seed
            assert universe.holds(universe.read(preferred)), seed
    assert len(SEEDS) // 4 < solvable < len(SEEDS) * 3 // 4


def test_preferred_solution_is_not_beaten() -> None:
    """If everything is requested, no better candidate works with the earlier decisions."""
    compared = 0
    for seed in SEEDS:
        universe = random_universe(seed)
        every = tuple(Limit(name, frozenset(range(size)), False) for name, size in universe.sizes.items())
        universe = dataclasses.replace(universe, limits=universe.limits + every)
        solution = solve_preferred(universe.problem())
        if solution is None:
            continue
        decided = universe.limits
        for name in sorted(universe.sizes, key=lambda key: (key != "rocm", key != "torch", key)):
            position = solution[name] - 1
            better = Limit(name, frozenset(range(position)), False)
            assert judged(dataclasses.replace(universe, limits=(*decided, better))) is None, (seed, name)
            decided = (*decided, Limit(name, frozenset({position}), False))
            compared += position > 0
    assert compared > 20


def _universe_of(universe: Universe, problem: Problem, items: list[Demand | Relation]) -> Universe:
    limits = [universe.limits[i] for i, demand in enumerate(problem.demands) if demand in items]
    links = [universe.links[i] for i, relation in enumerate(problem.relations) if relation in items]
    return dataclasses.replace(universe, limits=tuple(limits), links=tuple(links))


@pytest.mark.parametrize("most", [0, 20_000])
def test_cores_of_larger_universes_are_minimal(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if a problem is so large that only the statements of one proof are tried."""
    monkeypatch.setattr(session, "_MOST_TRIED", most)
    sizes = []
    for seed in SEEDS:
        universe = random_universe(seed, cycles=seed % 2 == 1)
        problem = universe.problem()
        if judged(universe) is not None:
            continue
        demands, relations = minimal_core(problem)
        core: list[Demand | Relation] = [*demands, *relations]
        assert judged(_universe_of(universe, problem, core)) is None, seed
        for item in core:
            rest = [other for other in core if other is not item]
            assert judged(_universe_of(universe, problem, rest)) is not None, (seed, item)
        sizes.append(len(core))
    assert len(sizes) > 20
    assert max(sizes) >= 6


def _by_deletion(universe: Universe, problem: Problem) -> list[Demand | Relation]:
    """Find a core by leaving out one item after another, each time checked by brute force."""
    core: list[Demand | Relation] = [*problem.demands, *problem.relations]
    for item in list(core):
        rest = [other for other in core if other is not item]
        if not _universe_of(universe, problem, rest).solvable():
            core = rest
    return core


@pytest.mark.slow
@FEWER
@given(universes(cycles=True).filter(lambda universe: not universe.solvable()))
def test_core_equals_plain_deletion(universe: Universe) -> None:
    problem = universe.problem()
    demands, relations = minimal_core(problem)
    assert [*demands, *relations] == _by_deletion(universe, problem)
