"""Which torch a file gets, and whether it fits the driver, the base image and the Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from matrix.checking.about_indexes import TORCH_FAMILY, TRITONS, Indexes, torch_index
from matrix.checking.about_lines import finding
from resolver.versions import is_version, join_words, minor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected
    from matrix.checking.findings import Finding
    from resolver.facts.schema import Torch

_ROCM_LABEL = re.compile(r"rocm(\d+\.\d+)")
_CUDA_NAME = re.compile(r"nvidia-.*|cupy-cuda.*|.*-cu1[1-9]\d?|pytorch-cuda|cuda-python|cuda-bindings")
_CUPY_ROCM = re.compile(r"cupy-rocm-(\d+)-(\d+)")


def rocm_of(label: str) -> str:
    """Give the ROCm line that a local label names; empty where it names none.

    Examples
    --------
    >>> rocm_of("rocm6.4.torch2.9.1.gfx90a"), rocm_of("cu128")
    ('6.4', '')
    """
    found = _ROCM_LABEL.match(label)
    return found[1] if found else ""


def check_torch(document: Document, expected: Expected) -> Iterator[Finding]:
    """Check torch, torchvision and torchaudio, and what is for CUDA only."""
    indexes = Indexes(document)
    for entry in document.entries:
        line = entry.pip
        if expected.backend == "rocm":
            yield from _cuda(document, entry)
        if line.requirement is None or line.place or line.name in expected.pins:
            continue
        if line.name in TORCH_FAMILY:
            yield from _family(document, entry, expected, indexes)
        elif line.local and rocm_of(line.local):
            yield from fitting(entry, rocm_of(line.local), expected)
        elif match := _CUPY_ROCM.fullmatch(line.name):
            yield from fitting(entry, f"{match[1]}.{match[2]}", expected)


def fitting(entry: Entry, line: str, expected: Expected) -> Iterator[Finding]:
    """Say whether something for a line of ROCm fits."""
    fit = expected.fit(line) if expected.backend == "rocm" else "wrong"
    if fit == "old":
        told = f"It is for ROCm {line}, and {expected.because}. Older may run, at your own risk."
        yield finding("old-rocm", entry, told)
    elif fit == "wrong":
        because = expected.because or f"{expected.against} is for the CPU"
        told = f"It is for ROCm {line}, and {because}. It installs well and fails when it runs."
        yield finding("other-rocm", entry, told, remedy=_ASK)


def _cuda(document: Document, entry: Entry) -> Iterator[Finding]:
    line = entry.pip
    if line.name and _CUDA_NAME.fullmatch(line.name):
        told = f"{line.name} is for NVIDIA's GPUs: gigabytes that AMD's cannot use."
        certain = document.commented(entry) if line.name.startswith("nvidia-") else None
        yield finding("cuda-package", entry, told, edit=certain,
                      remedy="A torch for ROCm needs none of it.")  # fmt: skip


def _family(document: Document, entry: Entry, expected: Expected, indexes: Indexes) -> Iterator[Finding]:
    line = entry.pip
    if not line.pinned or not is_version(line.pinned):
        found = (
            f"torch's index or PyPI, whichever has the higher version; PyPI's {line.name} is built for CUDA"
        )
        where = found if indexes.any else f"PyPI, whose {line.name} is built for CUDA"
        told = f"Without an exact version {line.name} comes from {where}."
        yield finding("unpinned-torch", entry, told, remedy=_ASK)
    elif not line.local:
        yield _unlabelled(document, entry, expected, indexes)
    elif line.local.startswith("cu") and expected.backend == "rocm":
        told = f"The label {line.local} says that it is built for CUDA."
        rows = _rows(entry, expected)
        corrected = (line.with_pin(f"{line.public}+{rows[0]}"),) if rows else ()
        yield finding("cuda-torch", entry, told, corrected=corrected)
    else:
        yield from _labelled(document, entry, expected, indexes)


def _rows(entry: Entry, expected: Expected) -> list[str]:
    """Give the labels under which a version of torch, torchvision or torchaudio is published and fits."""
    line = entry.pip
    if line.name == "torch":
        return [row.version.partition("+")[2] for row in expected.torches(line.public)]
    rows = [
        row
        for row in expected.catalog.torch.values()
        if line.public == _with_torch(row, line.name)
        and row in expected.torches(row.version.partition("+")[0])
    ]
    return list(dict.fromkeys(row.version.partition("+")[2] for row in rows))


def _with_torch(row: Torch, name: str) -> str:
    """Give the version of torchvision or torchaudio that goes with a torch, without label."""
    said = row.torchvision if name == "torchvision" else row.torchaudio
    return said.rpartition("==")[2].partition("+")[0]


def _unlabelled(document: Document, entry: Entry, expected: Expected, indexes: Indexes) -> Finding:
    line = entry.pip
    labels = _rows(entry, expected)
    named = [one for one in labels if rocm_of(one) in indexes.rocm or one in indexes.torch]
    labels = named or labels
    corrected = (line.with_pin(f"{line.public}+{labels[0]}"),) if labels else ()
    certain = document.rewritten(entry, corrected) if len(labels) == 1 and named else None
    label = "CPU" if expected.backend == "cpu" else "ROCm"
    if named or indexes.own:
        told = (
            f"An index of the file may have it for {label}, and then pip takes that; where it cannot be read "
            "it is PyPI's, which is built for CUDA. With the label it fails instead."
        )
        return finding("unlabelled-torch", entry, told, corrected=corrected, edit=certain)
    told = f"Nothing in the file has it for {label}: pip takes PyPI's {line.name}, which is built for CUDA."
    remedy = _ASK
    if labels and line.name == "torch":
        row = next(one for one in expected.torches(line.public) if one.version.endswith(f"+{labels[0]}"))
        corrected = (f"--extra-index-url {row.index}", *corrected)
        remedy = ""
    return finding("cuda-torch", entry, told, corrected=corrected, remedy=remedy)


def _labelled(document: Document, entry: Entry, expected: Expected, indexes: Indexes) -> Iterator[Finding]:
    line = entry.pip
    rocm = rocm_of(line.local)
    if rocm:
        yield from fitting(entry, rocm, expected)
    if line.name != "torch":
        return
    row = expected.catalog.torch.get(f"{line.public}+{line.local}")
    if row is None:
        same = [one.version for one in expected.torches(line.public)]
        told = f"The catalog knows no torch {line.pinned}; it may not exist."
        if same:
            told += f" For {expected.against} it knows {join_words(same)}."
        yield finding("unknown-torch", entry, told, corrected=tuple(line.with_pin(one) for one in same[:1]))
        return
    wanted = torch_index(row.index)
    if wanted and indexes.torch and wanted not in indexes.torch:
        kind, there = next(iter(indexes.torch.items()))
        told = f"torch {row.version} is at {row.index}; this index has only wheels for {kind}."
        new = (there.text.replace(kind, wanted),)
        certain = (
            document.rewritten(there, new) if len(indexes.torch) == 1 and not kind.startswith("cu") else None
        )
        sure = not rocm or expected.fit(rocm) == "fits"
        yield finding("index-other-rocm", there, told, corrected=new, edit=certain if sure else None)
    python = _python(document, expected)
    if python and row.python and python not in row.python:
        pythons = join_words(row.python, joiner="and")
        told = f"torch {row.version} has wheels for Python {pythons}, none for {python}."
        yield finding("torch-python", entry, told)


def _python(document: Document, expected: Expected) -> str:
    """Give the CPython minor that the file asks conda for, or the lock has."""
    for entry in document.conda:
        found = re.fullmatch(r"python\s*={1,2}\s*(\d+\.\d+)(\.[\d*]+)*", entry.text)
        if found:
            return minor(found[1])
    return expected.python


_ASK = "Ask which fit: matrix resolve torch, with the same site or base image."
__all__ = ["TRITONS", "check_torch", "fitting", "rocm_of"]
