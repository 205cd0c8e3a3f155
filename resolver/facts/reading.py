"""Reading and validating one catalog file: TOML for people, rows for the program."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import msgspec
from packaging.utils import canonicalize_name

from resolver.errors import CatalogError, did_you_mean
from resolver.facts import schema
from resolver.facts.lines import line_of_key, lines_of
from resolver.facts.values import check_values
from resolver.textfile import read_text

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST_FILE = 8 * 2**20  # bytes; the shipped catalog is far below, so more is a mistake


def read_file(path: Path, text: str | None = None) -> schema.CatalogFile:
    """Read and validate one catalog file.

    Parameters
    ----------
    path
        The file.
    text
        What to read instead of its content.

    Raises
    ------
    CatalogError
        With the file, the line where that is known, the row and the key.
    """
    if text is None:
        text = read_text(path, error=CatalogError, largest=_LARGEST_FILE, mark=False)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not valid TOML: {error}."
        raise CatalogError(msg) from None
    version = data.get("schema")
    if version != schema.SCHEMA:
        msg = f"{path} has schema = {version!r}; this program reads schema = {schema.SCHEMA}."
        raise CatalogError(msg, hint="Begin the file with the line: schema = 1")
    _name_the_package(data)
    _name_the_place(data, path, text)
    try:
        file = msgspec.convert(data, schema.CatalogFile)
    except msgspec.ValidationError as error:
        raise _explain(path, text, data, str(error)) from None
    check_values(file, text)
    return file


def _name_the_package(data: dict[str, Any]) -> None:
    """Normalise the names of packages; in a file of one package its rows need not name it."""
    packages = _tables(data, "package")
    for row in packages:
        _normalise(row, "name")
    name = packages[0].get("name") if len(packages) == 1 else None
    for row in _tables(data, "known-bad"):
        if isinstance(row.get("combination"), dict):
            row["combination"] = {canonicalize_name(key): one for key, one in row["combination"].items()}
    for kind in ("release", "requires", "recipe"):
        for row in _tables(data, kind):
            if name is not None:
                row.setdefault("package", name)
            _normalise(row, "package")


def _name_the_place(data: dict[str, Any], path: Path, text: str) -> None:
    """Let every row know the file and the line at which it stands; no row may say that itself."""
    for kind in data:
        rows = _tables(data, kind)
        lines = lines_of(text, kind, len(rows))
        for row, line in zip(rows, lines, strict=True):
            for key in {"from-file", "from-line"} & row.keys():
                msg = f"{path}:{line}: [[{kind}]]: the key {key!r} is set by the program."
                raise CatalogError(msg)
            row["from-file"], row["from-line"] = str(path), line


def _tables(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = data.get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _normalise(row: dict[str, Any], key: str) -> None:
    if isinstance(row.get(key), str):
        row[key] = canonicalize_name(row[key])


_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.(?P<path>.*)`)?$", re.DOTALL)
_INDEX = re.compile(r"(?P<kind>[\w-]+)\[(?P<index>\d+)\]\.?(?P<key>.*)")
_BAD_VALUE = re.compile(r"Invalid enum value '(?P<value>.*)'")
_UNKNOWN = re.compile(r"unknown field `(?P<key>.*?)`")


def _explain(path: Path, text: str, data: dict[str, Any], error: str) -> CatalogError:
    match = _AT.match(error)
    what, where = (match["what"], match["path"] or "") if match else (error, "")
    hint = ""
    unknown = _UNKNOWN.search(what)
    place = _INDEX.match(where)
    if unknown and not place:
        hint = did_you_mean(
            unknown["key"], [f.encode_name for f in msgspec.structs.fields(schema.CatalogFile)]
        )
    if not place:
        return CatalogError(f"{path}: {what} {where}".rstrip(), hint=hint)
    kind, index = place["kind"], int(place["index"])
    rows = _tables(data, kind)
    row = rows[index] if index < len(rows) else {}
    key = unknown["key"] if unknown else place["key"].split("[")[0].split(".")[0]
    line = line_of_key(text, row.get("from-line", 1), key)
    if unknown:
        hint = did_you_mean(unknown["key"], _types_of(kind))
    elif bad_value := _BAD_VALUE.search(what):
        hint = did_you_mean(bad_value["value"], _values_of(_types_of(kind).get(key)))
    named = [row.get(one) for one in ("version", "name", "id")]
    label = "".join(f" {one}" for one in named if one)
    at = f", key {place['key']}" if place["key"] else ""
    return CatalogError(f"{path}:{line}: [[{kind}]] number {index + 1}{label}{at}: {what}", hint=hint)


def _types_of(kind: str) -> dict[str, Any]:
    """Give the keys that a row of a kind may have, each with its type."""
    row = next(
        f.type.__args__[0] for f in msgspec.structs.fields(schema.CatalogFile) if f.encode_name == kind
    )
    return {field.encode_name: field.type for field in msgspec.structs.fields(row)}


def _values_of(kind: Any) -> list[str]:  # noqa: ANN401  whatever a type may be
    """Give the texts that a type names one by one, wherever in it they stand."""
    parts = get_args(kind)
    if get_origin(kind) is Literal:
        return [one for one in parts if isinstance(one, str)]
    return [value for part in parts for value in _values_of(part)]
