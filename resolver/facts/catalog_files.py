"""Catalog files: read rows from TOML, merge layers of files, write rows as TOML.

The files come in layers: the shipped files, a site's, the user's. A row of a later layer replaces the
row with the same identity. Within one layer, two different rows with the same identity are an error, except
requirements about the same releases: each of them allows more.
"""

from __future__ import annotations

import datetime
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec
from packaging.utils import canonicalize_name

from resolver.errors import CatalogError, did_you_mean
from resolver.facts import schema
from resolver.facts.validate import validation_errors
from resolver.texts import check_texts, explained, read_text, toml_value
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Layer = list[schema.CatalogFile]

_LARGEST_FILE = 8 * 2**20  # bytes; far above the shipped files, so anything larger is a mistake
_SET_BY_READER = {"from-file", "from-line"}


# Reading one file.


def read_file(path: Path, text: str | None = None) -> schema.CatalogFile:
    """Read and validate one catalog file. `text` is read instead of the content of the file."""
    shown = schema.displayed(str(path))
    if text is None:
        text = read_text(path, error=CatalogError, largest=_LARGEST_FILE, mark=False)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{shown} is not valid TOML: {error}."
        raise CatalogError(msg) from None
    version = data.get("schema")
    if version != schema.SCHEMA:
        problem = f"has schema = {version!r}" if "schema" in data else "has no schema version"
        msg = f"{shown} {problem}; this program reads schema = {schema.SCHEMA}."
        raise CatalogError(msg, hint=f"Begin the file with the line: schema = {schema.SCHEMA}")
    check_texts(data, shown, CatalogError)
    _fill_in_package_names(data)
    _add_locations(data, path, text)
    try:
        file = msgspec.convert(data, schema.CatalogFile)
    except msgspec.ValidationError as error:
        raise _schema_error(shown, text, data, str(error)) from None
    for row, key, message in validation_errors(file):
        line = _line_of_key(text, row.from_line, key)
        msg = f"{shown}:{line}: [[{kind_of(row)}]] {shorten(row.title)}, key {key}: {message}."
        raise CatalogError(msg)
    return file


def _fill_in_package_names(data: dict[str, Any]) -> None:
    """Normalize package names; in a file with one ``[[package]]``, rows may leave the name out."""
    packages = _tables(data, "package")
    for row in packages:
        _normalize(row, "name")
    name = packages[0].get("name") if len(packages) == 1 else None
    for row in _tables(data, "known-bad"):
        if isinstance(row.get("combination"), dict):
            row["combination"] = {canonicalize_name(key): value for key, value in row["combination"].items()}
    for kind in ("release", "wheel", "requires", "recipe"):
        for row in _tables(data, kind):
            if name is not None:
                row.setdefault("package", name)
            _normalize(row, "package")


def _add_locations(data: dict[str, Any], path: Path, text: str) -> None:
    for kind in data:
        rows = _tables(data, kind)
        lines = _lines_of_rows(text, kind, len(rows))
        for row, line in zip(rows, lines, strict=True):
            for key in _SET_BY_READER & row.keys():
                msg = f"{schema.displayed(str(path))}:{line}: [[{kind}]]: the key {key!r} is reserved."
                raise CatalogError(msg, hint="Remove the key: the program sets it when it reads the file.")
            row["from-file"], row["from-line"] = str(path), line


def _tables(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = data.get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _normalize(row: dict[str, Any], key: str) -> None:
    if isinstance(row.get(key), str):
        row[key] = canonicalize_name(row[key])


# tomllib does not report line numbers, so these functions search for the lines.


def _lines_of_rows(text: str, kind: str, count: int) -> list[int]:
    """Return the line on which each row of a kind begins; line 1 if a row is not written as ``[[kind]]``."""
    lines = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].strip().replace(" ", "") == f"[[{kind}]]"
    ]
    return lines if len(lines) == count else [1] * count


def _line_of_key(text: str, begin: int, key: str) -> int:
    """Return the line of a key in the row that begins on line `begin`; `begin` if it is not found."""
    for number, line in enumerate(text.splitlines()[begin:], start=begin + 1):
        if line.lstrip().startswith("[["):
            break
        if key and re.match(rf"\s*{re.escape(key)}\s*=|\s*\[\w+\.{re.escape(key)}\]", line):
            return number
    return begin


# Errors of msgspec in the terms of the file.

_ERROR = re.compile(r"^(?P<problem>.*?)(?: - at `\$\.(?P<path>.*)`)?$", re.DOTALL)
_ROW = re.compile(r"(?P<kind>[\w-]+)\[(?P<index>\d+)\]\.?(?P<key>.*)")
_BAD_VALUE = re.compile(r"Invalid enum value '(?P<value>.*)'")
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(?P<key>.*?)`")
_MISSING_KEY = re.compile(r"Object missing required field `(?P<key>.*?)`")
_NOT_A_STRING = re.compile(r"Expected `str`, got `(int|float|date|bool)`")


def _schema_error(path: str, text: str, data: dict[str, Any], error: str) -> CatalogError:
    match = _ERROR.match(error)
    problem, where = (match["problem"], match["path"] or "") if match else (error, "")
    if (reason := explained(error, data)) != error:
        problem = reason.removeprefix(f"{where} ")
    unknown, missing = _UNKNOWN_KEY.search(problem), _MISSING_KEY.search(problem)
    in_row = _ROW.match(where)
    if not in_row:
        kinds = [field.encode_name for field in msgspec.structs.fields(schema.CatalogFile)]
        if unknown:
            msg = f"{path}: unknown key {unknown['key']!r}."
            return CatalogError(msg, hint=did_you_mean(unknown["key"], kinds))
        return CatalogError(f"{path}: {problem} {where}".rstrip())
    kind, index = in_row["kind"], int(in_row["index"])
    rows = _tables(data, kind)
    row = rows[index] if index < len(rows) else {}
    key = unknown["key"] if unknown else in_row["key"].split("[")[0].split(".")[0]
    line = _line_of_key(text, row.get("from-line", 1), key)
    hint = ""
    if unknown:
        problem = f"unknown key {key!r}"
        hint = did_you_mean(key, _types_of_keys(kind)) if not in_row["key"] else ""
    elif missing:
        problem = f"required key {missing['key']!r} is missing"
        hint = _example(missing["key"], _types_of_keys(kind).get(missing["key"]))
    elif bad_value := _BAD_VALUE.search(problem):
        hint = did_you_mean(bad_value["value"], _literals(_types_of_keys(kind).get(key)))
    elif _NOT_A_STRING.match(problem):
        hint = "Put the value in quotes."
    name = "".join(f" {row[key]}" for key in ("version", "name", "id") if row.get(key))
    at = f", key {in_row['key']}" if in_row["key"] else ""
    return CatalogError(f"{path}:{line}: [[{kind}]] number {index + 1}{name}{at}: {problem}.", hint=hint)


def _types_of_keys(kind: str) -> dict[str, Any]:
    """Return the keys that a file may set in a row of a kind, each with its type."""
    fields = msgspec.structs.fields(row_types()[kind])
    return {field.encode_name: field.type for field in fields if field.encode_name not in _SET_BY_READER}


def _literals(kind: Any) -> list[str]:  # noqa: ANN401  any type annotation
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return [part for part in parts if isinstance(part, str)]
    return [value for part in parts for value in _literals(part)]


def _example(key: str, kind: Any) -> str:  # noqa: ANN401  any type annotation
    if values := _literals(kind):
        return f'Add {key} = "{values[0]}" (or {", ".join(values[1:])}).'
    if key == "source":
        return 'Add source = "..." with the URL or the file that contains this fact.'
    value = {dict: '{ name = "..." }', tuple: '["..."]', datetime.date: "2026-01-31"}.get(
        get_origin(kind) or kind, '"..."'
    )
    return f"Add {key} = {value}."


# Layers.


def read_layers(
    groups: Iterable[Sequence[str]], overrides: Mapping[str, str] | None = None
) -> tuple[list[Layer], list[Path]]:
    """Read groups of files with resolved paths, each a layer above the previous one; return all files, too.

    A file that is included becomes a layer below the group that includes it. `overrides` has, by path, the
    text to read instead of a file.
    """
    layers: list[Layer] = []
    seen: dict[Path, None] = {}

    def read(path: Path, included_by: tuple[Path, ...]) -> schema.CatalogFile | None:
        if path in included_by:
            chain = ", which includes ".join(schema.displayed(str(file)) for file in [*included_by, path])
            msg = f"A catalog file includes itself: {chain}."
            raise CatalogError(msg, hint="Remove one of these includes.")
        if path in seen:
            return None
        file = read_file(path, (overrides or {}).get(str(path)))
        seen[path] = None
        for name in file.include:
            included = read((path.parent / name).resolve(), (*included_by, path))
            if included is not None:
                layers.append([included])
        return file

    for group in groups:
        files = [read(Path(path), ()) for path in group]
        layers.append([file for file in files if file is not None])
    return layers, list(seen)


def merge(layers: Iterable[Layer]) -> schema.CatalogFile:
    """Merge layers into one set of rows."""
    merged: dict[str, dict[tuple[object, ...], list[schema.Row]]] = {kind: {} for kind in schema.KINDS}
    for layer in layers:
        for kind in schema.KINDS:
            of_layer: dict[tuple[object, ...], list[schema.Row]] = {}
            for file in layer:
                for row in getattr(file, kind):
                    same_identity = of_layer.setdefault(row.key(), [])
                    for other in same_identity:
                        _check_compatible(row, other)
                    same_identity.append(row)
            merged[kind] |= of_layer
    rows: dict[str, Any] = {
        kind: [row for same_identity in by_key.values() for row in same_identity]
        for kind, by_key in merged.items()
    }
    return schema.CatalogFile(schema=schema.SCHEMA, **rows)


def _check_compatible(row: schema.Row, other: schema.Row) -> None:
    differing = [
        name
        for name in row.__struct_fields__
        if name not in {"from_file", "from_line"} and getattr(row, name) != getattr(other, name)
    ]
    if row.widening and {"versions", "gfx"} & {*differing}:
        return
    title = f"{row.location}: [[{kind_of(row)}]] {row.title}"
    if not differing:
        raise CatalogError(
            f"{title} is a duplicate of the row at {other.location}.", hint="Remove one of these rows."
        )
    key = differing[0]
    here, there = (shorten(repr(getattr(either, key))) for either in (row, other))
    msg = (
        f"{title} contradicts {other.location}: {key.replace('_', '-')} is {here} here and {there} there, "
        "and both are in the same layer."
    )
    raise CatalogError(
        msg, hint="Keep one row. Put the other value into its note, or into a file of a later layer."
    )


# Writing.

_LAST_KEYS = ("from", "until", "status", "source", "note")


def row_to_dict(row: schema.Row) -> dict[str, Any]:
    """Return the keys of a row as they are written in a file, without defaults; dates stay dates."""
    values = {}
    for field in msgspec.structs.fields(row):
        value = getattr(row, field.name)
        if field.encode_name in _SET_BY_READER or value == field.default:
            continue
        if field.default_factory is not msgspec.NODEFAULT and value == field.default_factory():
            continue
        values[field.encode_name] = msgspec.to_builtins(value, builtin_types=(datetime.date,))
    keys = [*(key for key in values if key not in _LAST_KEYS), *_LAST_KEYS]
    return {key: values[key] for key in keys if key in values}


def row_to_toml(row: schema.Row) -> str:
    """Return a row as TOML, with one key on each line."""
    lines = [
        f"[[{kind_of(row)}]]",
        *(f"{key} = {toml_value(value)}" for key, value in row_to_dict(row).items()),
    ]
    return "\n".join(lines) + "\n"


def kind_of(row: schema.Row) -> str:
    """Return the name of the table that a row is written in, such as ``known-bad``."""
    return next(kind for kind, row_type in row_types().items() if row_type is type(row))


@cache
def row_types() -> dict[str, type[schema.Row]]:
    """Return the tables of a catalog file in the order in which they are written, with their rows' types."""
    fields = msgspec.structs.fields(schema.CatalogFile)
    return {field.encode_name: get_args(field.type)[0] for field in fields if field.name in schema.KINDS}
