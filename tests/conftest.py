"""What all tests may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.rig.rig import Rig, the_rig


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """A base image with a real HIP compiler, a stand-in torch, and an ordinary user; made once, kept."""
    with the_rig() as made:
        yield made
