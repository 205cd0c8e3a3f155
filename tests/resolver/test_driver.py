"""Recorded texts of kernel drivers match the right line of the driver table."""

from __future__ import annotations

import pytest

from resolver.errors import UsageError
from resolver.facts.catalog import Catalog
from resolver.facts.driver import identify_driver, release_of_package
from resolver.versions import minor

RECORDED = [
    ("6.3.6.60003-1739731", "6.0"),  # dpkg -s amdgpu-dkms, driver of ROCm 6.0.3
    ("1:6.8.5.60200-2009582.22.04", "6.2"),
    ("amdgpu-dkms-6.3.60300-2084815.noarch", "6.3"),  # LUMI since January 2026
    ("6.10.5.60300-2084815", "6.3"),
    ("6.12.12.60402", "6.4"),
    ("6.14.14.30100100-2212064", "30.10"),
    ("6.16.13.30300400-2341068", "30.30"),
    ("6.3.6\n", "6.0"),  # /sys/module/amdgpu/version: not the driver of ROCm 6.3
    ("6.10.5", "6.3"),
    ("Driver version: 6.10.5", "6.3"),  # rocm-smi --showdriverversion
    ("6.12.12", "6.4"),
    ("amdgpu version: 6.16.13 | ROCm version: 7.2.0", "30.30"),  # amd-smi version
]


@pytest.mark.parametrize(("text", "line"), RECORDED)
def test_recorded_texts_give_driver_line(text: str, line: str, catalog: Catalog) -> None:
    assert identify_driver(text, catalog) == line


def test_recorded_packages_name_their_release(catalog: Catalog) -> None:
    checked = 0
    for row in catalog.driver_module.values():
        release = release_of_package(row.package)
        if release is not None:
            assert minor(release) == minor(row.driver), row.package
            checked += 1
    assert checked >= 15


@pytest.mark.parametrize("text", ["", "unknown", "9.9.9", "4.0.1.99999-1", "7.1.0"])
def test_unknown_driver_is_refused(text: str, catalog: Catalog) -> None:
    with pytest.raises(UsageError):
        identify_driver(text, catalog)
