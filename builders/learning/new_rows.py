"""Rows that add to a catalog: measured facts without those that the catalog already has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.facts import schema
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resolver.facts.catalog import Catalog

_NOT_COMPARED = {"status", "source", "note", "from_file", "from_line"}


def new_rows(rows: Iterable[schema.Row], catalog: Catalog) -> tuple[list[schema.Row], list[str]]:
    """Return the rows that add to the catalog, and remarks on rows that contradict it.

    A bound on a release for which the catalog has another row is left out: two rows would allow every version
    that one of them allows. If the two rows differ, a remark reports the difference.
    """
    known: dict[tuple[object, ...], list[schema.Row]] = {}
    for row in catalog.rows():
        known.setdefault((type(row), row.key()), []).append(row)
    measured: dict[tuple[object, ...], list[schema.Row]] = {}
    remarks = []
    for row in rows:
        other = _other_bound(row, catalog)
        if other is None:
            measured.setdefault((type(row), row.key()), []).append(row)
        elif isinstance(row, schema.Requires) and not _is_same_bound(row, other):
            remarks.append(
                f"{row.package} {row.releases} requires {row.on} {' or '.join(row.versions)}, which was left "
                f"out: {other.location} has {' or '.join(other.versions)}."
            )
    new = [
        row
        for key, same_identity in measured.items()
        if _statements(known.get(key, [])) != _statements(same_identity)
        for row in same_identity
    ]
    return new, remarks


def _other_bound(row: schema.Row, catalog: Catalog) -> schema.Requires | None:
    """Return a row of the catalog for the same requirement as a measured row; None if there is none."""
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
