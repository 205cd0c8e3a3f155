"""Checks of single rows that the schema cannot express."""

from __future__ import annotations

import re
from collections.abc import Iterator  # singledispatch reads the annotations at run time
from functools import singledispatch
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from resolver.errors import UsageError
from resolver.facts import schema
from resolver.facts.placeholders import placeholder_error
from resolver.versions import parse_specifier, shorten

if TYPE_CHECKING:
    from collections.abc import Callable

    Value = tuple[schema.Row, str, str]
    """A row, one of its keys, and a value or an error message of that key."""


# Single rows.


def validation_errors(file: schema.CatalogFile) -> Iterator[Value]:
    """Yield the row, the key and a message for every value that has the right type but is invalid."""
    checks: tuple[tuple[Iterator[Value], Callable[[str], object], str], ...] = (
        (_versions(file), Version, "is not a valid version (PEP 440)"),
        (_specifiers(file), parse_specifier, "is not a valid version specifier (PEP 440)"),
        (_requirements(file), Pep508, "is not a valid requirement (PEP 508)"),
    )
    for values, parse, message in checks:
        for row, key, value in values:
            try:
                parse(value)
            except (InvalidVersion, InvalidRequirement, UsageError):
                yield row, key, f"{shorten(value)!r} {message}"
    for kind in schema.KINDS:
        for row in getattr(file, kind):
            if not row.source.strip():
                yield row, "source", "is empty; every row needs a source"
            for key, message in _row_errors(row):
                yield row, key, message


def _versions(file: schema.CatalogFile) -> Iterator[Value]:
    for kind in (file.rocm, file.python, file.driver, file.torch, file.release, file.wheel):
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
        versions = ("rocm", "glibc", "libstdcxx", "libfabric", "network_plugin")
        yield from ((image, key, getattr(image, key)) for key in versions if getattr(image, key))
        yield from ((image, "python", text) for text in image.python)
        yield from ((image, "holds", text) for text in image.holds.values())
    yield from (
        (recipe, "cxx_standard", recipe.cxx_standard) for recipe in file.recipe if recipe.cxx_standard
    )
    yield from ((row, "driver", row.driver) for row in file.window)
    yield from ((row, "hip", row.hip) for row in file.rocm if row.hip)


def _specifiers(file: schema.CatalogFile) -> Iterator[Value]:
    rows: list[schema.Requires | schema.Recipe] = [*file.requires, *file.recipe]
    yield from ((row, "releases", row.releases) for row in rows if row.releases)
    for recipe in file.recipe:
        yield from ((recipe, "ops", op.releases) for op in recipe.ops if op.releases)
    for requires in file.requires:
        if requires.on != "gfx":
            yield from ((requires, "versions", text) for text in requires.versions)
    for advice in file.site_advice:
        if advice.on != "base-image":
            yield from ((advice, "versions", text) for text in advice.versions)
    yield from ((gfx, "driver", gfx.driver) for gfx in file.gfx if gfx.driver)
    combinations: list[schema.KnownBad | schema.SiteVariable] = [*file.known_bad, *file.site_variable]
    for combined in combinations:
        yield from ((combined, "combination", text) for text in combined.combination.values() if text)


def _requirements(file: schema.CatalogFile) -> Iterator[Value]:
    yield from ((row, "triton", row.triton) for row in file.torch if row.triton)
    for recipe in file.recipe:
        yield from ((recipe, "declared", text) for text in recipe.declared)
        yield from ((recipe, "undeclared", text) for text in recipe.undeclared)


@singledispatch
def _row_errors(row: schema.Row) -> Iterator[tuple[str, str]]:
    """Yield the key and a message for each error in a row."""
    del row
    yield from ()


@_row_errors.register
def _(row: schema.Torch) -> Iterator[tuple[str, str]]:
    if row.backend == "rocm" and not row.rocm:
        yield "rocm", "is missing; add the ROCm line that the wheel is built for"


@_row_errors.register
def _(row: schema.Recipe) -> Iterator[tuple[str, str]]:
    if row.memory_per_job <= 0:
        yield "memory-per-job", "must be more than 0 GiB"
    if row.core_hours < 0:
        yield "core-hours", "must not be negative"
    words = [word for command in row.prepare for word in command]
    texts = {"environment": row.environment.values(), "options": row.options, "prepare": words}
    for key, values in texts.items():
        yield from ((key, error) for error in map(placeholder_error, values) if error)
    if not all(row.prepare):
        yield "prepare", "contains an empty command"
    for name in row.all_ops:
        if name not in row.environment:
            yield "all-ops", f"contains {name}, which `environment` does not set"
    yield from _variable_errors(row)
    for name in row.attributes:
        if not all(name.partition(":")):
            yield "attributes", f"{name!r} does not have the form module:name"


def _variable_errors(row: schema.Recipe) -> Iterator[tuple[str, str]]:
    for key, variables in (("environment", row.environment), ("run-environment", row.run_environment)):
        for name in variables:
            if not _is_variable(name):
                yield key, f"{shorten(name)!r} is not the name of an environment variable"
    for name, value in row.run_environment.items():
        if not _is_value(value):
            yield "run-environment", f"the value of {name} must not contain {_FORBIDDEN_IN_VALUES}"


@_row_errors.register
def _(row: schema.Driver) -> Iterator[tuple[str, str]]:
    if not row.supports:
        yield "supports", "is empty; list the ROCm lines of AMD's table"
    for line in sorted(set(row.supports) & set(row.unsupported)):
        yield "unsupported", f"ROCm {line} is also in `supports`"


@_row_errors.register
def _(row: schema.Release) -> Iterator[tuple[str, str]]:
    if sum(map(bool, (row.sdist, row.git, row.wheel, row.wheels, row.pypi, row.index))) != 1:
        yield "version", "a release has exactly one of sdist, git, wheel, wheels, pypi and index"
    if not all(wheel.url for wheel in row.wheels):
        yield "wheels", "each wheel needs a url"
    for wheel in (row.wheel, *row.wheels):
        if wheel and not re.fullmatch(r"[^-]+(-[^-]+){4,5}\.whl", wheel.file):
            yield "wheel", f"{shorten(wheel.file)!r} is not the name of a wheel with its tags"
    if row.patches and not (row.sdist or row.git):
        yield "patches", "only an sdist or a git commit can be patched"
    for patch in row.patches:
        if not re.fullmatch(r"[0-9a-f]{64}", patch.sha256):
            yield "patches", f"the sha256 of {shorten(patch.file)} must have 64 hexadecimal digits"


@_row_errors.register
def _(row: schema.Requires) -> Iterator[tuple[str, str]]:
    if canonicalize_name(row.on) == row.package:
        yield "on", f"{row.package} cannot require itself"
    if not row.versions:
        yield "versions", "is empty; list at least one specifier"


@_row_errors.register
def _range_errors(row: schema.Dated) -> Iterator[tuple[str, str]]:
    if row.since is not None and row.until is not None and row.until <= row.since:
        yield "until", f"{row.until} is not after {row.since}"


@_row_errors.register
def _(row: schema.Job) -> Iterator[tuple[str, str]]:
    if row.ranks < 1:
        yield "ranks", "must be at least 1"
    if row.cpus < 1:
        yield "cpus", "must be at least 1"
    if row.masks and len(row.masks) != row.ranks:
        yield "masks", f"must have {row.ranks} masks, one for each rank"
    texts = {
        "masks": row.masks,
        "options": row.options,
        "network": row.network,
        "modules": [word for module in row.modules.values() for word in module],
        "binds": row.binds,
        "node_partition": filter(None, [row.node_partition]),
        "gpu_partition": filter(None, [row.gpu_partition]),
    }
    for key, words in texts.items():
        # They are words of a shell script and of #SBATCH lines.
        yield from (
            (key, f"{shorten(word)!r} is not a plain word") for word in words if not _WORD.fullmatch(word)
        )


@_row_errors.register
def _(row: schema.SiteAdvice) -> Iterator[tuple[str, str]]:
    yield from _range_errors(row)
    if not row.versions:
        yield "versions", "is empty; list at least one specifier"


@_row_errors.register
def _(row: schema.SiteVariable) -> Iterator[tuple[str, str]]:
    yield from _range_errors(row)
    if not _is_variable(row.name):
        yield "name", f"{shorten(row.name)!r} is not the name of an environment variable"
    if row.value is not None and not _is_value(row.value):
        yield "value", f"must not contain {_FORBIDDEN_IN_VALUES}"


_WORD = re.compile(r"[A-Za-z0-9_./=:,+-]+")


def _is_variable(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None


def _is_value(text: str) -> bool:
    return re.search(r'["\'`\\${}]', re.sub(r"\$\{\w+\}", "", text)) is None


_FORBIDDEN_IN_VALUES = "quotes, backslashes, or a dollar sign or braces except in ${NAME}"


@_row_errors.register
def _(row: schema.KnownBad) -> Iterator[tuple[str, str]]:
    if not row.combination:
        yield "combination", "is empty; name at least one component"
