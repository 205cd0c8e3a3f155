"""Solve, explain and restrict problems; used only by tests."""

from __future__ import annotations

from collections.abc import Sequence

from resolver.compiling.problem import Demand, Problem, Relation
from resolver.solving.search import MOST_CONFLICTS
from resolver.solving.session import Session, Solution


def solve(problem: Problem, max_conflicts: int = MOST_CONFLICTS) -> Solution | None:
    """Find any solution, which is the first step of `Session.solve`."""
    session = Session(problem)
    session.search.max_conflicts = max_conflicts
    witness = session._witness(session._assumptions(problem.demands))
    return None if witness is None else session._solution(witness)


def solve_preferred(problem: Problem) -> Solution | None:
    """Find the preferred solution in its own session."""
    return Session(problem).solve()


def minimal_core(problem: Problem) -> tuple[list[Demand], list[Relation]]:
    """Find the minimal core in its own session."""
    return Session(problem).explain()


def propagate(problem: Problem) -> dict[str, int] | None:
    """Return the candidates that arc consistency leaves, by name of the variable."""
    session = Session(problem)
    narrowed = session.narrow(problem.demands)
    return None if narrowed is None else dict(zip(session.number, narrowed.domains, strict=True))


def restricted(problem: Problem, demands: Sequence[Demand], relations: Sequence[Relation]) -> Problem:
    """Return the same problem with only some of its demands and relations."""
    return Problem(problem.variables, list(demands), list(relations), problem.preferences, problem.requested)
