"""Text for people: findings, counts, durations and sizes; styles, wrapped lines and tables for a terminal.

rich is imported only for text that needs it.
"""

from __future__ import annotations

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, TextIO

import msgspec

from resolver.texts import printable

if TYPE_CHECKING:
    from rich.console import Console as RichConsole
    from rich.console import RenderableType
    from rich.text import Text

    from builders.findings import Finding


Color = Literal["auto", "always", "never"]
Cell = str | tuple[str, str]
"""A cell of a table: its text, or a style and the text."""

_MIN_WIDTH = 60
_UNLIMITED = 1_000_000
_MIN_ROOM = 24
"""Columns below which the last column of a table moves below each row."""
_GAP = 2
_WHOLE = re.compile(
    r"`[^`]+`"
    r"|(?<=: )(?<!error: )(?<!warning: )(?<!hint: )"  # a sentence about pip is no command
    r"(?:matrix|apptainer|module|pip|python|sbatch|scancel|squeue|uv) .*$"
    r"|\b\d+(?:\.\d+)? (?:s|min|h|MiB|GiB|cores?)\b"
)
"""Matches commands to copy, and numbers with their units, which are not wrapped."""
_SPACE = "\ue000"
"""Stands for a space at which a line must not be broken."""
_START = r" *(?:[-*] |\d+\. |note: |source: )?"
STYLES = {"error": "bold red", "warning": "bold yellow", "info": "cyan"}
_SIZE_STEP = 1024
_SIZE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Screen(msgspec.Struct, frozen=True):
    """The capabilities of an output stream."""

    width: int | None = None
    """Columns; None for no limit."""
    has_colour: bool = False

    def styled(self, style: str, text: str) -> str:
        """Return a text with a style of rich, such as ``bold red``."""
        if not self.has_colour or not style:
            return text
        from rich.text import Text

        return self._rendered(Text(text, style))

    def wrapped(self, text: str, hanging: int = 0) -> str:
        """Wrap long lines between words; paths, URLs and commands are not broken.

        Continuation lines are indented like the text of their first line, and by the hanging indentation.
        """
        width = self.width
        if width is None or all(len(line) <= width for line in text.splitlines()):
            return text
        return "\n".join(self._wrapped_line(line, width, hanging) for line in text.split("\n"))

    def _wrapped_line(self, line: str, width: int, hanging: int) -> str:
        start = re.match(_START, line)
        indent = len(start[0]) if start else 0
        text, room = line[indent:], width - indent - hanging
        if "\033" in text:
            from rich.text import Text

            lines = [self._rendered(part) for part in _divided(Text.from_ansi(text), room)]
        else:
            lines = [text[begin:end].rstrip(" ") for begin, end in pairwise([0, *_breaks(text, room), None])]
        return line[:indent] + ("\n" + " " * (indent + hanging)).join(lines)

    def table(self, rows: Sequence[Sequence[Cell]], head: Sequence[str] = (), *, indent: str = "  ") -> str:
        """Align rows in columns; only the text of the last column is wrapped.

        If the last column does not fit, it moves below each row. If the other columns do not fit either, each
        row becomes a paragraph with one line for each column.

        Examples
        --------
        >>> print(Screen().table([["torch", "2.5.1"], ["apex", "1.4.0"]], indent=""))
        torch  2.5.1
        apex   1.4.0
        """
        if not rows:
            return ""
        widths = [max(map(_width, column)) for column in zip(*rows, *([head] if head else []), strict=True)]
        room = _UNLIMITED if self.width is None else self.width - len(indent)
        fixed = sum(widths[:-1]) + _GAP * (len(widths) - 1)
        words = (word for row in rows for word in _protected(_text(row[-1])).split())
        longest = max((_width(word.replace(_SPACE, " ")) for word in words), default=0)
        last = room - fixed
        if widths[-1] <= last or (last >= _MIN_ROOM and longest <= last):
            text = self._aligned(rows, head, last)
        elif fixed - _GAP <= room:
            text = self._folded(rows, head, room)
        elif head:
            text = self._paragraphs(rows, head, room)
        else:
            text = self._aligned(rows, head, _UNLIMITED)
        return "\n".join((indent + line).rstrip() for line in text.split("\n"))

    def _aligned(self, rows: Sequence[Sequence[Cell]], head: Sequence[str], last: int) -> str:
        cells = [[("bold", title) for title in head]] if head else []
        cells += [[(_style(cell), printable(_text(cell))) for cell in row] for row in rows]
        widths = [max(map(_width, column)) + _GAP for column in zip(*cells, strict=True)][:-1]
        lines = []
        for *first, (style, text) in cells:
            start = "".join(
                self.styled(*cell) + " " * (width - _width(cell))
                for cell, width in zip(first, widths, strict=True)
            )
            for begin, end in pairwise([0, *_breaks(text, last), None]):
                lines.append((start + self.styled(style, text[begin:end].rstrip(" "))).rstrip(" "))
                start = " " * sum(widths)
        return "\n".join(lines)

    def _folded(self, rows: Sequence[Sequence[Cell]], head: Sequence[str], room: int) -> str:
        """Return the table with the last column below the others."""
        lines = self._aligned([row[:-1] for row in rows], head[:-1], _UNLIMITED).split("\n")
        folded = lines[: len(lines) - len(rows)]
        below = Screen(room, self.has_colour)
        for line, row in zip(lines[len(folded) :], rows, strict=True):
            folded.append(line)
            if text := _text(row[-1]):
                folded.append(below.wrapped(f"    {self.styled(_style(row[-1]), text)}"))
        return "\n".join(folded)

    def _paragraphs(self, rows: Sequence[Sequence[Cell]], head: Sequence[str], room: int) -> str:
        from rich.text import Text

        start = max(map(len, head)) + _GAP
        paragraphs = []
        for row in rows:
            lines = []
            for name, cell in zip(head, row, strict=True):
                parts = _divided(Text(_text(cell), _style(cell)), room - start)
                value = ("\n" + " " * start).join(map(self._rendered, parts))
                lines.append(f"{self.styled('bold', name)}{' ' * (start - len(name))}{value}".rstrip())
            paragraphs.append("\n".join(lines))
        return "\n\n".join(paragraphs)

    def rich(self, stream: TextIO) -> RichConsole:
        """Return a console of rich that writes to a stream and uses colours as this screen does."""
        from rich.console import Console

        return Console(
            file=stream,
            color_system="standard" if self.has_colour else None,
            no_color=not self.has_colour,
            force_terminal=self.has_colour or None,
            width=self.width,
            highlight=False,
            markup=False,
            emoji=False,
        )

    def _rendered(self, renderable: RenderableType) -> str:
        stream = io.StringIO()
        unlimited = Screen(_UNLIMITED, self.has_colour)
        unlimited.rich(stream).print(renderable, soft_wrap=True)
        lines = stream.getvalue().removesuffix("\n").split("\n")
        return "\n".join(line.rstrip(" ") for line in lines)


PLAIN = Screen()
"""No limit and no colours, for files."""


def screen_of(stream: TextIO | None, color: Color = "auto") -> Screen:
    """Return the capabilities of a stream, which is None if it was closed before the start."""
    return Screen(columns_of(stream), _has_colour(stream, color))


def uses_ascii(stream: TextIO | None, text: str) -> bool:
    """Return whether a text has characters that the character set of a stream lacks."""
    names = os.environ
    coerced = {"C.UTF-8", "C.utf8", "UTF-8"}  # the interpreter sets one of these if the locale is C
    category = names.get("LC_CTYPE", "")
    if (names.get("LC_ALL") or (category not in coerced and category) or names.get("LANG")) in {"C", "POSIX"}:
        return not text.isascii()
    return not can_encode(stream, text)


def can_encode(stream: TextIO | None, text: str) -> bool:
    """Return whether the encoding of a stream has every character of a text."""
    try:
        text.encode(encoding_of(stream))
    except UnicodeEncodeError:
        return False
    return True


def encoding_of(stream: TextIO | None) -> str:
    """Return the encoding of a stream."""
    return getattr(stream, "encoding", None) or "utf-8"


def columns_of(stream: TextIO | None) -> int | None:
    """Return the width of a terminal, or what COLUMNS says; None if a stream is no terminal."""
    text = os.environ.get("COLUMNS", "")
    if text.isdecimal() and int(text):
        return max(_MIN_WIDTH, int(text))
    if not _is_terminal(stream):
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns if stream else 0
    except (OSError, ValueError):
        columns = 0
    return max(_MIN_WIDTH, columns or 80)


def _has_colour(stream: TextIO | None, color: Color) -> bool:
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (_is_terminal(stream) and os.environ.get("TERM") != "dumb")


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _divided(text: Text, width: int) -> list[Text]:
    """Break a text into lines of a width; longer words are not broken."""
    return list(text.divide(_breaks(text.plain, width)))


def _breaks(text: str, width: int) -> list[int]:
    """Return the offsets at which lines of a width begin, except the first; longer words are not broken."""
    offsets, start = [], 0
    for word in re.finditer(r"\S+", _protected(text)):
        if word.start() > start and _width(text[start : word.end()]) > width:
            start = word.start()
            offsets.append(start)
    return offsets


def _protected(text: str) -> str:
    return _WHOLE.sub(lambda match: match[0].replace(" ", _SPACE), text)


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[1]


def _style(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[0]


def _width(cell: Cell) -> int:
    text = _text(cell)
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def findings_text(
    findings: Iterable[Finding], *, quiet: bool = False, indent: str = "", screen: Screen = PLAIN
) -> str:
    """Return findings as text, each as a message, its evidence and a hint; `quiet` leaves out ``info``.

    The ``file`` and ``line`` of the evidence come before the message. Its ``text`` (a line of a file, or a
    list of ``{line, text}``) and ``corrected`` (the lines that should replace the text) come after the
    message. The rest of the evidence appears only in JSON.

    Examples
    --------
    >>> from builders.findings import Finding
    >>> finding = Finding("tab", "error", "pip rejects a tab.", "Use a space.", {"file": "r.txt", "line": 3})
    >>> print(findings_text([finding]))
    r.txt:3: error: pip rejects a tab. [tab]
      hint: Use a space.
    """
    lines: list[str] = []
    for finding in findings:
        if quiet and finding.severity == "info":
            continue
        evidence = finding.evidence
        file, line = evidence.get("file", ""), evidence.get("line", "")
        where = f"{file}:{line}: " if file and line else f"{file}: " if file else ""
        severity = screen.styled(STYLES[finding.severity], f"{finding.severity}:")
        message = f"{printable(where)}{severity} {printable(finding.message)} [{finding.id}]"
        lines.append(screen.wrapped(indent + message))
        lines += [f"{indent}    {printable(text)}" for text in _quoted(evidence.get("text", ()))]
        if evidence.get("corrected"):
            lines += [
                f"{indent}  Use:",
                *(f"{indent}    {printable(text)}" for text in evidence["corrected"]),
            ]
        if finding.fix:
            lines.append(screen.wrapped(f"{indent}  hint: {printable(finding.fix)}"))
    return "\n".join(lines)


def _quoted(text: Any) -> list[str]:  # noqa: ANN401
    if isinstance(text, str):
        return text.splitlines()
    return [f"line {row['line']}: {row['text']}" for row in text]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1.

    Examples
    --------
    >>> counted(1, "wheel"), counted(2, "base image")
    ('1 wheel', '2 base images')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def count_text(findings: Sequence[Finding]) -> str:
    """Return the number of findings of each severity.

    Examples
    --------
    >>> from builders.findings import Finding
    >>> count_text([Finding("a", "error", ""), Finding("b", "error", ""), Finding("c", "info", "")])
    '2 errors, 1 info'
    >>> count_text([])
    'no findings'
    """
    from builders.findings import SEVERITIES

    counts = Counter(finding.severity for finding in findings)
    parts = [
        f"{counts[severity]} {severity}{'s' if counts[severity] > 1 and severity != 'info' else ''}"
        for severity in SEVERITIES
        if counts[severity]
    ]
    return ", ".join(parts) or "no findings"


def shortened(names: Iterable[str], *, most: int = 5, separator: str = ", ") -> str:
    """Join names for a sentence; name the first ones of a long list and count the others.

    Examples
    --------
    >>> shortened(["a", "b"]), shortened(["a", "b", "c", "d"], most=2)
    ('a, b', 'a, b and 2 more')
    """
    names = list(names)
    rest = len(names) - most
    if rest <= 1:
        return separator.join(names)
    return f"{separator.join(names[:most])} and {rest} more"


SOURCE_KINDS = {
    "pure": "pure Python",
    "compiled": "compiled, without torch",
    "torch": "compiled against torch",
    "cuda": "for CUDA only",
    "downloads": "its build downloads files",
    "placeholder": "a placeholder",
    "unread": "its source was not read",
}
"""The kinds of sources as text."""


def duration(seconds: float) -> str:
    """Return a duration as text.

    Examples
    --------
    >>> duration(42), duration(600), duration(5400)
    ('42 s', '10 min', '1.5 h')
    """
    if seconds < 90:  # noqa: PLR2004
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"  # noqa: PLR2004


def format_size(size: int) -> str:
    """Format a number of bytes.

    Examples
    --------
    >>> format_size(512), format_size(1536), format_size(3 * 2**30)
    ('512 B', '1.5 KiB', '3.0 GiB')
    """
    amount, number = float(size), 0
    while amount >= _SIZE_STEP and number < len(_SIZE_UNITS) - 1:
        amount, number = amount / _SIZE_STEP, number + 1
    return f"{amount:.1f} {_SIZE_UNITS[number]}" if number else f"{size} B"
