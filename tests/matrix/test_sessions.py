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
from typing import TYPE_CHECKING

import pytest

from builders.building.task_state import TaskState
from builders.findings import Finding
from matrix.api import write_lock
from matrix.cli import main
from matrix.commands import build_wheels
from matrix.show.progress import Board, Display, Plain, Tasks
from tests.support.locks import built_pick, lock_of
from tests.support.progress import COMPILE, LOG, SCREENS, Clock, Terminal, terminal_of, three_builds
from tests.support.tiny import tiny_wheel

if TYPE_CHECKING:
    from matrix.command_line.context import Context

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
    monkeypatch.setattr("builders.machine.cluster.cores", lambda: 16)
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


@pytest.mark.parametrize(("columns", "lines"), SCREENS)
def test_explanation_fits_a_screen(columns: int, lines: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out is counted, and the last line names the command that shows it."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["resolve", *EIGHT, "--site", "lumi-g", "--date", "2026-06-01", "--offline", "-q"]) == 0
    for name in ("torch", "rocm", "base-image", "python", "apex", "flash-attn", "torch==2.10.0"):
        stream = Tty()
        for output in ("stdout", "stderr"):
            monkeypatch.setattr(sys, output, stream)
        assert main(["explain", name]) == 0
        shown = stream.getvalue().splitlines()
        assert len(shown) < lines, name
        assert {"Not chosen"} <= set(shown), name
        assert shown[0] == "Not chosen" or shown[0].startswith(f"{name} ")
        assert shown[-1].endswith(f"`matrix explain {name.partition('=')[0]} -v`")


@pytest.mark.parametrize("size", SCREENS)
def test_build_fits_a_screen(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """STAND-IN for the builds: reports of three. At each moment, everything since the command is shown."""
    terminal, clock = terminal_of(size, monkeypatch), Clock()
    frames: list[list[str]] = []
    names = {"torch-scatter": "2.1.2", "deepspeed": "0.19.8", "apex": "1.9.0"}
    wheels = [TaskState(key=key, name=key, version=names[key], state="to build", why="new") for key in names]

    def build(_: object, states: list[TaskState], __: object, context: Context) -> int:
        frames.extend([*terminal.shown] for _ in three_builds(context.console.display, clock))
        for wheel, state, why in zip(
            states, ("failed", "built", "skipped"), ("it broke", "", "it requires torch-scatter"), strict=True
        ):
            wheel.state, wheel.why = state, why  # type: ignore[assignment]
        return 1

    monkeypatch.setattr(build_wheels, "planned_wheels", lambda *_: ([], wheels))
    monkeypatch.setattr(build_wheels, "build_missing", build)
    monkeypatch.setattr("matrix.show.progress.Tasks", lambda: Tasks(clock))
    write_lock(lock_of(built_pick("deepspeed", wheel_version="0.19.8")))
    assert main(["build-wheels"]) == 1
    assert not terminal.screen.history.top
    for frame in frames:
        assert frame[0].startswith("3 to build")
    assert any("21/40" in line for line in frames[1])
    assert f"  log: {LOG}" in frames[1]
    assert frames[1][-1].endswith("at least 59 s left")
    end = terminal.shown.index("1 built; 1 failed; 1 skipped")
    assert terminal.shown[end : end + 4] == [
        "1 built; 1 failed; 1 skipped",
        "  torch-scatter 2.1.2  failed",
        "  deepspeed 0.19.8  built",
        "  apex 1.9.0  skipped: it requires torch-scatter",
    ]


REQUIREMENTS = """\
torch==2.1.2
numpy==1.23.5
transformers==4.40.0
accelerate==0.30.1
deepspeed==0.14.0
flash-attn==2.5.8
xformers==0.0.26
bitsandbytes==0.43.1
"""
ERRORS = """\
RuntimeError: HIP error: out of memory
ImportError: libcxi.so.1: cannot open shared object file
ModuleNotFoundError: No module named 'packaging'
hipErrorNoBinaryForGpu: Unable to find code object for all current devices!
"""
WHY = "Files that are not in the cache cannot be downloaded from here."
FETCH = "Run `matrix farm fetch` with network access and the same XDG_CACHE_HOME, then build with --offline."
MACHINE = [
    Finding(f"network-{name}", "warning", f"https://{name}.example/simple/ does not respond. {WHY}", FETCH)
    for name in ("torch", "git", "sdists")
] + [Finding(f"disk-{name}", "info", f"72 GiB free for /scratch/project/{name}") for name in "abcdefghi"]


@pytest.mark.parametrize("size", SCREENS)
@pytest.mark.parametrize("kind", ["requirements", "log", "wheel", "machine"])
def test_check_fits_a_screen(
    kind: str, size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The verdict is in the first line, and what to do is whole."""
    terminal = terminal_of(size, monkeypatch)
    options = ["--offline", "--progress", "none", "--site", "lumi-g", "--date", "2026-11-20"]
    things = {"requirements": ("r.txt", REQUIREMENTS), "log": ("l.txt", ERRORS)}
    if kind in things:
        name, text = things[kind]
        Path(name).write_text(text)
        assert main(["check", name, *options]) == 1
    elif kind == "wheel":
        wheel = tiny_wheel(tmp_path, "tiny", "1.0", requires=["torch==2.9.1"])
        assert main(["check", wheel.name, *options]) == 0
    else:
        monkeypatch.setattr("matrix.judging.machine.check_machine", lambda *_: MACHINE)
        assert main(["check", *options]) == 0
    assert not terminal.screen.history.top
    whole = " ".join(terminal.shown)
    first, words = {
        "requirements": ("r.txt ", ["torch 2.1.2 -> ", "--repair -o DIR", "r.txt:5,6,7: error:"]),
        "log": ("l.txt: ", ["What to do: Reduce the batch size", "Also: The container does not see"]),
        "wheel": ("tiny-1.0-py3-none-any.whl fits lumi-g", ["wheel pack"]),
        "machine": ("3 warnings, ", [FETCH, " more: -v"]),
    }[kind]
    assert terminal.shown[0].startswith(first)
    squeezed = " ".join(whole.split())
    assert [word for word in words if word not in squeezed] == []
