"""The hook for pre-commit runs `matrix check`: what does not fit fails, and what is not judged does not."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

HOOKS = Path(__file__).parents[2] / ".pre-commit-hooks.yaml"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("env.yml", "dependencies:\n- numpy=>1.2\n", 1),
        ("requirements-dev.txt", "--no-index\nmade-up-project-of-this-test\n", 0),
    ],
)
def test_hook_fails_for_what_does_not_fit(name: str, text: str, code: int, tmp_path: Path) -> None:
    (hook,) = YAML(typ="safe").load(HOOKS)
    assert re.search(hook["files"], f"some/folder/{name}")
    assert not re.search(hook["files"], "some/folder/train.py")
    (tmp_path / name).write_text(text)
    program = tmp_path / "bin" / "matrix"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m matrix "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [*shlex.split(hook["entry"]), name],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PIP_NO_INDEX": "1", "PYTHONPATH": str(HOOKS.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert name in done.stdout
