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
    "test_cotainr.py::test_build_script_builds": "small container",
    "test_cotainr.py::test_cause_of": "small container",
    "test_in_image.py::test_git_source": "sound",
    "test_in_image.py::test_wheel_does_not": "sound",
    "test_in_image.py::test_hip_extension": "sound",
}
"""Scopes of tests that share a build that takes minutes, or that run separately from their file."""
_INDEPENDENT = ("test_bad_builds.py", "test_in_image.py")
"""Files of tests that may run in any process."""
_LONGEST = (
    f"{_FOLDER}test_cotainr.py",
    f"{_FOLDER}test_extend_image.py",
    "deepspeed",
    f"{_FOLDER}test_jax.py",
)
"""Scopes that take longest, and so begin first; the first one creates the rig's images."""


_MARK = "mark.integration"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files without integration tests: to import them all takes longer than many of the tests."""
    if collection_path.suffix == ".py" and _MARK not in collection_path.read_text(encoding="utf-8"):
        return True
    return None


def _scope(nodeid: str) -> str:
    """Return the name of the tests that run in the same process as a test."""
    name = nodeid.removeprefix(_FOLDER)
    shared = (scope for prefix, scope in _SCOPES.items() if name.startswith(prefix))
    return next(shared, nodeid if name.startswith(_INDEPENDENT) else nodeid.partition("::")[0])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests: one process makes the rig's images, the others run tests that do not need them."""

    def order(item: pytest.Item) -> tuple[bool, bool, int]:
        scope = _scope(item.nodeid)
        place = _LONGEST.index(scope) if scope in _LONGEST else len(_LONGEST)
        return place > 0, "rig" in getattr(item, "fixturenames", ()), place

    items.sort(key=order)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Return a scheduler for ``--dist loadscope`` that runs tests that share a build in one process."""
    if config.getoption("dist") != "loadscope":
        return None
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler
