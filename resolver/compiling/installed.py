"""Installed versions as candidates, and what the rows of the catalog say of them.

An installed version that the catalog does not know, such as torch 2.9.1+rocm6.4.lumi, is taken for the
one that it was made from: of the same public version, and with a local label that its own label begins
with. What that one needs, the installed one needs. Where no label fits (torch 2.10.0 of an image that
compiled it itself), what goes with a torch of that public version goes with it, and of its own needs
nothing is known. Either is said when it is chosen.

Two things that are installed together fit together, whatever the catalog says of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from packaging.version import InvalidVersion, Version

from resolver.model import IMAGE, PLATFORM, Candidate, Fact
from resolver.problem import Row
from resolver.versions import join_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Preinstalled, Request, Target

CONTRARY = "in versions that the catalog does not have together"
"""Ends the text of the fact that two things are installed together against what the catalog says."""


class Installed(msgspec.Struct, frozen=True):
    """One installed version among the candidates of a variable, all as masks."""

    bit: int
    needs_of: int
    """The candidates whose needs it has."""
    goes_as: int
    """The candidates in whose place it may stand."""


InstalledOf = tuple[str, list[Installed]]
"""Name of a component, and its installed versions."""


def kept_names(catalog: Catalog, request: Request) -> set[str]:
    """Give the names of everything that is installed; in a base image, of all that one may hold."""
    if request.preinstalled is None:
        return set()
    if request.preinstalled.source != IMAGE:
        return set(request.preinstalled.installed)
    return {name for image in images_of(catalog, request.target) for name in image.holds}


def with_installed(
    catalog: Catalog, request: Request, name: str, known: Sequence[Candidate]
) -> tuple[list[Candidate], list[Installed]]:
    """Give the candidates of a component with the installed versions behind them.

    Parameters
    ----------
    catalog, request
        The facts, and what is asked for.
    name
        The component.
    known
        What the catalog knows of it, in the order of preference.
    """
    facts = _facts(catalog, request, name)
    candidates, masks = list(known), []
    for version, fact in facts.items():
        needs_of, goes_as = _alike(version, known)
        same = [known[i] for i in needs_of if known[i].version == version]
        candidates.append(
            Candidate(
                name,
                version,
                "distribution",
                "preinstalled",
                fact,
                index=same[0].index if same else "",
                remark="" if same else _remark(name, version, [known[i].version for i in needs_of], goes_as),
            )
        )
        bits = (sum(1 << (i + 1) for i in one) for one in (needs_of, goes_as))
        masks.append(Installed(1 << len(candidates), *bits))
    return candidates, masks


def _facts(catalog: Catalog, request: Request, name: str) -> dict[str, Fact]:
    """Give the installed versions of a component, each with who says so."""
    kept = request.preinstalled
    if kept is None or name in PLATFORM:
        return {}
    if kept.source != IMAGE:
        return {
            version: Fact(f"the base image holds {name} {version}", "observed", source_of(kept))
            for one, version in kept.installed.items()
            if one == name
        }
    facts: dict[str, Fact] = {}
    for image in images_of(catalog, request.target):
        version = image.holds.get(name)
        if version:
            fact = Fact.of(image, f"{name} {version} is what a base image holds", note="")
            facts.setdefault(version, fact)
    return facts


def images_of(catalog: Catalog, target: Target) -> list[schema.Image]:
    """Give the base images that may be chosen and of which it is known what they hold."""
    named = target.base_image
    return [row for row in catalog.image.values() if row.holds and named in {None, row.name}]


def source_of(kept: Preinstalled) -> str:
    """Say who says what is installed."""
    return f"installed: {kept.source}"


def _alike(version: str, known: Sequence[Candidate]) -> tuple[list[int], list[int]]:
    """Find whose needs an installed version has, and in whose place it may stand, by position."""
    exact = [i for i, one in enumerate(known) if one.version == version]
    if exact:
        return exact, exact
    public, label = _parts(version)
    same = [(i, _parts(one.version)) for i, one in enumerate(known)]
    labels = {i: other for i, (one, other) in same if one == public}
    made_from = {i: len(one) for i, one in labels.items() if one and label[: len(one)] == one}
    longest = [i for i, length in made_from.items() if length == max(made_from.values())]
    return longest, longest or list(labels)


def _parts(version: str) -> tuple[str, list[str]]:
    """Give the public version and the parts of the local label."""
    try:
        parsed = Version(version)
    except InvalidVersion:
        return version, []
    return parsed.public, parsed.local.split(".") if parsed.local else []


def _remark(name: str, version: str, taken_for: Sequence[str], goes_as: Sequence[int]) -> str:
    said = f"{name} {version}, which the base image holds, is not in the catalog"
    if taken_for:
        like = join_words(sorted(set(taken_for)), joiner="and")
        return f"{said}; what is known of {name} {like} was taken for it."
    if goes_as:
        public = Version(version).public
        return f"{said}; it was taken for a {name} {public}, and what it needs itself was not checked."
    return f"{said}: nothing is known of it, and what it needs was not checked."


def extend(
    rows: list[Row], needs: int, one: InstalledOf, other: InstalledOf, *, request: Request, forbids: bool
) -> None:
    """Let a relation speak of installed versions as it speaks of those they are taken for.

    Parameters
    ----------
    rows
        The rows of the relation; they are replaced.
    needs
        A bit for each row that says what its subjects need to run, and not only to be built.
    one, other
        What is installed of subject and object.
    request
        What is asked for: it says what is installed.
    forbids
        Whether the relation says what does not work.
    """
    (name, subjects), (other_name, objects) = one, other
    spoken = 0
    for number, row in enumerate(rows):
        spoken |= row.subjects if needs >> number & 1 else 0
    allowed = dict.fromkeys(
        (kept.bit for kept in subjects if kept.needs_of and not kept.needs_of & ~spoken), 0
    )
    for number, row in enumerate(rows):
        of, permits = row.subjects, row.objects
        for kept in objects:
            permits &= ~kept.bit if kept.needs_of else permits
            permits |= kept.bit if permits & kept.goes_as else 0
        for kept in subjects:
            of &= ~kept.bit
            if kept.bit in allowed and row.subjects & kept.needs_of and needs >> number & 1:
                of |= kept.bit
                allowed[kept.bit] |= permits
        rows[number] = replace(row, subjects=of, objects=permits)
    together = sum(kept.bit for kept in objects)
    for bit, permits in allowed.items():
        if together & ~permits and not forbids:
            text = f"the base image holds {name} and {other_name} {CONTRARY}"
            rows.append(Row(bit, together & ~permits, Fact(text, "observed", _source_of_all(request))))


def _source_of_all(request: Request) -> str:
    kept = request.preinstalled
    return source_of(kept) if kept and kept.source != IMAGE else "the catalog's rows of base images"
