"""What all tests may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from builders.containers import namespaces
from tests.rig.rig import Rig, the_rig


@pytest.fixture(autouse=True)
def _namespaces_are_tried_anew() -> None:
    """What a test found under a PATH of its own is not believed by the next."""
    namespaces.without_network.cache_clear()
    namespaces.can_mount.cache_clear()


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """A base image with a real HIP compiler, a stand-in torch, and an ordinary user; made once, kept."""
    with the_rig() as made:
        yield made
