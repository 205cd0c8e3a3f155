"""Learn facts by reading files, instead of typing them.

`wheel` reads wheels, `image` base images, `machine` this machine, and `source` source trees. The rows have
the status ``observed``, the name and the hash of the file as source, and the day as note.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from resolver.facts import schema
from resolver.facts.catalog_files import row_types

if TYPE_CHECKING:
    from collections.abc import Iterable


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
        versions = sorted({*earlier.versions, *row.versions}, key=_numbers)
        return msgspec.structs.replace(earlier, versions=tuple(versions))
    return earlier


def _numbers(specifier: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", specifier)]
