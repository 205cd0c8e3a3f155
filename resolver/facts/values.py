"""What the values of a row must mean: versions, specifiers and requirements that can be read.

The schema knows types only. A value that means nothing would otherwise show much later, or never.
"""

from __future__ import annotations

import re
from collections.abc import Iterator  # singledispatch reads the annotations at run time
from functools import singledispatch
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from resolver.errors import CatalogError, UsageError
from resolver.facts import placeholders, schema
from resolver.facts.lines import line_of_key
from resolver.versions import parse_specifier, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    Value = tuple[schema.Row, str, str]
    """Row, key, and the text that stands there."""

_MOST_REFUSED = 4


def check_values(file: schema.CatalogFile, text: str) -> None:
    """See that every version, specifier and requirement of a file can be read.

    Parameters
    ----------
    file
        The rows.
    text
        The text they were read from, to find the line.

    Raises
    ------
    CatalogError
        With file, line, row, key and value.
    """
    readings: tuple[tuple[Iterator[Value], Callable[[str], object], str], ...] = (
        (_versions(file), Version, "is not a version that can be ordered (PEP 440)"),
        (_specifiers(file), parse_specifier, "is not a version specifier (PEP 440)"),
        (_requirements(file), Pep508, "is not a requirement (PEP 508)"),
    )
    for values, read, complaint in readings:
        for row, key, value in values:
            try:
                read(value)
            except (InvalidVersion, InvalidRequirement, UsageError):
                raise _refused(row, key, f"{shorten(value)!r} {complaint}", text) from None
    for row, key, complaint in _meaningless(file):
        raise _refused(row, key, complaint, text)


def triton_name(row: schema.Torch) -> str:
    """Give the normalised name of the triton distribution that a torch wheel needs."""
    return canonicalize_name(Pep508(row.triton).name)


def _refused(row: schema.Row, key: str, complaint: str, text: str) -> CatalogError:
    kind = type(row).__name__
    named = " ".join(str(part) for part in row.key()[:_MOST_REFUSED] if part)
    line = line_of_key(text, row.from_line, key)
    return CatalogError(f"{row.from_file}:{line}: {kind} row {named}, key {key}: {complaint}.")


def _versions(file: schema.CatalogFile) -> Iterator[Value]:
    for kind in (file.rocm, file.python, file.driver, file.torch, file.release):
        yield from ((row, "version", row.version) for row in kind)
    for driver in file.driver:
        yield from ((driver, "supports", text) for text in driver.supports)
        yield from ((driver, "unsupported", text) for text in driver.unsupported)
    for module in file.driver_module:
        yield from ((module, key, getattr(module, key)) for key in ("driver", "module"))
    for torch in file.torch:
        yield from ((torch, "python", text) for text in torch.python)
        optional = ("rocm", "glibc", "torchvision", "torchaudio", "cxx_standard")
        yield from ((torch, key, getattr(torch, key)) for key in optional if getattr(torch, key))
    for image in file.image:
        said = [key for key in ("rocm", "glibc", "libstdcxx") if getattr(image, key)]
        yield from ((image, key, getattr(image, key)) for key in said)
        yield from ((image, "python", text) for text in image.python)
        yield from ((image, "holds", text) for text in image.holds.values())
    yield from (
        (recipe, "cxx_standard", recipe.cxx_standard) for recipe in file.recipe if recipe.cxx_standard
    )
    yield from ((row, "driver", row.driver) for row in file.window)


def _specifiers(file: schema.CatalogFile) -> Iterator[Value]:
    rows: list[schema.Requires | schema.Recipe] = [*file.requires, *file.recipe]
    yield from ((row, "releases", row.releases) for row in rows if row.releases)
    for recipe in file.recipe:
        yield from ((recipe, "ops", op.releases) for op in recipe.ops if op.releases)
    for one in file.requires:
        if one.on != "gfx":
            yield from ((one, "versions", text) for text in one.versions)
    for bad in file.known_bad:
        yield from ((bad, "combination", text) for text in bad.combination.values() if text)


def _requirements(file: schema.CatalogFile) -> Iterator[Value]:
    yield from ((row, "triton", row.triton) for row in file.torch if row.triton)
    for recipe in file.recipe:
        yield from ((recipe, "declared", text) for text in recipe.declared)
        yield from ((recipe, "undeclared", text) for text in recipe.undeclared)


def _meaningless(file: schema.CatalogFile) -> Iterator[Value]:
    """Find what is well formed and still says nothing; the last part is the complaint."""
    for kind in schema.KINDS:
        for row in getattr(file, kind):
            if not row.source.strip():
                yield row, "source", "every row says where its fact stands"
            for key, complaint in _complaints(row):
                yield row, key, complaint


@singledispatch
def _complaints(row: schema.Row) -> Iterator[tuple[str, str]]:
    """Yield keys and what is wrong with them, for a kind of row that can be wrong."""
    del row
    yield from ()


@_complaints.register
def _(row: schema.Torch) -> Iterator[tuple[str, str]]:
    if row.backend == "rocm" and not row.rocm:
        yield "rocm", "a ROCm build must say which rocm it is built for"


@_complaints.register
def _(row: schema.Recipe) -> Iterator[tuple[str, str]]:
    if row.memory_per_job <= 0:
        yield "memory-per-job", "must be above 0 GiB"
    words = [word for command in row.prepare for word in command]
    texts = {"environment": row.environment.values(), "options": row.options, "prepare": words}
    for key, values in texts.items():
        yield from ((key, said) for said in map(placeholders.complaint, values) if said)
    if not all(row.prepare):
        yield "prepare", "has an empty command"
    for name in row.all_ops:
        if name not in row.environment:
            yield "all-ops", f"has {name}, which environment does not set"
    for name in row.attributes:
        if not all(name.partition(":")):
            yield "attributes", f"has {name!r}, which is not of the form module:name"


@_complaints.register
def _(row: schema.Driver) -> Iterator[tuple[str, str]]:
    if not row.supports:
        yield "supports", "is empty; name the ROCm lines of AMD's table"
    for line in sorted(set(row.supports) & set(row.unsupported)):
        yield "unsupported", f"ROCm {line} is in supports, too"


@_complaints.register
def _(row: schema.Release) -> Iterator[tuple[str, str]]:
    if sum(map(bool, (row.sdist, row.git, row.wheel, row.pypi))) != 1:
        yield "version", "give exactly one of sdist, git, wheel and pypi"
    if row.patches and not (row.sdist or row.git):
        yield "patches", "what is published is not patched; give an sdist or a commit"
    for patch in row.patches:
        if not patch.file or "/" in patch.file or patch.file.startswith("."):
            yield "patches", f"{shorten(patch.file)!r} must be the name of a file beside this one"
        if not re.fullmatch(r"[0-9a-f]{64}", patch.sha256):
            yield "patches", f"the sha256 of {shorten(patch.file)} is none"


@_complaints.register
def _(row: schema.Requires) -> Iterator[tuple[str, str]]:
    if canonicalize_name(row.on) == row.package:
        yield "on", "a package cannot need itself"
    if not row.versions:
        yield "versions", "is empty; name at least one specifier"


@_complaints.register
def _(row: schema.Window) -> Iterator[tuple[str, str]]:
    if row.until is not None and row.until <= row.since:
        yield "until", f"{row.until} is not after {row.since}"


@_complaints.register
def _(row: schema.KnownBad) -> Iterator[tuple[str, str]]:
    if not row.combination:
        yield "combination", "is empty; name at least one component"
