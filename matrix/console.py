"""The one place that prints: data on stdout, everything said to a person on stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import TextIO

from resolver.reporter import Reporter


class Console(Reporter):
    """Prints for a person, or one JSON document for a program.

    Parameters
    ----------
    verbosity
        -1 says nothing but results and errors, 0 is normal, 1 says more, 2 shows tracebacks.
    """

    def __init__(self, verbosity: int = 0) -> None:
        self.verbosity = verbosity
        self._started = time.monotonic()

    def data(self, text: str) -> None:
        """Print a result; characters that the output's encoding lacks are printed as escapes."""
        print(_encodable(text))

    def write(self, text: str) -> None:
        """Print a piece of a result at once, lines and all."""
        print(_encodable(text), end="", flush=True)

    def drop(self) -> None:
        """Forget what is still to be written to stdout: its reader has gone away.

        Without this the interpreter would try once more at its end, and exit with 120.
        """
        with suppress(OSError, ValueError):  # stdout may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def width(self) -> int | None:
        """Give the characters in a line of the terminal; None where a result goes into a file or a pipe.

        ``COLUMNS`` decides wherever it goes.
        """
        if not _is_terminal(sys.stdout) and not os.environ.get("COLUMNS", "").isdecimal():
            return None
        import shutil

        return shutil.get_terminal_size().columns

    def coloured(self, code: str, text: str) -> str:
        """Colour a part of a result, where somebody sees it who wants colours."""
        return _coloured(code, text, sys.stdout)

    def document(self, value: object) -> None:
        """Print a result as one JSON document."""
        text = json.dumps(value, indent=2, ensure_ascii=False)
        print(text if can_encode(text) else json.dumps(value, indent=2))

    def info(self, message: str) -> None:
        """Say what is being done."""
        if self.verbosity >= 0:
            print(message, file=sys.stderr, flush=True)

    def step(self, message: str) -> None:
        """Say which step begins, with the seconds since the program started."""
        if self.verbosity >= 0:
            elapsed = time.monotonic() - self._started
            print(f"  {elapsed:7.1f} s  {message}", file=sys.stderr, flush=True)

    def warning(self, message: str) -> None:
        """Say what should be known even in quiet mode."""
        print(_coloured("33", "warning:", sys.stderr), message, file=sys.stderr, flush=True)

    def error(self, message: str, hint: str = "") -> None:
        """Say what failed and what to do."""
        print(_coloured("31", "error:", sys.stderr), message, file=sys.stderr)
        if hint:
            print(f"  {hint}", file=sys.stderr)


def _encodable(text: str) -> str:
    """Give a text with escapes for what the encoding of stdout lacks."""
    if can_encode(text):
        return text
    encoding = sys.stdout.encoding
    return text.encode(encoding, "backslashreplace").decode(encoding)


def can_encode(text: str) -> bool:
    """Tell whether the encoding of stdout has all characters of a text."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_terminal(stream: TextIO | None) -> bool:
    """Tell whether somebody sees what is written; a stream that was closed at the start is None."""
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
