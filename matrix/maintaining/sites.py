"""Drivers and limits that sites state in public documents with a regular form."""

from __future__ import annotations

import datetime
import re
from typing import TYPE_CHECKING

import msgspec

from matrix.maintaining import CatalogUpdate
from resolver.facts import schema
from resolver.facts.driver import lines_of_module
from resolver.versions import minor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.maintaining.client import Client
    from resolver.facts.catalog import Catalog

FRONTIER = "https://raw.githubusercontent.com/olcf/olcf-user-docs/master/systems/frontier_user_guide.rst"
LUMI = (
    "https://raw.githubusercontent.com/Lumi-supercomputer/lumi-userguide/main/"
    "docs/runjobs/scheduled-jobs/partitions.md"
)
_DAY = re.compile(r"^(\d{4}-\d\d-\d\d)\n-+$", re.MULTILINE)
_DRIVER = re.compile(r"AMD GPU (\d+(?:\.\d+)+) device driver \(ROCm (\d+(?:\.\d+)+) release\)")
_TABLE_ROW = re.compile(r"^\| *([\w-]+) *\| *(\d+) (minute|hour|day)s? *\|", re.MULTILINE)
_HOURS = {"minute": 1 / 60, "hour": 1.0, "day": 24.0}
_LUMI_SITES = ("lumi-g", "lumi-c")


def find_updates(catalog: Catalog, client: Client) -> CatalogUpdate:
    """Return the driver windows of Frontier that the catalog lacks, and time limits of LUMI that changed."""
    update = CatalogUpdate()
    if (text := client.document(FRONTIER, update)) is not None:
        _read_frontier(catalog, text, update)
    if (text := client.document(LUMI, update)) is not None:
        _read_lumi(catalog, text, update)
    return update


def drivers_by_day(text: str) -> Iterator[tuple[datetime.date, str, str]]:
    """Yield each day on which Frontier's driver changed, with kernel module and ROCm release."""
    parts = _DAY.split(text)
    for day, section in zip(parts[1::2], parts[2::2], strict=True):
        for module, rocm in _DRIVER.findall(section):
            yield datetime.date.fromisoformat(day), module, rocm


def _read_frontier(catalog: Catalog, text: str, update: CatalogUpdate) -> None:
    if "frontier" not in catalog.site:
        return
    windows = list(drivers_by_day(text))
    if not windows:
        update.remarks.append(f"{FRONTIER} no longer lists updates of the driver and was skipped.")
    known = {window.since: window for window in catalog.windows_of("frontier")}
    for day, module, rocm in sorted(windows):
        before = known.get(day)
        driver = _driver_of(catalog, module, rocm)
        if before is None:
            if not driver:
                update.remarks.append(
                    f"Frontier has had kernel module {module} (ROCm {rocm}) since {day}. The driver of this "
                    "module is not in the catalog."
                )
                continue
            update.rows.append(
                schema.Window(
                    site="frontier",
                    since=day,
                    driver=driver,
                    package=module,
                    status="documented",
                    source=FRONTIER,
                    note=f"The guide lists kernel module {module} and ROCm {rocm}.",
                )
            )
        elif before.package and before.package != module:
            update.remarks.append(
                f"From {day} on, Frontier's guide lists kernel module {module}, but the catalog lists "
                f"{before.package}."
            )


def _driver_of(catalog: Catalog, module: str, rocm: str) -> str:
    """Return the line of the driver with a kernel module; empty if it is not known."""
    lines = lines_of_module(module, catalog)
    if len(lines) == 1:
        return lines[0]
    line = minor(rocm)  # before 30.10, drivers had the version of their ROCm
    return line if line in catalog.driver else ""


def _read_lumi(catalog: Catalog, text: str, update: CatalogUpdate) -> None:
    limits = {name: int(count) * _HOURS[unit] for name, count, unit in _TABLE_ROW.findall(text)}
    if not limits:
        update.remarks.append(f"{LUMI} no longer has a table of partitions and was skipped.")
    for (site, name), row in catalog.partition.items():
        hours = limits.get(name)
        if site in _LUMI_SITES and hours is not None and row.max_hours and hours != row.max_hours:
            update.rows.append(
                msgspec.structs.replace(row, max_hours=hours, status="documented", source=LUMI)
            )
