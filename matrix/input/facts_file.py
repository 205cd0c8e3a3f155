"""The new text of a file of facts: rows are appended, and the catalog must load before it is written."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from builders.storage.files import cache_root, write_atomic
from builders.storage.lease import exclusive_lock
from resolver.errors import CatalogError, UsageError
from resolver.facts.catalog import load, load_uncached, overlay_files, shipped_files
from resolver.facts.catalog_files import row_to_toml
from resolver.facts.schema import SCHEMA
from resolver.texts import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from resolver.facts import schema
    from resolver.facts.catalog import Catalog

_HEADER = "# Facts that are not in the shipped catalog.\n"


class Draft:
    """The new text of a file of facts, which may not exist yet; `header` is the comment at its top.

    `overlays` are the files and directories of facts that are in use.
    """

    def __init__(self, path: Path, overlays: Sequence[Path], *, header: str = _HEADER) -> None:
        self.path = path
        self._header = header
        is_in_use = any(path == overlay or overlay in path.parents for overlay in overlays)
        self.overlays = [*overlays] if is_in_use or not path.exists() else [*overlays, path]
        self.before = self.after = _text_of(path)

    def load(self) -> Catalog:
        """Load the catalog with the current file."""
        return load(self.overlays)

    def replace(self, rows: Iterable[schema.Row], catalog: Catalog) -> None:
        """Append rows in place of those with the same identity; raise `CatalogError` as `append` does."""
        rows = list(rows)
        keys = {(type(row), row.key()) for row in rows}
        path = str(self.path.resolve())
        own = [
            row.from_line
            for row in catalog.rows()
            if row.from_file == path and (type(row), row.key()) in keys
        ]
        self.after = without_rows(self.before, own)
        self.append(rows)

    def append(self, rows: Iterable[schema.Row]) -> Catalog:
        """Append rows, and return the catalog with them; raise `CatalogError` if it cannot be loaded."""
        self.after = with_rows(self.after, rows, header=self._header)
        if self.after == self.before:
            return self.load()
        groups = [shipped_files(), *map(overlay_files, self.overlays)]
        path = str(self.path.resolve())
        if not any(path in group for group in groups):
            inside = [n for n, overlay in enumerate(self.overlays, start=1) if overlay in self.path.parents]
            if inside:
                groups[inside[-1]].append(path)
            else:
                groups.append([path])
        return load_uncached(groups, overrides={path: self.after})[0]

    def diff(self) -> str:
        """Return the change as a unified diff; empty if there is none."""
        old = str(self.path) if self.before else "/dev/null"
        before, after = self.before.splitlines(), self.after.splitlines()
        return "\n".join(difflib.unified_diff(before, after, old, str(self.path), lineterm="", n=2))

    def write(self) -> bool:
        """Write the file if its text changed; return whether it did."""
        if self.after == self.before:
            return False
        with exclusive_lock(cache_root() / "refresh" / "writing.lock"):
            if _text_of(self.path) != self.before:
                msg = f"Another process changed {self.path}. Nothing was written."
                raise UsageError(msg, hint="Run the same command again.")
            write_atomic(self.path, self.after)
        return True


def with_rows(text: str, rows: Iterable[schema.Row], *, header: str = _HEADER) -> str:
    """Return the text of a catalog file with rows appended; a new file begins with the header."""
    added = "".join(f"\n{row_to_toml(row)}" for row in rows)
    if not added:
        return text
    text = text or f"{header}schema = {SCHEMA}\n"
    return text + added if text.endswith("\n") else f"{text}\n{added}"


def without_rows(text: str, lines: Iterable[int]) -> str:
    """Return the text of a catalog file without the rows that begin on some lines, counted from 1."""
    kept = text.split("\n")
    for first in sorted(lines, reverse=True):
        end = first
        while end < len(kept) and not kept[end].startswith("[["):
            end += 1
        while end > first and (not kept[end - 1].strip() or kept[end - 1].startswith("#")):
            end -= 1  # keep empty lines after the row, and a comment on the next row
        start = first - 1 if first == 1 or kept[first - 2].strip() else first - 2
        del kept[start:end]
    return "\n".join(kept)


def _text_of(path: Path) -> str:
    hint = "Name another file with --output."
    return read_text(path, error=CatalogError, hint=hint, mark=False) if path.exists() else ""
