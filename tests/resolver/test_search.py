"""Search and cores on random universes, against brute force from first principles."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resolver.explain import minimal_core
from resolver.model import Edge
from resolver.order import CycleError, generations
from resolver.problem import Demand, Problem, Relation, Row, Variable, bits, propagate
from resolver.solve import TooLargeError, solve, solve_preferred
from tests.resolver.universe import FACT, Universe, candidate, universes


@given(universes())
@settings(max_examples=400, deadline=None)
def test_a_solution_is_found_exactly_when_there_is_one_and_it_holds(universe: Universe) -> None:
    found = solve(universe.problem())
    if found is None:
        assert next(universe.solutions(), None) is None
    else:
        assert universe.holds(universe.read(found))


@given(universes())
@settings(max_examples=200, deadline=None)
def test_propagation_removes_nothing_that_is_part_of_a_solution(universe: Universe) -> None:
    domains = propagate(universe.problem())
    solutions = list(universe.solutions())
    if domains is None:
        assert solutions == []
        return
    for chosen in solutions:
        for name, value in chosen.items():
            assert domains[name] >> (0 if value is None else value + 1) & 1


@given(universes(), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_answer_does_not_depend_on_chance_or_on_the_order_of_facts(
    universe: Universe, random: Random
) -> None:
    problem = universe.problem()
    assert solve(problem) == solve(universe.problem())
    shuffled = list(problem.relations)
    random.shuffle(shuffled)
    other = solve(problem.restricted(problem.demands, shuffled))
    assert (other is None) == (solve(problem) is None)


@given(universes())
@settings(max_examples=200, deadline=None)
def test_a_core_has_no_solution_and_without_any_one_item_it_has(universe: Universe) -> None:
    problem = universe.problem()
    if solve(problem) is not None:
        return
    demands, relations = minimal_core(problem)
    assert solve(problem.restricted(demands, relations)) is None
    for demand in demands:
        fewer = [one for one in demands if one is not demand]
        assert solve(problem.restricted(fewer, relations)) is not None
    for relation in relations:
        kept = [one for one in relations if one is not relation]
        assert solve(problem.restricted(demands, kept)) is not None


@given(universes())
@settings(max_examples=300, deadline=None)
def test_the_preferred_solution_is_best_component_by_component(universe: Universe) -> None:
    """What every solution has comes first, platform before torch before the rest, the best of each."""
    found = solve_preferred(universe.problem())
    left = list(universe.solutions())
    if not left:
        assert found is None
        return
    undecided = sorted(universe.sizes, key=["rocm", "torch", "apex", "deepspeed", "zlib"].index)
    while undecided:
        needed = (name for name in undecided if all(one[name] is not None for one in left))
        name = next(needed, undecided[0])
        undecided.remove(name)
        values = [one[name] for one in left]
        best = None if None in values else min(value for value in values if value is not None)
        left = [one for one in left if one[name] == best]
    assert found is not None
    assert [universe.read(found)] == left


def test_the_newest_torch_wins_over_the_newest_apex() -> None:
    torch = Variable("torch", [candidate("torch", version) for version in ("3", "2", "1")])
    apex = Variable("apex", [candidate("apex", version) for version in ("2", "1")])
    rows = [Row(apex.mask([0]), torch.mask([2]), FACT), Row(apex.mask([1]), torch.mask([0, 1]), FACT)]
    demands = [Demand(one, one.present, one.name, "request", "a test") for one in (torch, apex)]
    problem = Problem({"torch": torch, "apex": apex}, demands, [Relation(apex, torch, "run", rows)])
    assert solve_preferred(problem) == {"torch": 1, "apex": 2}


def test_the_guard_on_rounds_stops_a_search_and_says_so() -> None:
    variables = {name: Variable(name, [candidate(name, "1")]) for name in ("a", "b", "c")}
    demands = [Demand(one, one.present, one.name, "request", "a test") for one in variables.values()]
    problem = Problem(variables, demands, [])
    assert solve(problem) == {"a": 1, "b": 1, "c": 1}
    with pytest.raises(TooLargeError, match="2 rounds"):
        solve(problem, most_rounds=2)


@given(st.integers(0, 2**70))
def test_bits_are_the_numbers_of_the_set_bits(mask: int) -> None:
    assert sum(1 << bit for bit in bits(mask)) == mask
    assert all(one < other for one, other in pairwise(bits(mask)))


@st.composite
def acyclic_edges(draw: st.DrawFn) -> list[Edge]:
    count = draw(st.integers(2, 8))
    pairs = draw(st.sets(st.tuples(st.integers(0, count), st.integers(0, count)), max_size=15))
    return [
        Edge(f"p{max(pair)}", f"p{min(pair)}", "build", declared=False)
        for pair in pairs
        if pair[0] != pair[1]
    ]


@given(acyclic_edges())
def test_each_group_needs_only_what_stands_before_it_and_no_group_is_later_than_it_must(
    edges: list[Edge],
) -> None:
    order = generations(["alone"], edges)
    rank = {name: number for number, group in enumerate(order) for name in group}
    assert rank["alone"] == 0
    for edge in edges:
        assert rank[edge.object] < rank[edge.subject]
    for name, number in rank.items():
        before = [rank[edge.object] for edge in edges if edge.subject == name]
        assert number == (max(before) + 1 if before else 0)


def test_a_circle_is_named_as_a_path() -> None:
    edges = [Edge(one, other, "build", declared=True) for one, other in (("a", "b"), ("b", "c"), ("c", "a"))]
    with pytest.raises(CycleError) as raised:
        generations([], edges)
    path = raised.value.message.rpartition(": ")[2].removesuffix(".").split(" -> ")
    assert path[0] == path[-1]
    assert set(path) == {"a", "b", "c"}
    assert all((one, other) in {("a", "b"), ("b", "c"), ("c", "a")} for one, other in pairwise(path))
