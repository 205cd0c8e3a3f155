"""Differences between the tables of two sides, and between the recipes of two catalogs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from resolver.answers.table import ROW_COMPONENTS, UNDECIDED, Cell, Table, TableRow, available_packages
from resolver.compiling.problem_builder import advice_for, window_of
from resolver.consequences.questions import (
    ANY,
    Consequence,
    Kind,
    KnownReasons,
    Question,
    Reason,
    RowKey,
    Side,
    not_in_catalog,
    why_refused,
)
from resolver.facts import schema
from resolver.model import CoreItem, Requirement
from resolver.requirements import PAIRED_WITH_TORCH, normalize_name
from resolver.versions import grouped, join_words, sort_key

if TYPE_CHECKING:
    from resolver.facts.schema import Recipe, Release
    from resolver.model import Distribution
    from resolver.solving.session import Solution


_DEFAULT = ("torch", "rocm", "python")
PUBLISHED_ONLY = "published wheels only: no base image works"


_ORIGIN: dict[str, Any] = {"source": "", "note": "", "from_file": "", "from_line": 0}
"""Keys that contain only the origin of a row."""
_OF_PACKAGES = {"package", "release", "requires", "recipe", "proven"}
"""Kinds of facts that are about packages, or that affect no row of the table."""


def changed_packages(before: Side, after: Side) -> frozenset[str] | None:
    """Return the packages with changed facts and those that require them; None if all may be affected."""
    if before.request.target != after.request.target:
        return None
    names: set[str] = set()
    for kind in schema.KINDS:
        ours, theirs = (
            {msgspec.msgpack.encode(replace(row, **_ORIGIN)): row for row in side.catalog.of_kind(kind)}
            for side in (before, after)
        )
        rows = [(ours.get(row) or theirs[row]) for row in ours.keys() ^ theirs.keys()]
        differing = [row for row in rows if _matters(row, after)]
        if differing and (kind not in _OF_PACKAGES or after.request.prefer == "proven"):
            return None
        of_package = schema.Release | schema.Requires | schema.Recipe
        names |= {row.name for row in differing if isinstance(row, schema.Package)}
        names |= {row.package for row in differing if isinstance(row, of_package)}
    requires = [row for side in (before, after) for row in side.catalog.requires]
    while more := {row.package for row in requires if normalize_name(row.on) in names} - names:
        names |= more
    return None if names & {"torch", *PAIRED_WITH_TORCH} else frozenset(names)


def _matters(row: schema.Row, side: Side) -> bool:
    """Return whether a row can affect the target of a side; a row about another site or driver cannot."""
    target = side.request.target
    match row:
        case schema.Partition() | schema.DriverModule() | schema.SiteVariable():
            return False
        case schema.Gfx():
            return row.target in target.gfx
        case schema.Site():
            return row.name == target.site
        case schema.Driver():
            window = None if target.driver else window_of(side.catalog, side.request)
            return row.version == (window.driver if window else target.driver)
        case schema.Window() | schema.SiteImage() | schema.SiteAdvice() | schema.KnownBad():
            return row.site in {"", target.site}
    return True


def with_columns(before: Side, after: Side, names: frozenset[str]) -> tuple[Side, Side]:
    """Return sides with only some columns and one more, because a table without columns shows all columns."""
    columns = [_columns_of(side) for side in (before, after)]
    both = [name for name in columns[0] if name in columns[1]]
    kept = names | {*both[:1]}
    sides = []
    for side, all_columns in zip((before, after), columns, strict=True):
        limits = [row for row in side.request.requirements if row.name in ROW_COMPONENTS]
        requirements = [row for name in all_columns if name in kept for row in all_columns[name]]
        sides.append(Side(side.catalog, replace(side.request, requirements=(*limits, *requirements))))
    return sides[0], sides[1]


def _columns_of(side: Side) -> dict[str, list[Requirement]]:
    columns = grouped(
        (requirement.name, requirement)
        for requirement in side.request.requirements
        if requirement.name not in ROW_COMPONENTS
    )
    available = available_packages(side.catalog, side.request.target.backend)
    return columns or {name: [Requirement(name, None, name)] for name in available}


class Rows:
    """The table of one side."""

    def __init__(self, side: Side) -> None:
        self.side = side
        self.table = Table(side.catalog, side.request)
        self.of_pair: dict[tuple[str, str], dict[str, TableRow]] = {}
        """For each torch and Python, its rows by base image, the preferred image first."""
        for row in self.table.rows():
            images = self.of_pair.setdefault((row.torch, row.python), {})
            for image in row.images or ("",):
                images.setdefault(image, row)

    @cached_property
    def images(self) -> list[str]:
        """The base images with which any torch works."""
        return list(dict.fromkeys(image for rows in self.of_pair.values() for image in rows if image))

    @cached_property
    def versions(self) -> dict[str, dict[str, list[RowKey]]]:
        """For each package and version, the rows in which the version is the best."""
        versions: dict[str, dict[str, list[RowKey]]] = {}
        for (torch, python), rows in self.of_pair.items():
            for row in rows.values():
                for name, cell in row.cells.items():
                    if cell.version:
                        row_keys = versions.setdefault(name, {}).setdefault(cell.version, [])
                        row_keys.append(RowKey("", torch, python))
        return versions

    def question(
        self, row_key: RowKey | None, column: str = "", pins: Mapping[str, str] | None = None
    ) -> Question:
        """Return the question whether a row, or a package in any row, has a solution with optional pins."""
        session, demands = self.table.question(column)
        all_pins = {}
        if row_key is not None:
            all_pins = {"base-image": row_key.base_image, "torch": row_key.torch, "python": row_key.python}
        all_pins = {name: key for name, key in all_pins.items() if key} | dict(pins or {})
        return Question(session, demands, all_pins)


class TableDiff:
    """Collect the differences between the tables of two sides."""

    def __init__(self, before: Rows, after: Rows) -> None:
        self._before = before
        self._after = after
        self._reasons: KnownReasons = {}
        targets = [rows.side.request.target for rows in (before, after)]
        self._has_same_images = targets[0].base_image == targets[1].base_image
        self._consequences: dict[tuple[object, ...], Consequence] = {}
        self._without_image: set[RowKey] = set()
        """Rows for which only one side has a base image; no package can be compiled without an image."""

    def consequences(self) -> list[Consequence]:
        """Return the differences: whole base images and torch versions first, then single cells."""
        self._compare_default()
        if self._has_same_images:
            self._compare_images()
        common: list[tuple[RowKey, TableRow, TableRow]] = []
        pairs = {*self._before.of_pair, *self._after.of_pair}
        for pair in sorted(pairs, key=lambda pair: tuple(map(_newest, pair)), reverse=True):
            rows, other_rows = self._before.of_pair.get(pair, {}), self._after.of_pair.get(pair, {})
            if rows and other_rows:
                common += self._compare_rows(pair, rows, other_rows)
            else:
                state = "" if any(rows or other_rows) else PUBLISHED_ONLY
                self._one_sided("torch", f"torch {pair[0]}", RowKey("", *pair), state=state)
        self._compare_verdicts(common)
        for row_key, row, other in common:
            for column in sorted({*row.cells, *other.cells}):
                self._compare_cells(row_key, column, row.cells.get(column), other.cells.get(column))
        self._compare_packages()
        return list(self._consequences.values())

    def _add(self, consequence: Consequence, row_keys: Iterable[RowKey]) -> None:
        """Add a consequence, or add its rows to an equal consequence."""
        key = (
            consequence.effect,
            consequence.kind,
            consequence.name,
            consequence.before,
            consequence.after,
            consequence.was,
            consequence.now,
        )
        known = self._consequences.get(key, consequence)
        where = tuple(dict.fromkeys((*known.where, *row_keys)))
        self._consequences[key] = replace(known, where=where)

    def _one_sided(
        self,
        kind: Kind,
        name: str,
        row_key: RowKey,
        column: str = "",
        *,
        state: str = "",
        otherwise: str = "",
        row_keys: Sequence[RowKey] | None = None,
        pins: Mapping[str, str] | None = None,
    ) -> None:
        """Add a thing that is possible, in a `state`, on one side only, with the reason."""
        questions = [
            side.question(row_key, column, pins) if not column or column in side.table.columns else None
            for side in (self._before, self._after)
        ]
        before, after = questions
        is_before = before is not None and before.solution is not None
        if is_before and after is not None and after.solution is not None:
            return
        possible, refused = (before, after) if is_before else (after, before)
        if possible is None or possible.solution is None:
            return
        if refused is None:
            bit = possible.solution[column]
            item = CoreItem.of(possible.problem.variables[column].candidate(bit).fact)
            reason = Reason((), (item,), (not_in_catalog(column),))
        else:
            reason = why_refused(refused, possible, self._reasons)
        states = (state or possible.state, otherwise)
        consequence = reason.consequence(
            "breaks" if is_before else "possible",
            kind,
            name,
            *(states if is_before else states[::-1]),
            possible_before=is_before,
        )
        self._add(consequence, [row_key] if row_keys is None else row_keys)

    def _compare_default(self) -> None:
        """Compare the default choice of versions, unless a proven set decides it."""
        if self._after.side.request.prefer == "proven":
            return
        solutions = [side.question(None).solution or {} for side in (self._before, self._after)]
        picks = [
            {name: self._key(side, solution, name) for name in _DEFAULT if name in solution}
            for side, solution in zip((self._before, self._after), solutions, strict=True)
        ]
        name = next((name for name in _DEFAULT if picks[0].get(name) != picks[1].get(name)), None)
        if not all(solutions) or name is None:
            return
        reason, possible_before = self._why_other(None, "", name, *(pick.get(name, "") for pick in picks))
        if not reason.core:
            reason = Reason(_advice(self._after.side), _advice(self._before.side))
        before, after = (", ".join(f"{name} {key}" for name, key in pick.items()) for pick in picks)
        self._add(
            reason.consequence(
                "different", "default", "default", before, after, possible_before=possible_before
            ),
            (),
        )

    @staticmethod
    def _key(side: Rows, solution: Solution, name: str) -> str:
        session, _ = side.table.question()
        return session.problem.variables[name].candidate(solution[name]).key

    def _why_other(self, row_key: RowKey | None, column: str, name: str, *keys: str) -> tuple[Reason, bool]:
        """Return why a version is possible on one side only, and whether that side is `before`."""
        for key in sorted({*keys} - {""}, key=_newest, reverse=True):
            before, after = (
                side.question(row_key, column, {name: key}) for side in (self._before, self._after)
            )
            is_before = before.solution is not None
            if is_before != (after.solution is not None):
                sides = (after, before) if is_before else (before, after)
                return why_refused(*sides, self._reasons), is_before
        return Reason(), True

    def _compare_images(self) -> None:
        before, after = self._before.images, self._after.images
        for image in sorted({*before, *after}):
            if not (image in before and image in after):
                row_key = RowKey(image, "", "")
                self._one_sided("base-image", image, row_key, row_keys=())

    def _compare_rows(
        self, pair: tuple[str, str], rows: Mapping[str, TableRow], other_rows: Mapping[str, TableRow]
    ) -> Iterator[tuple[RowKey, TableRow, TableRow]]:
        """Compare the rows of a torch and Python that both sides have; yield those to compare further."""
        shared = [image for image in rows if image in other_rows] if self._has_same_images else []
        if not shared:
            yield RowKey("", *pair), next(iter(rows.values())), next(iter(other_rows.values()))
        for image in shared:
            yield RowKey(image, *pair), rows[image], other_rows[image]
        if self._has_same_images and any(rows) != any(other_rows):
            self._without_image.add(RowKey("", *pair))
            self._one_sided(
                "torch",
                f"torch {pair[0]}",
                RowKey("", *pair),
                pins={"base-image": ANY},
                state="with a base image",
                otherwise=PUBLISHED_ONLY,
            )
        elif self._has_same_images:
            for image in sorted({*rows, *other_rows}):
                if image and image not in shared and image in {*self._before.images} & {*self._after.images}:
                    self._one_sided("torch", f"torch {pair[0]}", RowKey(image, *pair))

    def _compare_verdicts(self, common: Sequence[tuple[RowKey, TableRow, TableRow]]) -> None:
        changed = [(row_key, row, other) for row_key, row, other in common if row.verdict != other.verdict]
        same_images = {row_key.base_image for row_key, row, other in common if row.verdict == other.verdict}
        for row_key, row, _ in changed:
            is_risk = row.verdict == "supported"
            facts = (self._after if is_risk else self._before).question(row_key).risks
            whole = bool(row_key.base_image) and row_key.base_image not in same_images
            consequence = Consequence(
                effect="at-own-risk" if is_risk else "supported",
                kind="base-image" if whole else "torch",
                name=row_key.base_image if whole else f"torch {row_key.torch}",
                before="supported" if is_risk else "at your own risk",
                after="at your own risk" if is_risk else "supported",
                was=() if is_risk else facts,
                now=facts if is_risk else (),
            )
            self._add(consequence, [row_key])

    def _compare_cells(self, row_key: RowKey, name: str, before: Cell | None, after: Cell | None) -> None:
        if UNDECIDED in {cell.refused for cell in (before, after) if cell}:
            return
        ours, theirs = (cell.pick if cell else None for cell in (before, after))
        if (ours is None and theirs is None) or (None in (ours, theirs) and row_key in self._without_image):
            return
        if ours is None or theirs is None:
            pick = ours or theirs
            self._one_sided("package", name, row_key, name, state=pick.key if pick else "")
        elif ours.key != theirs.key:
            self._add(self._different(row_key, name, ours, theirs), [row_key])
        elif (ours.origin, ours.support) != (theirs.origin, theirs.support):
            consequence = Consequence(
                effect="different",
                kind="package",
                name=name,
                before=f"{ours.key}, {ours.origin}, {ours.support}",
                after=f"{theirs.key}, {theirs.origin}, {theirs.support}",
                was=(CoreItem.of(ours.weakest),),
                now=(CoreItem.of(theirs.weakest),),
            )
            self._add(consequence, [row_key])

    def _different(self, row_key: RowKey, name: str, ours: Distribution, theirs: Distribution) -> Consequence:
        reason, is_before = self._why_other(row_key, name, name, ours.key, theirs.key)
        if not reason.core:
            other_image = (CoreItem("the preferred base image differs", "fact", "the table"),)
            reason = Reason(other_image, other_image)
        return reason.consequence(
            "different", "package", name, ours.key, theirs.key, possible_before=is_before
        )

    def _compare_packages(self) -> None:
        """Add packages that are in the table of one side only, and releases that one catalog lacks."""
        before, after = self._before.versions, self._after.versions
        changed = {
            (consequence.name, version)
            for consequence in self._consequences.values()
            if consequence.kind == "package"
            for version in (consequence.before, consequence.after)
        }
        for name in sorted({*before, *after}):
            ours, theirs = before.get(name, {}), after.get(name, {})
            if not (ours and theirs):
                if not any(name == package for package, _ in changed):
                    row_keys = [row_key for where in (ours or theirs).values() for row_key in where]
                    self._one_sided("package", name, RowKey("", "", ""), name, row_keys=row_keys)
                continue
            for version in sorted({*ours} ^ {*theirs}):
                if (name, version) in changed or not self._is_new(name, version):
                    continue
                row_keys = ours.get(version) or theirs[version]
                pins = {name: version}
                self._one_sided(
                    "package", name, RowKey("", "", ""), name, state=version, row_keys=row_keys, pins=pins
                )

    def _is_new(self, name: str, version: str) -> bool:
        sides = (self._before, self._after)
        return any(side.question(None, name, {name: version}).missing for side in sides)


def _advice(side: Side) -> tuple[CoreItem, ...]:
    rows = advice_for(side.catalog, side.request).values()
    return tuple(
        CoreItem(f"{row.site} {row.verb} {row.on} {join_words(row.versions)}", "fact", row.source)
        for row in rows
    )


def _newest(key: str) -> tuple[object, str]:
    return sort_key(key.partition(" ")[0]), key


def recipe_changes(before: Side, after: Side) -> Iterator[Consequence]:
    """Yield a consequence for each release that both catalogs have, but with a different source or recipe."""
    requested = {requirement.name for requirement in after.request.requirements} - {*ROW_COMPONENTS}
    for key, release in before.catalog.release.items():
        other = after.catalog.release.get(key)
        if other is None or (requested and release.package not in requested):
            continue
        facts = build_changes(before, after, release, other)
        if facts:
            name = _named(release)
            yield Consequence(
                effect="different",
                kind="package",
                name=name,
                before=name,
                after=name,
                was=facts,
                now=facts,
            )


def build_changes(before: Side, after: Side, release: Release, other: Release) -> tuple[CoreItem, ...]:
    """Return the differences in the source and the recipe of a release between two sides."""
    backend = after.request.target.backend
    recipes = before.catalog.recipe_for(release, backend), after.catalog.recipe_for(other, backend)
    rows: list[tuple[str, Release | Recipe | None, Release | Recipe | None]] = [
        ("source", release, other),
        ("recipe", *recipes),
    ]
    facts = []
    for what, ours, theirs in rows:
        if ours is not None and theirs is not None and (keys := _differing_keys(ours, theirs)):
            differing = join_words(keys, joiner="and")
            text = f"the {what} of {_named(release)} differs in {differing}"
            sources = {ours.source, theirs.source}
            facts.append(CoreItem(text, "fact", " ; ".join(sorted(sources))))
    return tuple(facts)


def _named(release: Release) -> str:
    variant = f" ({release.variant})" if release.variant else ""
    return f"{release.package} {release.version}{variant}"


def _differing_keys(ours: Release | Recipe, theirs: Release | Recipe) -> list[str]:
    """Return the keys in which two rows differ, except their origin and the releases that they apply to."""
    others = {*schema.Row.__struct_fields__, "releases", "variant"}
    keys = [key for key in ours.__struct_fields__ if key not in others]
    return [key.replace("_", "-") for key in keys if getattr(ours, key) != getattr(theirs, key)]
