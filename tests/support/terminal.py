"""Run a program on an emulated terminal, and record the screens of the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyte


@dataclass
class Session:
    """The output of a program on a terminal."""

    screen: pyte.HistoryScreen
    code: int = 0
    """Exit code."""
    frames: list[str] = field(default_factory=list)
    """The screen after each change, at most ten times a second."""
    output: bytes = b""

    @property
    def text(self) -> str:
        """All lines at the end, including those that were scrolled off the screen."""
        top = ["".join(line[column].data for column in sorted(line)) for line in self.screen.history.top]
        return _text([*top, *self.screen.display])


def run_on_terminal(
    command: Sequence[str],
    *,
    columns: int = 80,
    lines: int = 24,
    cwd: Path,
    env: Mapping[str, str],
    interrupt_when: Callable[[str], bool] | None = None,
    timeout: float = 120.0,
) -> Session:
    """Run a program on a terminal; press Ctrl-C once when the screen contains a text.

    Raises
    ------
    TimeoutError
        The program does not end.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={name: value for name, value in env.items() if name not in {"COLUMNS", "LINES"}},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  so that Ctrl-C works
    )
    os.close(theirs)
    session = Session(pyte.HistoryScreen(columns, lines, history=10_000, ratio=0.001))
    stream = pyte.ByteStream(session.screen)
    end, looked = time.monotonic() + timeout, 0.0
    try:
        while True:
            if time.monotonic() > end:
                raise TimeoutError("\n".join(session.screen.display))
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    data = os.read(ours, 1 << 16)
                except OSError:  # the program has ended (pty(7))
                    break
                session.output += data
                stream.feed(data)
            if time.monotonic() - looked >= 0.1:
                looked = time.monotonic()
                frame = _text(session.screen.display)
                if session.frames[-1:] != [frame]:
                    session.frames.append(frame)
                if interrupt_when is not None and interrupt_when(frame):
                    os.write(ours, b"\x03")
                    interrupt_when = None
        session.code = process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()
        os.close(ours)
    return session


def _text(lines: Sequence[str]) -> str:
    return "\n".join(line.rstrip() for line in lines).rstrip()
