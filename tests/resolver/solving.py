"""Any solution of a problem: the first step of `solve_preferred`, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.network import Network
from resolver.solve import MOST_STEPS, _chosen, _solve_within

if TYPE_CHECKING:
    from resolver.problem import Problem


def solve(problem: Problem, *, most_steps: int = MOST_STEPS) -> dict[str, int] | None:
    """Find a solution: for each variable in it the bit number of its candidate, or None."""
    network = Network(problem)
    domains = network.start(problem.demands)
    solution = None if domains is None else _solve_within(problem, network, domains, most_steps)
    return None if solution is None else _chosen(network, solution)
