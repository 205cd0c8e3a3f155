"""Which integration tests run in the same process: ``pytest -p tests.scheduling -n 2 --dist loadscope``."""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

_FOLDER = "tests/integration/"
_SHARE_A_BUILD = {
    "test_whole_way.py": "deepspeed",
    "test_audited.py": "deepspeed",
    "test_failures.py": "deepspeed",
    "test_provoked.py::test_log_of_good_build": "deepspeed",
    "test_cotainr.py::test_readme": "readme",
}
"""Tests that run in the same process, because they share a build that takes minutes; others do so by file."""
_INDEPENDENT = ("test_bad_builds.py", "test_in_image.py")
"""Files of tests that may run in any process."""


def _scope(nodeid: str) -> str:
    """Return the name of the tests that run in the same process as a test."""
    name = nodeid.removeprefix(_FOLDER)
    if name.startswith(_INDEPENDENT):
        return nodeid
    shared = (scope for prefix, scope in _SHARE_A_BUILD.items() if name.startswith(prefix))
    return next(shared, nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """For ``--dist loadscope``, keep the tests in one process that share a build."""
    if config.getoption("dist") != "loadscope":
        return None
    scheduler = LoadScopeScheduling(config, log)
    scheduler._split_scope = _scope
    return scheduler
