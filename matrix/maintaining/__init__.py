"""Find facts that public sources have and the catalog lacks.

Each module for a source turns its pages, which `client` fetches, into rows. The command adds
the rows to a file of the user, after showing them as a diff.
"""

from __future__ import annotations

import msgspec

from resolver.facts import schema


class CatalogUpdate(msgspec.Struct):
    """New rows from public sources."""

    rows: list[schema.Row] = []
    """In the order in which they are written."""
    remarks: list[str] = []
    """Decisions that a person must make, as sentences: a changed hash, a release without a recipe."""
    unreachable: list[tuple[str, str]] = []
    """Pages that could not be fetched, each with the reason as a sentence."""

    def add(self, other: CatalogUpdate) -> None:
        """Append the content of another update."""
        self.rows += other.rows
        self.remarks += other.remarks
        self.unreachable += other.unreachable
