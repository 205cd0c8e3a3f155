"""Read requirements and constraints files for pip, line by line."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from builders.findings import SEVERITIES, Finding, Severity
from builders.network.urls import is_of_public_index
from matrix.reading.items import Item, Reading, Unread, pip_item
from resolver.errors import UsageError
from resolver.requirements import TORCH_FAMILY, TRITON_NAMES
from resolver.texts import printable, read_text
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


HINT = "Name a conda environment file (.yml) or a pip requirements file (.txt)."
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")
_LONGEST_SHOWN = 200


VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
_OF_TORCH = r"//[\w.-]*pytorch\.org/"
FIRST_INDEX = "first-index"
"""The strategy of uv and pixi for a project that several indexes have, if none is stated."""
ON_TORCH_INDEX = {*TORCH_FAMILY, *TRITON_NAMES}
"""What PyTorch's indexes have, among much else."""
_LIKE_A_REQUIREMENT = re.compile(r"-|[\w.\[\],-]+\s*[=<>~!^]")
_MANY = 5
"""So many lines that are nothing like a requirement, and twice as many as others, are another text."""
_MOST_NESTED = 50
_MOST_LINES = 100_000
OPTIONS = {".txt": "-r", ".in": "-r", ".yml": "--env", ".yaml": "--env", ".toml": "--project"}
"""The options that read files, by their endings."""

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
    "triton-index": "error",
    "pre-releases": "warning",
    # torch and the packages released with it
    "cuda-torch": "error",
    "unpinned-torch": "error",
    "unlabelled-torch": "warning",
    "other-rocm": "error",
    "driver-risk": "warning",
    "index-other-rocm": "error",
    "unknown-torch": "warning",
    "torch-python": "error",
    "cuda-package": "error",
    "cuda-image": "error",
    "cpu-only": "error",
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
    """Return a finding about a line and a text of it."""
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


def finding(
    rule: str,
    line: Item,
    message: str,
    *,
    corrected: Iterable[str] = (),
    fixable: bool = False,
    fix: str = "",
) -> Finding:
    """Return a finding about a line of the file.

    The texts `corrected` replace its own; one that starts with ``#`` comments it out. With `fixable`, they
    are the only sensible correction, so that ``--fix`` may write them.
    """
    found = finding_at(
        rule, line.line, line.text, message, corrected=corrected, fixable=fixable and line.editable, fix=fix
    )
    return replace(found, evidence={"file": line.file, **found.evidence}) if line.file else found


def lines_of(text: str, file: str = "") -> list[Item]:
    """Return the lines of a requirements file as they are written; those of a file that another one names."""
    lines = text.splitlines(keepends=True)
    numbered = enumerate((line.rstrip("\r\n") for line in lines), start=1)
    if "\\" in text:
        from pip_requirements_parser import join_lines  # slow to load, and needed for few files

        joined = list(join_lines(numbered))
    else:
        joined = list(numbered)
    found = []
    starts = [number for number, _ in joined] + [len(lines) + 1]
    for (number, line), following in zip(joined, starts[1:], strict=True):
        comment = _COMMENT.search(line)
        code = (line[: comment.start()] if comment else line).strip()
        if code:
            alone = following == number + 1 and code in lines[number - 1] and not file
            found.append(Item(line=number, text=code, editable=alone, file=file))
    return found


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
    lines: Iterable[Item],
    name: str,
    role: Role,
    refuse: Callable[[Item, UsageError], None],
    *,
    chain: Sequence[str] = (),
    seen: set[tuple[str, Role]] | None = None,
) -> Iterator[tuple[Role, Item]]:
    """Yield the lines of a file, and after each ``-r`` or ``-c`` those of the file that it names.

    Such files are relative to the one that names them, and each is read once for a role. `refuse` gets a line
    whose file cannot be used, with the error.
    """
    chain = chain or (os.path.realpath(name),)
    seen = set() if seen is None else seen
    for line in lines:
        yield role, line
        options = line.pip.options if line.text.startswith("-") else []
        for flag, value in options:
            if flag not in {"--requirement", "--constraint"} or not value:
                continue
            inner: Role = "requirements" if role == "constraints" else role
            inner = "constraints" if flag == "--constraint" else inner
            try:
                path, text = open_included(value, name, chain)
            except UsageError as error:
                refuse(line, error)
                continue
            real = os.path.realpath(path)
            if (real, inner) not in seen:
                seen.add((real, inner))
                own = lines_of(text, path)
                yield from followed(own, path, inner, refuse, chain=(*chain, real), seen=seen)


def is_index_of_torch(url: str) -> bool:
    """Return whether an index is PyTorch's, which the catalog binds to torch."""
    return re.search(_OF_TORCH, url) is not None


def from_first_index(item: Item, indexes: Sequence[str]) -> Item:
    """Return torch or a companion with the index from which uv and pixi take it, if `indexes` tell.

    They take a project from the first index that has it, and the default one comes last. Sources:
    https://docs.astral.sh/uv/concepts/indexes/ ;
    https://pixi.sh/latest/reference/pixi_manifest/#the-pypi-options-table
    """
    if item.url or item.name not in ON_TORCH_INDEX or not indexes:
        return item
    has_torch = is_index_of_torch(indexes[0]) or is_of_public_index(indexes[0])
    return replace(item, indexes=(indexes[0],)) if has_torch else item


def recognises(_: str, __: str) -> bool:
    """Return that any text may be requirements, so that each bad line is reported."""
    return True


def read(text: str, name: str) -> Reading:
    """Read what pip installs from a requirements or constraints file; raise `UsageError` for other texts."""
    reading = Reading(kind="requirements", name=name, text=text, lines=lines_of(text))
    add_lines(reading)
    other = [one for one in reading.unread if one.matters and not _LIKE_A_REQUIREMENT.match(one.text)]
    if len(other) >= _MANY and len(other) > 2 * len(reading.items):
        first = f"{name}:{other[0].line}: {other[0].text!r}"
        msg = f"{first} and {len(other) - 1} other lines are no requirements."
        hint = "Name a file of pip, conda, uv, pixi or poetry, or what `pip freeze` prints."
        raise UsageError(msg, hint=hint)
    return reading


def _follow(reading: Reading) -> None:
    """Add the lines of the files that a file names; a constraint pins what the others require."""

    def refuse(line: Item, error: UsageError) -> None:
        reading.unread.append(_unread(line, error.message.rstrip(".")))

    lines = list(followed(reading.pip_lines, reading.name, "requirements", refuse))
    limits = [line for role, line in lines if role == "constraints"]
    pins = {line.pip.name: line.pip.pinned for line in limits if line.pip.pinned}
    installed = [_pinned(line, pins) for role, line in lines if role != "constraints"]
    reading.lines = [*reading.conda_lines, *installed]
    for line in limits:
        item = pip_item(line.text, line=line.line)
        reading.constraints += [item] if item else []
        reading.unread.append(_unread(line, "it constrains what others install", matters=False))


def _unread(line: Item, reason: str, *, matters: bool = True) -> Unread:
    return Unread(line.line, printable(shorten(line.text, _LONGEST_SHOWN)), reason, matters, line.file)


def _pinned(line: Item, pins: Mapping[str, str]) -> Item:
    if not pins or line.pip.requirement is None or line.pip.location or line.pip.pinned:
        return line
    pin = pins.get(line.pip.name)
    return replace(line, text=line.pip.with_pin(pin), editable=False) if pin else line


def add_lines(reading: Reading) -> None:
    """Add what the lines for pip install, and the indexes that they name; files that they name are read."""
    from matrix.reading.pip_line import INDEX_OPTIONS, LONGEST_LINE

    if any(line.text.startswith("-") for line in reading.pip_lines):
        _follow(reading)
    refused = {(unread.file, unread.line) for unread in reading.unread if unread.matters}
    main, extra = "", []
    for line in reading.pip_lines:
        pip = line.pip
        if len(line.text) > LONGEST_LINE:
            reading.unread.append(_unread(line, f"it has more than {LONGEST_LINE} characters"))
            continue
        item = pip_item(line.text, line=line.line)
        if item is not None:
            reading.items.append(replace(item, file=line.file))
        elif pip.requirement_text or pip.error or pip.unknown_options:
            variable = VARIABLE.search(line.text)
            reason = (
                f"the variable {variable[1]} is not known here" if variable else "it is not a requirement"
            )
            reading.unread.append(_unread(line, reason))
        elif pip.values("--requirement", "--constraint"):
            if (line.file, line.line) not in refused:
                reading.unread.append(_unread(line, "the file that it names was read", matters=False))
        else:
            main = next(iter(pip.values(INDEX_OPTIONS[0])), main)
            extra += pip.values(INDEX_OPTIONS[1])
            reading.find_links += pip.values("--find-links")
            reading.unread.append(_unread(line, "it is an option of pip", matters=False))
    reading.index_urls += [*filter(None, [main]), *extra]
