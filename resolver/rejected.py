"""Why a version that was preferred to the chosen one was not taken."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resolver.compiling import compile_problem
from resolver.explain import core_of
from resolver.problem import Demand
from resolver.solve import solve_preferred

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.catalog import Catalog
    from resolver.model import CoreItem, Request
    from resolver.problem import Problem
    from resolver.specifiers import Specifier

MOST_REJECTED = 5


class Rejected(msgspec.Struct, frozen=True):
    """A candidate that was not taken.

    Attributes
    ----------
    key
        Its version and variant.
    core
        The facts that forbid it together with the request; empty if nothing does.
    instead
        What it would have cost where nothing forbids it: the component that is decided earlier, the
        version it has now, and the one it would have.
    preferred
        Why the chosen version is preferred where this one would cost nothing.
    """

    key: str
    core: tuple[CoreItem, ...] = ()
    instead: tuple[str, str, str] | None = None
    preferred: str = ""


def rejected(
    catalog: Catalog,
    request: Request,
    picked: Mapping[str, str],
    name: str,
    *,
    asked: Specifier | None = None,
    most: int = MOST_REJECTED,
) -> tuple[list[Rejected], int]:
    """Say of candidates that come before the chosen one why they were not taken.

    Parameters
    ----------
    catalog, request
        What was asked, and of which facts.
    picked
        Component to version and variant (`Candidate.key`), as resolved.
    name
        The component.
    asked
        The versions that are looked at; all when None.
    most
        How many candidates are looked at, the nearest to the chosen one first.

    Returns
    -------
    list of Rejected, int
        What was looked at, and how many more there are.
    """
    problem = compile_problem(catalog, request)
    variable = problem.variables.get(name)
    if variable is None or name not in picked:
        return [], 0
    keys = [one.key for one in variable.candidates]
    chosen = keys.index(picked[name]) if picked[name] in keys else 0
    before = [
        position
        for position in reversed(range(chosen))
        if asked is None or asked.allows(variable.candidates[position].version)
    ]
    found = [_reason(problem, picked, name, position) for position in before[:most]]
    return found, len(before) - len(found)


def _reason(problem: Problem, picked: Mapping[str, str], name: str, position: int) -> Rejected:
    variable = problem.variables[name]
    key = variable.candidates[position].key
    pin = Demand(variable, variable.mask([position]), f"{name} {key}", "request", "the question")
    pinned = problem.restricted([*problem.demands, pin], problem.relations)
    solution = solve_preferred(pinned)
    if solution is None:
        core = (item for item in core_of(pinned) if item.source != pin.source)
        return Rejected(key, core=tuple(core))
    for other, bit in solution.items():
        candidate = problem.variables[other].candidate(bit)
        if other != name and other in picked and picked[other] != candidate.key:
            return Rejected(key, instead=(other, picked[other], candidate.key))
    return Rejected(key, preferred=_favoured(problem, picked, name))


def _favoured(problem: Problem, picked: Mapping[str, str], name: str) -> str:
    """Return the reason if the chosen version came first because of another component."""
    favour = problem.favours.get(name)
    if favour is None or favour.other not in picked:
        return ""
    return f"{name} {picked[name]} is in {favour.other} {picked[favour.other]} and is therefore preferred"
