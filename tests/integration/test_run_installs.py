"""``matrix run`` with the real pip and the real uv: one requirements file for both routes to the index."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin

from builders.index import Index

MakeWheel = Callable[..., Path]
pytestmark = pytest.mark.integration
PINNED = "tinyext==1.0+rocm7.2.gfx90a"
PIP = [sys.executable, "-m", "pip", "install", "--no-deps"]
UV = [find_uv_bin(), "pip", "install", "--no-cache", "--no-deps"]


@pytest.mark.parametrize("command", [PIP, UV], ids=["pip", "uv"])
@pytest.mark.parametrize("url", ["file:///mnt/simple", "${MATRIX_INDEX_URL}"])
def test_file_with_bound_index_works_with_loopback(
    tmp_path: Path, make_wheel: MakeWheel, command: list[str], url: str
) -> None:
    Index(tmp_path / "index").publish(make_wheel("tinyext", "1.0+rocm7.2.gfx90a"), {})
    (tmp_path / "req.txt").write_text(f"--extra-index-url {url}\n--only-binary tinyext\n{PINNED}\n")
    line = [*command, "--target", "here", "-r", "req.txt"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "PIP_NO_INDEX": ""}
    done = subprocess.run(
        [sys.executable, "-m", "matrix", "run", "--route", "loopback", "--", *line],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "here" / "tinyext.py").is_file()


def test_nothing_is_installed_without_run(tmp_path: Path) -> None:
    done = subprocess.run([*PIP, "--target", "here", PINNED], cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"No matching distribution" in done.stderr
