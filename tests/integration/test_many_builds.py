"""Real builds of tiny projects: by two commands at once, and unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builders.index import Index
from tests.support.projects import rows_of, write_catalog, write_sdist

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMES = ("east", "north", "west")
SETUP = """
import sys, time
from setuptools import setup
if "bdist_wheel" in sys.argv:
    time.sleep({seconds})
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep one cache for all tests, so that the layer with setuptools is created once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(cache: Path) -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(cache)}


def offer(directory: Path, cache: Path, *names: str, seconds: float) -> None:
    """Write a catalog with packages, and store their sdists in the cache."""
    projects = []
    for name in names:
        files = {"setup.py": SETUP.format(name=name, seconds=seconds), f"{name}.py": "ANSWER = 42\n"}
        projects.append(rows_of(name, write_sdist(cache / "matrix", name, files), ["setuptools", "wheel"]))
    write_catalog(directory / "mine.toml", projects)
    (directory / "matrix.toml").write_text('backend = "cpu"\ncatalog = ["mine.toml"]\n')


def start(directory: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "matrix", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=directory, env=environment, stdout=pipe, stderr=pipe, text=True)


def run(directory: Path, environment: dict[str, str], *arguments: str) -> str:
    process = start(directory, environment, *arguments)
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    return output


def built(index: Index) -> dict[str, int]:
    return {name: len(index.wheels(name)) for name in index.projects()}


def test_two_commands_on_one_lock_share_the_work(
    tmp_path: Path, cache: Path, environment: dict[str, str]
) -> None:
    offer(tmp_path, cache, *NAMES, seconds=1)
    run(tmp_path, environment, "resolve", *NAMES, "-q")
    command = ("build-wheels", "--jobs", "2", "--progress", "plain")
    processes = [start(tmp_path, environment, *command) for _ in range(2)]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    for output, _ in outputs:
        assert output.count("  built") == len(NAMES)
    assert built(Index(tmp_path / "index")) == dict.fromkeys(NAMES, 1)
    messages = "".join(errors for _, errors in outputs)
    assert "another process has built this wheel" in messages
    assert messages.count("publish\n") == len(NAMES)  # each wheel was built by one of the commands


def test_lock_is_built_and_then_unchanged(tmp_path: Path, cache: Path, environment: dict[str, str]) -> None:
    offer(tmp_path, cache, "red", "blue", seconds=0)
    run(tmp_path, environment, "resolve", "red", "blue", "torch==2.13.0", "-q")
    for state in ("built", "up to date"):
        done: Any = json.loads(run(tmp_path, environment, "build-wheels", "--format", "json"))
        assert [wheel["state"] for wheel in done["wheels"]] == [state, state]
        assert built(Index(tmp_path / "index")) == {"blue": 1, "red": 1}
