"""What a command may import and compute, in modules and instructions, not in time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from matrix.cli import main

MODULES = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
RUN = f"{MODULES}from matrix.__main__ import main; main()"
OFFLINE = ["--no-lock", "-q", "--offline"]
HEAVY = {"auditwheel", "elftools", "networkx", "requests", "rich"}
BUDGETS = {
    "version": (["--version"], 2, 2),
    "help": (["--help"], 2, 2),
    "resolve": (["resolve", "torch", "apex", "deepspeed", *OFFLINE], 76, 13),
    "explain": (["explain", "torch"], 82, 16),
    "check": (["check", "requirements.txt"], 200, 31),
}
"""Our own modules, and instructions in those of a bare interpreter."""
OURS = {"matrix", "builders", "resolver"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a lock and a warm cache."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "simple").mkdir()
    (folder / "requirements.txt").write_text("torch==2.9.1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, text in environment(folder).items():
            patch.setenv(name, text)
        assert main(["resolve", "torch", "apex", "--date", "2026-03-01", "--python", "3.12", "-q"]) == 0
    modules(folder, RUN, ["catalog", "list"])  # compiles the catalog, which this process has already
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a command whose modules are compiled."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PIP_INDEX_URL": (folder / "simple").as_uri(),
        "PYTHONHASHSEED": "0",
    }


def modules(folder: Path, code: str, arguments: list[str]) -> set[str]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=60, check=True
    )
    return {*done.stderr.splitlines()[-1].split()}


def instructions(folder: Path, arguments: list[str]) -> int:
    """Count the instructions of Python with these arguments."""
    valgrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run(
        [*valgrind, sys.executable, *arguments],
        cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    return int(re.findall(r"I\s+refs:\s+([\d,]+)", done.stderr)[-1].replace(",", ""))


@pytest.mark.parametrize("name", BUDGETS)
def test_commands_import_only_what_they_use(name: str, project: Path) -> None:
    arguments, most, _ = BUDGETS[name]
    used = modules(project, RUN, arguments)
    assert not HEAVY & used
    ours = {module for module in used if module.partition(".")[0] in OURS}
    assert len(ours) <= most, sorted(ours)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
@pytest.mark.parametrize("name", BUDGETS)
def test_commands_compute_little(name: str, project: Path) -> None:
    arguments, _, most = BUDGETS[name]
    for warm in (["-m", "matrix", *arguments], ["-c", "pass"]):  # compiles modules
        subprocess.run(
            [sys.executable, *warm], cwd=project, env=environment(project), capture_output=True, check=False
        )
    ratio = instructions(project, ["-m", "matrix", *arguments]) / instructions(project, ["-c", "pass"])
    sys.stdout.write(f"{name}: {ratio:.1f}\n")
    assert ratio <= most
