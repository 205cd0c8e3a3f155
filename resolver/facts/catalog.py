"""All facts, and how they are loaded: the shipped files first, then a site's, then the user's.

What is imported here is imported by every command before anything else, so it is little: reading
and checking are imported only when a file changed since the compiled form was made.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from resolver.errors import CatalogError
from resolver.facts import compiled, schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


class Catalog(msgspec.Struct, frozen=True):
    """All facts, keyed by what identifies them."""

    rocm: dict[str, schema.Rocm]
    driver: dict[str, schema.Driver]
    driver_module: dict[str, schema.DriverModule]
    gfx: dict[str, schema.Gfx]
    python: dict[str, schema.Python]
    torch: dict[str, schema.Torch]
    image: dict[str, schema.Image]
    site: dict[str, schema.Site]
    partition: dict[tuple[str, str], schema.Partition]
    window: dict[tuple[str, str], schema.Window]
    site_image: dict[tuple[str, str, str], schema.SiteImage]
    package: dict[str, schema.Package]
    release: dict[tuple[str, str, str], schema.Release]
    requires: list[schema.Requires]
    recipe: list[schema.Recipe]
    known_bad: dict[tuple[object, ...], schema.KnownBad]
    proven: dict[str, schema.ProvenSet]

    @classmethod
    def of(cls, rows: schema.CatalogFile) -> Catalog:
        """Key the rows by what identifies them."""
        return cls(
            rocm={row.version: row for row in rows.rocm},
            driver={row.version: row for row in rows.driver},
            driver_module={row.driver: row for row in rows.driver_module},
            gfx={row.target: row for row in rows.gfx},
            python={row.version: row for row in rows.python},
            torch={row.version: row for row in rows.torch},
            image={row.name: row for row in rows.image},
            site={row.name: row for row in rows.site},
            partition={(row.site, row.name): row for row in rows.partition},
            window={(row.site, row.since.isoformat()): row for row in rows.window},
            site_image={(row.site, row.image, str(row.since)): row for row in rows.site_image},
            package={row.name: row for row in rows.package},
            release={(row.package, row.version, row.variant): row for row in rows.release},
            requires=rows.requires,
            recipe=rows.recipe,
            known_bad={row.key(): row for row in rows.known_bad},
            proven={row.id: row for row in rows.proven},
        )

    def of_kind(self, kind: str) -> list[schema.Row]:
        """Give the rows of one kind, named as in `schema.KINDS`."""
        found = getattr(self, kind)
        return list(found.values() if isinstance(found, dict) else found)

    def rows(self) -> Iterator[schema.Row]:
        """Yield every row of every kind."""
        for kind in schema.KINDS:
            yield from self.of_kind(kind)

    def windows_of(self, site: str) -> list[schema.Window]:
        """Give a site's driver windows, the oldest first; one without an end lasts until the next begins."""
        rows = sorted((w for w in self.window.values() if w.site == site), key=lambda w: w.since)
        ends = [*(row.since for row in rows[1:]), None]
        return [
            row if row.until else msgspec.structs.replace(row, until=end)
            for row, end in zip(rows, ends, strict=False)
        ]

    def releases_of(self, package: str) -> list[schema.Release]:
        """Give all releases of a package, in the order of the files."""
        return [row for row in self.release.values() if row.package == package]


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
    from resolver.facts.layers import merge, read_layers  # noqa: PLC0415  only when something changed
    from resolver.facts.sound import check_together  # noqa: PLC0415

    layers, files = read_layers(groups, instead)
    rows = merge(layers)
    catalog = Catalog.of(rows)
    check_together(catalog)
    return catalog, rows, files
