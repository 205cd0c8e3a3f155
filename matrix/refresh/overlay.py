"""Adding rows to a file of facts: as text behind what is there, checked before anything is written.

Nothing that a person wrote is touched: comments, order and rows stay as they are.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from builders.files import atomic_path
from resolver.facts.catalog_files import row_to_toml
from resolver.facts.loading import load_uncached, overlay_files, shipped_files
from resolver.facts.schema import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from resolver.facts import schema

_HEAD = f"# Facts beside the shipped ones.\nschema = {SCHEMA}\n"


def with_rows(text: str, rows: Iterable[schema.Row]) -> str:
    """Give the text of a catalog file with rows added at its end."""
    added = "".join(f"\n{row_to_toml(row)}" for row in rows)
    begun = text or _HEAD
    return f"{begun if begun.endswith(chr(10)) else begun + chr(10)}{added}" if added else text


def difference(path: Path, before: str, after: str) -> str:
    """Give a unified diff of a file."""
    old = str(path) if before else "/dev/null"
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), old, str(path), lineterm="", n=2)
    return "\n".join(lines)


def check(path: Path, text: str, overlays: Sequence[Path]) -> None:
    """See that the catalog loads with a file as it is going to be.

    Raises
    ------
    CatalogError
        It would not; nothing was written.
    """
    groups = [shipped_files(), *map(overlay_files, overlays)]
    inside = [number for number, one in enumerate(overlays, start=1) if one.is_dir() and one in path.parents]
    if not any(str(path) in group for group in groups):
        if inside:
            groups[inside[-1]].append(str(path))
        else:
            groups.append([str(path)])
    load_uncached(groups, overrides={str(path): text})


def write(path: Path, text: str) -> None:
    """Give the file its new content at once."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
