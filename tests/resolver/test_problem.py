"""Masks mean the same as rows, and propagation removes only candidates that are in no solution."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from resolver.compiling.problem import ABSENT, Relation, RelationRow, Variable, bits
from tests.resolver.solving import propagate, restricted
from tests.resolver.universe import EXAMPLES, FACT, Limit, Link, Universe, candidate, universes


def _variable(name: str, size: int) -> Variable:
    return Variable(name, [candidate(name, str(number)) for number in range(size)])


def test_masks_number_candidates_from_bit_1() -> None:
    torch = _variable("torch", 3)
    assert torch.everything == 0b1111
    assert torch.present == 0b1110
    assert torch.mask([0, 2]) == 0b1010
    assert torch.candidate(3) is torch.candidates[2]
    assert torch.chosen(0b1011) == [torch.candidates[0], torch.candidates[2]]


@EXAMPLES
@given(st.integers(0, 2**70))
def test_bits_yields_set_bits_in_order(mask: int) -> None:
    numbers = list(bits(mask))
    assert sum(1 << number for number in numbers) == mask
    assert numbers == sorted(set(numbers))


def test_relation_table_merges_rows() -> None:
    apex, torch = _variable("apex", 3), _variable("torch", 2)
    rows = [
        RelationRow(apex.mask([0, 1]), torch.mask([0]), FACT),
        RelationRow(apex.mask([1]), torch.mask([1]), FACT),
    ]
    needs = Relation(apex, torch, "run", rows)
    goes_with = Relation(apex, torch, "run", rows, when_present=True)
    assert needs.table == [0b111, 0b010, 0b110, 0b111]
    assert goes_with.table == [0b111, 0b011, 0b111, 0b111]
    assert needs.rows_between(2, 1) == [rows[0]]
    assert needs.rows_between(1, 2) == needs.rows_between(3, 1) == []


@pytest.mark.slow
@EXAMPLES
@given(universes(cycles=True))
def test_propagation_keeps_candidates_of_solutions(universe: Universe) -> None:
    domains = propagate(universe.problem())
    solutions = list(universe.solutions())
    event(f"solutions: {bool(solutions)}, proved without search: {domains is None}")
    if domains is None:
        assert solutions == []
        return
    for chosen in solutions:
        for name, value in chosen.items():
            assert domains[name] & (ABSENT if value is None else 1 << (value + 1))


@pytest.mark.slow
@EXAMPLES
@given(universes(cycles=True))
def test_propagated_candidates_have_partners(universe: Universe) -> None:
    problem = universe.problem()
    domains = propagate(problem)
    if domains is None:
        return
    for demand in problem.demands:
        assert domains[demand.variable.name] & ~demand.mask == 0
    for relation in problem.relations:
        subjects, objects = domains[relation.subject.name], domains[relation.object.name]
        partners = [relation.table[bit] & objects for bit in bits(subjects)]
        assert all(partners)
        assert not objects & ~_union(partners)


@pytest.mark.usefixtures("_no_hang")
def test_propagation_ends_with_self_relation() -> None:
    impossible = Link("apex", "apex", ((frozenset({0, 1}), frozenset()),), when_present=False)
    universe = Universe({"apex": 2}, (), (impossible,))
    assert propagate(universe.problem()) == {"apex": ABSENT}


def _union(masks: list[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union


def test_restricted_problem_shares_variables() -> None:
    a, b = _variable("a", 1), _variable("b", 1)
    problem = Universe({"a": 1, "b": 1}, (), ()).problem()
    relation = Relation(a, b, "run", [RelationRow(a.present, b.present, FACT)])
    part = restricted(problem, [], [relation])
    assert part.variables is problem.variables
    assert (part.relations, problem.relations) == ([relation], [])


def test_propagation_follows_chain_to_its_start() -> None:
    """A relation is revised again when another relation has changed its variables."""
    both = frozenset({0, 1})
    rows = ((frozenset({0}), frozenset({0})), (frozenset({1}), frozenset({1})))
    chain = ("deepspeed", "apex", "torch", "rocm")
    universe = Universe(
        dict.fromkeys(chain, 2),
        (*(Limit(name, both, False) for name in chain), Limit("rocm", frozenset({1}), False)),
        tuple(Link(left, right, rows, False) for left, right in pairwise(chain)),
    )
    assert propagate(universe.problem()) == dict.fromkeys(chain, 0b100)
