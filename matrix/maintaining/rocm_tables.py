"""AMD's driver table and its list of GPU architectures.

The driver's documentation has the table as CSV in reStructuredText, or one sentence about the newest driver.
TheRock lists the GPU architectures of a release in a Markdown table.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from matrix.maintaining import CatalogUpdate
from resolver.facts import schema
from resolver.versions import sort_key

if TYPE_CHECKING:
    from matrix.maintaining.client import Client
    from resolver.facts.catalog import Catalog

_RAW = "https://raw.githubusercontent.com/ROCm"
DRIVERS = (
    f"{_RAW}/amdgpu-docs/develop/docs/compatibility/compatibility-matrix.rst",
    f"{_RAW}/rocm-install-on-linux/develop/docs/reference/user-kernel-space-compat-matrix.rst",
)
TARGETS = f"{_RAW}/TheRock/main/RELEASES.md"
_ROW = re.compile(r'^ +"(\d+\.\d+)\.x", "((?:\d+\.\d+\.x(?:, )?)+)" *$', re.MULTILINE)
_SENTENCE = re.compile(
    r"AMD GPU Driver (?:\(amdgpu\) )?(\d+\.\d+)[\d.]* is compatible with ROCm "
    r"((?:\d+\.\d+[\w.]*(?:, and |, | and )?)+)"
)
_LINE = re.compile(r"\d+\.\d+")
_TARGET = re.compile(r"^\|[^|]+\| *(gfx[0-9a-f]+) *\| *`device-", re.MULTILINE)


def find_updates(catalog: Catalog, client: Client) -> CatalogUpdate:
    """Return the drivers, their ROCm lines and the GPU architectures that the catalog does not have."""
    update = CatalogUpdate()
    for url in DRIVERS:
        if (text := client.document(url, update)) is not None:
            _add_drivers(catalog, text, url, update)
    if (text := client.document(TARGETS, update)) is not None:
        _add_targets(catalog, text, update)
    return update


def read_drivers(text: str) -> dict[str, set[str]]:
    """Return the ROCm lines by driver line; empty if the text states none."""
    stated: dict[str, set[str]] = {}
    for driver, lines in [*_ROW.findall(text), *_SENTENCE.findall(text)]:
        stated.setdefault(driver, set()).update(_LINE.findall(lines))
    return stated


def _add_drivers(catalog: Catalog, text: str, url: str, update: CatalogUpdate) -> None:
    stated = read_drivers(text)
    if not stated:
        update.remarks.append(f"{url} no longer states which ROCm a driver supports, so it was skipped.")
    for driver, lines in stated.items():
        known = catalog.driver.get(driver)
        if known is None:
            rows = [row.version for row in update.rows if isinstance(row, schema.Driver)]
            if driver not in rows:
                update.rows.append(
                    schema.Driver(
                        version=driver,
                        supports=tuple(sorted(lines, key=sort_key)),
                        status="documented",
                        source=url,
                        note="Only the lines that this page names; unmarked lines were not read.",
                    )
                )
            continue
        new = lines - {*known.supports, *known.unsupported}
        if contradicting := sorted(lines & {*known.unsupported}, key=sort_key):
            update.remarks.append(
                f"{url} says that driver {driver} supports ROCm {', '.join(contradicting)}, but the catalog "
                f"says that it does not ({known.source})."
            )
        if new and driver == max(catalog.driver, key=sort_key):
            supports = tuple(sorted({*known.supports, *new}, key=sort_key))
            row = msgspec.structs.replace(known, supports=supports, source=f"{known.source} ; {url}")
            update.rows.append(row)
        elif new:
            update.remarks.append(f"{url} names ROCm {', '.join(sorted(new))} for the old driver {driver}.")


def _add_targets(catalog: Catalog, text: str, update: CatalogUpdate) -> None:
    targets = dict.fromkeys(_TARGET.findall(text))
    if not targets:
        update.remarks.append(f"{TARGETS} no longer has a table of GPU architectures and was skipped.")
    update.rows += [
        schema.Gfx(target=target, status="documented", source=TARGETS)
        for target in targets
        if target not in catalog.gfx
    ]
