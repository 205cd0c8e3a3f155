"""Completion: the completions that argcomplete's scripts request, and those of real bash and fish."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from matrix.api import write_lock
from matrix.cli import main
from tests.support.locks import lock_of, locked_pick

SHELLS = ("bash", "zsh", "fish")


COMPLETE = """
import os, sys
import matrix.cli, matrix.commands.completion
from matrix.__main__ import main
for number, line in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        reply = {"_ARGCOMPLETE_STDOUT_FILENAME": f"reply{number}"}
        os.environ |= {"COMP_LINE": line, "COMP_POINT": str(len(line)), **reply}
        sys.argv = ["matrix"]
        sys.exit(main())
    assert os.wait()[1] == 0, line
"""
"""Writes the completions of each argument; each has a process of its own, but modules are imported once."""


def complete(lines: Iterable[str], cwd: Path, shell: str = "fish", **variables: str) -> list[list[str]]:
    """Return the completions of command lines whose last word is incomplete."""
    lines = [*lines]
    env = os.environ | {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_SHELL": shell,
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_SUPPRESS_SPACE": "1",
        **variables,
    }
    command = [sys.executable, "-c", COMPLETE, *lines]
    done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    texts = [(cwd / f"reply{number}").read_text() for number in range(len(lines))]
    return [[word.split("\t")[0].strip() for word in text.split("\n")] for text in texts]


LINES = {
    "matrix catalog dra": ["draft"],
    "matrix build-wheels --site lumi-g bitsa": ["bitsandbytes"],
    "matrix resolve --site lumi-": ["lumi-c", "lumi-g"],
    "matrix table --gfx gfx90": ["gfx900", "gfx906", "gfx908", "gfx90a", "gfx90c"],
    "matrix catalog list known": ["known-bad"],
    "matrix explain hip-python-i": ["hip-python-interop"],
    "matrix explain verify-torch-c": ["verify-torch-cpu", "verify-torch-cuda"],
    "matrix help reso": ["resolve"],
    "matrix resolve --base-image lumi-rocm-rocm-6.2.4": ["lumi-rocm-rocm-6.2.4.sif"],
}


@pytest.fixture(scope="module")
def completed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    return dict(zip(LINES, complete(LINES, tmp_path_factory.mktemp("completed")), strict=True))


@pytest.mark.parametrize(("line", "shown"), LINES.items())
def test_tab_completes(line: str, shown: list[str], completed: dict[str, list[str]]) -> None:
    assert completed[line] == shown


def test_explain_completes_names_of_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "matrix.lock"
    write_lock(lock_of(locked_pick("numpy", "2.5.5"), locked_pick("tornado", "6.5")), lock)
    lines = ["matrix explain torn", "matrix explain hip-python-i"]
    assert complete(lines, tmp_path) == [["tornado"], [""]]
    lock.write_text("no lock")
    assert complete(["matrix explain torn"], tmp_path) == [[""]]


def test_own_sites_complete_and_bad_facts_are_silent(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(
        'schema = 1\n[[site]]\nname = "cirrus"\ntitle = "Cirrus"\nbackend = "cpu"\ngfx = []\n'
        'status = "documented"\nsource = "test"\n'
    )
    line = ["matrix table --site cir"]
    assert complete(line, tmp_path, MATRIX_SITE=str(own)) == [["cirrus"]]
    own.write_text("schema = 1\n[[nothing]]\n")
    assert complete(line, tmp_path, MATRIX_SITE=str(own)) == [[""]]


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_valid(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    checked = subprocess.run([program, "-n", script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


STEPS = {
    "bash": 'eval "$(matrix completion bash)"; COMP_LINE="matrix table --site fron"; '
    "COMP_POINT=${#COMP_LINE}; "
    "COMP_TYPE=9; _python_argcomplete matrix; echo ${COMPREPLY[@]}",
    "fish": "matrix completion fish | source; complete -C 'matrix table --site fron'",
}


@pytest.mark.parametrize("shell", STEPS)
def test_shells_complete_a_site(shell: str, tmp_path: Path) -> None:
    """The shell itself runs the function that the script registers."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    program = tmp_path / "matrix"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m matrix "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([shell, "-c", STEPS[shell]], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["frontier"]
