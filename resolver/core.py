"""The minimal core of a conflict: what cannot hold together, and nothing besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.network import Network
from resolver.problem import Demand
from resolver.solve import MOST_STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.problem import Problem, Relation
    from resolver.proof import Proof

_Item = Demand | int
"""A demand, or the number of a relation."""


def minimal_core(problem: Problem) -> tuple[list[Demand], list[Relation]]:
    """Find demands and relations that cannot hold together, none of which can be left out.

    What is found is the core that deletion gives: leave out one after another, and keep out each
    without which there is still no solution. What is left is minimal: without any one of them the
    rest has a solution. What is tried late tends to stay, so the backend, the plainest of all
    reasons, is tried last.

    Two things spare most of the questions and change no answer. What has no part in the proof at hand
    can be left out without asking, for that proof stands. And as long as nothing has to stay, twice
    as many are left out at once; where a solution comes of it, half as many, so that the first one
    that has to stay is found by halves, as in QuickXplain [1]_.

    References
    ----------
    .. [1] U. Junker, "QuickXplain: preferred explanations and relaxations for over-constrained
       problems", AAAI (2004).
    """
    network = Network(problem)
    by_kind = sorted(problem.demands, key=lambda one: one.kind != "request")
    plainest = [one for one in by_kind if one.variable.name == "backend"]
    left: list[_Item] = [one for one in by_kind if one not in plainest]
    left += [*range(len(problem.relations)), *plainest]
    core = _minimal(network, left, [])
    demands = [one for one in problem.demands if one in core]
    return demands, [one for number, one in enumerate(problem.relations) if number in core]


def minimal_demands(network: Network, demands: Sequence[Demand]) -> list[Demand]:
    """Find demands that cannot be met together, none of which can be left out.

    As `minimal_core`, save that all relations stay: nobody can change the facts.
    """
    by_kind = sorted(demands, key=lambda one: one.kind != "request")
    core = _minimal(network, by_kind, range(len(network.relations)))
    return [one for one in demands if one in core]


def _minimal(network: Network, left: Sequence[_Item], always: Sequence[int]) -> Sequence[_Item]:
    """Give the items without any one of which the rest has a solution; some relations always count."""
    kept: list[_Item] = []
    proof = _refute(network, left, always)
    at_once = len(left)
    while proof:
        used = [place for place, one in enumerate(left) if _is_used(network, proof, one)]
        if not used:
            break
        tried = min(at_once, len(used))
        rest = left[used[tried - 1] + 1 :]
        found = _refute(network, [*kept, *rest], always)
        if found:
            proof, left, at_once = found, rest, 2 * at_once
        elif tried > 1:
            at_once = tried // 2
        else:
            kept.append(left[used[0]])
            left, at_once = rest, 1
    return kept if proof else left


def _refute(network: Network, items: Sequence[_Item], always: Sequence[int]) -> Proof | None:
    """Prove that some items cannot hold together; None if they can."""
    demands = [one for one in items if isinstance(one, Demand)]
    links = always or [one for one in items if not isinstance(one, Demand)]
    return network.refute(demands, links, MOST_STEPS)


def _is_used(network: Network, proof: Proof, item: _Item) -> bool:
    """Tell whether an item has a part in a proof."""
    if isinstance(item, Demand):
        return network.number[item.variable.name] in proof.variables
    return item in proof.links
