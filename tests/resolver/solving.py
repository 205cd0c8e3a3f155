"""Solve, explain and restrict problems; used only by tests."""

from __future__ import annotations

from collections.abc import Sequence

from resolver.network import MOST_STEPS
from resolver.problem import Demand, Problem, Relation
from resolver.session import Session, Solution


def solve(problem: Problem, *, max_steps: int = MOST_STEPS) -> Solution | None:
    """Find any solution, which is the first step of `Session.solve`."""
    session = Session(problem, max_steps=max_steps)
    domains = session.narrow()
    solution = None if domains is None else session.first_solution(domains)
    return None if solution is None else session._solution(solution)


def solve_preferred(problem: Problem) -> Solution | None:
    """Find the preferred solution in its own session."""
    return Session(problem).solve()


def minimal_core(problem: Problem) -> tuple[list[Demand], list[Relation]]:
    """Find the minimal core in its own session."""
    return Session(problem).explain()


def propagate(problem: Problem) -> dict[str, int] | None:
    """Return the candidates that arc consistency leaves, by name of the variable."""
    session = Session(problem)
    domains = session.narrow()
    return None if domains is None else dict(zip(session.network.names, domains, strict=True))


def restricted(problem: Problem, demands: Sequence[Demand], relations: Sequence[Relation]) -> Problem:
    """Return the same problem with only some of its demands and relations."""
    return Problem(problem.variables, list(demands), list(relations), problem.preferences)
