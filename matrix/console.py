"""The only module that prints: results on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from matrix.screen import can_encode, encoding_of, screen_of, uses_ascii
from resolver.errors import EnvironmentLacksError
from resolver.reporter import Reporter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.screen import Color, Screen


class OutputError(EnvironmentLacksError):
    """stdout is closed, or what it writes to is full."""

    id = "output"


class ReaderGoneError(BrokenPipeError):
    """The program that read stdout has ended, e.g. ``head``."""


class Console(Reporter):
    """Print messages for a person, or one JSON document for a program.

    Everything is also logged, so that a log file has it (``--debug``). A result that cannot be written is an
    error; a message that cannot be written is dropped.

    Parameters
    ----------
    verbosity
        -1 prints only results and errors, 0 is normal, 1 prints more, 2 shows tracebacks.
    color
        When to use colours; ``auto`` asks `NO_COLOR`, `FORCE_COLOR` and the terminal.
    """

    def __init__(self, verbosity: int = 0, color: Color = "auto") -> None:
        self.verbosity = verbosity
        self.color = color
        self._started = time.monotonic()
        self._log_file: Path | None = None

    @property
    def out(self) -> Screen:
        """What stdout can show."""
        return screen_of(sys.stdout, self.color)

    @property
    def err(self) -> Screen:
        """What stderr can show."""
        return screen_of(sys.stderr, self.color)

    def data(self, text: str) -> None:
        """Print a result as it is; characters that the encoding of stdout lacks become escapes."""
        _print(f"{_encodable(text)}\n")

    def text(self, text: str) -> None:
        """Print a result for a person, with long lines wrapped at the width of the terminal."""
        self.data(self.out.wrapped(text))

    def result(self, text: str, output: Path | None) -> None:
        """Print a result, or write it to the file that the user named."""
        if output is None:
            self.data(text)
            return
        from builders.files import write_atomic

        write_atomic(output, f"{text}\n")
        self.info(f"Wrote {output}")

    def write(self, text: str) -> None:
        """Print part of a result without adding a line break, and flush."""
        _print(_encodable(text))
        self.flush()

    def flush(self) -> None:
        """Write what is buffered.

        Raises
        ------
        OutputError
            It cannot be written, e.g. because the disk is full.
        """
        if sys.stdout is not None:
            with _explained():
                sys.stdout.flush()

    def can_print(self, text: str) -> bool:
        """Return whether stdout shows every character of a text."""
        return not uses_ascii(sys.stdout, text)

    def document(self, value: object) -> None:
        """Print a result as one JSON document."""
        text = json.dumps(value, indent=2, ensure_ascii=False)
        _print(f"{text if can_encode(sys.stdout, text) else json.dumps(value, indent=2)}\n")

    def info(self, message: str) -> None:
        """Print a message for a person."""
        self._log("INFO", message)
        if self.verbosity >= 0:
            self._print_message(message)

    def step(self, message: str) -> None:
        """Print the start of a step, with the seconds since the program started."""
        self._log("INFO", message)
        if self.verbosity >= 0:
            elapsed = time.monotonic() - self._started
            self._print_message(f"  {elapsed:7.1f} s  {message}")

    def warning(self, message: str) -> None:
        """Print a warning, even in quiet mode."""
        self._log("WARNING", message)
        self._print_message(f"{self.err.styled('bold yellow', 'warning:')} {message}")

    def error(self, message: str, hint: str = "") -> None:
        """Print an error and its hint."""
        self._log("ERROR", f"{message} {hint}".rstrip())
        self._print_message(f"{self.err.styled('bold red', 'error:')} {message}")
        if hint:
            self._print_message(f"  {hint}")

    def log_to(self, directory: Path) -> None:
        """Write everything that the program and its libraries log to a new file in a directory."""
        import logging

        from builders.modes import make_directories

        make_directories(directory)
        self._log_file = directory / f"matrix-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        handler = logging.FileHandler(self._log_file, encoding="utf-8", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)

    def log_traceback(self) -> None:
        """Log the exception that is being handled, with its traceback; print it if that is requested."""
        import traceback

        text = traceback.format_exc()
        self._log("ERROR", text)
        if self.verbosity > 1:
            _write_message(text.rstrip())

    def show_log(self) -> None:
        """Print the path of the log file, if there is one."""
        if self._log_file is not None:
            self._print_message(f"  Log: {self._log_file}")

    def _print_message(self, text: str) -> None:
        if sys.stderr is not None:
            _write_message(self.err.wrapped(text))

    def _log(self, level: str, message: str) -> None:
        if self._log_file is not None:
            import logging

            logging.getLogger("matrix").log(getattr(logging, level), message)


def _print(text: str) -> None:
    if sys.stdout is None:
        msg = "Cannot write to stdout: it is closed."
        raise OutputError(msg)
    with _explained():
        sys.stdout.write(text)


@contextmanager
def _explained() -> Iterator[None]:
    """Raise `OutputError` for a result that cannot be written, and discard the rest of it."""
    try:
        yield
    except BrokenPipeError:
        _discard(sys.stdout)
        raise ReaderGoneError from None
    except OSError as error:
        _discard(sys.stdout)
        msg = f"Cannot write to stdout: {error.strerror}."
        raise OutputError(msg) from None


def _write_message(text: str) -> None:
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Let a stream write to nowhere.

    Otherwise the interpreter would try again when it exits, and return 120.
    """
    with suppress(OSError, ValueError):  # a stream may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _encodable(text: str) -> str:
    """Replace characters that the encoding of stdout lacks with escapes."""
    if can_encode(sys.stdout, text):
        return text
    encoding = encoding_of(sys.stdout)
    return text.encode(encoding, "backslashreplace").decode(encoding)
