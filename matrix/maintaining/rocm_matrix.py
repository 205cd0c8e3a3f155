"""AMD's compatibility matrix in CSV: ROCm releases with their GPU architectures and tested drivers.

The first row names the releases. A row without a title continues the title above it. Footnote marks
(``[#name]_``) are removed. The driver table has precedence: drivers are only added for ROCm lines that
the table does not cover, and contradictions are reported.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

import msgspec

from matrix.maintaining import CatalogUpdate
from resolver.facts import schema
from resolver.versions import is_version, minor, sort_key

if TYPE_CHECKING:
    from matrix.maintaining.client import Client
    from resolver.facts.catalog import Catalog

MATRIX = (
    "https://raw.githubusercontent.com/ROCm/ROCm/develop/docs/compatibility/"
    "compatibility-matrix-historical-6.0.csv"
)
_TARGETS = "gpu / llvm target"
_DRIVERS = ("tested user space versions", "kmd versions", "amd gpu driver")
_FOOTNOTE = re.compile(r"\[#[^\]]*\]_?")
_ROLE = re.compile(r":\w+:`([^<`]*?)\s*(?:<[^>]*>)?`|`([^<`]*?)\s*(?:<[^>]*>)?`_+")
_LINE = re.compile(r"\d+\.\d+")


def find_updates(catalog: Catalog, client: Client, url: str = MATRIX) -> CatalogUpdate:
    """Return the releases and drivers of AMD's matrix that the catalog does not have."""
    update = CatalogUpdate()
    text = client.document(url, update)
    if text is None:
        return update
    columns = read_matrix(text)
    if not columns:
        update.remarks.append(f"{url} is no longer a matrix of ROCm releases and was skipped.")
    update.rows += [
        schema.Rocm(version=version, gfx=tuple(column.gfx), status="documented", source=url)
        for version, column in columns.items()
        if version not in catalog.rocm
    ]
    _add_drivers(catalog, columns, url, update)
    return update


class ReleaseColumn(msgspec.Struct):
    """The column of one release."""

    gfx: list[str] = []
    drivers: list[str] = []
    """Driver lines that the release was tested with."""


def read_matrix(text: str) -> dict[str, ReleaseColumn]:
    """Return the columns of the matrix by release; empty if the text is not a matrix."""
    rows = list(csv.reader(text.splitlines()))
    if not rows or _plain(rows[0][0] if rows[0] else "") != "rocm version":
        return {}
    names = [_plain(cell) for cell in rows[0][1:]]
    columns = {name: ReleaseColumn() for name in names if is_version(name)}
    title = ""
    for cells in rows[1:]:
        title = _plain(cells[0]) or title if cells else ""
        for name, cell in zip(names, cells[1:], strict=False):
            if name in columns:
                _add_cell(columns[name], title, _FOOTNOTE.sub("", cell))
    return columns


def _add_cell(column: ReleaseColumn, title: str, cell: str) -> None:
    if title.startswith(_TARGETS):
        column.gfx += re.findall(r"\bgfx[0-9a-f]+\b", cell)
    elif title.startswith(_DRIVERS):
        column.drivers += [line for line in _LINE.findall(cell) if line not in column.drivers]


def _plain(cell: str) -> str:
    """Remove markup and footnotes from a cell."""
    text = _ROLE.sub(lambda match: match[1] or match[2] or "", _FOOTNOTE.sub("", cell))
    return " ".join(text.split()).lower()


def _add_drivers(
    catalog: Catalog, columns: dict[str, ReleaseColumn], url: str, update: CatalogUpdate
) -> None:
    tested: dict[str, set[str]] = {}
    for version, column in columns.items():
        for driver in column.drivers:
            tested.setdefault(driver, set()).add(minor(version))
    for driver, lines in tested.items():
        known = catalog.driver.get(driver)
        if known is None:
            supports = tuple(sorted(lines, key=sort_key))
            note = "Only the lines in AMD's compatibility matrix; the driver table was not read."
            update.rows.append(
                schema.Driver(version=driver, supports=supports, status="documented", source=url, note=note)
            )
            continue
        new = lines - {*known.supports, *known.unsupported}
        contradicting = sorted(lines & {*known.unsupported}, key=sort_key)
        if contradicting:
            update.remarks.append(
                f"AMD's matrix lists driver {driver} for ROCm {', '.join(contradicting)}, but the driver "
                f"table does not ({known.source}). The table takes precedence."
            )
        if new:
            supports = tuple(sorted({*known.supports, *new}, key=sort_key))
            row = msgspec.structs.replace(known, supports=supports, source=f"{known.source} ; {url}")
            update.rows.append(row)
