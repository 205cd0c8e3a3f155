"""A published HIP wheel is built again and compared: it has the same bytes, unless it contains the time."""

from __future__ import annotations

import json

import pytest

from tests.support.site import MakeSite

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


@pytest.mark.parametrize("fault", ["", "clock"])
def test_hip_extension_is_identical_unless_it_contains_the_time(tiny: MakeSite, fault: str) -> None:
    site = tiny(fault=fault)
    first = site.build()
    assert first.returncode == 0, first.stderr
    done = site.build("--rebuild", "--format", "json")
    (wheel,) = json.loads(done.stdout)["wheels"]
    assert done.returncode == int(bool(fault)), done.stderr
    assert wheel["state"] == ("different" if fault else "identical")
    places = [finding["evidence"]["where"] for finding in wheel["diagnosis"]]
    assert any(".data" in place for place in places) == bool(fault)
