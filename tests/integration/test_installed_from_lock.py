"""A complete lock of real distributions, installed by the real pip and uv, with and without an index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uv
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from builders.sources.source import index_url
from matrix.api import write_lock
from matrix.cli import main
from resolver.indexes import File
from resolver.lock import dumps, read_lock
from tests.support.commands import new_environment
from tests.support.locks import lock_of, locked_pick

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
REQUESTED = ("requests", "rich", "click")
NOWHERE = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "UV_OFFLINE": "1", "PIP_RETRIES": "0"}


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def pip_resolves(*requirements: str) -> list[dict[str, Any]]:
    """Return the distributions that pip would install, from its report."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--dry-run",
        "--ignore-installed",
        "--report",
        "-",
    ]
    done = run(*command, *requirements)
    assert done.returncode == 0, done.stderr
    items: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return items


@pytest.fixture(scope="module")
def lock_text() -> str:
    """Return a lock of real distributions with their dependencies and files."""
    picks = []
    for item in pip_resolves(*REQUESTED):
        url = item["download_info"]["url"]
        sha256 = item["download_info"]["archive_info"]["hashes"]["sha256"]
        file = File(url.rpartition("/")[2], url, sha256=sha256, index=index_url())
        name = canonicalize_name(item["metadata"]["name"])
        picks.append(locked_pick(name, item["metadata"]["version"], file))
    return dumps(lock_of(*picks, requested=REQUESTED))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock_text: str) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "matrix.lock"
    path.write_text(lock_text)
    write_lock(read_lock(path), path)  # it is the user's, for this cache, too
    return tmp_path


def installed(python: str) -> set[str]:
    done = run(python, "-m", "pip", "list", "--format", "freeze")
    return {line.lower() for line in done.stdout.split() if not line.startswith(("pip==", "setuptools=="))}


def expected(lock_text: str) -> set[str]:
    picks = tomllib.loads(lock_text)["picks"]
    return {f"{pick['name']}=={pick['version']}" for pick in picks if pick["kind"] == "distribution"}


@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_hashes_are_accepted(work: Path, lock_text: str, installer: str) -> None:
    del work
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    python = str(new_environment(Path("env")))
    if installer == "pip":
        command = [python, "-m", "pip", "install", "-q", "--no-deps"]
    else:
        command = [uv.find_uv_bin(), "pip", "install", "-q", "--python", python, "--index-url", index_url()]
    done = run(*command, "--require-hashes", "-r", "requirements.txt")
    assert done.returncode == 0, done.stderr
    assert installed(python) == expected(lock_text)
    assert run(python, "-m", "pip", "check").returncode == 0


@pytest.mark.parametrize("installer", ["pip", "uv", "pylock"])
def test_wheelhouse_needs_no_index(work: Path, lock_text: str, installer: str) -> None:
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    consumer = "pip" if installer != "pylock" else "pylock"
    assert main(["env", "--for", consumer, "--wheelhouse", "wheels", "-o", "."]) == 0
    assert main(["farm", "fetch", "--offline"]) == 0
    python = str(new_environment(Path("env")))
    file = "pylock.toml" if installer == "pylock" else "requirements.txt"
    if installer == "pip":
        command = [python, "-m", "pip", "install", "-q", "--no-deps", "-r", file]
    else:
        command = [uv.find_uv_bin(), "pip", "install", "-q", "--preview", "--python", python, "-r", file]
        command += ["--no-deps", "--find-links", str(work / "wheels")]
    done = run(*command, **NOWHERE, UV_CACHE_DIR=str(work / "uv"), PIP_NO_INDEX="1")
    assert done.returncode == 0, done.stderr
    assert installed(python) == expected(lock_text)


def test_uv_project_uses_wheelhouse_only(work: Path) -> None:
    assert main(["farm", "fetch", "--wheelhouse", "wheels"]) == 0
    (work / "project").mkdir()
    assert main(["env", "--for", "uv", "--wheelhouse", "wheels", "-o", "project"]) == 0
    command = [uv.find_uv_bin(), "sync", "-q", "--project", "project", "--python", sys.executable]
    done = run(*command, **NOWHERE, UV_CACHE_DIR=str(work / "uv"))
    assert done.returncode == 0, done.stderr
    paths = work.glob("project/.venv/lib/*/site-packages/*.dist-info")
    assert set(REQUESTED) < {path.name.partition("-")[0] for path in paths}


def test_file_that_changed_is_refused(work: Path) -> None:
    """The lock has a different hash than the real file."""
    lock = read_lock(Path("matrix.lock"))
    pick = lock.pick("click")
    assert pick is not None
    wrong = replace(pick, files=(replace(pick.files[0], sha256="0" * 64),))
    picks = tuple(wrong if other.name == "click" else other for other in lock.picks)
    write_lock(replace(lock, picks=picks))
    assert main(["farm", "fetch", "click"]) == 1
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    python = str(new_environment(Path("env")))
    done = run(python, "-m", "pip", "install", "-q", "--no-deps", "-r", "requirements.txt")
    assert done.returncode == 1
    assert "hash" in done.stderr.lower()
    del work
