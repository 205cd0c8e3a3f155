"""Which build of an extension package a file gets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from matrix.checking.about_indexes import TORCH_FAMILY, Indexes
from matrix.checking.about_lines import finding
from matrix.checking.about_torch import rocm_of
from matrix.checking.piplines import PipLine
from resolver.facts.catalog import applies
from resolver.versions import is_version, join_words, satisfies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected
    from matrix.checking.findings import Finding
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Package

_TORCH_LABEL = re.compile(r"torch(\d+(?:\.\d+)*)")
_GFX_LABEL = re.compile(r"gfx[0-9a-f]+")


def check_extensions(document: Document, expected: Expected) -> Iterator[Finding]:
    """Check every extension package of the catalog that a file names."""
    indexes = Indexes(document)
    torch = next((entry.pip for entry in document.entries if entry.pip.name == "torch"), PipLine(""))
    for entry in document.entries:
        line = entry.pip
        yield from _spelling(document, entry)
        if line.name in expected.pins:
            yield from _of_lock(document, entry, expected)
        package = expected.catalog.package.get(line.name or _repository(line.place))
        if package is None or package.name in TORCH_FAMILY or not _is_built(expected.catalog, package.name):
            continue
        if line.place:
            yield from _place(entry, package)
            continue
        if line.name in indexes.source:
            told = f"pip must build {line.name} here, isolated and so without torch."
            yield finding("built-from-source", indexes.source[line.name], told, remedy=_BUILD)
        if line.requirement is not None and line.name not in expected.pins:
            yield from _wanted(document, entry, package, expected, indexes)
        yield from _target(entry, torch.public, expected)
        yield from _published_for(entry, rocm_of(torch.local), expected)
        yield from _only_binary(document, entry, indexes)
        if line.local and not indexes.any:
            told = "PyPI has no labelled versions, and the file names no index that could have this one."
            yield finding("label-without-index", entry, told,
                          remedy="Name the index: --extra-index-url file:///mnt/simple")  # fmt: skip


def _is_built(catalog: Catalog, name: str) -> bool:
    """Whether a package has releases that must be built; some are only ever taken from PyPI (numpy)."""
    return any(row.sdist or row.git for row in catalog.releases_of(name)) or bool(catalog.recipes_of(name))


def _published(expected: Expected, name: str, version: str) -> bool:
    """Whether a release comes from PyPI as a wheel that holds what it should."""
    return any(
        row.version == version and (row.wheel or row.pypi) and expected.backend in row.backend
        for row in expected.catalog.releases_of(name)
    )


def _repository(place: str) -> str:
    """Give the last part of a repository's address, which is mostly the name of the project.

    Examples
    --------
    >>> _repository("git+https://github.com/ROCm/apex.git@release/1.9.0#egg")
    'apex'
    """
    path = urlsplit(place).path.split("@")[0].rstrip("/")
    return canonicalize_name(path.rpartition("/")[2].removesuffix(".git")) if "+" in place else ""


def _published_for(entry: Entry, rocm: str, expected: Expected) -> Iterator[Finding]:
    """Say whether a wheel that its makers published holds what it needs for the ROCm of torch."""
    line = entry.pip
    for release in expected.catalog.releases_of(line.name):
        if not rocm or not release.wheel or release.version != line.pinned:
            continue
        rows = [row for row in expected.catalog.requires if row.on == "rocm" and applies(row, release)]
        known = [version for row in rows if row.kind == "run" for version in row.versions]
        if known and not any(satisfies(rocm, version) for version in known):
            versions = join_words(known)
            told = f"The wheel of {line.name} {line.pinned} is for ROCm {versions}, and torch is for {rocm}."
            yield finding("other-rocm", entry, told, remedy="Take a version that is for this ROCm.")


def _spelling(document: Document, entry: Entry) -> Iterator[Finding]:
    line = entry.pip
    if not line.local or line.requirement is None:
        return
    written = line.pinned.partition("+")[2]
    if written != line.local:
        told = "Labels are lower case with dots; pip reads them so, other tools compare what is written."
        new = (entry.text.replace(f"+{written}", f"+{line.local}", 1),)
        yield finding("label-spelling", entry, told, corrected=new, edit=document.rewritten(entry, new))


def _of_lock(document: Document, entry: Entry, expected: Expected) -> Iterator[Finding]:
    line, pin = entry.pip, expected.pins[entry.pip.name]
    if line.place or line.requirement is None:
        return
    if not line.pinned or not is_version(line.pinned) or Version(line.pinned) != Version(pin):
        told = f"{expected.against} has {line.name} {pin}; this line lets pip take something else."
        new = (line.with_pin(pin),)
        yield finding("not-the-lock", entry, told, corrected=new, edit=document.rewritten(entry, new))


def _place(entry: Entry, package: Package) -> Iterator[Finding]:
    if entry.pip.is_source:
        told = (
            f"pip builds {package.name} here, isolated and so without torch: the build fails, or ends well "
            "with nothing compiled inside. The order of the lines changes nothing."
        )
        yield finding("built-from-source", entry, told, remedy=_BUILD)


def _wanted(
    document: Document, entry: Entry, package: Package, expected: Expected, indexes: Indexes
) -> Iterator[Finding]:
    """Check how an extension is asked for by name."""
    line = entry.pip
    if line.local or (line.pinned and _published(expected, line.name, line.pinned)):
        return
    trap = package.pypi == "other project"
    if trap and not indexes.wheels_only(line.name):
        told = f"{line.name} on PyPI is another project. pip takes that one"
        told += ", where the index cannot be read or has no higher version" if indexes.any else ""
        told += ", and runs its setup.py."
        new = (f"--only-binary {line.name}", line.text)
        where = document.inserted(entry, new[:1])
        yield finding("other-project", entry, told, corrected=new, edit=where, remedy=_PIN)
    if not line.pinned:
        told = f"pip takes the highest version it finds, from any index: PyPI's {line.name} is "
        told += "another project." if trap else "not built for this torch and this GPU."
        yield finding("unpinned-extension", entry, told, remedy=_PIN)
    else:
        told = "Of several builds of this version pip takes the one whose label sorts last, for whatever GPU"
        told += "; without the index " if indexes.any else ". Without an index that has any, "
        told += "it is PyPI's, of which pip builds what it can, without torch."
        yield finding("unlabelled-extension", entry, told, remedy=_PIN)


def _target(entry: Entry, torch: str, expected: Expected) -> Iterator[Finding]:
    """Compare the label of an extension with the torch of the file and the GPUs of the target."""
    label = entry.pip.local
    built = _TORCH_LABEL.search(label)
    if built and torch and Version(built[1]) != Version(torch):
        told = (
            f"It was built against torch {built[1]}, and the file pins torch {torch}; it may not even import."
        )
        yield finding("other-target", entry, told, remedy=_PIN)
    gfx = _GFX_LABEL.findall(label)
    missing = [one for one in expected.gfx if gfx and one not in gfx]
    if missing:
        told = (
            f"It holds code for {', '.join(gfx)}, not for {', '.join(missing)}, which {expected.against} has."
        )
        yield finding("other-target", entry, told, remedy=_PIN)


def _only_binary(document: Document, entry: Entry, indexes: Indexes) -> Iterator[Finding]:
    line = entry.pip
    if not line.local or indexes.wheels_only(line.name):
        return
    told = "If the wheel is missing, pip may go on to build a source archive of another index, without torch."
    new = (f"--only-binary {line.name}",)
    edit = document.inserted(entry, new)
    yield finding("no-only-binary", entry, told, corrected=(*new, line.text), edit=edit)


_BUILD = "Build a wheel with matrix build-wheels and pin it by its label."
_PIN = "Pin the exact version with its label; matrix env --for cotainr writes it from a lock."
