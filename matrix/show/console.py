"""The only module that prints: results on stdout, messages on stderr."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from matrix.show.render import can_encode, encoding_of, screen_of, uses_ascii
from resolver.errors import EnvironmentLacksError
from resolver.reporter import Reporter
from resolver.texts import masked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Unpack

    import msgspec

    from matrix.show.progress import Display, Mode
    from matrix.show.render import Color, Screen
    from resolver.model import Conflict
    from resolver.reporter import Progress


class OutputError(EnvironmentLacksError):
    """stdout is closed, or its disk is full."""

    id = "output"


class ReaderGoneError(BrokenPipeError):
    """The program that read stdout has ended, such as ``head``."""


class Console(Reporter):
    """Print messages for a person, or one JSON document for a program.

    With ``--debug``, everything is also written to a log file. A result that cannot be written is an error; a
    message that cannot be written is dropped. The verbosity -1 prints only results, warnings and errors, 0 is
    normal, 1 prints more, 2 shows tracebacks.
    """

    def __init__(self, verbosity: int = 0, color: Color = "auto", progress: Mode = "auto") -> None:
        self.verbosity = verbosity
        self.color = color
        self.progress_mode = progress
        self._display: Display | None = None
        self._started = time.monotonic()
        self._log_file: Path | None = None
        self.warnings: list[str] = []
        """So far; JSON documents contain them."""
        self.conflict_text: Callable[[Conflict], str] | None = None
        """Returns the text of a conflict, which is then printed before suggestions are searched."""
        self.has_shown_conflict = False

    @property
    def out(self) -> Screen:
        """The capabilities of stdout."""
        return screen_of(sys.stdout, self.color)

    @property
    def err(self) -> Screen:
        """The capabilities of stderr."""
        return screen_of(sys.stderr, self.color)

    def data(self, text: str) -> None:
        """Print a result unchanged, except that characters outside the encoding of stdout become escapes."""
        self._print(f"{_encodable(text)}\n")

    def text(self, text: str) -> None:
        """Print a result as text, with long lines wrapped at the width of the terminal."""
        self.data(self.out.wrapped(text))

    def answer(self, text: str) -> None:
        """Print the answer of a command, in bold, before everything else."""
        self.text(self.out.styled("bold", text))

    def result(self, text: str, output: Path | None) -> None:
        """Print a result, or write it to the file that the user named."""
        if output is None:
            self.data(text)
            return
        from builders.storage.files import write_atomic

        write_atomic(output, f"{masked(text)}\n")
        self.info(f"Wrote {output}")

    def write(self, text: str) -> None:
        """Print part of a result without adding a line break, and flush."""
        self._print(_encodable(text))
        self.flush()

    def flush(self) -> None:
        """Write buffered output. Raise `OutputError` if it cannot be written."""
        if sys.stdout is not None:
            with _explained():
                sys.stdout.flush()

    def conflict(self, conflict: Conflict) -> None:
        """Print a conflict as soon as it is known."""
        if self.conflict_text is not None:
            self.text(self.conflict_text(conflict))
            self.flush()
            self.has_shown_conflict = True

    def can_print(self, text: str) -> bool:
        """Return whether stdout shows every character of a text."""
        return not uses_ascii(sys.stdout, text)

    def document(self, document: msgspec.Struct, output: Path | None = None) -> None:
        """Print a result as one JSON document, with the warnings so far, or write it to a file."""
        import json

        import msgspec

        from resolver.lock import encode

        value = msgspec.to_builtins(document, enc_hook=encode)
        value["warnings"] = [*dict.fromkeys([*value.get("warnings", ()), *self.warnings])]
        value = masked(value)
        text = json.dumps(value, indent=2, ensure_ascii=False)
        if output is not None:
            self.result(text, output)
            return
        self._print(f"{text if can_encode(sys.stdout, text) else json.dumps(value, indent=2)}\n")

    def _print(self, text: str) -> None:
        with self._cleared():
            _print(masked(text))

    def info(self, message: str) -> None:
        """Print a message, unless in quiet mode."""
        message = masked(message)
        self._log("INFO", message)
        if self.verbosity >= 0 and not self.display.message("info", message):
            self._print_message(message)

    def step(self, message: str, task: str = "") -> None:
        """Show the start of a step."""
        message = masked(message)
        self._log("INFO", f"{task}: {message}" if task else message)
        self.display.step(message, task)

    def progress(self, task: str = "", **change: Unpack[Progress]) -> None:
        """Show changes of a task."""
        if "state" in change and task:
            self._log("INFO", f"{task}: {change['state']}")
        self.display.progress(task, **change)

    @contextmanager
    def task(self, name: str, **change: Unpack[Progress]) -> Iterator[None]:
        """Show that a task runs during a ``with`` block."""
        with self.display.task(name, **change):
            yield

    @property
    def display(self) -> Display:
        """The display of progress."""
        if self._display is None:
            from matrix.show.progress import display

            quiet = self.verbosity < 0
            self._display = display(self.progress_mode, sys.stderr, self.err, quiet=quiet)
            self._display.started = self._started
        return self._display

    def end_progress(self) -> None:
        """Remove the board, so that nothing is left on the terminal."""
        if self._display is not None:
            self._display.close()

    def warning(self, message: str) -> None:
        """Print a warning, even in quiet mode: one that has an id as `line_of` it."""
        line, message = (
            masked(self.line_of(message, "warning: ")),
            masked(getattr(message, "marked", message)),
        )
        self._log("WARNING", message)
        self.warnings.append(message)
        if not self.display.message("warning", message):
            self._print_message(f"{self.err.styled('bold yellow', 'warning:')} {line}")

    def line_of(self, message: str, start: str) -> str:
        """Return a notice with its id: on a terminal as one line, `start` included; -v shows all of it."""
        from resolver.model import Notice

        width = self.err.width
        if not isinstance(message, Notice) or width is None or self.verbosity > 0 or not message.id:
            return str(getattr(message, "marked", message))
        import textwrap

        room = width - len(f"{start} [{message.id}]")
        return f"{textwrap.shorten(message.short or message, room, placeholder='...')} [{message.id}]"

    def error(self, message: str, hint: str = "") -> None:
        """Print an error and its hint."""
        message, hint = masked(message), masked(hint)
        self._log("ERROR", f"{message} {hint}".rstrip())
        if self.display.message("error", message, hint):
            return
        self._print_message(f"{self.err.styled('bold red', 'error:')} {message}")
        if hint:
            self._print_message(f"  hint: {hint}")

    def log_to(self, directory: Path) -> None:
        """Write everything that the program and its libraries log to a new file in a directory."""
        import logging

        from builders.storage.files import make_directories

        make_directories(directory)
        self._log_file = directory / f"matrix-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        handler = logging.FileHandler(self._log_file, encoding="utf-8", errors="backslashreplace")
        formatter = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
        formatter.format = lambda record, write=formatter.format: masked(write(record))  # type: ignore[method-assign,misc]
        handler.setFormatter(formatter)
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)

    def log_traceback(self) -> None:
        """Log the current exception with its traceback; with ``-vv``, print it, too."""
        import traceback

        text = masked(traceback.format_exc())
        self._log("ERROR", text)
        if self.verbosity > 1:
            with self._cleared():
                _write_message(text.rstrip())

    def show_log(self) -> None:
        """Print the path of the log file, if there is one."""
        if self._log_file is not None:
            message = f"Log: {self._log_file}"
            if not self.display.message("info", message):
                self._print_message(f"  {message}")

    def _print_message(self, text: str) -> None:
        with self._cleared():
            _write_message(self.err.wrapped(text))

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        """Remove the board from the terminal while something else is written."""
        with nullcontext() if self._display is None else self._display.cleared():
            yield

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
    """Raise `OutputError` if a result cannot be written, and discard the rest of the result."""
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
    if sys.stdout is not None:
        with suppress(OSError, ValueError):  # the next result, or the last flush, raises the error
            sys.stdout.flush()
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Redirect a stream to /dev/null; else the interpreter writes again when it exits, and returns 120."""
    with suppress(OSError, ValueError):  # a stream may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _encodable(text: str) -> str:
    """Replace characters outside the encoding of stdout with escapes."""
    if can_encode(sys.stdout, text):
        return text
    encoding = encoding_of(sys.stdout)
    return text.encode(encoding, "backslashreplace").decode(encoding)
