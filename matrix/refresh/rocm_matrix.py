"""AMD's compatibility matrix, published as CSV: ROCm releases, their targets and tested drivers.

The first row names the releases. A row without a title goes on with the title above it. Footnote
marks (``[#name]_``) are dropped. Drivers are read for lines of which the driver table says nothing;
what contradicts the table is a remark for a person, since the table decides.
"""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING

import msgspec

from matrix.refresh.learned import Learned
from resolver.errors import EnvironmentLacksError
from resolver.facts import schema
from resolver.versions import is_version, minor, sort_key

if TYPE_CHECKING:
    from matrix.refresh.web import Web
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


def learn(catalog: Catalog, web: Web, url: str = MATRIX) -> Learned:
    """Compare AMD's matrix with the catalog."""
    learned = Learned()
    try:
        answer = web.get(url)
    except EnvironmentLacksError as error:
        learned.unreachable.append(f"{url}: {error.message}")
        return learned
    if answer is None:
        learned.remarks.append(f"AMD's matrix is no longer at {url}.")
        return learned
    columns = read(answer.text)
    if not columns:
        learned.remarks.append(f"{url} is no matrix of ROCm releases any more; nothing was read from it.")
    for version, column in columns.items():
        if version not in catalog.rocm:
            learned.rows.append(
                schema.Rocm(version=version, gfx=tuple(column.gfx), status="documented", source=url)
            )
    learned.rows += _drivers(catalog, columns, url, learned)
    return learned


class Column(msgspec.Struct):
    """What the matrix says of one release."""

    gfx: list[str] = []
    drivers: list[str] = []
    """Lines of drivers that it was tested with."""


def read(text: str) -> dict[str, Column]:
    """Read the matrix; empty if the text is none."""
    rows = list(csv.reader(text.splitlines()))
    if not rows or _plain(rows[0][0] if rows[0] else "") != "rocm version":
        return {}
    names = [_plain(cell) for cell in rows[0][1:]]
    columns = {name: Column() for name in names if is_version(name)}
    title = ""
    for cells in rows[1:]:
        title = _plain(cells[0]) or title if cells else ""
        for name, cell in zip(names, cells[1:], strict=False):
            if name in columns:
                _note(columns[name], title, _FOOTNOTE.sub("", cell))
    return columns


def _note(column: Column, title: str, cell: str) -> None:
    if title.startswith(_TARGETS):
        column.gfx += re.findall(r"\bgfx[0-9a-f]+\b", cell)
    elif title.startswith(_DRIVERS):
        column.drivers += [line for line in _LINE.findall(cell) if line not in column.drivers]


def _plain(cell: str) -> str:
    """Take markup and footnotes off a cell."""
    text = _ROLE.sub(lambda match: match[1] or match[2] or "", _FOOTNOTE.sub("", cell))
    return " ".join(text.split()).lower()


def _drivers(catalog: Catalog, columns: dict[str, Column], url: str, learned: Learned) -> list[schema.Driver]:
    tested: dict[str, set[str]] = {}
    for version, column in columns.items():
        for driver in column.drivers:
            tested.setdefault(driver, set()).add(minor(version))
    rows = []
    for driver, lines in tested.items():
        known = catalog.driver.get(driver)
        if known is None:
            supports = tuple(sorted(lines, key=sort_key))
            note = "Only what the columns of AMD's matrix name; the driver table was not read."
            rows.append(
                schema.Driver(version=driver, supports=supports, status="documented", source=url, note=note)
            )
            continue
        new = lines - {*known.supports, *known.unsupported}
        refused = sorted(lines & {*known.unsupported}, key=sort_key)
        if refused:
            learned.remarks.append(
                f"AMD's matrix has driver {driver} beside ROCm {', '.join(refused)}; the driver table of the "
                f"catalog does not ({known.source}). The table was kept."
            )
        if new:
            supports = tuple(sorted({*known.supports, *new}, key=sort_key))
            rows.append(msgspec.structs.replace(known, supports=supports, source=f"{known.source} ; {url}"))
    return rows
