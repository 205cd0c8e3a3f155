"""A file as entries for pip, each with its place in the file and how to write it there again."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from matrix.checking.findings import Edit
from matrix.checking.piplines import PipLine, without_comment

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from matrix.checking.findings import Finding

Kind = Literal["conda", "requirements"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line for pip, or one dependency for conda."""

    first: int
    """The line of the file on which it begins, from 1."""
    last: int
    text: str
    """As pip or conda is to read it, without comment."""
    before: str = ""
    """What stands before it on its line: indentation, and in YAML the hyphen."""
    behind: str = ""
    """What stands behind it: a comment, a carriage return."""
    editable: bool = False
    """Whether it has a line of its own, so that the line can be written anew."""

    @cached_property
    def pip(self) -> PipLine:
        """The entry as pip reads it."""
        return PipLine(self.text)


def as_it_is(text: str) -> str:
    """Write an entry of a requirements file."""
    return text


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file that is checked."""

    kind: Kind
    name: str
    lines: tuple[str, ...]
    """The lines without their newlines, carriage returns kept."""
    entries: tuple[Entry, ...]
    """What pip gets, in its order."""
    conda: tuple[Entry, ...] = ()
    """What conda gets."""
    found: tuple[Finding, ...] = ()
    """What was already seen while it was read."""
    has_pip_section: bool = True
    spell: Callable[[str], str] = field(default=as_it_is)
    """Write an entry as the format wants it."""

    def rewritten(self, entry: Entry, texts: Sequence[str]) -> Edit | None:
        """Give the change that puts entries in the place of one; its comment stays with the first."""
        if not entry.editable:
            return None
        end = "\r" if entry.behind.endswith("\r") else ""
        behind = [entry.behind, *[end] * (len(texts) - 1)]
        new = tuple(
            f"{entry.before}{self.spell(text)}{tail}" for text, tail in zip(texts, behind, strict=True)
        )
        return Edit(entry.first, entry.last, new)

    def inserted(self, entry: Entry, texts: Sequence[str]) -> Edit | None:
        """Give the change that puts entries before one."""
        if not entry.editable:
            return None
        end = "\r" if entry.behind.endswith("\r") else ""
        new = tuple(f"{entry.before}{self.spell(text)}{end}" for text in texts)
        return Edit(entry.first, entry.first - 1, new)

    def commented(self, entry: Entry) -> Edit | None:
        """Give the change that turns an entry into a comment."""
        if not entry.editable:
            return None
        line = self.lines[entry.first - 1]
        bare = line.lstrip()
        return Edit(entry.first, entry.last, (f"{line[: len(line) - len(bare)]}# {bare}",))


def read_requirements(text: str, name: str) -> Document:
    """Read a pip requirements file; a backslash at the end of a line joins it with the next."""
    lines = text.split("\n")
    entries: list[Entry] = []
    start: int | None = None
    joined = ""
    for number, raw in enumerate(lines, start=1):
        line = raw.removesuffix("\r")
        comment = line.lstrip().startswith("#")
        if line.endswith("\\") and not comment and number < len(lines):
            start = number if start is None else start
            joined += line.strip("\\")
            continue
        first, start, whole = start or number, None, joined + (f" {line}" if comment else line)
        joined = ""
        read, behind = without_comment(whole)
        wanted = read.strip().removesuffix("\\").rstrip()
        if not wanted:
            continue
        alone = first == number and wanted == read.strip()
        before = read[: len(read) - len(read.lstrip())]
        tail = behind + ("\r" if raw.endswith("\r") else "")
        entries.append(
            Entry(first=first, last=number, text=wanted, before=before, behind=tail, editable=alone)
        )
    return Document(kind="requirements", name=name, lines=tuple(lines), entries=tuple(entries))
