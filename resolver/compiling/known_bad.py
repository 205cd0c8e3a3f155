"""Known-bad combinations: versions that do not work together although each pair of them seems to.

A combination of two components is one relation. A combination of more components has a component of its own,
with one version for each way to avoid the combination ("without apex"). A component with a bad version
excludes its own way. If all components have bad versions, no way is left. Only the most rarely requested
component requires the new component, so that most solutions do not contain it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, get_args

from msgspec.structs import replace

from resolver.compiling.clauses import Clause, known_mask, version_in, where
from resolver.facts.catalog import matches
from resolver.facts.schema import PLATFORM, Rank
from resolver.model import Candidate, Fact, Notice
from resolver.versions import grouped, satisfies

if TYPE_CHECKING:
    from resolver.compiling.problem_builder import ProblemBuilder
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution, Target

_RANKS = get_args(Rank)
AVOIDED = "known-bad-"
"""Prefix of the components that stand for the ways to avoid a combination."""
_TITLES = {"rocm": "ROCm", "python": "Python", "kernel-driver": "kernel driver", "base-image": "base image"}


def compile_known_bad(builder: ProblemBuilder) -> None:
    """Exclude the known-bad combinations that concern the target, except those that are only mentioned."""
    for number, row in enumerate(concerning(builder.catalog, builder.target)):
        is_complete = bool(row.excludes) and row.combination.keys() <= builder.variables.keys()
        if is_complete and builder.is_new(AVOIDED, number):
            _exclude(builder, row, f"{AVOIDED}{number}")


def concerning(catalog: Catalog, target: Target) -> list[schema.KnownBad]:
    """Return the known-bad combinations that concern a target."""
    return [
        row
        for row in catalog.known_bad.values()
        if row.backend in {None, target.backend}
        and (not row.gfx or set(row.gfx) & set(target.gfx))
        and row.site in {"", target.site}
    ]


def bad_releases(catalog: Catalog, target: Target) -> dict[str, list[schema.KnownBad]]:
    """Return the rows that exclude releases alone, by the component."""
    return grouped(
        (next(iter(row.combination)), row)
        for row in concerning(catalog, target)
        if row.excludes and len(row.combination) == 1
    )


def known_bad_warnings(
    catalog: Catalog, target: Target, versions: Mapping[str, str], variants: Mapping[str, str] = {}
) -> list[Notice]:
    """Return warnings about the known-bad combinations in a resolution, the gravest first."""
    broken = broken_combinations(catalog, target, versions, variants)
    return [notice_of(row, title) for row, title in broken if row.is_shown]


def notice_of(row: schema.KnownBad, title: str) -> Notice:
    """Return a known-bad combination as a warning."""
    same = "; the files of `env --for apptainer` and `build-layer` do the same" if row.from_image else ""
    return Notice(row.id or "known-bad", "", f"{title}: {row.problem}{same} ({row.source}).", row.summary)


def problems_of(
    catalog: Catalog, lock: Resolution, name: str = "", copied: Collection[str] = ()
) -> list[Notice]:
    """Return the known problems of a lock that a component has part in, or else all the grave ones.

    Problems that the installed files `copied` from the image solve are left out.
    """
    versions = {pick.name: pick.version for pick in lock.picks}
    variants = {pick.name: pick.variant for pick in lock.picks}
    return [
        notice_of(row, title)
        for row, title in broken_combinations(catalog, lock.target, versions, variants)
        if (name in row.combination if name else row.is_grave)
        and not (row.from_image and all(any(one.endswith(file) for one in copied) for file in row.from_image))
    ]


def replacements_of(catalog: Catalog, lock: Resolution) -> dict[str, dict[str, str]]:
    """Return the files that the site's recipes replace with files of the image, by installed distribution."""
    versions = {pick.name: pick.version for pick in lock.picks}
    rows = [row for row, _ in broken_combinations(catalog, lock.target, versions)]
    own = [pick.name for pick in lock.distributions if pick.origin != "preinstalled"]
    return {name: row.from_image for row in rows if row.from_image for name in own if name in row.combination}


def broken_combinations(
    catalog: Catalog, target: Target, versions: Mapping[str, str], variants: Mapping[str, str] = {}
) -> Iterator[tuple[schema.KnownBad, str]]:
    """Yield the known-bad combinations among versions, the gravest first, each with its text.

    `variants` are by component; a variant that is not known may have the problem.
    """
    for row in sorted(concerning(catalog, target), key=lambda row: _RANKS.index(row.rank)):
        excepted = (variants.get(name) for name in row.combination)
        if matches(row.combination, versions) and not (row.except_variant and row.except_variant in excepted):
            yield row, _spelled(row)


def _exclude(builder: ProblemBuilder, row: schema.KnownBad, name: str) -> None:
    bad: dict[str, int] = {}
    for component, text in row.combination.items():
        variable = builder.variables[component]
        is_bad = where(lambda one, text=text: not text or satisfies(one.version, text))  # type: ignore[misc]
        is_excepted = where(lambda one: bool(row.except_variant) and one.variant == row.except_variant)
        kept = where(lambda one: row.effect == "unpublished" and one.origin == "preinstalled")
        bad[component] = is_bad(variable) & ~is_excepted(variable) & ~kept(variable)
    first, *others = bad
    if not others:
        fact = Fact.of(row, f"{_spelled(row)} {row.excludes}")
        builder.forbid(first, bad[first], fact, installed=row.effect == "refuse")
        return
    fact = Fact.of(row, f"{_spelled(row)} do not work together: {row.problem}")
    exclude_together(builder, bad, fact, name)


def exclude_together(builder: ProblemBuilder, bad: Mapping[str, int], fact: Fact, name: str) -> None:
    """Exclude that several components all have a bad version; `name` is that of a new component."""
    first, *others = bad
    if len(others) == 1:
        good = builder.variables[others[0]].present & ~bad[others[0]]
        clause = Clause(known_mask(bad[first]), known_mask(good), fact)
        builder.relate(first, others[0], [clause], when_present=True, forbids=True)
        return
    certain = replace(fact, status="documented")  # avoiding a combination does not depend on trust
    ways = [Candidate(name, f"without {component}", "platform", "request", certain) for component in bad]
    builder.add_variable(name, ways)
    rarest = next((component for component in bad if component not in {*PLATFORM, "torch"}), first)
    for component, mask in bad.items():
        remaining = version_in(f"without {other}" for other in bad if other != component)
        clause = Clause(known_mask(mask), remaining, fact)
        builder.relate(component, name, [clause], when_present=component != rarest, forbids=True)


def _spelled(row: schema.KnownBad) -> str:
    *most, last = (_version(name, specifier) for name, specifier in row.combination.items())
    return f"{', '.join(most)} and {last}" if most else last


def _version(name: str, specifier: str) -> str:
    title = _TITLES.get(name, name)
    if specifier.startswith("==") and "," not in specifier:
        specifier = specifier.removeprefix("==").removesuffix(".*")
    return f"{title} {specifier}".rstrip()
