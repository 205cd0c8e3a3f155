"""How the catalog is loaded: the shipped files first, then a site's, then the user's.

What is imported here is imported by every command before anything else, so it is little: reading
and checking are imported only when a file changed since the compiled form was made.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from resolver.errors import CatalogError
from resolver.facts import compiled
from resolver.facts.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from resolver.facts import schema


def shipped() -> list[str]:
    """Give the catalog files that come with the program, in a fixed order."""
    return _files_in(os.path.dirname(os.path.abspath(__file__)))


def files_of(overlay: Path | str) -> list[str]:
    """Give the files of an overlay, which together are one layer.

    Raises
    ------
    CatalogError
        A directory holds no catalog file.
    """
    if not os.path.isdir(overlay):
        return [str(overlay)]
    files = _files_in(str(overlay))
    if not files:
        msg = f"The catalog directory {overlay} holds no .toml file."
        raise CatalogError(msg)
    return files


def _files_in(folder: str) -> list[str]:
    """Give all TOML files below a folder; pathlib would cost more than reading the compiled form."""
    return sorted(
        os.path.join(where, name)
        for where, _, names in os.walk(folder)
        for name in names
        if name.endswith(".toml")
    )


def load(overlays: Iterable[Path] = (), *, cache: Path | str | None = None) -> Catalog:
    """Read the shipped catalog and lay the overlays over it.

    Parameters
    ----------
    overlays
        TOML files, or directories whose ``*.toml`` files are all read, later ones winning.
    cache
        A directory for the compiled form, which is read instead as long as no file changed.

    Raises
    ------
    CatalogError
        A file is missing, is no catalog file, holds a row that cannot be read, or two rows
        contradict one another. Nothing is half-loaded.
    """
    groups = [shipped(), *map(files_of, overlays)]
    stored = compiled.read(cache, groups) if cache else None
    if stored is not None:
        return Catalog.of(stored)
    catalog, rows, files = read_afresh(groups)
    if cache:
        compiled.write(cache, groups, files, rows)
    return catalog


def read_afresh(
    groups: Sequence[Sequence[str]], instead: Mapping[str, str] | None = None
) -> tuple[Catalog, schema.CatalogFile, list[Path]]:
    """Read layers of files without the compiled form.

    Parameters
    ----------
    groups
        Paths of the files, the lowest layer first.
    instead
        Text to read instead of what a file holds, by path.

    Returns
    -------
    tuple
        The catalog, its rows, and all files that were read.

    Raises
    ------
    CatalogError
        As `load`.
    """
    from resolver.facts.layers import merge, read_layers
    from resolver.facts.sound import check_together

    layers, files = read_layers(groups, instead)
    rows = merge(layers)
    catalog = Catalog.of(rows)
    check_together(catalog)
    return catalog, rows, files
