"""Distribute integration tests over processes, and order them.

``pytest -p tests.scheduling -n 3 --dist loadscope --no-loadscope-reorder``
"""

from __future__ import annotations

from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

_FOLDER = "tests/integration/"
_SCOPES = {
    "test_whole_way.py": "deepspeed",
    "test_audited.py": "deepspeed",
    "test_failures.py": "deepspeed",
    "test_provoked.py::test_log_of_good_build": "deepspeed",
    "test_cotainr.py::test_large": "large",
}
"""Scopes of tests that share a build that takes minutes, or that run separately from their file."""
_INDEPENDENT = ("test_bad_builds.py", "test_in_image.py")
"""Files of tests that may run in any process."""
_FIRST = f"{_FOLDER}test_cotainr.py"
"""The file whose tests take longest; they create the rig's base image."""


_MARK = "mark.integration"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without integration tests: to import them all takes longer than many of the tests."""
    if collection_path.suffix == ".py" and _MARK not in collection_path.read_text(encoding="utf-8"):
        return True
    return None


def _scope(nodeid: str) -> str:
    """Return the name of the tests that run in the same process as a test."""
    name = nodeid.removeprefix(_FOLDER)
    if name.startswith(_INDEPENDENT):
        return nodeid
    shared = (scope for prefix, scope in _SCOPES.items() if name.startswith(prefix))
    return next(shared, nodeid.partition("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests: one process makes the rig's base image, the others run tests that do not need it."""
    items.sort(key=lambda item: (_scope(item.nodeid) != _FIRST, "rig" in getattr(item, "fixturenames", ())))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Return a scheduler for ``--dist loadscope`` that runs tests that share a build in one process."""
    if config.getoption("dist") != "loadscope":
        return None
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler
