"""Recorded terminal sessions: the files in ``sessions/``.

``MATRIX_RECORD=1`` rewrites them. Check them before you commit them.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.show.progress import Board, Display, Plain, Tasks
from tests.support.progress import COMPILE, Clock, Terminal, three_builds

FOLDER = Path(__file__).with_name("sessions")
COMMANDS = {
    "resolve": (["apex", "deepspeed", "flash-attn", "--site", "lumi-g", "--date", "2025-06-01"], 0),
    "conflict": (["apex", "rocm==7.1.*", "--site", "lumi-g", "--date", "2026-02-01"], 1),
}
SIZES = [(80, 24), (120, 40), (60, 24)]


class Tty(io.StringIO):
    """A terminal that keeps all output."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def compare(name: str, text: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("MATRIX_RECORD"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), "if this is better, record it: MATRIX_RECORD=1"


def session(command: str, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, *options: str) -> str:
    arguments, code = COMMANDS[command]
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    assert main(["resolve", *arguments, "--offline", "--progress", "none", *options]) == code
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("builders.machine.host.cores", lambda: 16)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LC_ALL", "LANG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("columns", [columns for columns, _ in SIZES])
@pytest.mark.parametrize("command", COMMANDS)
def test_session_without_colour(command: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    text = session(command, Tty(), monkeypatch)
    compare(f"{command}-{columns}", text)


@pytest.mark.parametrize("command", COMMANDS)
def test_session_in_pipe(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare(f"{command}-piped", session(command, io.StringIO(), monkeypatch))


def test_session_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = session("resolve", Tty(), monkeypatch)
    compare("resolve-colour", text.replace("\x1b", "ESC"))


def resumed_build(shown: Display, clock: Clock) -> Iterator[None]:
    """Report a build that continues after an interruption: one wheel is published, another half compiled."""
    shown.progress("torch-scatter 2.1.2", state="waiting", expected=240, share=0.5)
    shown.progress("apex 1.9.0", state="waiting", after=["torch-scatter 2.1.2"], share=0.5)
    shown.progress("torch-scatter 2.1.2", state="running")
    shown.step("continue an interrupted build: 20 commands already finished", "torch-scatter 2.1.2")
    clock.now = 2
    shown.step(COMPILE, "torch-scatter 2.1.2")
    for second in range(3, 64):
        clock.now = second
        shown.progress("torch-scatter 2.1.2", memory=1.2, done=20 + second // 4, total=40)
    yield
    clock.now = 90
    shown.progress("torch-scatter 2.1.2", state="done")
    shown.progress("apex 1.9.0", state="running")
    shown.step("prepare the build environment", "apex 1.9.0")
    clock.now = 95
    shown.progress("apex 1.9.0", memory=0.3)
    yield
    clock.now = 150
    shown.progress("apex 1.9.0", state="done")
    yield


BUILDS = {"build": three_builds, "resumed": resumed_build}


@pytest.mark.parametrize(("columns", "lines"), SIZES)
@pytest.mark.parametrize("build", BUILDS)
def test_board_of_build(build: str, columns: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, terminal = Clock(), Terminal(columns, lines)
    board = Board(Tasks(clock), terminal)
    monkeypatch.setattr(board, "_size", lambda: (columns, lines))
    moments = ["\n".join(terminal.shown) for _ in BUILDS[build](board, clock)]
    compare(f"{build}-{columns}x{lines}", "\n\n".join(moments) + "\n")


@pytest.mark.parametrize("build", BUILDS)
def test_log_of_build(build: str) -> None:
    clock, log = Clock(), io.StringIO()
    for _ in BUILDS[build](Plain(Tasks(clock), log), clock):
        pass
    compare(f"{build}-log", log.getvalue())


SCREENS = [(80, 24), (100, 30)]
EIGHT = [
    "torch",
    "apex",
    "deepspeed",
    "flash-attn[triton]",
    "bitsandbytes",
    "torchvision",
    "mamba-ssm",
    "causal-conv1d",
]


@pytest.mark.parametrize(("columns", "lines"), SCREENS)
@pytest.mark.parametrize(
    "words", [EIGHT, EIGHT[:5], ["apex", "rocm==7.1.*"]], ids=["eight", "five", "conflict"]
)
def test_answer_fits_a_screen(
    words: list[str], columns: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Tty()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, stream)
    arguments = [*words, "--site", "lumi-g", "--date", "2026-06-01", "--offline", "--progress", "none"]
    code = main(["resolve", *arguments])
    shown = stream.getvalue().splitlines()
    assert shown[0].startswith("There is no resolution." if code else "Resolved ")
    assert len(shown) < lines
    assert max(map(len, shown)) <= columns or code
    assert shown[-1].startswith("All sources" if code else "Next: `matrix build-container")
    ids = [
        re.search(r" \[([a-z0-9-]+)\]$", line) for line in shown if line.startswith(("warning: ", "note: "))
    ]
    for found in ids:
        assert found
        assert main(["explain", found[1]]) == 0
