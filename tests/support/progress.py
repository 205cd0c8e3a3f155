"""An emulated terminal, a simulated clock, and simulated reports of builds."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyte
import pytest

from matrix.show.progress import Board, Display

SCREENS = [(80, 24), (100, 30)]
LOG = "/index/.matrix/logs/torch-scatter-12ab.log"
COMPILE = f"compile with 2 jobs\nlog: {LOG}"


@dataclass
class Clock:
    """A simulated clock, which a test advances."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Terminal(io.StringIO):
    """Emulate a terminal of some size, and record the texts that are written to it."""

    columns: int = 80
    lines: int = 24
    encoding: str = "utf-8"
    writes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.screen = pyte.HistoryScreen(self.columns, self.lines, history=1000)
        self.stream = pyte.Stream(self.screen)

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        text.encode(self.encoding)
        self.writes.append(text)
        self.stream.feed(text.replace("\n", "\r\n"))
        return len(text)

    @property
    def shown(self) -> list[str]:
        """The lines on the screen."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines


def terminal_of(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Return an emulated terminal to which commands write."""
    terminal = Terminal(*size)
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    monkeypatch.setenv("COLUMNS", str(terminal.columns))
    monkeypatch.setattr(Board, "_size", lambda _: (terminal.columns, terminal.lines))
    return terminal


def three_builds(shown: Display, clock: Clock) -> Iterator[None]:
    """Report a build of three packages; yield at moments to check the display."""
    shown.progress("torch-scatter 2.1.2", state="waiting", expected=240, share=0.5)
    shown.progress("deepspeed 0.19.8", state="waiting", expected=120, share=0.5)
    shown.progress("apex 1.9.0", state="waiting", after=["torch-scatter 2.1.2"], share=0.5)
    shown.progress("torch-scatter 2.1.2", state="running")
    shown.step("fetch torch_scatter-2.1.2.tar.gz", "torch-scatter 2.1.2")
    shown.progress("deepspeed 0.19.8", state="running")
    shown.step("prepare the build environment", "deepspeed 0.19.8")
    clock.now = 5
    shown.step(COMPILE, "torch-scatter 2.1.2")
    yield
    for second in range(6, 66):
        clock.now = second
        shown.progress("torch-scatter 2.1.2", memory=1.84, done=second // 3, total=40)
        shown.progress("deepspeed 0.19.8", memory=0.2)
    yield
    clock.now = 80
    shown.progress("deepspeed 0.19.8", state="done")
    yield
    clock.now = 120
    shown.progress("torch-scatter 2.1.2", state="failed")
    shown.progress("apex 1.9.0", state="skipped")
    yield
