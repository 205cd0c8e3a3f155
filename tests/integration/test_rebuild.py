"""A published HIP wheel is built again and compared: it has the same bytes."""

from __future__ import annotations

import json

import pytest

from tests.support.site import MakeSite

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]


def test_hip_extension_is_identical(tiny: MakeSite) -> None:
    site = tiny()
    first = site.build()
    assert first.returncode == 0, first.stderr
    done = site.build("--rebuild", "--format", "json")
    assert done.returncode == 0, done.stderr
    (wheel,) = json.loads(done.stdout)["wheels"]
    assert (wheel["state"], wheel["diagnosis"]) == ("identical", [])
