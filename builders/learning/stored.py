"""Facts that audits and builds learned: a file in the user's cache that every command reads.

Audits and builds read wheels anyway. The facts are stored in ``learned.toml``, the lowest of the layers
over the shipped facts. The file contains no releases: a wheel that was read does not become a candidate.
The file may be removed at any time.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builders.cache import cache_root
from builders.files import exclusive_lock, write_atomic
from builders.learning import LearnedFacts, merged
from resolver.errors import CatalogError
from resolver.facts import schema
from resolver.facts.catalog_files import read_file, row_to_toml
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import date

    from builders.audit import WheelAudit
    from resolver.facts.catalog import Catalog

_HEADER = "# Facts that audits and builds learned from wheels. This file may be removed.\n"
_NOT_COMPARED = {"status", "source", "note", "from_file", "from_line"}


def stored_facts() -> Path:
    """Return the path of the stored facts, whether or not the file exists."""
    return cache_root() / "learned.toml"


def remember_audit(audit: WheelAudit, catalog: Catalog, today: date) -> None:
    """Store the facts in the audit of a wheel, unless the catalog has the wheel or the wheel is damaged.

    Nothing is stored about a version that the catalog builds from source or pins with another hash: the facts
    of one wheel would limit others of the same version.
    """
    from builders.learning.wheel import learn_contents

    contents = audit.contents
    if audit.is_damaged or any(row.sha256 == audit.sha256 for row in catalog.wheel.values()):
        return
    for row in catalog.releases_of(contents.name):
        pinned = {pin.sha256 for pin in (row.wheel, *row.wheels) if pin}
        if row.version == contents.version and not row.pypi and audit.sha256 not in pinned:
            return
    _remember(learn_contents(contents, audit.sha256, catalog, today), catalog)


def remember_built(wheel: Path, version: str, variant: str, catalog: Catalog, today: date) -> None:
    """Store the requirements in the metadata of a wheel that was built from a commit.

    No index has these requirements, so a resolution would ignore them.
    """
    from builders.learning.wheel import learn_built

    _remember(learn_built(wheel, version, variant, catalog, today), catalog)


def _remember(learned: LearnedFacts, catalog: Catalog) -> None:
    rows = [row for row in new_rows(learned.rows, catalog)[0] if not isinstance(row, schema.Release)]
    if not rows:
        return
    path = stored_facts()
    # If the cache cannot be written, the facts are not stored.
    with suppress(OSError), exclusive_lock(path.with_suffix(".lock")):
        known: list[schema.Row] = []
        with suppress(CatalogError):  # a file of another version of the program
            file = read_file(path)
            known = [row for kind in schema.KINDS for row in getattr(file, kind)]
        text = "".join(f"\n{row_to_toml(row)}" for row in merged([*_kept(known, rows), *rows]))
        write_atomic(path, f"{_HEADER}schema = {schema.SCHEMA}\n{text}")


def _kept(known: Iterable[schema.Row], new: Iterable[schema.Row]) -> list[schema.Row]:
    """Return the stored rows without those of a wheel whose content has changed."""
    wheels = {row.file: row for row in new if isinstance(row, schema.Wheel)}
    replaced = {
        row.source
        for row in known
        if isinstance(row, schema.Wheel) and row.file in wheels and wheels[row.file].sha256 != row.sha256
    }
    return [row for row in known if isinstance(row, schema.Package) or row.source not in replaced]


def new_rows(rows: Iterable[schema.Row], catalog: Catalog) -> tuple[list[schema.Row], list[str]]:
    """Return the rows that add to the catalog, and remarks on rows that contradict it.

    A bound on a release for which the catalog has another row is left out: two rows would allow every version
    that one of them allows. If the two rows differ, a remark reports the difference.
    """
    known: dict[tuple[object, ...], list[schema.Row]] = {}
    for row in catalog.rows():
        known.setdefault((type(row), row.key()), []).append(row)
    learned: dict[tuple[object, ...], list[schema.Row]] = {}
    remarks = []
    for row in rows:
        other = _other_bound(row, catalog)
        if other is None:
            learned.setdefault((type(row), row.key()), []).append(row)
        elif isinstance(row, schema.Requires) and not _is_same_bound(row, other):
            remarks.append(
                f"{row.package} {row.releases} requires {row.on} {' or '.join(row.versions)}, which was left "
                f"out: {other.location} has {' or '.join(other.versions)}."
            )
    new = [
        row
        for key, same_identity in learned.items()
        if _statements(known.get(key, [])) != _statements(same_identity)
        for row in same_identity
    ]
    return new, remarks


def _other_bound(row: schema.Row, catalog: Catalog) -> schema.Requires | None:
    """Return a row of the catalog for the same requirement as a learned row; None if there is none."""
    if not isinstance(row, schema.Requires) or row.on == "gfx" or row.gfx:
        return None
    version = row.releases.removeprefix("==")
    others = (
        other
        for other in catalog.requires
        if (other.package, other.on, other.kind) == (row.package, row.on, row.kind)
        and other.key() != row.key()
        and other.variant in {None, row.variant or ""}
        and (not other.releases or satisfies(version, other.releases))
    )
    return next(others, None)


def _is_same_bound(row: schema.Requires, other: schema.Requires) -> bool:
    return {*",".join(row.versions).split(",")} == {*",".join(other.versions).split(",")}


def _statements(rows: Iterable[schema.Row]) -> list[str]:
    return sorted(repr(_statement(row)) for row in rows)


def _statement(row: schema.Row) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__ if name not in _NOT_COMPARED)
