"""What is installed already and is to stay: its versions as candidates, and as demands.

An installed version that the catalog does not know, such as torch 2.9.1+rocm6.4.lumi, is taken for the
one that it was made from: of the same public version, and with a local label that its own label begins
with. What that one needs, the installed one needs. Where no label fits (torch 2.10.0 of an image that
compiled it itself), what goes with a torch of that public version goes with it, and of its own needs
nothing is known. Either is said when it is chosen.

Two things that are installed together fit together, whatever the catalog says of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from resolver.errors import UsageError
from resolver.model import IMAGE, PLATFORM, Candidate, Fact, is_kept
from resolver.problem import Row
from resolver.versions import minor, spell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.compiling.draft import Draft
    from resolver.facts import schema
    from resolver.facts.catalog import Catalog
    from resolver.model import Kept, Pick, Request, Target
    from resolver.problem import Variable


CONTRARY = "in versions that the catalog does not have together"
"""Ends the text of the fact that two things are installed together against what the catalog says."""


@dataclass(frozen=True, slots=True)
class Installed:
    """One installed version among the candidates of a variable, all as masks."""

    bit: int
    needs_of: int
    """The candidates whose needs it has."""
    goes_as: int
    """The candidates in whose place it may stand."""


def kept_names(catalog: Catalog, request: Request) -> set[str]:
    """Give the names of everything that is installed; in a base image, of all that one may hold."""
    if request.keep is None:
        return set()
    if request.keep.source != IMAGE:
        return {name for name, _ in request.keep.installed}
    return {name for image in _images(catalog, request.target) for name in image.holds}


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
                "base-image",
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
    kept = request.keep
    if kept is None or name in PLATFORM:
        return {}
    if kept.source != IMAGE:
        return {
            version: Fact(f"the base image holds {name} {version}", "observed", _source(kept))
            for one, version in kept.installed
            if one == name
        }
    facts: dict[str, Fact] = {}
    for image in _images(catalog, request.target):
        version = image.holds.get(name)
        if version:
            fact = Fact.of(image, f"{name} {version} is what a base image holds", note="")
            facts.setdefault(version, fact)
    return facts


def _images(catalog: Catalog, target: Target) -> list[schema.Image]:
    named = target.base_image
    return [row for row in catalog.image.values() if row.holds and named in {None, row.name}]


def _source(kept: Kept) -> str:
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
        like = spell(sorted(set(taken_for)), joiner="and")
        return f"{said}; what is known of {name} {like} was taken for it."
    if goes_as:
        public = Version(version).public
        return f"{said}; it was taken for a {name} {public}, and what it needs itself was not checked."
    return f"{said}: nothing is known of it, and what it needs was not checked."


def extend(
    rows: list[Row], needs: int, draft: Draft, one: Variable, other: Variable, *, forbids: bool
) -> None:
    """Let a relation speak of installed versions as it speaks of those they are taken for.

    Parameters
    ----------
    rows
        The rows of the relation; they are replaced.
    needs
        A bit for each row that says what its subjects need to run, and not only to be built.
    draft
        The problem in the making.
    one, other
        Subject and object.
    forbids
        Whether the relation says what does not work.
    """
    subjects, objects = draft.installed(one.name), draft.installed(other.name)
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
            text = f"the base image holds {one.name} and {other.name} {CONTRARY}"
            rows.append(Row(bit, together & ~permits, Fact(text, "observed", _source_of_all(draft))))


def _source_of_all(draft: Draft) -> str:
    kept = draft.request.keep
    return _source(kept) if kept and kept.source != IMAGE else "the catalog's rows of base images"


def compile_kept(draft: Draft) -> None:
    """Add what keeps the installed versions.

    Raises
    ------
    UsageError
        A Python or ROCm that the catalog does not know is installed, or no base image can be.
    """
    from resolver.compiling.draft import version_in  # noqa: PLC0415  draft imports this module

    kept = draft.request.keep
    if kept is None:
        return
    if kept.source == IMAGE:
        _as_the_image(draft)
        return
    image = draft.catalog.image.get(draft.target.base_image or "")
    if image and image.python and "python" not in dict(kept.installed):
        draft.state("python", version_in(image.python), _python_of(image).text, image.source)
    for name, version in sorted(kept.installed, key=lambda one: (one[0] == "torch", one)):
        # torch last: of several reasons for a conflict the last tends to be named
        text, source = f"the base image holds {name} {version}", _source(kept)
        if name in {"python", "rocm"}:
            draft.state(name, version_in(_platform(draft, name, version, kept)), text, source)
        elif draft.installed(name):
            draft.state(name, is_kept, text, source)


def _python_of(image: schema.Image) -> Fact:
    text = f"what the base image {image.name} holds is for its Python {spell(image.python)}"
    return Fact.of(image, text, note="")


def _platform(draft: Draft, name: str, version: str, kept: Kept) -> list[str]:
    """Give the candidates of Python or ROCm that an installed version means."""
    known = [one.version for one in draft.variables[name].candidates]
    line = minor(version)
    found = [one for one in known if one == version or (name == "python" and one == line)]
    found = found or [one for one in known if name == "rocm" and minor(one) == line]
    if not found:
        msg = f"{kept.source} says {name} {version}, which the catalog does not know."
        raise UsageError(msg, hint=f"Known: {spell(known, most=12, joiner='and')}.")
    return found


def _as_the_image(draft: Draft) -> None:
    """Tie what an image holds to the choice of that image."""
    from resolver.compiling.draft import Clause, any_candidate, version_in  # noqa: PLC0415

    if draft.target.backend != "rocm":
        msg = "--keep-installed image keeps what a base image holds, and the CPU backend has none."
        raise UsageError(msg, hint="Name a file: pip list > installed.txt")
    draft.ask("base-image", any_candidate, "you asked to keep what the base image holds")
    images = _images(draft.catalog, draft.target)
    of_images = [
        Clause(version_in([row.name]), version_in(row.python), _python_of(row))
        for row in images
        if row.python
    ]
    draft.relate("base-image", "python", of_images, when_present=True)
    for name in sorted(kept_names(draft.catalog, draft.request)):
        if not draft.installed(name):
            continue
        holding: dict[str, list[schema.Image]] = {}
        for image in images:
            if name in image.holds:
                holding.setdefault(image.holds[name], []).append(image)
        clauses, back = [], []
        for version, rows in holding.items():
            these = [row.name for row in rows]

            def is_it(one: Candidate, version: str = version) -> bool:
                return is_kept(one) and one.version == version

            for row in rows:
                fact = Fact.of(row, f"the base image {row.name} holds {name} {version}", note="")
                clauses.append(Clause(version_in([row.name]), is_it, fact))
            fact = Fact.of(rows[0], f"{name} {version} is in {spell(these, joiner='and')}", note="")
            back.append(Clause(is_it, version_in(these), fact))
        draft.relate("base-image", name, clauses, as_it_is=True)
        draft.relate(name, "base-image", back, as_it_is=True)


def remarks(request: Request, picks: Sequence[Pick]) -> list[str]:
    """Give what is to be said of the installed versions in an answer."""
    kept = request.keep
    if kept is None:
        return []
    said = [pick.candidate.remark for pick in picks if pick.candidate.remark]
    for pick in picks:
        said += [
            f"{fact.text[:1].upper()}{fact.text[1:]}." for fact in pick.facts if fact.text.endswith(CONTRARY)
        ]
    image = next((pick.version for pick in picks if pick.name == "base-image"), "")
    if kept.source == IMAGE and not any(is_kept(pick.candidate) for pick in picks):
        said.append(f"Nothing is known to be installed in {image}, so nothing was kept.")
    elif kept.source != IMAGE and image and not request.target.base_image:
        said.append(
            f"{kept.source} does not say which base image it was listed in; {image} was chosen. "
            f"Name the one it is with --base-image."
        )
    return said
