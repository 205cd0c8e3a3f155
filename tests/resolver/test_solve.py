"""A session finds a solution if and only if one exists, and returns the preferred solution."""

from __future__ import annotations

import dataclasses
import random
from datetime import date
from itertools import combinations

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from resolver.answers.proven import solve_proven
from resolver.errors import TooLargeError
from resolver.facts.schema import ProvenSet
from resolver.solving.session import Session
from tests.resolver.solving import solve, solve_preferred
from tests.resolver.universe import EXAMPLES, FEWER, Limit, Link, Universe, universes

ALL = frozenset(range(3))


def _set(*positions: int) -> frozenset[int]:
    return frozenset(positions)


def _must(name: str, allowed: frozenset[int] = ALL) -> Limit:
    return Limit(name, allowed, optional=False)


def _needs(subject: str, target: str, *rows: tuple[int, int], when_present: bool = False) -> Link:
    return Link(subject, target, tuple((_set(left), _set(right)) for left, right in rows), when_present)


@pytest.mark.slow
@EXAMPLES
@given(universes())
def test_search_finds_solution_iff_one_exists(universe: Universe) -> None:
    solution = solve(universe.problem())
    event(f"solvable: {solution is not None}")
    assert (solution is not None) == universe.solvable()
    if solution is not None:
        assert universe.holds(universe.read(solution))


EACH_OTHER = Universe(
    {"torch": 2, "apex": 2},
    (_must("torch", _set(0, 1)),),
    (_needs("torch", "apex", (0, 1), (1, 0)), _needs("apex", "torch", (1, 1), (0, 0))),
)
"""Each torch requires the apex that requires the other torch."""
LEFT_BEHIND = Universe(
    {"apex": 2, "rocm": 1, "zlib": 1},
    (_must("apex", _set(0, 1)),),
    (
        _needs("apex", "rocm", (0, 0)),
        _needs("rocm", "zlib", (0, 0)),
        _needs("zlib", "rocm", (0, 0)),
        _needs("zlib", "apex", (0, 1)),
    ),
)
"""The first apex requires two components that require each other, and the other apex."""


@pytest.mark.slow
@EXAMPLES
@given(universes(cycles=True))
@example(EACH_OTHER)
@example(LEFT_BEHIND)
def test_search_finds_solution_iff_one_exists_with_cycles(universe: Universe) -> None:
    solution = solve(universe.problem())
    assert (solution is not None) == universe.solvable()
    if solution is not None:
        assert universe.holds(universe.read(solution))


@pytest.mark.slow
@FEWER
@given(universes(), st.randoms(use_true_random=False))
def test_order_of_facts_does_not_matter(universe: Universe, chance: random.Random) -> None:
    limits, links = list(universe.limits), list(universe.links)
    chance.shuffle(limits)
    chance.shuffle(links)
    shuffled = dataclasses.replace(universe, limits=tuple(limits), links=tuple(links))
    assert (solve(universe.problem()) is None) == (solve(shuffled.problem()) is None)


@pytest.mark.slow
@FEWER
@given(universes())
def test_preferred_solution_is_deterministic(universe: Universe) -> None:
    problem = universe.problem()
    solution = solve_preferred(problem)
    assert solution == solve_preferred(problem) == solve_preferred(universe.problem())
    assert (solution is None) == (solve(problem) is None)
    assert solution is None or universe.holds(universe.read(solution))


@pytest.mark.slow
@EXAMPLES
@given(universes())
def test_preferred_solution_is_best_by_layer(universe: Universe) -> None:
    """Compare with the lexicographic minimum, which is preferred if everything is requested."""
    universe = dataclasses.replace(universe, limits=tuple(map(_must, universe.sizes)))
    layers = [name for name in ("rocm", "torch", "apex", "deepspeed", "zlib") if name in universe.sizes]
    best = min(([solution[name] for name in layers] for solution in universe.solutions()), default=None)
    solution = solve_preferred(universe.problem())
    assert (best and dict(zip(layers, best, strict=True))) == (solution and universe.read(solution))


def test_solution_has_only_required_components() -> None:
    universe = Universe(
        {"torch": 3, "apex": 3, "zlib": 3, "rocm": 3},
        (_must("apex"), Limit("rocm", ALL, optional=True)),
        (
            _needs("apex", "torch", (0, 2), (1, 0), (2, 1)),
            _needs("torch", "zlib", (0, 1), when_present=True),
        ),
    )
    expected = {"torch": 0, "apex": 1, "zlib": None, "rocm": None}
    assert universe.read(solve_preferred(universe.problem()) or {}) == expected


def test_requested_component_is_newest_at_any_cost() -> None:
    """The newest apex requires rocm, the previous apex does not."""
    universe = Universe(
        {"apex": 2, "rocm": 2}, (_must("apex", _set(0, 1)),), (_needs("apex", "rocm", (0, 1)),)
    )
    assert universe.read(solve_preferred(universe.problem()) or {}) == {"apex": 0, "rocm": 1}


def test_contradictory_demands_have_no_solution() -> None:
    assert solve(Universe({"apex": 1}, (_must("apex", _set()),), ()).problem()) is None
    both = (_must("apex"), Limit("apex", _set(), optional=True))
    assert solve(Universe({"apex": 1}, both, ()).problem()) is None


def test_empty_request_has_empty_solution() -> None:
    assert solve_preferred(Universe({"apex": 1}, (), ()).problem()) == {}


def test_step_limit_raises_too_large() -> None:
    """Four components have different versions among three: no propagation finds the contradiction."""
    names = [f"package{number}" for number in range(4)]
    different = tuple((_set(own), _set(*({0, 1, 2} - {own}))) for own in range(3))
    links = tuple(Link(one, other, different, when_present=False) for one, other in combinations(names, 2))
    universe = Universe(dict.fromkeys(names, 3), tuple(_must(name) for name in names), links)
    assert solve(universe.problem()) is None
    with pytest.raises(TooLargeError, match="stopped after 1 contradictions") as failure:
        solve(universe.problem(), max_conflicts=1)
    assert failure.value.hint


def _proven(name: str, year: int, **picks: str) -> ProvenSet:
    return ProvenSet(id=name, date=date(year, 1, 1), picks=picks, status="observed", source="here")


def test_newest_fitting_proven_set_is_used() -> None:
    universe = Universe(
        {"torch": 3, "apex": 3},  # versions 3, 2 and 1
        (_must("apex"), _must("torch", _set(0, 1))),
        (_needs("apex", "torch", (0, 0), (1, 1), (2, 2)),),
    )
    older = _proven("older", 2024, torch="2", apex="2", numpy="1.26")
    newer = _proven("newer", 2025, torch="1", apex="1")  # this torch is not allowed
    unknown = _proven("unknown", 2026, torch="7")
    problem = universe.problem()
    assert solve_proven(Session(problem), [older, newer, unknown], ["torch", "apex"]) == (
        {"torch": 2, "apex": 2},
        older,
    )
    assert solve_proven(Session(problem), [newer, unknown], ["torch", "apex"]) == (
        {"torch": 1, "apex": 1},
        None,
    )


def test_proven_set_without_solution_does_not_fit() -> None:
    problem = Universe({"apex": 1}, (_must("apex", _set()),), ()).problem()
    assert solve_proven(Session(problem), [_proven("one", 2025, apex="1")], ["apex"]) == (None, None)


def test_proven_set_with_more_requested_names_wins() -> None:
    universe = Universe({"torch": 2, "apex": 2}, (_must("torch"), _must("apex")), ())
    problem = universe.problem()
    whole, part = _proven("whole", 2024, torch="1", apex="1"), _proven("part", 2026, torch="2")
    assert solve_proven(Session(problem), [part, whole], ["torch", "apex"])[1] == whole
    assert solve_proven(Session(problem), [part, whole], ["torch"])[1] == part
