"""Identify AMD's kernel driver: find the line of the driver table that a version text belongs to.

Driver releases (6.0, 30.10), ROCm releases, and versions of the kernel module, which rocm-smi and amd-smi
print, look alike: the driver of ROCm 6.0 has module 6.3.6. Only the dkms package contains the release: after
the version of the module ``60003`` for 6.0.3, or ``30100100`` for 30.10.1, as ``driver.toml`` shows.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from resolver.errors import UsageError, did_you_mean
from resolver.versions import join_words, minor, newest_first, shorten, sort_key

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import date

    from resolver.facts import schema
    from resolver.facts.catalog import Catalog


def drivers_of_modules(catalog: Catalog, lines: Collection[str]) -> list[str]:
    """Return the driver lines, the oldest first, that fit the ROCm lines which a site has as modules.

    They are those that AMD's table lists for each module, and the driver before these: LUMI had the module
    of ROCm 6.3 on driver 6.0, one line older than the table allows. Source: LUMI-EasyBuild-contrib,
    CuPy-13.5.1-cpeGNU-25.03-rocm.eb of August 2025. Empty without modules, or if no driver fits all.
    """
    ordered = sorted(catalog.driver.values(), key=lambda row: sort_key(row.version))
    fitting = [number for number, row in enumerate(ordered) if lines and {*lines} <= {*row.supports}]
    return [row.version for row in ordered[max(fitting[0] - 1, 0) : fitting[-1] + 1]] if fitting else []


def is_older(line: str, driver: schema.Driver) -> bool:
    """Return whether a ROCm line is older than all that AMD's table lists for a driver."""
    return sort_key(line) < sort_key(supported(driver.supports)[0])


@cache
def supported(lines: tuple[str, ...]) -> tuple[str, str]:
    """Return the oldest and the newest of the ROCm lines that AMD's table lists for a driver."""
    return min(lines, key=sort_key), max(lines, key=sort_key)


def runs_outside_table(
    catalog: Catalog, site: str, driver: schema.Driver, day: date
) -> dict[str, tuple[schema.ProvenSet, str]]:
    """Return the newest run at a site for each ROCm line that AMD's table does not list for its driver.

    Each comes with a clause that says so.
    """
    runs: dict[str, schema.ProvenSet] = {}
    for row in catalog.proven.values():
        line = minor(row.picks["rocm"]) if "rocm" in row.picks else ""
        if row.site != site or row.date is None or row.date > day or not line:
            continue
        window = catalog.window_on(site, row.date)
        if line in driver.supports or is_older(line, driver) or not window or window.driver != driver.version:
            continue
        if line not in runs or row.date > (runs[line].date or row.date):
            runs[line] = row
    other = f"which AMD does not list for driver {driver.version}"
    return {line: (row, f"{site} ran ROCm {line} in {row.date:%B %Y}, {other}") for line, row in runs.items()}


_PACKAGE = r"(?<![\d.])\d+\.\d+(?:\.\d+)?\.(?P<number>\d{5}|\d{8})(?:-\d+)?(?![\d.])"
_VERSION = r"(?<![\d.])\d+\.\d+(?:\.\d+)*(?![\d.])"
_OLD_NUMBER = 5  # digits of a package number before drivers had version numbers of their own
_FIND_RELEASE = "To find the driver release, run `dkms status` or `rpm -q amdgpu-dkms`."


def release_of_package(text: str) -> str | None:
    """Return the driver release in a dkms package string; None if there is none.

    Examples
    --------
    >>> release_of_package("amdgpu/6.3.6-1739731.22.04, 5.15.0: installed") is None
    True
    >>> release_of_package("6.3.6.60003-1739731"), release_of_package("6.14.14.30100100-2212064")
    ('6.0.3', '30.10.1')
    >>> release_of_package("amdgpu-dkms 6.3.60300-2084815")
    '6.3.0'
    """
    match = re.search(_PACKAGE, text)
    if match is None:
        return None
    number = match["number"]
    widths = (1, 2, 2) if len(number) == _OLD_NUMBER else (2, 2, 2)
    parts, start = [], 0
    for width in widths:
        parts.append(str(int(number[start : start + width])))
        start += width
    return ".".join(parts)


def identify_driver(text: str, catalog: Catalog) -> str:
    """Return the major.minor line of the driver table that a driver belongs to.

    `text` is a dkms package string, the content of ``/sys/module/amdgpu/version``, or a line that rocm-smi or
    amd-smi prints. Raise `UsageError` if it has no known driver, or a kernel module that several lines share.
    """
    release = release_of_package(text)
    if release is not None:
        return _in_table(minor(release), text, catalog.driver)
    match = re.search(_VERSION, text)
    if match is None:
        msg = f"{shorten(text)!r} contains no driver version."
        raise UsageError(msg, hint=_FIND_RELEASE)
    lines = lines_of_module(match[0], catalog)
    if len(lines) == 1:
        return _in_table(lines[0], text, catalog.driver)
    if lines:
        msg = f"The drivers {join_words(lines, joiner='and')} have the same kernel module {match[0]}."
        raise UsageError(msg, hint=_FIND_RELEASE)
    msg = f"The catalog has no driver with kernel module {match[0]}."
    raise UsageError(msg, hint=_FIND_RELEASE)


def lines_of_module(version: str, catalog: Catalog) -> list[str]:
    """Return the driver lines whose kernel module has this version, oldest first."""
    lines = {minor(row.driver) for row in catalog.driver_module.values() if row.module == version}
    return newest_first(lines)[::-1]


def _in_table(line: str, text: str, table: Mapping[str, schema.Driver]) -> str:
    if line not in table:
        msg = f"{shorten(text)!r} is driver {line}, which is not in AMD's driver table."
        raise UsageError(msg, hint=did_you_mean(line, table))
    return line
