"""Fixtures and settings of all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence

import pytest

from builders.containers import runtime
from tests.rig.rig import Rig, the_rig

_INTEGRATION_TIMEOUT = 1800
"""Seconds; the first test that needs the rig's base image also makes it."""


def pytest_configure() -> None:
    """Receive SIGINT, and so do the programs that tests start; a background job of a shell ignores it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Give each integration test a time limit of its own, longer than that of the others."""
    for item in items:
        if item.get_closest_marker("integration") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_INTEGRATION_TIMEOUT))


@pytest.fixture(autouse=True)
def _namespaces_are_tried_anew() -> None:
    """What a test found under a PATH of its own is not believed by the next."""
    runtime.without_network.cache_clear()
    runtime.can_mount.cache_clear()


@pytest.fixture(scope="session")
def rig() -> Iterator[Rig]:
    """A base image with a real HIP compiler, a stand-in torch, and an ordinary user; made once, kept."""
    with the_rig() as made:
        yield made
