"""Read requirements and constraints files for pip, and correct them line by line.

`conda_file` has the other kind of file that is corrected.
"""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from builders.findings import SEVERITIES, Finding, Severity
from matrix.reading.items import Reading, Unread
from resolver.errors import UsageError
from resolver.texts import printable, read_text
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ruamel.yaml.comments import CommentedSeq

    from matrix.reading.pip_line import PipLine


LARGEST = 2**20
"""Maximum size of a file in bytes. Files written by people are far smaller."""
HINT = "Name a conda environment file (.yml) or a pip requirements file (.txt)."
_CONDA_PIN = re.compile(r"(?:\S+::)?python(?:\s*={1,2}\s*|\s+)(\d{1,9}\.\d{1,9})(\.[\d*]+)*(?:[\s=]\S*)?")
"""Matches a Python for conda, optionally with channel and build: ``conda-forge::python=3.12.*=*_cpython``."""
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")
_LONGEST_SHOWN = 200
_STRUCTURAL = {"several-pip-sections", "pip-not-listed"}
"""Findings whose correction changes more than one entry."""


VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OF_TORCH = re.compile(r"//[\w.-]*pytorch\.org/")
_MOST_NESTED = 50
_MOST_LINES = 100_000
OPTIONS = {".txt": "-r", ".in": "-r", ".yml": "--env", ".yaml": "--env", ".toml": "--project"}
"""The options that read files, by their endings."""

Kind = Literal["conda", "requirements"]
Role = Literal["requirements", "constraints", "overrides"]
"""What the lines of a file are for."""

RULES: dict[str, Severity] = {
    # One line
    "requirement-beside-option": "error",
    "second-value": "error",
    "option-beside-requirement": "error",
    "refused-option": "error",
    "void-setting": "error",
    "hash-on-some": "error",
    "not-a-requirement": "error",
    "tab": "error",
    "variable-not-expanded": "warning",
    "contradicting-requirement": "error",
    "duplicate-requirement": "info",
    "flat-listing": "error",
    "index-replaced": "warning",
    "pre-releases": "warning",
    # torch and the packages released with it
    "cuda-torch": "error",
    "unpinned-torch": "error",
    "unlabelled-torch": "warning",
    "other-rocm": "error",
    "old-rocm": "warning",
    "index-other-rocm": "error",
    "unknown-torch": "warning",
    "torch-python": "error",
    "cuda-package": "error",
    "cuda-image": "error",
    "cpu-only": "error",
    "does-not-fit": "error",
    "second-triton": "error",
    "rocm-placeholder": "warning",
    # Names on several indexes
    "any-index": "warning",
    # Extensions
    "other-project": "error",
    "unpinned-extension": "error",
    "unlabelled-extension": "error",
    "other-target": "error",
    "newer-glibc": "warning",
    "missing-python": "warning",
    "not-the-lock": "error",
    "label-spelling": "warning",
    "label-without-index": "warning",
    "no-only-binary": "warning",
    "built-from-source": "error",
    # Paths
    "hidden-path": "error",
    "relative-path": "error",
    "editable": "error",
    # Job scripts
    "job-image": "warning",
    "job-variable": "warning",
    "job-name": "warning",
    "job-override": "warning",
    "job-devices": "warning",
    "job-layout": "warning",
    "job-user-site": "warning",
    # Conda environment files
    "yaml-map": "error",
    "not-text": "error",
    "pip-not-list": "error",
    "several-pip-sections": "error",
    "duplicate-key": "error",
    "unknown-key": "warning",
    "conda-spec": "error",
    "pip-line-outside": "error",
    "conda-torch": "error",
    "pip-not-listed": "warning",
    "pip-unpinned": "info",
    "python-unpinned": "warning",
    "other-python": "error",
    "defaults-channel": "warning",
    "variables-too-late": "warning",
}
"""The severity of every kind of finding by its id, in the order of docs/reference/checking.md."""


def finding_at(
    rule: str,
    line: int,
    text: str,
    message: str,
    *,
    corrected: Iterable[str] = (),
    fixable: bool = False,
    fix: str = "",
) -> Finding:
    """Return a finding about a line that is not an entry."""
    evidence = {"line": line, "text": text, "corrected": tuple(corrected), "fixable": fixable}
    return Finding(rule, RULES[rule], message, fix, evidence)


def in_order(findings: Iterable[Finding], file: str) -> list[Finding]:
    """Sort the findings of a file by line and severity, and drop repeated ones."""
    unique = {(_position(finding), finding.message): finding for finding in findings}
    ordered = sorted(unique.values(), key=_position)
    return [replace(finding, evidence={"file": file, **finding.evidence}) for finding in ordered]


def _position(finding: Finding) -> tuple[str, int, int, str]:
    evidence = finding.evidence
    return evidence.get("file", ""), evidence["line"], SEVERITIES.index(finding.severity), finding.id


def fixable(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that ``--fix`` corrects."""
    return [finding for finding in findings if finding.evidence["fixable"]]


class Entry(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One line for pip, or one dependency for conda."""

    line: int
    """The line on which it begins, from 1."""
    text: str
    """The text that pip or conda reads, without comment."""
    editable: bool = True
    """Whether it is alone on its line or in its YAML item, so that it can be replaced."""
    sequence: CommentedSeq | None = None
    """The YAML list that contains it."""
    position: int = 0
    file: str = ""
    """The file that has it, if another one names that file (``-r``)."""
    indexes: tuple[str, ...] = ()
    """As of `Item`."""

    @property
    def place(self) -> str:
        """The line for a message."""
        return f"Line {self.line}{f' of {printable(self.file)}' if self.file else ''}"

    @property
    def in_flow(self) -> bool:
        """Whether it shares a line with other items, as in ``[a, b]``."""
        return self.sequence is not None and bool(self.sequence.fa.flow_style())

    @cached_property
    def pip(self) -> PipLine:
        """The entry as pip reads it."""
        from matrix.reading.pip_line import PipLine

        return PipLine(self.text)


def finding(
    rule: str,
    entry: Entry,
    message: str,
    *,
    corrected: Iterable[str] = (),
    fixable: bool = False,
    fix: str = "",
) -> Finding:
    """Return a finding about an entry of the file.

    The lines `corrected` replace the entry; a line that starts with ``#`` comments it out. With `fixable`,
    they are the only sensible correction, so that ``--fix`` may write them.
    """
    corrected = tuple(corrected)
    # An item of a list in flow style, [a, b], cannot be commented out.
    possible = entry.editable and not (entry.in_flow and any(text.startswith("#") for text in corrected))
    found = finding_at(
        rule, entry.line, entry.text, message, corrected=corrected, fixable=fixable and possible, fix=fix
    )
    return replace(found, evidence={"file": entry.file, **found.evidence}) if entry.file else found


class Document(msgspec.Struct, kw_only=True):
    """A requirements file. `CondaDocument` is the other kind."""

    kind: ClassVar[Kind] = "requirements"
    name: str
    lines: list[str]
    """The lines with their line breaks."""
    entries: list[Entry] = []
    """The entries that pip reads."""
    conda: list[Entry] = []
    """The entries that conda reads."""
    findings: list[Finding] = []
    """Problems in the structure of the file."""
    has_pip_section: bool = True
    editable: bool = True

    @property
    def python(self) -> str:
        """The CPython minor version that the file pins; empty if it pins none."""
        pins = (_CONDA_PIN.fullmatch(entry.text) for entry in self.conda)
        return next((pin[1] for pin in pins if pin), "")

    def corrected(self, findings: Iterable[Finding]) -> str:
        """Return the file with corrections, the first for each entry; do not use the document afterwards."""
        entries = {(entry.line, entry.text): entry for entry in reversed(self._entries())}
        chosen: list[tuple[Entry, Sequence[str]]] = []
        inserted: set[object] = set()
        findings = list(findings)
        for finding in findings:
            evidence = finding.evidence
            if finding.id in _STRUCTURAL:
                continue
            entry = entries.pop((evidence["line"], evidence["text"]), None)
            if entry is not None:
                *before, last = evidence["corrected"]
                chosen.append((entry, [last] if tuple(before) in inserted else [*before, last]))
                inserted.add(tuple(before))
        for entry, texts in sorted(chosen, key=lambda pair: (pair[0].line, pair[0].position), reverse=True):
            self._replace(entry, texts)
        self._restructure({finding.id for finding in findings} & _STRUCTURAL)
        return self._text()

    def _restructure(self, rules: set[str]) -> None:
        """Apply the corrections that affect more than one entry."""

    def _entries(self) -> list[Entry]:
        return self.entries

    def _replace(self, entry: Entry, texts: Sequence[str]) -> None:
        """Replace an entry with lines; its comment stays with the last of them."""
        line = self.lines[entry.line - 1]
        before, after = line.split(entry.text, 1)
        # The last line of the file may have no line break.
        end = line[len(line.rstrip("\r\n")) :] or ("\r\n" if self.lines[0].endswith("\r\n") else "\n")
        new = [f"{before}{text}{end}" for text in texts[:-1]]
        self.lines[entry.line - 1 : entry.line] = [*new, f"{before}{texts[-1]}{after}"]

    def _text(self) -> str:
        return "".join(self.lines)


def read_file(path: Path, *, pipes: bool = True) -> str:
    """Read a file to check."""
    text = read_text(path, hint=HINT, largest=LARGEST, pipes=pipes)
    if not text.strip():
        msg = f"{path} is empty."
        raise UsageError(msg, hint=HINT)
    return text


def read_requirements(text: str, name: str) -> Document:
    """Parse a pip requirements file."""
    lines = text.splitlines(keepends=True)
    numbered = enumerate((line.rstrip("\r\n") for line in lines), start=1)
    if "\\" in text:
        from pip_requirements_parser import join_lines  # slow to load, and needed for few files

        joined = list(join_lines(numbered))
    else:
        joined = list(numbered)
    entries = []
    starts = [number for number, _ in joined] + [len(lines) + 1]
    for (number, line), following in zip(joined, starts[1:], strict=True):
        comment = _COMMENT.search(line)
        code = (line[: comment.start()] if comment else line).strip()
        if code:
            alone = following == number + 1 and code in lines[number - 1]
            entries.append(Entry(line=number, text=code, editable=alone))
    return Document(name=name, lines=lines, entries=entries)


def open_included(value: str, parent: str, chain: Sequence[str] = ()) -> tuple[str, str]:
    """Return path and text of a requirements file that another one names.

    `chain` has the real paths of the files that name each other, up to `parent`. Raise `UsageError` if it
    cannot be read, if it is one of these files, or if they are too many.
    """
    value = VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), value)
    if "://" in value:
        msg = f"{shorten(value)!r} is a URL, but matrix reads requirements files only from this machine."
        raise UsageError(msg, hint="Download the file and name the copy.")
    path = Path(parent).parent / value
    real = os.path.realpath(path)
    if real in chain:
        listed = " -> ".join(os.path.relpath(file) for file in (*chain[chain.index(real) :], real))
        raise UsageError(f"these files include each other in a cycle: {listed}.", hint="Remove the line.")
    if len(chain) >= _MOST_NESTED:
        msg = f"requirements files are nested more than {_MOST_NESTED} levels deep."
        raise UsageError(msg)
    option = OPTIONS.get(path.suffix.lower(), "-r")
    if option != "-r":
        raise UsageError(f"{path} is not a pip requirements file.", hint=f"Use {option} {path}")
    text = read_text(path, pipes=True)
    if text.count("\n") > _MOST_LINES:
        raise UsageError(f"{path} has more than {_MOST_LINES} lines, so it is not a requirements file.")
    return str(path), text


def followed(
    entries: Iterable[Entry],
    name: str,
    role: Role,
    refuse: Callable[[Entry, UsageError], None],
    *,
    chain: Sequence[str] = (),
    seen: set[tuple[str, Role]] | None = None,
) -> Iterator[tuple[Role, Entry]]:
    """Yield the lines of a file, and after each ``-r`` or ``-c`` those of the file that it names.

    Such files are relative to the one that names them, and each is read once for a role. `refuse` gets a line
    whose file cannot be used, with the error.
    """
    chain = chain or (os.path.realpath(name),)
    seen = set() if seen is None else seen
    for entry in entries:
        yield role, entry
        options = entry.pip.options if entry.text.startswith("-") else []
        for flag, value in options:
            if flag not in {"--requirement", "--constraint"} or not value:
                continue
            inner: Role = "requirements" if role == "constraints" else role
            inner = "constraints" if flag == "--constraint" else inner
            try:
                path, text = open_included(value, name, chain)
            except UsageError as error:
                refuse(entry, error)
                continue
            real = os.path.realpath(path)
            if (real, inner) not in seen:
                seen.add((real, inner))
                lines = entries_of(text, path)
                yield from followed(lines, path, inner, refuse, chain=(*chain, real), seen=seen)


def is_index_of_torch(url: str) -> bool:
    """Return whether an index is PyTorch's, which the catalog binds to torch."""
    return _OF_TORCH.search(url) is not None


def entries_of(text: str, path: str) -> list[Entry]:
    """Return the lines of a requirements file that is read for another input."""
    return [replace(entry, file=path, editable=False) for entry in read_requirements(text, path).entries]


def recognises(_: str, __: str) -> bool:
    """Return that any text may be requirements, so that each bad line is reported."""
    return True


def read(text: str, name: str) -> Reading:
    """Read what pip installs from a requirements or constraints file."""
    document = read_requirements(text, name)
    reading = Reading(kind="requirements", name=name, document=document)
    add_entries(reading, document)
    return reading


def _follow(reading: Reading, document: Document) -> None:
    """Add the lines of the files that a document names; a constraint pins what the others require."""
    from matrix.reading.pip_line import pip_item

    def refuse(entry: Entry, error: UsageError) -> None:
        text = printable(shorten(entry.text, _LONGEST_SHOWN))
        reading.unread.append(Unread(entry.line, text, error.message.rstrip("."), file=entry.file))

    lines = list(followed(document.entries, reading.name, "requirements", refuse))
    limits = [entry for role, entry in lines if role == "constraints"]
    pins = {entry.pip.name: entry.pip.pinned for entry in limits if entry.pip.pinned}
    document.entries = [_pinned(entry, pins) for role, entry in lines if role != "constraints"]
    for entry in limits:
        item = pip_item(entry.text, line=entry.line)
        reading.constraints += [item] if item else []
        text, reason = printable(shorten(entry.text, _LONGEST_SHOWN)), "it constrains what others install"
        reading.unread.append(Unread(entry.line, text, reason, matters=False, file=entry.file))


def _pinned(entry: Entry, pins: Mapping[str, str]) -> Entry:
    if not pins or entry.pip.requirement is None or entry.pip.location or entry.pip.pinned:
        return entry
    pin = pins.get(entry.pip.name)
    return replace(entry, text=entry.pip.with_pin(pin), editable=False) if pin else entry


def add_entries(reading: Reading, document: Document) -> None:
    """Add what the lines for pip install, and the indexes that they name; files that they name are read."""
    from matrix.reading.pip_line import INDEX_OPTIONS, LONGEST_LINE, pip_item

    if any(entry.text.startswith("-") for entry in document.entries):
        _follow(reading, document)
    refused = {(unread.file, unread.line) for unread in reading.unread if unread.matters}
    main, extra = "", []
    for entry in document.entries:
        line, shown = entry.pip, printable(shorten(entry.text, _LONGEST_SHOWN))
        if len(entry.text) > LONGEST_LINE:
            reason = f"it has more than {LONGEST_LINE} characters"
            reading.unread.append(Unread(entry.line, shown, reason, file=entry.file))
            continue
        item = pip_item(entry.text, line=entry.line)
        if item is not None:
            reading.items.append(replace(item, file=entry.file))
        elif line.requirement_text or line.error or line.unknown_options:
            reading.unread.append(Unread(entry.line, shown, "it is not a requirement", file=entry.file))
        elif line.values("--requirement", "--constraint"):
            if (entry.file, entry.line) not in refused:
                reason = "the file that it names was read"
                reading.unread.append(Unread(entry.line, shown, reason, matters=False, file=entry.file))
        else:
            main = next(iter(line.values(INDEX_OPTIONS[0])), main)
            extra += line.values(INDEX_OPTIONS[1])
            reading.find_links += line.values("--find-links")
            reason = "it is an option of pip"
            reading.unread.append(Unread(entry.line, shown, reason, matters=False, file=entry.file))
    reading.index_urls += [*filter(None, [main]), *extra]
