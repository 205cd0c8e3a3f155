"""Real builds on an emulated terminal and in a log file: the display during the builds, and its end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.projects import rows_of, write_catalog, write_sdist
from tests.support.terminal import Session, run_on_terminal

pytestmark = [pytest.mark.integration, pytest.mark.long]

SETUP = """
import subprocess, sys
from setuptools import setup
if "bdist_wheel" in sys.argv:
    with open("build.ninja", "w") as file:
        print("rule run\\n  command = " + sys.executable + " -c 'import time; time.sleep(0.3)'", file=file)
        for number in range({edges}):
            print(f"build o{{number}}: run", file=file)
    subprocess.run(["ninja", "-v", "-j", "1"], check=True)
    if {fails}:
        sys.exit("error: this source does not build")
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""
PROJECTS = {"slow": (12, False), "alpha": (1, False), "beta": (2, False), "broken": (1, True)}
"""Maps each name to the number of ninja's edges, and to whether the build fails at its end."""


@dataclass(frozen=True)
class Work:
    """A directory with a catalog of projects that ninja builds."""

    root: Path

    def command(self, *names: str, index: str) -> list[str]:
        return [sys.executable, "-m", "matrix", "build-wheels", *names, "--index", index, "--keep-going"]

    def environment(self, **more: str) -> dict[str, str]:
        variables = {"XDG_CACHE_HOME": str(self.root / "cache"), "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        return {**os.environ, **variables, **more}

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            check=False,
            cwd=self.root,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )

    def session(self, *names: str, index: str, columns: int = 80, **more: str) -> Session:
        command = self.command(*names, index=index)
        return run_on_terminal(command, columns=columns, cwd=self.root, env=self.environment(**more))


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Work:
    root = tmp_path_factory.mktemp("sessions")
    rows = [_pack(name, root / "cache" / "matrix", *how) for name, how in PROJECTS.items()]
    write_catalog(root / "catalog" / "projects.toml", rows)
    work = Work(root)
    options = ["--backend", "cpu", "--catalog", "catalog"]
    done = work.run([sys.executable, "-m", "matrix", "resolve", *PROJECTS, *options])
    assert done.returncode == 0, done.stderr
    return work


def _pack(name: str, cache: Path, edges: int, fails: bool) -> dict[str, dict[str, object]]:
    files = {"setup.py": SETUP.format(name=name, edges=edges, fails=fails), f"{name}.py": ""}
    required = ["setuptools", "wheel", "ninja"]
    return rows_of(name, write_sdist(cache, name, files), required, imports=[name])


def test_board_shows_three_builds_and_a_failure(work: Work) -> None:
    session = work.session("slow", "alpha", "broken", index="first")
    frames = "\n".join(session.frames)
    assert session.code == 1
    row = r"^▶ slow 1\.0 +\d:\d\d(?:, \d+ s left)? +\d+/12 +\d\.\d GiB  compile"
    assert re.search(row, frames, re.MULTILINE), frames
    assert re.search(r"^\d of 3 done, \d running", frames, re.MULTILINE)
    for line in (r"✓ slow 1\.0  done in ", r"✓ alpha 1\.0  done in ", r"✗ broken 1\.0  failed after "):
        assert len(re.findall(f"^{line}", session.text, re.MULTILINE)) == 1, session.text
    assert "▶" not in session.text
    assert "Traceback" not in session.text
    assert len(session.output) < 60_000


def test_interrupt_leaves_a_clean_terminal_and_the_next_run_continues(work: Work) -> None:
    session = run_on_terminal(
        work.command("slow", index="second"),
        columns=60,
        cwd=work.root,
        env=work.environment(NO_COLOR="1"),
        interrupt_when=lambda frame: re.search(r"[3-9]/12", frame) is not None,
    )
    assert session.code == 130, session.text
    assert "▶" not in session.text
    assert "Interrupted." in session.text
    assert not session.screen.cursor.hidden
    assert re.search(rb"\x1b\[[0-9;]*m", session.output) is None
    done = work.run([*work.command("slow", index="second"), "--progress", "json"])
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines()]
    assert {event["schema"] for event in events} == {1}
    progress = [event for event in events if event["event"] == "progress" and event["task"] == "slow 1.0"]
    assert progress[-1]["state"] == "done"


def test_log_file_has_a_line_per_event(work: Work) -> None:
    done = work.run(work.command("beta", "broken", index="third"))
    assert done.returncode == 1
    assert "\x1b" not in done.stderr
    steps = re.findall(r"^ +\d+\.\d s  (.*?): (\w+)", done.stderr, re.MULTILINE)
    words = [word for task, word in steps if task.startswith("beta 1.0")]
    assert words[0] == "fetch"
    assert words[-4:] == ["compile", "check", "publish", "done"]
    assert ("broken 1.0", "failed") in steps
