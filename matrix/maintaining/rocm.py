"""AMD's tables: ROCm releases with their GPU architectures, kernel drivers, and all GPU architectures.

The documentation of the driver has a table as CSV in reStructuredText, or one sentence about the newest
driver. The compatibility matrix of ROCm is CSV: the first row names the releases, and a row without a title
continues the title above it. TheRock lists the GPU architectures of a release in a Markdown table.
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
    from collections.abc import Iterator, Mapping

    from matrix.maintaining.client import Client
    from resolver.facts.catalog import Catalog

_RAW = "https://raw.githubusercontent.com/ROCm"
DRIVERS = (
    f"{_RAW}/amdgpu-docs/develop/docs/compatibility/compatibility-matrix.rst",
    f"{_RAW}/rocm-install-on-linux/develop/docs/reference/user-kernel-space-compat-matrix.rst",
)
MATRIX = f"{_RAW}/ROCm/develop/docs/compatibility/compatibility-matrix-historical-6.0.csv"
TARGETS = f"{_RAW}/TheRock/main/RELEASES.md"
_ROW = re.compile(r'^ +"(\d+\.\d+)\.x", "((?:\d+\.\d+\.x(?:, )?)+)" *$', re.MULTILINE)
_SENTENCE = re.compile(
    r"AMD GPU Driver (?:\(amdgpu\) )?(\d+\.\d+)[\d.]* is compatible with ROCm "
    r"((?:\d+\.\d+[\w.]*(?:, and |, | and )?)+)"
)
_LINE = re.compile(r"\d+\.\d+")
_TARGET = re.compile(r"^\|[^|]+\| *(gfx[0-9a-f]+) *\| *`device-", re.MULTILINE)
_TITLE_OF_TARGETS = "gpu / llvm target"
_TITLES_OF_DRIVERS = ("tested user space versions", "kmd versions", "amd gpu driver")
_FOOTNOTE = re.compile(r"\[#[^\]]*\]_?")
_ROLE = re.compile(r":\w+:`([^<`]*?)\s*(?:<[^>]*>)?`|`([^<`]*?)\s*(?:<[^>]*>)?`_+")


def find_updates(catalog: Catalog, client: Client) -> CatalogUpdate:
    """Return the ROCm releases, drivers and GPU architectures that the catalog does not have."""
    update = CatalogUpdate()
    for url in DRIVERS:
        if (text := client.document(url, update)) is not None:
            stated = read_drivers(text)
            if not stated:
                update.remarks.append(
                    f"{url} no longer states which ROCm a driver supports, so it was skipped."
                )
            _add_drivers(catalog, stated, url, update, extended=max(catalog.driver, key=sort_key))
    if (text := client.document(MATRIX, update)) is not None:
        _add_matrix(catalog, text, update)
    if (text := client.document(TARGETS, update)) is not None:
        targets = dict.fromkeys(_TARGET.findall(text))
        if not targets:
            update.remarks.append(f"{TARGETS} no longer has a table of GPU architectures and was skipped.")
        update.rows += [
            schema.Gfx(target=target, status="documented", source=TARGETS)
            for target in targets
            if target not in catalog.gfx
        ]
    return update


def _add_matrix(catalog: Catalog, text: str, update: CatalogUpdate) -> None:
    gfx: dict[str, list[str]] = {}
    tested: dict[str, set[str]] = {}
    for release, title, cell in read_matrix(text):
        targets = gfx.setdefault(release, [])
        if title.startswith(_TITLE_OF_TARGETS):
            targets += re.findall(r"\bgfx[0-9a-f]+\b", cell)
        elif title.startswith(_TITLES_OF_DRIVERS):
            for driver in _LINE.findall(cell):
                tested.setdefault(driver, set()).add(minor(release))
    if not gfx:
        update.remarks.append(f"{MATRIX} is no longer a matrix of ROCm releases and was skipped.")
    update.rows += [
        schema.Rocm(version=release, gfx=tuple(targets), status="documented", source=MATRIX)
        for release, targets in gfx.items()
        if release not in catalog.rocm
    ]
    _add_drivers(catalog, tested, MATRIX, update)


def read_matrix(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield release, title and text of each cell, without footnotes; nothing if the text is not a matrix."""
    rows = list(csv.reader(text.splitlines()))
    if not rows or _plain(rows[0][0] if rows[0] else "") != "rocm version":
        return
    names = [_plain(cell) for cell in rows[0][1:]]
    title = ""
    for cells in rows[1:]:
        title = _plain(cells[0]) or title if cells else ""
        for name, cell in zip(names, cells[1:], strict=False):
            if is_version(name):
                yield name, title, _FOOTNOTE.sub("", cell)


def _plain(cell: str) -> str:
    """Remove markup and footnotes from a cell."""
    text = _ROLE.sub(lambda match: match[1] or match[2] or "", _FOOTNOTE.sub("", cell))
    return " ".join(text.split()).lower()


def read_drivers(text: str) -> dict[str, set[str]]:
    """Return the ROCm lines by driver line; empty if the text states none."""
    stated: dict[str, set[str]] = {}
    for driver, lines in [*_ROW.findall(text), *_SENTENCE.findall(text)]:
        stated.setdefault(driver, set()).update(_LINE.findall(lines))
    return stated


def _add_drivers(
    catalog: Catalog, stated: Mapping[str, set[str]], url: str, update: CatalogUpdate, extended: str = ""
) -> None:
    """Add the drivers of a page, and ROCm lines to the known driver `extended`, or to all without a name.

    Lines that the catalog excludes are only reported.
    """
    for driver, lines in stated.items():
        known = catalog.driver.get(driver)
        if known is None:
            rows = [row.version for row in update.rows if isinstance(row, schema.Driver)]
            if driver not in rows:
                supports = tuple(sorted(lines, key=sort_key))
                note = "Only the lines that this page names; others were not read."
                update.rows.append(
                    schema.Driver(
                        version=driver, supports=supports, status="documented", source=url, note=note
                    )
                )
            continue
        new = lines - {*known.supports, *known.unsupported}
        if contradicting := sorted(lines & {*known.unsupported}, key=sort_key):
            update.remarks.append(
                f"{url} says that driver {driver} supports ROCm {', '.join(contradicting)}, but the catalog "
                f"says that it does not ({known.source}), which takes precedence."
            )
        if new and extended in {"", driver}:
            supports = tuple(sorted({*known.supports, *new}, key=sort_key))
            row = msgspec.structs.replace(known, supports=supports, source=f"{known.source} ; {url}")
            update.rows.append(row)
        elif new:
            update.remarks.append(f"{url} names ROCm {', '.join(sorted(new))} for the old driver {driver}.")
