"""An alias of triton, installed by the real pip and uv: no second triton, and `pip check` is clean."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest
import uv

from builders.index import Index
from builders.sources.source import index_url
from matrix.api import write_lock
from matrix.cli import main
from tests.support.aliases import OWN, PINNED, lock_with_alias
from tests.support.commands import new_environment
from tests.support.tiny import tiny_wheel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def requirements(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the alias, and write the requirements for pip.

    The index of the other wheels has a newer triton, as PyPI has.
    """
    folder = tmp_path_factory.mktemp("alias")
    other = Index(folder / "other")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        write_lock(lock_with_alias(folder / "files", index=other.simple.as_uri()))
        tiny_wheel(folder / "files", "triton", "99.0")
        for wheel in (folder / "files").glob("*.whl"):
            other.publish(wheel, {})
        assert main(["build-wheels"]) == 0
        assert main(["env", "--for", "pip", "-o", "requirements.txt"]) == 0
    return folder / "requirements.txt"


@pytest.mark.parametrize("dependencies", [True, False])
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_alias_is_the_only_other_triton(
    requirements: Path, tmp_path: Path, installer: str, *, dependencies: bool
) -> None:
    python = str(new_environment(tmp_path / "env"))
    install = [python, "-m", "pip"] if installer == "pip" else [uv.find_uv_bin(), "pip"]
    options = ["--python", python, "--index-url", index_url()] if installer == "uv" else []
    options += [] if dependencies else ["--no-deps"]
    done = run(*install, "install", *options, "-r", str(requirements))
    assert done.returncode == 0, done.stderr
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json").stdout)
    versions = {row["name"]: row["version"] for row in listed}
    assert versions["triton"] == PINNED
    assert versions[OWN] == "3.5.1"
    checked = run(python, "-m", "pip", "check")
    assert checked.returncode == 0, checked.stdout
