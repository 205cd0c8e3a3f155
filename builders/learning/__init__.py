"""Learn facts by reading files, instead of typing them.

`wheel` reads wheels, and `machine` this machine and base images. The rows have the status ``observed``,
the name and the hash of the file as source, and the day as note.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from resolver.facts import schema
from resolver.facts.catalog_files import row_types
from resolver.versions import grouped, satisfies

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resolver.facts.catalog import Catalog


class LearnedFacts(msgspec.Struct):
    """Facts that were learned from files."""

    rows: list[schema.Row] = []
    remarks: list[str] = []
    """Sentences about facts that the files do not state."""
    size: int = 0
    """Size of all files in bytes."""
    read: int = 0
    """Number of these bytes that were read."""

    def add(self, other: LearnedFacts) -> None:
        """Add the facts that were learned from another file; see `merged`."""
        self.rows = merged([*self.rows, *other.rows])
        self.remarks += [text for text in other.remarks if text not in self.remarks]
        self.size += other.size
        self.read += other.read


def merged(rows: Iterable[schema.Row]) -> list[schema.Row]:
    """Return the rows without repetitions.

    The wheels of a release for different versions of Python mostly state the same facts. Rows that differ
    only in their source become one row with all sources, and so do rows about versions of Python. Of rows
    that contradict each other, the last one counts.
    """
    known: dict[tuple[object, ...], schema.Row] = {}
    for row in rows:
        key: tuple[object, ...] = (type(row), *row.key())
        if isinstance(row, schema.Requires):
            key += (row.gfx, *(() if row.on == "python" else row.versions))
        earlier = known.get(key)
        if earlier is not None and isinstance(row, schema.Requires | schema.Package):
            known[key] = _joined(earlier, row)
        else:
            known[key] = row
    order = [*row_types().values()]
    return sorted(known.values(), key=lambda row: order.index(type(row)))


def _joined(earlier: schema.Row, row: schema.Row) -> schema.Row:
    """Join two rows; the source has the hash of the first file only, because each wheel has its own row."""
    file = row.source.partition(" ")[0]
    if file not in earlier.source.split():
        earlier = msgspec.structs.replace(earlier, source=f"{earlier.source} ; {file}")
    if isinstance(row, schema.Requires) and isinstance(earlier, schema.Requires) and row.on == "python":
        texts = {*earlier.versions, *row.versions}
        versions = sorted(texts, key=lambda text: [int(number) for number in re.findall(r"\d+", text)])
        return msgspec.structs.replace(earlier, versions=tuple(versions))
    return earlier


_NOT_COMPARED = {"status", "source", "note", "from_file", "from_line"}


def new_rows(rows: Iterable[schema.Row], catalog: Catalog) -> tuple[list[schema.Row], list[str]]:
    """Return the rows that add to the catalog, and remarks on rows that contradict it.

    A bound on a release for which the catalog has another row is left out: two rows would allow every version
    that one of them allows. If the two rows differ, a remark reports the difference.
    """
    known = grouped(((type(row), row.key()), row) for row in catalog.rows())
    measured: dict[tuple[type[schema.Row], tuple[object, ...]], list[schema.Row]] = {}
    remarks = []
    for row in rows:
        other = _other_bound(row, catalog)
        if other is None:
            measured.setdefault((type(row), row.key()), []).append(row)
        elif isinstance(row, schema.Requires) and _bounds(row) != _bounds(other):
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


def _bounds(row: schema.Requires) -> set[str]:
    return {*",".join(row.versions).split(",")}


def _statements(rows: Iterable[schema.Row]) -> list[str]:
    return sorted(
        repr([getattr(row, name) for name in row.__struct_fields__ if name not in _NOT_COMPARED])
        for row in rows
    )
