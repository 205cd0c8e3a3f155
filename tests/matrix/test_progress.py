"""The output of the progress displays, with a simulated clock and an emulated terminal."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import suppress

import pytest

from matrix.show.progress import Board, Display, JsonLines, Mode, Plain, Tasks, display
from tests.support.progress import LOG, Clock, Terminal, three_builds

HEARTBEAT = (
    "torch-scatter 2.1.2 (compile with 2 jobs, 21/40, 1:00, 59 s left), deepspeed 0.19.8 (prepare the build "
    "environment, 1:05, 55 s left); 0 of 3 done, 2 running, 1 waiting; at least 59 s left"
)


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def board_on(terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Board:
    board = Board(Tasks(clock), terminal)
    monkeypatch.setattr(board, "_size", lambda: (terminal.columns, terminal.lines))
    return board


@pytest.fixture
def board(terminal: Terminal, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Board:
    return board_on(terminal, clock, monkeypatch)


def test_board_shows_each_task(board: Board, terminal: Terminal, clock: Clock) -> None:
    builds = three_builds(board, clock)
    next(builds)
    assert terminal.shown == [
        "▶ torch-scatter 2.1.2  0:00, 4 min left      compile with 2 jobs",
        f"  log: {LOG}",
        "▶ deepspeed 0.19.8     0:05, 2 min left      prepare the build environment",
        "· apex 1.9.0                                 after torch-scatter 2.1.2",
        "0 of 3 done, 2 running, 1 waiting; at least 4 min left",
    ]
    next(builds)
    assert terminal.shown == [
        "▶ torch-scatter 2.1.2  1:00, 59 s left  21/40  1.8 GiB  compile with 2 jobs",
        f"  log: {LOG}",
        "▶ deepspeed 0.19.8     1:05, 55 s left         0.2 GiB  prepare the build envi…",
        "· apex 1.9.0                                            after torch-scatter 2.…",
        "0 of 3 done, 2 running, 1 waiting; at least 59 s left",
    ]
    next(builds)
    assert terminal.shown[0] == "✓ deepspeed 0.19.8  done in 80 s"
    next(builds)
    assert terminal.shown == [
        "✓ deepspeed 0.19.8  done in 80 s",
        "✗ torch-scatter 2.1.2  failed after 2 min; last step: compile with 2 jobs",
        f"  log: {LOG}",
    ]


def first_build(shown: Display, clock: Clock, log: str) -> Iterator[None]:
    """Report the build of a package that was never built here; yield at moments to check the display."""
    shown.progress("apex 1.9.0", state="waiting", expected=14400, share=1.0)
    shown.progress("apex 1.9.0", state="running")
    shown.step("fetch apex-1.9.0.tar.gz", "apex 1.9.0")
    clock.now = 3
    shown.progress("apex 1.9.0", done=2**20, total=4 * 2**20, unit="bytes")
    yield
    clock.now = 30
    shown.step(f"compile with 8 jobs\nlog: {log}", "apex 1.9.0")
    clock.now = 40
    shown.progress("apex 1.9.0", memory=2.1, file="multi_tensor_adam.hip", done=1.0, total=32.0, unit="")
    yield
    clock.now = 7230
    shown.progress("apex 1.9.0", file="", done=11.0)
    yield
    clock.now = 7300
    shown.step("check", "apex 1.9.0")
    clock.now = 7301
    shown.tick()
    yield


@pytest.mark.parametrize("length", [60, 73, 93, 300])
@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (100, 30)])
def test_board_of_a_first_build(
    columns: int, lines: int, length: int, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(columns, lines)
    log = f"/{'x' * (length - 5)}.log"
    frames = first_build(board_on(terminal, clock, monkeypatch), clock, log)
    next(frames)
    assert terminal.shown == ["▶ apex 1.9.0  0:03, 4.0 h left  1/4 MiB    fetch apex-1.9.0.tar.gz"]
    next(frames)
    first, *path = terminal.shown
    assert first == "▶ apex 1.9.0  0:10, 4.0 h left  1/32  2.1 GiB  multi_tensor_adam.hip"
    assert "".join(path) == f"  log: {log}"  # the terminal wraps it
    next(frames)
    first, *path = terminal.shown
    assert first == "▶ apex 1.9.0  2:00:00, 4.2 h left  11/32  2.1 GiB  compile with 8 jobs"
    assert "".join(path) == f"  log: {log}"
    next(frames)
    assert terminal.shown == ["▶ apex 1.9.0  0:01, 2.0 h left    2.1 GiB  check"]
    assert not terminal.screen.history.top


def test_logs_leave_room_for_running_tasks(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(80, 10)
    board = board_on(terminal, clock, monkeypatch)
    for number in range(9):
        board.progress(f"wheel {number}", state="running" if number < 5 else "waiting")
        board.step(f"compile\nlog: /logs/{number}", f"wheel {number}")
    clock.now = 2
    board.tick()
    assert [line.split()[-1] for line in terminal.shown[:-1]] == [
        "compile", "/logs/0", "compile", "/logs/1", "compile", "compile", "compile"
    ]  # fmt: skip
    assert not terminal.screen.history.top


@pytest.mark.parametrize("columns", [60, 120])
def test_board_fits_the_width(columns: int, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(columns)
    board = board_on(terminal, clock, monkeypatch)
    builds = three_builds(board, clock)
    next(builds)
    next(builds)
    assert len(terminal.shown) == 5
    assert "torch-scatter 2.1.2  1:00, 59 s left  21/40  " in terminal.shown[0]
    assert ("1.8 GiB" in terminal.shown[0]) == (columns > 60)


def test_board_writes_few_bytes(board: Board, terminal: Terminal, clock: Clock) -> None:
    builds = three_builds(board, clock)
    next(builds)
    terminal.writes.clear()
    next(builds)
    assert sum(map(len, terminal.writes)) < 60 * 250
    assert len(terminal.writes) <= 2 * 60


def test_board_is_not_drawn_for_less_than_a_second(board: Board, terminal: Terminal, clock: Clock) -> None:
    with board.task("resolve"):
        clock.now = 0.9
        board.progress(done=12, unit="replies")
        board.tick()
    assert "".join(terminal.writes) == ""


def test_board_is_removed_when_nothing_runs(board: Board, terminal: Terminal, clock: Clock) -> None:
    with board.task("resolve"):
        clock.now = 1.5
        board.progress(done=12, unit="replies")
        assert terminal.shown == ["▶ resolve  0:01  12 replies"]
    assert terminal.shown == []


def test_board_is_removed_after_interrupt(board: Board, terminal: Terminal, clock: Clock) -> None:
    with suppress(KeyboardInterrupt), board.task("fetch"):
        clock.now = 3
        board.tick()
        assert terminal.shown
        raise KeyboardInterrupt
    assert terminal.shown == []


def test_board_is_removed_after_the_terminal_shows_ctrl_c(
    board: Board, terminal: Terminal, clock: Clock
) -> None:
    with suppress(KeyboardInterrupt), board.task("compile"):
        board.step("x" * 100)
        clock.now = 3
        board.tick()
        terminal.stream.feed("^C")
        raise KeyboardInterrupt
    assert terminal.shown == []


def test_messages_are_above_the_board(board: Board, terminal: Terminal, clock: Clock) -> None:
    board.progress("a 1.0", state="running")
    clock.now = 2
    board.tick()
    with board.cleared():
        terminal.write("warning: old\n")
    clock.now = 3
    board.tick()
    assert terminal.shown == ["warning: old", "▶ a 1.0  0:03"]


def test_board_keeps_to_the_height(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(80, 10)
    board = board_on(terminal, clock, monkeypatch)
    for number in range(30):
        board.progress(f"wheel {number}", state="running" if number < 3 else "waiting")
    clock.now = 2
    board.tick()
    clock.now = 3
    board.tick()
    assert len(terminal.shown) == 8
    assert terminal.shown[0].startswith("▶ wheel 0")
    assert terminal.shown[-1] == "0 of 30 done, 3 running, 27 waiting"
    assert not terminal.screen.history.top


def test_narrower_terminal_leaves_no_rest(board: Board, terminal: Terminal, clock: Clock) -> None:
    board.progress("a 1.0", state="running")
    board.step("x" * 100, "a 1.0")
    clock.now = 2
    board.tick()
    terminal.screen.resize(24, 40)  # pyte cuts lines off, like terminals that do not wrap them again
    terminal.columns = 40
    clock.now = 3
    board.tick()
    assert terminal.shown == ["▶ a 1.0  0:03    xxxxxxxxxxxxxxxxxxxxx…"]


def test_board_in_ascii(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(60, encoding="ascii")
    board = board_on(terminal, clock, monkeypatch)
    for _ in three_builds(board, clock):
        pass
    assert "".join(terminal.writes).isascii()
    assert "ok deepspeed 0.19.8  done in 80 s" in terminal.shown


def test_plain_writes_a_line_per_event(terminal: Terminal, clock: Clock) -> None:
    shown = Plain(Tasks(clock), terminal)
    for _ in three_builds(shown, clock):
        pass
    text = "".join(terminal.writes)
    assert text.splitlines() == [
        "      0.0 s  torch-scatter 2.1.2 (about 4 min): fetch torch_scatter-2.1.2.tar.gz",
        "      0.0 s  deepspeed 0.19.8 (about 2 min): prepare the build environment",
        "      5.0 s  torch-scatter 2.1.2: compile with 2 jobs",
        f"             log: {LOG}",
        f"     65.0 s  running: {HEARTBEAT}",
        "     80.0 s  deepspeed 0.19.8: done in 80 s",
        "    120.0 s  torch-scatter 2.1.2: failed after 2 min; last step: compile with 2 jobs",
        f"             log: {LOG}",
    ]


def test_heartbeat_comes_every_minute(terminal: Terminal, clock: Clock) -> None:
    shown = Plain(Tasks(clock), terminal)
    shown.progress("a 1.0", state="running")
    shown.step("compile", "a 1.0")
    for half_second in range(1, 400):
        clock.now = half_second / 2
        shown.tick()
    times = [float(line.split()[0]) for line in "".join(terminal.writes).splitlines()]
    assert times == [0, 60, 120, 180]


def test_plain_names_a_task_without_steps_after_a_second(terminal: Terminal, clock: Clock) -> None:
    shown = Plain(Tasks(clock), terminal)
    with shown.task("resolve"):
        clock.now = 0.5
        shown.progress(done=1, unit="replies")
    with shown.task("resolve"):
        clock.now = 2
        shown.progress(done=2, unit="replies")
    assert "".join(terminal.writes) == "      2.0 s  resolve\n"


def test_json_lines(terminal: Terminal, clock: Clock) -> None:
    shown = JsonLines(Tasks(clock), terminal)
    builds = three_builds(shown, clock)
    next(builds)
    next(builds)
    events = [json.loads(line) for line in "".join(terminal.writes).splitlines()]
    assert {event["schema"] for event in events} == {1}
    assert events[0] == {
        "schema": 1,
        "event": "progress",
        "seconds": 0,
        "task": "torch-scatter 2.1.2",
        "state": "waiting",
        "elapsed": 0,
        "expected": 240,
        "remaining": 240,
        "remaining_is_least": False,
    }
    assert events[-2] == {
        "schema": 1,
        "event": "progress",
        "seconds": 65,
        "task": "torch-scatter 2.1.2",
        "state": "running",
        "elapsed": 65,
        "step_elapsed": 60,
        "expected": 240,
        "done": 21,
        "total": 40,
        "memory_gib": 1.84,
        "remaining": 59.0,
        "remaining_is_least": True,
    }
    assert shown.message("error", "No space left.", "Free some.")
    assert json.loads(terminal.writes[-1]) == {
        "schema": 1,
        "event": "error",
        "seconds": 65,
        "message": "No space left.",
        "hint": "Free some.",
    }


def test_json_lines_are_few(terminal: Terminal, clock: Clock) -> None:
    shown = JsonLines(Tasks(clock), terminal)
    shown.progress("fetch", state="running")
    for number in range(100):
        clock.now = number / 50
        shown.progress(done=number, total=100, unit="bytes")
    assert len(terminal.writes) == 2


def test_rest_is_estimated_from_what_was_counted() -> None:
    clock = Clock()
    tasks = Tasks(clock)
    tasks.change("a", {"state": "running", "expected": 1000})
    clock.now = 100
    assert tasks.remaining() == (900, False)
    tasks.change("a", {"done": 20, "total": 100})  # of objects that an earlier run left
    clock.now = 110
    tasks.change("a", {"done": 40, "total": 100})
    assert tasks.remaining() == (30, False)


def test_download_of_a_build_does_not_predict_its_end() -> None:
    clock = Clock()
    tasks = Tasks(clock)
    tasks.change("a", {"state": "running", "expected": 1000, "total": 100, "unit": "bytes"})
    clock.now = 10
    tasks.change("a", {"done": 90, "total": 100, "unit": "bytes"})
    assert tasks.remaining() == (990, False)


def test_rest_is_the_longest_chain_or_the_work() -> None:
    clock = Clock(10)
    tasks = Tasks(clock)
    tasks.change("a", {"state": "running", "expected": 100, "share": 0.25})
    tasks.change("b", {"state": "waiting", "expected": 50, "after": ["a"], "share": 0.25})
    assert tasks.remaining() == (150, False)
    for name in "cdefgh":
        tasks.change(name, {"state": "waiting", "expected": 100, "share": 0.5})
    clock.now += 10
    assert tasks.remaining() == (90 * 0.25 + 50 * 0.25 + 300, False)
    tasks.change("c", {"expected": 0})
    clock.now += 1
    assert tasks.remaining() == (89 * 0.25 + 50 * 0.25 + 250, True)


def test_bytes_share_a_unit() -> None:
    tasks = Tasks(Clock())
    changed = tasks.change("fetch", {"state": "running", "done": 2**29, "total": 3 * 2**30, "unit": "bytes"})
    assert changed is not None
    assert changed[0].amount == "0.5/3.0 GiB"


@pytest.mark.parametrize(
    ("mode", "term", "is_terminal", "expected"),
    [
        ("auto", "xterm", True, Board),
        ("auto", "dumb", True, Plain),
        ("auto", "xterm", False, Plain),
        ("board", "xterm", False, Board),
        ("board", "dumb", True, Plain),
        ("plain", "xterm", True, Plain),
        ("json", "dumb", False, JsonLines),
        ("none", "xterm", True, Display),
    ],
)
def test_mode_chooses_display(
    mode: Mode, term: str, is_terminal: bool, expected: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    stream = Terminal() if is_terminal else io.StringIO()
    assert type(display(mode, stream)) is expected
    assert type(display(mode, None)) is Display
    assert type(display(mode, stream, quiet=True)) is (JsonLines if mode == "json" else Display)
