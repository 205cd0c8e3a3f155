"""The preferred solution, compared with brute force."""

from __future__ import annotations

import pytest
from hypothesis import given

from resolver.compiling.problem import Demand, Problem, Relation, RelationRow, Variable
from tests.resolver.solving import solve_preferred
from tests.resolver.universe import EXAMPLES, FACT, Universe, candidate, universes


@pytest.mark.slow
@EXAMPLES
@given(universes())
def test_preferred_solution_is_best_by_component(universe: Universe) -> None:
    """Check the order of decisions: components of every solution first, by layer, each at its best."""
    solution = solve_preferred(universe.problem())
    left = list(universe.solutions())
    if not left:
        assert solution is None
        return
    undecided = sorted(universe.sizes, key=["rocm", "torch", "apex", "deepspeed", "zlib"].index)
    while undecided:
        needed = (name for name in undecided if all(candidate[name] is not None for candidate in left))
        name = next(needed, undecided[0])
        undecided.remove(name)
        values = [candidate[name] for candidate in left]
        best = None if None in values else min(value for value in values if value is not None)
        left = [candidate for candidate in left if candidate[name] == best]
    assert solution is not None
    assert [universe.read(solution)] == left


def test_newest_torch_wins_over_newest_apex() -> None:
    torch = Variable("torch", [candidate("torch", version) for version in ("3", "2", "1")])
    apex = Variable("apex", [candidate("apex", version) for version in ("2", "1")])
    rows = [
        RelationRow(apex.mask([0]), torch.mask([2]), FACT),
        RelationRow(apex.mask([1]), torch.mask([0, 1]), FACT),
    ]
    demands = [
        Demand(variable, variable.present, variable.name, "request", "a test") for variable in (torch, apex)
    ]
    problem = Problem({"torch": torch, "apex": apex}, demands, [Relation(apex, torch, "run", rows)])
    assert solve_preferred(problem) == {"torch": 1, "apex": 2}
