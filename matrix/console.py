"""The only module that prints: results on stdout, messages on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from resolver.reporter import Reporter


class Console(Reporter):
    """Print messages for a person, or one JSON document for a program.

    Everything is also logged, so that a log file has it (``--debug``).

    Parameters
    ----------
    verbosity
        -1 prints only results and errors, 0 is normal, 1 prints more, 2 shows tracebacks.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self._started = time.monotonic()
        self._log_file: Path | None = None

    def data(self, text: str) -> None:
        """Print a result; characters that the encoding of stdout lacks become escapes."""
        print(_encodable(text))

    def write(self, text: str) -> None:
        """Print part of a result without adding a line break, and flush."""
        print(_encodable(text), end="", flush=True)

    def drop(self) -> None:
        """Discard what is not yet written to stdout, because its reader has gone.

        Otherwise the interpreter would try again when it exits, and return 120.
        """
        with suppress(OSError, ValueError):  # stdout may not be a file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def width(self) -> int | None:
        """Return the columns of the terminal; None if stdout is not a terminal and ``COLUMNS`` is unset."""
        if not _is_terminal(sys.stdout) and not os.environ.get("COLUMNS", "").isdecimal():
            return None
        import shutil

        return shutil.get_terminal_size().columns

    def coloured(self, code: str, text: str) -> str:
        """Colour part of a result if stdout is a terminal that supports colours."""
        return _coloured(code, text, sys.stdout)

    def document(self, value: object) -> None:
        """Print a result as one JSON document."""
        text = json.dumps(value, indent=2, ensure_ascii=False)
        print(text if can_encode(text) else json.dumps(value, indent=2))

    def info(self, message: str) -> None:
        """Print a message for a person."""
        self._log("INFO", message)
        if self.verbosity >= 0:
            print(message, file=sys.stderr, flush=True)

    def step(self, message: str) -> None:
        """Print the start of a step, with the seconds since the program started."""
        self._log("INFO", message)
        if self.verbosity >= 0:
            elapsed = time.monotonic() - self._started
            print(f"  {elapsed:7.1f} s  {message}", file=sys.stderr, flush=True)

    def warning(self, message: str) -> None:
        """Print a warning, even in quiet mode."""
        self._log("WARNING", message)
        print(_coloured("33", "warning:", sys.stderr), message, file=sys.stderr, flush=True)

    def error(self, message: str, hint: str = "") -> None:
        """Print an error and its hint."""
        self._log("ERROR", f"{message} {hint}".rstrip())
        print(_coloured("31", "error:", sys.stderr), message, file=sys.stderr)
        if hint:
            print(f"  {hint}", file=sys.stderr)

    def log_to(self, directory: Path) -> None:
        """Write everything that the program and its libraries log to a new file in a directory."""
        import logging

        from builders.modes import make_directories

        make_directories(directory)
        self._log_file = directory / f"matrix-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        handler = logging.FileHandler(self._log_file, encoding="utf-8")
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root = logging.getLogger()
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)

    def log_traceback(self) -> None:
        """Log the exception that is being handled, with its traceback."""
        import traceback

        self._log("ERROR", traceback.format_exc())

    def show_log(self) -> None:
        """Print the path of the log file, if there is one."""
        if self._log_file is not None:
            print(f"  Log: {self._log_file}", file=sys.stderr)

    def _log(self, level: str, message: str) -> None:
        if self._log_file is not None:
            import logging

            logging.getLogger("matrix").log(getattr(logging, level), message)


def _encodable(text: str) -> str:
    """Replace characters that the encoding of stdout lacks with escapes."""
    if can_encode(text):
        return text
    encoding = sys.stdout.encoding
    return text.encode(encoding, "backslashreplace").decode(encoding)


def can_encode(text: str) -> bool:
    """Return whether the encoding of stdout has every character of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal; a stream that was closed before the start is None."""
    return stream is not None and stream.isatty()


def _coloured(code: str, text: str, stream: TextIO) -> str:
    wanted = _is_terminal(stream) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\033[{code}m{text}\033[0m" if wanted or os.environ.get("FORCE_COLOR") else text


def table(rows: list[list[str]], *, indent: str = "  ") -> str:
    """Align rows of text in columns.

    Examples
    --------
    >>> print(table([["torch", "2.5.1"], ["apex", "1.4.0"]], indent=""))
    torch  2.5.1
    apex   1.4.0
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)] if rows else []
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(indent + line.rstrip() for line in lines)
