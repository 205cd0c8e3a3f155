"""Search behind arc consistency: whether there is a solution, and which one is preferred.

A first solution is asked of resolvelib, which finds most in a few rounds, because arc consistency
leaves little to take back. Its "no" proves nothing: when it jumps back over several choices it can
pass solutions by. Where it finds none, needs more rounds than there are variables, or where components
need each other in a circle (there it keeps what a dropped choice had brought in), a search that stays
arc consistent at every step decides. From that solution on, which one is preferred takes many
questions about one network, and so is asked of that search alone.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

from resolver.errors import TooLargeError
from resolver.model import layer
from resolver.network import Network
from resolver.problem import ABSENT
from resolver.provider import ask_resolvelib

if TYPE_CHECKING:
    from resolver.network import Domains
    from resolver.problem import Problem

__all__ = ["MOST_STEPS", "TooLargeError", "preferred_within", "solve_preferred"]

MOST_STEPS = 20_000
"""After this many steps the search gives up; what the catalog asks needs tens."""
_ROUNDS_FOR_EACH = 1
"""resolvelib gets this many rounds for each variable before the other search takes over."""


def _chosen(network: Network, solution: Domains) -> dict[str, int]:
    """Give the variables that are part of a solution with the numbers of their bits."""
    return {
        name: mask.bit_length() - 1
        for name, mask in zip(network.names, solution, strict=True)
        if mask != ABSENT
    }


def _solve_within(problem: Problem, network: Network, domains: Domains, most_steps: int) -> Domains | None:
    """Find a solution within arc consistent domains, by resolvelib if it finds one soon."""
    if not _is_circular(problem):
        most_rounds = min(most_steps, _ROUNDS_FOR_EACH * len(network.names))
        found = ask_resolvelib(problem, network, domains, most_rounds)
        if found is not None:
            return found
    return network.search(domains, most_steps)


def _is_circular(problem: Problem) -> bool:
    """Tell whether components need each other in a circle.

    There resolvelib keeps what a dropped choice had brought in, and then errs or does not end.
    """
    graph = TopologicalSorter[str]()
    for relation in problem.relations:
        graph.add(relation.subject.name, relation.object.name)
    try:
        graph.prepare()
    except CycleError:
        return True
    return False


def solve_preferred(problem: Problem) -> dict[str, int] | None:
    """Find the solution that is best component by component.

    resolvelib gives up an earlier choice as soon as a later one asks for it, so the newest Apex
    would win over the newest torch. Here each component in turn gets its most preferred candidate
    with which the rest, given the choices so far, still has a solution:

    1. take any solution as a witness;
    2. take the first undecided component, in the order of `model.layer`, that no solution can do
       without; if every one can be done without, take the first and leave it out;
    3. give it the best candidate that leaves a solution; that solution is the new witness;
    4. go on with 2 until all are decided.

    So what nobody asked for is left out, but never for the price of an older version of what was.

    Returns
    -------
    dict or None
        For each variable that is part of the set the bit number of its candidate; None when no
        solution exists. Complete: None is given only when there is none.

    Raises
    ------
    TooLargeError
        The guard on steps stopped the search, which says nothing about solutions.
    """
    network = Network(problem)
    domains = network.start(problem.demands)
    witness = None if domains is None else _solve_within(problem, network, domains, MOST_STEPS)
    if domains is None or witness is None:
        return None
    return _chosen(network, _preferred(network, domains, witness))


def preferred_within(network: Network, domains: Domains) -> dict[str, int] | None:
    """Find the solution that `solve_preferred` would find, within arc consistent domains.

    For many questions about one problem: the network is made once, and each question narrows it.

    Raises
    ------
    TooLargeError
        The guard on steps stopped the search.
    """
    witness = network.search(domains, MOST_STEPS)
    return None if witness is None else _chosen(network, _preferred(network, domains, witness))


def _preferred(network: Network, domains: Domains, witness: Domains) -> Domains:
    """Decide component by component; any solution within the domains will do as a witness."""
    undecided = [network.number[name] for name in sorted(network.names, key=layer)]
    while any(witness[variable] != ABSENT for variable in undecided):
        needed = (one for one in undecided if not _can_be_left_out(network, domains, witness, one))
        variable = next(needed, undecided[0])
        undecided.remove(variable)
        for bit in network.by_preference(domains, variable):
            narrowed = network.narrowed(domains, variable, 1 << bit)
            if narrowed is None:
                continue
            if witness[variable] != 1 << bit:
                found = network.search(narrowed, MOST_STEPS)
                if found is None:
                    continue
                witness = found
            domains = narrowed
            break
    return witness


def _can_be_left_out(network: Network, domains: Domains, witness: Domains, variable: int) -> bool:
    if witness[variable] == ABSENT:
        return True
    if not domains[variable] & ABSENT:
        return False
    without = network.narrowed(domains, variable, ABSENT)
    return without is not None and network.search(without, MOST_STEPS) is not None
