"""The checked file, the kinds of its findings, and the target that it is checked against.

Requirements files are corrected line by line; `conda_document` has the other kind of file. The target is a
site on a day, a base image, or a lock.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import msgspec
from msgspec.structs import replace

from builders.constants import INDEX_DIRECTORY
from builders.findings import SEVERITIES, Finding, Severity
from resolver.compiling.problem_builder import check_target, window_of
from resolver.errors import UsageError
from resolver.texts import read_text
from resolver.versions import join_words, minor, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ruamel.yaml.comments import CommentedSeq

    from matrix.checking.pip_line import PipLine
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Torch
    from resolver.model import Request, Resolution


LARGEST = 2**20
"""Maximum size of a file in bytes. Files written by people are far smaller."""
HINT = "Name a conda environment file (.yml) or a pip requirements file (.txt)."
_CONDA_PIN = re.compile(r"(?:\S+::)?python(?:\s*={1,2}\s*|\s+)(\d+\.\d+)(\.[\d*]+)*(?:[\s=]\S*)?")
"""Matches a Python for conda, optionally with channel and build: ``conda-forge::python=3.12.*=*_cpython``."""
_COMMENT = re.compile(r"(^|\s+)#.*$")
_STRUCTURAL = {"several-pip-sections", "pip-not-listed"}
"""Findings whose correction changes more than one entry."""


Kind = Literal["conda", "requirements"]

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
    # Conda environment files
    "yaml-map": "error",
    "not-text": "error",
    "pip-not-list": "error",
    "several-pip-sections": "error",
    "duplicate-key": "error",
    "unknown-key": "warning",
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

Consumer = Literal["cotainr", "tykky", "pip"]
CONSUMERS: tuple[Consumer, ...] = ("cotainr", "tykky", "pip")
Fit = Literal["fits", "old", "wrong"]


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
    unique = {(finding.evidence["line"], finding.id, finding.message): finding for finding in findings}
    ordered = sorted(unique.values(), key=_position)
    return [replace(finding, evidence={"file": file, **finding.evidence}) for finding in ordered]


def _position(finding: Finding) -> tuple[int, int, str]:
    return finding.evidence["line"], SEVERITIES.index(finding.severity), finding.id


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

    @property
    def in_flow(self) -> bool:
        """Whether it shares a line with other items, as in ``[a, b]``."""
        return self.sequence is not None and bool(self.sequence.fa.flow_style())

    @cached_property
    def pip(self) -> PipLine:
        """The entry as pip reads it."""
        from matrix.checking.pip_line import PipLine

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
    return finding_at(
        rule, entry.line, entry.text, message, corrected=corrected, fixable=fixable and possible, fix=fix
    )


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


class ExpectedTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The versions that a file may contain."""

    catalog: Catalog
    request: Request
    """A request with this target, or that of the lock."""
    consumer: Consumer
    backend: str
    rocm: tuple[str, ...] = ()
    """ROCm releases (major.minor) that fit, oldest first; empty if that is unknown."""
    exact: bool = False
    """Whether `rocm` is the exact ROCm of an image or a lock, rather than all releases a driver supports."""
    because: str = ""
    """Why these releases fit, as a clause."""
    against: str = ""
    """The target in a few words."""
    gfx: tuple[str, ...] = ()
    pins: Mapping[str, str] = {}
    """Exact versions of the lock by name."""
    python: str = ""
    """CPython minor version of the lock."""
    glibc: str = ""
    """glibc of the base image; empty if there is no base image or its glibc is unknown."""
    index: Path = INDEX_DIRECTORY
    """The local index, whose URL in the container is ``file:///mnt/simple``."""

    def fit(self, rocm: str) -> Fit:
        """Return whether a ROCm release fits; a release older than the driver supports may run."""
        if not self.rocm or rocm in self.rocm:
            return "fits"
        return "old" if not self.exact and sort_key(rocm) < sort_key(self.rocm[0]) else "wrong"

    def published(self, name: str, public: str) -> list[Torch]:
        """Return the torch wheels with which a version of torch, torchvision or torchaudio was released."""
        rows = self.catalog.torch.values()
        return [row for row in rows if released_with(row, name).partition("+")[0] == public]

    def fitting(self, name: str, public: str) -> list[Torch]:
        """Return those of `published` that fit: builds with a ROCm label first, then the newest ROCm."""
        rows = self.published(name, public)
        if self.backend == "cpu":
            return [row for row in rows if row.backend == "cpu"]
        fitting = [row for row in rows if row.rocm and self.fit(minor(row.rocm)) == "fits"]
        return sorted(fitting, key=lambda row: ("+rocm" in row.version, sort_key(row.rocm)), reverse=True)


def released_with(row: Torch, name: str) -> str:
    """Return the version, with label, of torch, torchvision or torchaudio in the release of a torch."""
    return {"torch": row.version, "torchvision": row.torchvision, "torchaudio": row.torchaudio}[name]


def expect_request(
    request: Request, catalog: Catalog, consumer: Consumer, index: Path = INDEX_DIRECTORY
) -> ExpectedTarget:
    """Return the versions that fit a target."""
    target = request.target
    check_target(catalog, target)
    rocm, exact, because = _supported_rocm(request, catalog)
    image = catalog.image.get(target.base_image or "")
    against = f"{target.site} on {target.date}" + (f", {target.base_image}" if target.base_image else "")
    return ExpectedTarget(
        catalog=catalog,
        request=request,
        consumer=consumer,
        backend=target.backend,
        rocm=rocm,
        exact=exact,
        because=because,
        against=against,
        gfx=target.gfx,
        glibc=image.glibc if image else "",
        index=index,
    )


def _supported_rocm(request: Request, catalog: Catalog) -> tuple[tuple[str, ...], bool, str]:
    target = request.target
    if target.backend == "cpu":
        return (), False, ""
    image = catalog.image.get(target.base_image or "")
    if image is not None and image.rocm:
        return (minor(image.rocm),), True, f"the base image {image.name} has ROCm {image.rocm}"
    window = window_of(catalog, request)
    driver = target.driver or (window.driver if window else "")
    row = catalog.driver.get(driver)
    if row is None:
        return (), False, ""
    releases = tuple(sorted(row.supports, key=sort_key))
    owner = f"{target.site} on {target.date} has" if window else "you named"
    supported = join_words(releases, joiner="and")
    return releases, False, f"{owner} kernel driver {driver}, which supports ROCm {supported}"


def expect_lock(
    lock: Resolution, name: str, catalog: Catalog, consumer: Consumer, index: Path = INDEX_DIRECTORY
) -> ExpectedTarget:
    """Return the versions that fit a lock: exactly its own."""
    rocm, image = lock.version_of("rocm"), catalog.image.get(lock.version_of("base-image"))
    return ExpectedTarget(
        catalog=catalog,
        request=lock.request,
        consumer=consumer,
        backend=lock.target.backend,
        rocm=(minor(rocm),) if rocm else (),
        exact=True,
        because=f"{name} has ROCm {rocm}" if rocm else "",
        against=f"{name} (for {lock.target.site} on {lock.target.date})",
        gfx=lock.target.gfx,
        pins={pick.name: pick.pinned for pick in lock.distributions if pick.origin != "preinstalled"},
        python=lock.version_of("python"),
        glibc=image.glibc if image else "",
        index=index,
    )
