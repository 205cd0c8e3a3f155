"""An alias of triton, installed by the real pip and uv: no second triton, and `pip check` is clean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import uv

from builders.index import Index
from builders.sources import index_url
from matrix.api import write_lock
from matrix.cli import main
from tests.support.aliases import OWN, PINNED, lock_with_alias
from tests.support.tiny import tiny_wheel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Build the alias, and write the requirements for pip.

    The index of the other wheels has a newer triton, as PyPI has.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = Index(tmp_path / "other")
    lock = lock_with_alias(tmp_path / "files", index=other.simple.as_uri())
    write_lock(lock, tmp_path / "matrix.lock")
    tiny_wheel(tmp_path / "files", "triton", "99.0")
    for wheel in (tmp_path / "files").glob("*.whl"):
        other.publish(wheel, {})
    assert main(["build-wheels"]) == 0
    assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    subprocess.run([sys.executable, "-m", "venv", "env"], check=True)
    return tmp_path


@pytest.mark.parametrize("dependencies", [True, False])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_alias_is_the_only_other_triton(work: Path, installer: str, *, dependencies: bool) -> None:
    python = str(work / "env" / "bin" / "python")
    install = [python, "-m", "pip"] if installer == "pip" else [uv.find_uv_bin(), "pip"]
    options = ["--python", python, "--index-url", index_url()] if installer == "uv" else []
    options += [] if dependencies else ["--no-deps"]
    done = run(*install, "install", *options, "-r", "requirements.txt")
    assert done.returncode == 0, done.stderr
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json").stdout)
    versions = {row["name"]: row["version"] for row in listed}
    assert versions["triton"] == PINNED
    assert versions[OWN] == "3.5.1"
    checked = run(python, "-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout
