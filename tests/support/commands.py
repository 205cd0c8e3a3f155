"""Run a command in the process of the test, and programs in a clean environment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from builders.machine.process import clean_environment
from matrix.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """Run a command, check its exit code, and return its output."""
    assert main(list(arguments)) == code
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """Run a command with JSON output, and return its document."""
    document: dict[str, Any] = json.loads(run(capsys, *arguments, "--format", "json", code=code))
    return document


_folder = tempfile.TemporaryDirectory(prefix="matrix-tests-")


@cache
def system_programs(*hidden: str) -> Path:
    """Return a directory with links to this machine's programs except some; no test may change it."""
    folder = Path(_folder.name, "-".join(("without", *hidden)))
    folder.mkdir()
    for path in Path("/usr/bin").iterdir():
        if path.name not in hidden:
            (folder / path.name).symlink_to(path)
    return folder


def bare_environment(folder: Path) -> Path:
    """Create a virtual environment without pip, and return its directory of packages."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    return packages


def new_environment(folder: Path) -> Path:
    """Create a virtual environment with a pip, and return its Python.

    ``python -m venv`` installs pip anew each time, which takes some seconds; here it does so only once.
    """
    shutil.copytree(_packages_with_pip(), bare_environment(folder), dirs_exist_ok=True)
    return folder.absolute() / "bin" / "python"


@cache
def _packages_with_pip() -> Path:
    subprocess.run([sys.executable, "-m", "venv", Path(_folder.name, "seed")], check=True)
    (packages,) = Path(_folder.name, "seed").glob("lib/python3*/site-packages")
    return packages


def pip_environment() -> dict[str, str]:
    """Return the variables for a pip that installs where it is told, from the user's indexes."""
    places = ("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PIP_PYTHON")
    own = {name: os.environ[name] for name in os.environ if name.startswith("PIP_") and name not in places}
    return clean_environment(own | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}, network=True)
