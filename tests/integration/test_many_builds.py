"""Real builds of tiny projects by the commands: twice at once, by a selection of the table, and unchanged."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from builders.index import Index

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NAMES = ("east", "north", "west")
SETUP = """
import sys, time
from setuptools import setup
if "bdist_wheel" in sys.argv:
    time.sleep({seconds})
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""
ROWS = """
[[package]]
name = "{name}"
title = "{name}"
status = "observed"
source = "a test"
[[release]]
package = "{name}"
version = "1.0"
sdist = {{ file = "{name}-1.0.tar.gz", sha256 = "{digest}" }}
backend = ["cpu"]
status = "observed"
source = "a test"
[[recipe]]
package = "{name}"
backend = "cpu"
undeclared = ["setuptools", "wheel"]
match-runtime = []
status = "observed"
source = "a test"
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep one cache for all tests, so that the layer with setuptools is made once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def environment(cache: Path) -> dict[str, str]:
    return os.environ | {"XDG_CACHE_HOME": str(cache)}


def offer(directory: Path, cache: Path, *names: str, seconds: float) -> None:
    """Write a catalog with packages, and put their sdists into the cache."""
    rows = ["schema = 1\n"]
    for name in names:
        buffer = io.BytesIO()
        setup = SETUP.format(name=name, seconds=seconds)
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for member, text in (("setup.py", setup), (f"{name}.py", "ANSWER = 42\n")):
                entry = tarfile.TarInfo(f"{name}-1.0/{member}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        digest = hashlib.sha256(buffer.getvalue()).hexdigest()
        target = cache / "matrix" / "sources" / digest[:16] / f"{name}-1.0.tar.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(buffer.getvalue())
        rows.append(ROWS.format(name=name, digest=digest))
    (directory / "mine.toml").write_text("".join(rows))
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
    assert "another process has built it" in messages
    assert messages.count("publish\n") == len(NAMES)  # each was built by one of the two


def test_selection_is_built_and_then_unchanged(
    tmp_path: Path, cache: Path, environment: dict[str, str]
) -> None:
    offer(tmp_path, cache, "red", "blue", seconds=0)
    selection = ("build-wheels", "--table", "red blue torch==2.13.0", "--format", "json")
    first: Any = json.loads(run(tmp_path, environment, *selection))
    assert first["counts"] == {"proven": 0, "built": 2, "buildable": 0, "impossible": 0}
    assert {wheel["state"] for wheel in first["wheels"]} == {"built"}
    assert built(Index(tmp_path / "index")) == {"blue": 1, "red": 1}
    again: Any = json.loads(run(tmp_path, environment, *selection))
    assert {wheel["state"] for wheel in again["wheels"]} == {"up to date"}
    assert built(Index(tmp_path / "index")) == {"blue": 1, "red": 1}
