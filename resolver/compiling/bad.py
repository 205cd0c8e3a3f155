"""Known-bad combinations: versions that no pair of facts forbids and that do not work together.

A combination of two is one relation. One of more than two gets a component of its own, which has one
version for each way out ("this one is outside"): every named component that is inside its bad
versions rules its own way out, so if all are inside none is left. The rarest of them brings it in,
so that no other problem has to carry it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from resolver.compiling.draft import Clause, version_in
from resolver.model import PLATFORM, Candidate, Fact
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.compiling.draft import Draft, Test
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Target

WAY_OUT = "known-bad-"
"""How the names of the components begin that stand for the ways out of a combination."""


def compile_known_bad(draft: Draft) -> None:
    """Add what refuses every known-bad combination that concerns the target."""
    for number, row in enumerate(concerning(draft.catalog, draft.target)):
        if row.effect == "refuse" and row.combination.keys() <= draft.variables.keys():
            _refuse(draft, row, f"{WAY_OUT}{number}")


def concerning(catalog: Catalog, target: Target) -> list[schema.KnownBad]:
    """Give the known-bad combinations that speak of a target."""
    return [
        row
        for row in catalog.known_bad.values()
        if row.backend in {None, target.backend}
        and (not row.gfx or set(row.gfx) & set(target.gfx))
        and row.site in {"", target.site}
    ]


def warnings_of(catalog: Catalog, target: Target, versions: Mapping[str, str]) -> list[str]:
    """Give what is to be said of the known-bad combinations that are in a chosen set.

    Parameters
    ----------
    catalog, target
        The facts, and what they are asked for.
    versions
        Component to chosen version.
    """
    return [
        f"{_spelled(row)} together: {row.problem} ({row.source})."
        for row in concerning(catalog, target)
        if row.effect == "warn"
        and all(name in versions and _inside(text, versions[name]) for name, text in row.combination.items())
    ]


def _inside(specifier: str, version: str) -> bool:
    return not specifier or satisfies(version, specifier)


def _refuse(draft: Draft, row: schema.KnownBad, name: str) -> None:
    fact = Fact.of(row, f"{_spelled(row)} are known to be bad together: {row.problem}")
    tests = {one: _is_inside(text) for one, text in row.combination.items()}
    first, *others = tests
    if not others:
        fact = Fact.of(row, f"{_spelled(row)} is known to be bad: {row.problem}")
        draft.forbid(first, tests[first], fact)
    elif len(others) == 1:
        clause = Clause(tests[first], _not(tests[others[0]]), fact)
        draft.relate(first, others[0], [clause], when_present=True, forbids=True)
    else:
        sure = replace(fact, status="documented")  # a way out rests on nothing
        draft.variable(
            name, [Candidate(name, f"without {one}", "platform", "request", sure) for one in tests]
        )
        rarest = next((one for one in tests if one not in {*PLATFORM, "torch"}), first)
        for one, inside in tests.items():
            ways_out = version_in(f"without {other}" for other in tests if other != one)
            clause = Clause(inside, ways_out, fact)
            draft.relate(one, name, [clause], when_present=one != rarest, forbids=True)


def _is_inside(specifier: str) -> Test:
    return lambda candidate: _inside(specifier, candidate.version)


def _not(test: Test) -> Test:
    return lambda candidate: not test(candidate)


def _spelled(row: schema.KnownBad) -> str:
    *most, last = (f"{name} {text}".rstrip() for name, text in row.combination.items())
    return f"{', '.join(most)} and {last}" if most else last
