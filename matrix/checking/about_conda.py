"""What stands among conda's own dependencies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from matrix.checking.about_lines import finding
from matrix.checking.findings import Edit
from matrix.checking.piplines import is_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected
    from matrix.checking.findings import Finding

_NAME = re.compile(r"(?:[\w./-]+::)?([A-Za-z0-9_.-]+)")
_TORCH = {"torch", "pytorch", "pytorch-gpu", "torchvision", "torchaudio"}
_CUDA = {"pytorch-cuda", "cudatoolkit", "cuda-toolkit", "cuda", "cudnn", "nccl", "nvidia-apex"}


def check_conda(document: Document, expected: Expected) -> Iterator[Finding]:
    """Check conda's dependencies."""
    if document.kind != "conda":
        return
    named: dict[str, Entry] = {}
    for entry in document.conda:
        text = entry.text
        if (
            text.startswith("-")
            or "+" in text.partition("#")[0]
            or " @ " in text
            or is_place(text.split("::")[-1])
        ):
            told = "conda cannot read this; only lines of the pip section go to pip."
            yield finding("pip-line-outside", entry, told, remedy="Move it into the pip section.")
            continue
        found = _NAME.match(text)
        name = found[1].lower() if found else ""
        named.setdefault(name, entry)
        if name in _TORCH and expected.backend == "rocm":
            told = "conda's channels have torch for CUDA and for the CPU, none for ROCm."
            yield finding(
                "conda-torch", entry, told, remedy="Take torch in the pip section, with its ROCm label."
            )
        elif name in _CUDA and expected.backend == "rocm":
            yield finding("conda-torch", entry, "This is for NVIDIA's GPUs; AMD's cannot use it.")
    yield from _python(document, named.get("python"), expected)
    yield from _pip(document, named.get("pip"))


def _versionless(entry: Entry) -> bool:
    return not re.search(r"[=<>~!\s]", entry.text)


def _python(document: Document, entry: Entry | None, expected: Expected) -> Iterator[Finding]:
    new = (f"python={expected.python}",) if expected.python else ()
    told = "conda takes the newest Python that its packages allow; torch may have no wheel for it yet."
    if entry is None:
        if document.conda or document.entries:
            first = (document.conda or document.entries)[0]
            remedy = "Add Python with its version to the dependencies."
            yield finding("python-unpinned", first, told, corrected=new, remedy=remedy)
    elif _versionless(entry):
        yield finding("python-unpinned", entry, told, corrected=new,
                      edit=document.rewritten(entry, new) if new else None)  # fmt: skip
    elif new:
        pinned = re.fullmatch(r"python\s*={1,2}\s*(\d+\.\d+)(\.[\d*]+)*", entry.text)
        if pinned and pinned[1] != expected.python:
            told = f"{expected.against} is for Python {expected.python}; its wheels do not fit {pinned[1]}."
            yield finding("other-python", entry, told, corrected=new, edit=document.rewritten(entry, new))


def _pip(document: Document, entry: Entry | None) -> Iterator[Finding]:
    if entry is not None and _versionless(entry):
        told = "conda takes the newest pip, whose rules change from time to time."
        yield finding("pip-unpinned", entry, told, remedy="Pin it, such as pip=26.*")
    if entry is None and document.has_pip_section and document.entries:
        first = document.entries[0]
        told = "conda complains and adds a pip of its own choice."
        remedy = "List pip among the dependencies, before the pip section."
        yield finding(
            "pip-not-listed", first, told, corrected=("pip",), edit=_pip_edit(document), remedy=remedy
        )


def _pip_edit(document: Document) -> Edit | None:
    """List pip before the line that opens the pip section, where there is exactly one such line."""
    heads = [
        number
        for number, line in enumerate(document.lines, start=1)
        if re.match(r"\s*-\s+pip:\s*(#.*)?$", line)
    ]
    if len(heads) != 1 or heads[0] > document.entries[0].first:
        return None
    line = document.lines[heads[0] - 1]
    end = "\r" if line.endswith("\r") else ""
    return Edit(heads[0], heads[0] - 1, (f"{line[: line.index('pip:')]}pip{end}",))
