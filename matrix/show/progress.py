"""Show the progress of everything that takes longer than a second, on stderr.

A terminal gets a board, which is redrawn in place; a log file gets a line per event. The displays run no
threads while builds run, because builds are forked. Instead, the builds report every second.
"""

from __future__ import annotations

import io
import math
import os
import re
import threading
import time
from contextlib import contextmanager, suppress
from graphlib import CycleError, TopologicalSorter
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

import msgspec

from matrix.show.render import PLAIN, Screen, duration, encoding_of, uses_ascii

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import TextIO, Unpack

    from rich.table import Table

    from resolver.reporter import Phase, Progress

Mode = Literal["auto", "board", "plain", "json", "none"]
_SHOWN_AFTER = 1.0
"""Seconds that a task must run before it is shown."""
_HEARTBEAT = 60.0
"""Maximum number of seconds without output while something runs."""
_REDRAW = 0.5
"""Minimum number of seconds between two updates of the board."""
_TICK = 0.5
_MOST_ROWS = 20
_NARROW = 70
"""Columns below which the board leaves out the memory."""
_FEW = 0.05
"""Fraction of the work that must be done before the remaining time is estimated from it."""
_ENDED = {"done", "failed", "skipped"}
_CURSOR = r"\x1b\[[0-9;]*[A-Za-z]"


class TaskRow(msgspec.Struct):
    """The state of a task."""

    name: str
    state: Phase = "waiting"
    step: str = ""
    details: str = ""
    """Lines of the current step that are shown whole, such as the path of its log."""
    file: str = ""
    """The file that it compiles now."""
    expected: float = 0.0
    done: float = 0.0
    total: float = 0.0
    unit: str = ""
    memory: float = 0.0
    after: Collection[str] = ()
    share: float = 0.0
    is_listed: bool = True
    """Whether a line reports its end. Tasks of the command itself are not listed: the result is printed."""
    started: float | None = None
    step_started: float = 0.0
    ended: float | None = None
    counted_from: tuple[float, float] = (0.0, 0.0)
    """The time and the amount when the current step was first counted."""
    is_announced: bool = False
    """Whether a line has already named the task."""
    written: float = -math.inf
    """When its last JSON event was written."""

    def elapsed(self, now: float) -> float:
        """Return the seconds that the task has run."""
        return 0.0 if self.started is None else (self.ended or now) - self.started

    def remaining(self, now: float) -> float | None:
        """Return the seconds that the task will probably still take; None if unknown."""
        if self.state in _ENDED:
            return 0.0
        since, before = self.counted_from
        is_whole = not self.is_listed or self.unit != "bytes"  # a build does more than its download
        if is_whole and self.total > 0 and self.done - before > _FEW * self.total:
            return (now - since) * (self.total - self.done) / (self.done - before)
        rest = self.expected - self.elapsed(now)
        return rest if rest > 0 else None

    @property
    def amount(self) -> str:
        """How much of the current step is done; empty if unknown."""
        if self.unit == "bytes":
            return _bytes(self.done, self.total)
        if self.unit == "%":
            return f"{self.done:.0f} %"
        if self.total:
            return f"{self.done:.0f}/{self.total:.0f}"
        return f"{self.done:.0f} {self.unit}".rstrip() if self.done else ""


def _bytes(done: float, total: float) -> str:
    if not done and not total:
        return ""
    exponent, unit = next(
        ((power, unit) for power, unit in ((30, "GiB"), (20, "MiB")) if max(done, total) >= 2**power),
        (10, "KiB"),
    )
    digits = 1 if unit == "GiB" else 0
    shown = f"{done / 2**exponent:.{digits}f}"
    return f"{shown}/{total / 2**exponent:.{digits}f} {unit}" if total else f"{shown} {unit}"


class Tasks:
    """All tasks of a command, in the order in which they were first reported."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.rows: dict[str, TaskRow] = {}
        self._remaining: tuple[float, tuple[float, bool] | None] = (-math.inf, None)

    def row(self, name: str) -> TaskRow | None:
        """Return a task; for an empty name, the running task that was started last."""
        if name:
            return self.rows.get(name)
        running = (row for row in reversed(self.rows.values()) if row.state == "running")
        return max(running, key=lambda row: row.started or 0.0, default=None)

    def change(self, name: str, change: Progress) -> tuple[TaskRow, bool] | None:
        """Apply a change, which adds a task if it has a state; return the task and if its state changed."""
        row = self.row(name)
        if row is None and not (name and "state" in change):
            return None
        now = self.clock()
        if row is None or (row.state in _ENDED and change.get("state") in {"waiting", "running"}):
            self.rows.pop(name, None)
            row = self.rows[name] = TaskRow(name)
            before = None
        else:
            before = row.state
        if "total" in change and (change["total"] != row.total or change.get("done", 0.0) < row.done):
            row.counted_from = now, change.get("done", 0.0)
        for key, value in change.items():
            setattr(row, key, value)
        if row.state == "running" and before != "running":
            row.step_started = row.started = now if row.started is None else row.started
        if row.state in _ENDED and row.ended is None:
            row.ended = now
        return row, row.state != before

    def start_step(self, name: str, message: str) -> TaskRow | None:
        """Record that a task has started a step; return the task, if there is one."""
        row = self.row(name)
        if row is not None:
            row.step, _, row.details = message.partition("\n")
            row.step_started = self.clock()
            row.done = row.total = 0.0
            row.unit = row.file = ""
        return row

    def running(self) -> list[TaskRow]:
        """Return the tasks that run, in the order in which they were started."""
        rows = [row for row in self.rows.values() if row.state == "running"]
        return sorted(rows, key=lambda row: row.started or 0.0)

    def visible(self) -> list[TaskRow]:
        """Return the tasks that have run for a second."""
        now = self.clock()
        return [row for row in self.running() if row.elapsed(now) >= _SHOWN_AFTER]

    def listed(self) -> list[TaskRow]:
        """Return the tasks whose end a line reports."""
        return [row for row in self.rows.values() if row.is_listed]

    def count(self, state: Phase) -> int:
        """Return the number of listed tasks with a state."""
        return sum(row.state == state for row in self.listed())

    def remaining(self) -> tuple[float, bool] | None:
        """Return the seconds until all tasks end, and whether that is only a lower bound; None if unknown."""
        now = self.clock()
        if now - self._remaining[0] >= 1.0:  # the estimate takes time
            self._remaining = now, self._estimate(now)
        return self._remaining[1]

    def _estimate(self, now: float) -> tuple[float, bool] | None:
        # The larger of two bounds: the longest chain of tasks that wait for each other, and all work.
        listed = {row.name: row for row in self.listed()}
        left = {name: row.remaining(now) for name, row in listed.items() if row.state not in _ENDED}
        work = sum((seconds or 0.0) * self.rows[name].share for name, seconds in left.items())
        paths: dict[str, float] = {}
        with suppress(CycleError):
            for name in TopologicalSorter({name: self.rows[name].after for name in left}).static_order():
                if name in left:
                    before = (paths.get(other, 0.0) for other in self.rows[name].after)
                    paths[name] = (left[name] or 0.0) + max(before, default=0.0)
        seconds = max(work, *paths.values(), 0.0)
        return (seconds, None in left.values()) if seconds else None


class Display:
    """Show no progress: ``--progress none``. Other text is written to the terminal within `cleared`."""

    def __init__(self, tasks: Tasks, stream: TextIO | None) -> None:
        self.tasks = tasks
        self.started = tasks.clock()
        self._stream = stream
        self._lock = threading.RLock()
        self._ticking = 0
        self._stop = threading.Event()

    def step(self, message: str, task: str = "") -> None:
        """Handle the start of a step."""
        with self._lock:
            self._show_step(self.tasks.start_step(task, message), message)

    def progress(self, task: str = "", **change: Unpack[Progress]) -> None:
        """Handle a change of a task."""
        with self._lock:
            changed = self.tasks.change(task, change)
            if changed is not None:
                self._show_change(*changed)

    @contextmanager
    def task(self, name: str, **change: Unpack[Progress]) -> Iterator[None]:
        """Show a task during a ``with`` block; a thread keeps the elapsed time up to date."""
        self.progress(name, **(change | {"state": "running"}))
        self.tasks.rows[name].is_listed = False
        self._ticking += 1
        if self._ticking == 1 and self._stream is not None:  # else nothing is shown
            self._stop = threading.Event()
            threading.Thread(target=self._tick_until, args=[self._stop], daemon=True).start()
        state: Phase = "failed"
        try:
            yield
            state = "done"
        finally:
            self._ticking -= 1
            if not self._ticking:
                self._stop.set()
            self.progress(name, state=state)

    def message(self, kind: str, message: str, hint: str = "") -> bool:  # noqa: ARG002
        """Write a message, if the display has its own format for messages; return whether it has one."""
        return False

    @contextmanager
    def cleared(self) -> Iterator[None]:
        """Remove the drawing from the terminal while other text is written."""
        with self._lock:
            self._erase()
            yield

    def close(self) -> None:
        """Remove the drawing, and draw no more."""
        self._stop.set()
        with self._lock:
            self._erase()

    def tick(self) -> None:
        """Update the elapsed time."""
        with self._lock:
            self._show_time()

    # Reactions, which differ by display: to a step, to a change of a task, and to the passing of time

    def _show_step(self, row: TaskRow | None, message: str) -> None: ...

    def _show_change(self, row: TaskRow, has_new_state: bool) -> None: ...

    def _show_time(self) -> None: ...

    def _erase(self) -> None: ...

    def _tick_until(self, stop: threading.Event) -> None:
        while not stop.wait(_TICK):
            self.tick()

    def _write(self, text: str) -> None:
        """Write to stderr; text that cannot be written is dropped."""
        if self._stream is None:
            return
        encoding = encoding_of(self._stream)
        with suppress(OSError, ValueError):
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()


class Plain(Display):
    """One line per event, and one at least every minute: for log files, pipes and simple terminals."""

    def __init__(self, tasks: Tasks, stream: TextIO | None) -> None:
        super().__init__(tasks, stream)
        self._last = tasks.clock()

    def _show_step(self, row: TaskRow | None, message: str) -> None:
        self._line(message if row is None else f"{self._named(row)}: {message}")

    def _show_change(self, row: TaskRow, has_new_state: bool) -> None:
        if has_new_state and row.state in {"done", "failed"} and row.is_announced and row.is_listed:
            details = f"\n{row.details}" if row.details and row.state == "failed" else ""
            self._line(f"{row.name}: {_ended(row)}{details}")
        self._show_time()

    def _show_time(self) -> None:
        """Name each task once if it runs longer than a second; write a line after a minute without output."""
        for row in self.tasks.visible():
            if not row.is_announced:
                self._line(self._named(row))
        if self.tasks.clock() - self._last >= _HEARTBEAT and self.tasks.running():
            self._line(summary(self.tasks))

    def _named(self, row: TaskRow) -> str:
        is_first, row.is_announced = not row.is_announced, True
        return f"{row.name} (about {duration(row.expected)})" if is_first and row.expected else row.name

    def _line(self, text: str) -> None:
        now = self.tasks.clock()
        self._last = now
        text = text.replace("\n", "\n" + " " * 13)
        self._write(f"  {now - self.started:7.1f} s  {text}\n")


class JsonLines(Display):
    """One JSON document per event, for programs."""

    def _show_step(self, row: TaskRow | None, message: str) -> None:
        self._event("step", task=row.name if row else None, message=message)

    def _show_change(self, row: TaskRow, has_new_state: bool) -> None:
        """Write a change of state at once, other changes at most once a second."""
        now = self.tasks.clock()
        if not has_new_state and now - row.written < 1.0:
            return
        row.written = now
        remaining = self.tasks.remaining()
        self._event(
            "progress",
            task=row.name,
            state=row.state,
            elapsed=round(row.elapsed(now), 1),
            step_elapsed=round(now - row.step_started, 1) if row.state == "running" else None,
            expected=round(row.expected, 1) or None,
            done=row.done if row.unit or row.total else None,
            total=row.total or None,
            unit=row.unit or None,
            file=row.file or None,
            memory_gib=round(row.memory, 2) or None,
            after=list(row.after) or None,
            remaining=round(remaining[0], 1) if remaining else None,
            remaining_is_least=remaining[1] if remaining else None,
        )

    def message(self, kind: str, message: str, hint: str = "") -> bool:
        """Write a message."""
        with self._lock:
            self._event(kind, message=message.strip(), hint=hint or None)
        return True

    def _event(self, event: str, **fields: object) -> None:
        import json

        seconds = round(self.tasks.clock() - self.started, 1)
        document = {"schema": 1, "event": event, "seconds": seconds}
        document |= {key: value for key, value in fields.items() if value is not None}
        self._write(json.dumps(document) + "\n")


class Board(Display):
    """A table of the tasks that is redrawn in place, and only where it has changed."""

    def __init__(self, tasks: Tasks, stream: TextIO, screen: Screen = PLAIN) -> None:
        super().__init__(tasks, stream)
        self._screen = screen
        self._drawn: list[str] = []
        """The lines on the terminal, the last of which has the cursor at its start."""
        self._last = -math.inf

    def _show_step(self, row: TaskRow | None, message: str) -> None:
        """Write a step that belongs to no task; others are in the table."""
        if row is None:
            with self.cleared():
                self._write(f"{message}\n")
        self._show_time()

    def _show_change(self, row: TaskRow, has_new_state: bool) -> None:
        """Write the end of a task above the table."""
        if has_new_state and row.state in {"done", "failed"} and row.is_listed:
            with self.cleared():
                style = "green" if row.state == "done" else "bold red"
                columns = self._size()[0]
                line = self._screen.styled(style, f"{self._mark(row.state)} {row.name}")
                self._write(Screen(columns, self._screen.has_colour).wrapped(f"{line}  {_ended(row)}") + "\n")
                if row.state == "failed":
                    self._write("".join(f"  {line}\n" for line in row.details.splitlines()))
        if has_new_state and row.state in _ENDED and not self.tasks.running():
            self._erase()
        else:
            self._show_time()

    def _show_time(self) -> None:
        """Draw the table, unless it was drawn just before."""
        now = self.tasks.clock()
        if now - self._last >= _REDRAW and (self._drawn or self.tasks.visible()):
            self._last = now
            self._draw(self._lines())

    def _erase(self) -> None:
        if self._drawn:
            self._write(f"{self._to_first_line(self._size()[0])}\033[J")
            self._drawn = []
            self._last = -math.inf

    def _draw(self, lines: list[str]) -> None:
        """Write the lines that differ from those on the terminal."""
        if lines == self._drawn:
            return
        columns = self._size()[0]
        fits = all(_width(line) < columns for line in [*self._drawn, *lines])
        parts = []
        if self._drawn:
            parts.append(self._to_first_line(columns))
            if not fits or len(lines) < len(self._drawn):
                parts.append("\033[J")
                self._drawn = []
        for number, (line, before) in enumerate(zip_longest(lines, self._drawn)):
            parts.append("\n" if number else "")
            # In a full row it would clear the last character.
            end = "\033[K" if _width(line) < columns else ""
            parts.append(f"\r{line}{end}" if line != before else "")
        self._drawn = lines
        self._write("".join(parts) + "\r")  # at the end of a line, the terminal's ^C would begin a new line

    def _to_first_line(self, columns: int) -> str:
        """Return the codes that move the cursor; a narrower terminal may have wrapped the lines."""
        rows = _height(self._drawn, columns)
        return f"\r\033[{rows - 1}A" if rows > 1 else "\r"

    def _lines(self) -> list[str]:
        columns, height = self._size()
        rows, details = self._rows(columns, max(1, height - 3))
        drawn = io.StringIO()
        console = Screen(columns - 1, self._screen.has_colour).rich(drawn)
        console.print(self._table(columns, rows))
        if len(self.tasks.listed()) > 1:
            console.print(overview(self.tasks), style="dim", no_wrap=True, overflow="ellipsis")
        text = drawn.getvalue()
        if uses_ascii(self._stream, "…"):
            text = text.replace("…", ".")
        lines = []
        for number, line in enumerate(text.splitlines()):
            lines.append(line.rstrip())
            lines += details.get(number, [])
        return lines

    def _rows(self, columns: int, height: int) -> tuple[list[TaskRow], dict[int, list[str]]]:
        """Return the tasks for which there is room, and the lines below each: running tasks come first."""
        running = self.tasks.running()[: min(_MOST_ROWS, height)]
        height -= len(running)
        details = {}
        for number, row in enumerate(running):
            lines = [f"  {line}" for line in row.details.splitlines()]
            needed = _height(lines, columns)
            if needed <= height:
                details[number] = lines
                height -= needed
        waiting = [row for row in self.tasks.rows.values() if row.state == "waiting"]
        return [*running, *waiting[: min(_MOST_ROWS - len(running), height)]], details

    def _table(self, columns: int, rows: Sequence[TaskRow]) -> Table:
        from rich.table import Table
        from rich.text import Text

        now = self.tasks.clock()
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        narrow = columns < _NARROW
        table.add_column(style="bold", no_wrap=True, overflow="ellipsis", max_width=columns * 2 // 5)
        for _ in range(2 if narrow else 3):
            table.add_column(no_wrap=True)
        table.add_column(ratio=1, style="dim", no_wrap=True, overflow="ellipsis")
        for row in rows:
            cells = [f"{self._mark(row.state)} {row.name}", _times(row, now), row.amount]
            if not narrow:
                cells.append(f"{row.memory:.1f} GiB" if row.memory else "")
            what = row.file or row.step or self._reason(row)
            table.add_row(*map(Text, cells), Text(what), style=_STYLES[row.state])
        return table

    def _reason(self, row: TaskRow) -> str:
        rows = (self.tasks.rows.get(name) for name in row.after)
        names = [other.name for other in rows if other is not None and other.state not in _ENDED]
        return f"after {', '.join(names)}" if names and row.state == "waiting" else ""

    def _mark(self, state: str) -> str:
        return (_ASCII_MARKS if uses_ascii(self._stream, "".join(_MARKS.values())) else _MARKS)[state]

    def _size(self) -> tuple[int, int]:
        with suppress(OSError, ValueError, AttributeError):
            size = os.get_terminal_size(self._stream.fileno())  # type: ignore[union-attr]
            if size.columns and size.lines:
                return size.columns, size.lines
        columns = os.environ.get("COLUMNS", "")
        return (int(columns) if columns.isdecimal() and int(columns) else 80), 24


_MARKS = {"running": "▶", "waiting": "·", "done": "✓", "failed": "✗"}
_ASCII_MARKS = {"running": ">", "waiting": "-", "done": "ok", "failed": "FAILED"}
_STYLES = {"running": "", "waiting": "dim"}


def display(mode: Mode, stream: TextIO | None, screen: Screen = PLAIN, *, quiet: bool = False) -> Display:
    """Return the display for a mode and stderr, which is None if it is closed.

    `auto` selects the board on a terminal, else plain lines. A terminal without cursor movement
    (``TERM=dumb``) always gets plain lines instead of the board. `quiet` shows nothing but JSON.
    """
    tasks = Tasks()
    if stream is None or mode == "none" or (quiet and mode != "json"):
        return Display(tasks, None)
    if mode == "json":
        return JsonLines(tasks, stream)
    can_move = os.environ.get("TERM", "dumb") != "dumb"
    if can_move and (mode == "board" or (mode == "auto" and stream.isatty())):
        return Board(tasks, stream, screen)
    return Plain(tasks, stream)


def summary(tasks: Tasks) -> str:
    """Return one line with the running tasks, and the expected remaining time of all tasks."""
    now = tasks.clock()
    parts = []
    for row in tasks.running()[:4]:
        details = [part for part in (row.step, row.file, row.amount, _times(row, now)) if part]
        parts.append(f"{row.name} ({', '.join(details)})")
    if len(tasks.running()) > len(parts):
        parts.append(f"{len(tasks.running()) - len(parts)} more")
    text = f"running: {', '.join(parts)}"
    return f"{text}; {overview(tasks)}" if len(tasks.listed()) > 1 else text


def overview(tasks: Tasks) -> str:
    """Return the number of tasks by state, and the expected remaining time of all tasks."""
    counts = [f"{tasks.count('done')} of {len(tasks.listed())} done"]
    counts += [
        f"{number} {state}"
        for state in ("running", "waiting", "failed", "skipped")
        if (number := tasks.count(state))
    ]
    text = ", ".join(counts)
    remaining = tasks.remaining()
    if remaining is None:
        return text
    seconds, is_least = remaining
    return f"{text}; {'at least' if is_least else 'about'} {duration(max(1.0, seconds))} left"


def _ended(row: TaskRow) -> str:
    assert row.ended is not None  # noqa: S101  for mypy
    took = duration(row.elapsed(row.ended))
    if row.state == "failed":
        return f"failed after {took}{f'; last step: {row.step}' if row.step else ''}"
    return f"done in {took}"


def _times(row: TaskRow, now: float) -> str:
    """Return the time that the current step has run, and the time until the task will probably end."""
    if row.state != "running":
        return f"about {duration(row.expected)}" if row.expected else ""
    seconds = int(now - row.step_started)
    hours, minutes = divmod(seconds // 60, 60)
    text = f"{hours}:{minutes:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"
    left = row.remaining(now)
    return f"{text}, {duration(max(1.0, left))} left" if left else text


def _height(lines: Sequence[str], columns: int) -> int:
    """Return the rows of a terminal on which it shows lines, of which it wraps the long ones."""
    return sum(max(1, math.ceil(_width(line) / columns)) for line in lines)


def _width(line: str) -> int:
    from rich.cells import cell_len

    return cell_len(re.sub(_CURSOR, "", line))
