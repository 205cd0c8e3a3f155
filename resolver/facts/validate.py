"""Checks of single rows that the schema cannot express."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache, singledispatch
from itertools import chain
from typing import Any, get_args

import msgspec
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Pep508
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from resolver.errors import UsageError
from resolver.facts import schema
from resolver.facts.placeholders import placeholder_error
from resolver.versions import parse_specifier, shorten

_PARSERS: dict[str, tuple[Callable[[str], object], str]] = {
    "version": (Version, "version (PEP 440)"),
    "specifier": (parse_specifier, "version specifier (PEP 440)"),
    "requirement": (Pep508, "requirement (PEP 508)"),
}
"""What parses a text that the schema marks, and its name."""
_NAMED = {(schema.Requires, "gfx"), (schema.SiteAdvice, "base-image")}
"""The rows about a component whose versions are names."""


def validation_errors(file: schema.CatalogFile) -> Iterator[tuple[schema.Row, str, str]]:
    """Yield the row, the key and a message for every value that has the right type but is invalid."""
    for kind in schema.KINDS:
        for row in getattr(file, kind):
            for key, message in chain(_text_errors(row), _row_errors(row)):
                yield row, key, message
            if not row.source.strip():
                yield row, "source", "is empty; every row needs a source"


def _text_errors(row: msgspec.Struct) -> Iterator[tuple[str, str]]:
    for key, mark, default in _marked(type(row)):
        value = getattr(row, key)
        if value == default or (key == "versions" and (type(row), getattr(row, "on", "")) in _NAMED):
            continue
        texts = [value] if isinstance(value, str) else value.values() if isinstance(value, dict) else value
        parse, name = _PARSERS[mark]
        for text in texts:
            try:
                parse(text)
            except (InvalidVersion, InvalidRequirement, UsageError):
                yield key, f"{shorten(text)!r} is not a valid {name}"


@cache
def _marked(kind: type[msgspec.Struct]) -> list[tuple[str, str, object]]:
    """Return the keys whose texts the schema marks, each with the mark and the default."""
    fields = msgspec.structs.fields(kind)
    return [(field.name, mark, field.default) for field in fields if (mark := _mark_in(field.type))]


def _mark_in(kind: Any) -> str:  # noqa: ANN401  a type
    if isinstance(kind, msgspec.Meta):
        return str((kind.extra or {}).get("text", ""))
    return next(filter(None, map(_mark_in, get_args(kind))), "")


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
    yield from (("ops", message) for op in row.ops for _, message in _text_errors(op))
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
