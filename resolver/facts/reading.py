"""Reading and validating one catalog file: TOML for people, rows for the program."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.utils import canonicalize_name

from resolver.errors import CatalogError, did_you_mean
from resolver.facts import schema
from resolver.facts.values import check_values

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_LARGEST_FILE = 8 * 2**20  # bytes; the shipped catalog is far below, so more is a mistake


def read_file(path: Path) -> schema.CatalogFile:
    """Read and validate one catalog file.

    Raises
    ------
    CatalogError
        With the file, the line where that is known, the row and the key.
    """
    try:
        if path.stat().st_size > _LARGEST_FILE:
            msg = f"{path} is larger than {_LARGEST_FILE // 2**20} MiB: that is no catalog file."
            raise CatalogError(msg)
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        msg = f"Cannot read the catalog file {path}: {error.strerror}."
        raise CatalogError(msg) from None
    except UnicodeDecodeError as error:
        msg = f"{path} is not UTF-8 text (byte {error.start})."
        raise CatalogError(msg) from None
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
    _name_the_file(data, path)
    try:
        file = msgspec.convert(data, schema.CatalogFile)
    except msgspec.ValidationError as error:
        raise _explain(path, text, data, str(error)) from None
    check_values(path, file)
    return file


def _name_the_package(data: dict[str, Any]) -> None:
    """Normalise the names of packages; in a file of one package its rows need not name it."""
    packages = _tables(data, "package")
    for row in packages:
        _normalise(row, "name")
    name = packages[0].get("name") if len(packages) == 1 else None
    for kind in ("release", "requires", "recipe"):
        for row in _tables(data, kind):
            if name is not None:
                row.setdefault("package", name)
            _normalise(row, "package")


def _name_the_file(data: dict[str, Any], path: Path) -> None:
    """Let every row know the file it stands in; no row may say that itself."""
    for kind in data:
        for row in _tables(data, kind):
            if "from-file" in row:
                msg = f"{path}: [[{kind}]]: the key 'from-file' is set by the program."
                raise CatalogError(msg)
            row["from-file"] = str(path)


def _tables(data: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    rows = data.get(kind)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _normalise(row: dict[str, Any], key: str) -> None:
    if isinstance(row.get(key), str):
        row[key] = canonicalize_name(row[key])


_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$\.(?P<path>.*)`)?$", re.DOTALL)
_INDEX = re.compile(r"(?P<kind>[\w-]+)\[(?P<index>\d+)\]\.?(?P<key>.*)")
_UNKNOWN = re.compile(r"unknown field `(?P<key>.*?)`")


def _explain(path: Path, text: str, data: Mapping[str, Any], error: str) -> CatalogError:
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
    line = _line_of(text, kind, index)
    if unknown:
        struct = next(
            f.type.__args__[0] for f in msgspec.structs.fields(schema.CatalogFile) if f.encode_name == kind
        )
        hint = did_you_mean(unknown["key"], [f.encode_name for f in msgspec.structs.fields(struct)])
    rows = data.get(kind)
    row = rows[index] if isinstance(rows, list) and index < len(rows) else {}
    named = [row.get(one) for one in ("version", "name", "id")] if isinstance(row, dict) else []
    label = "".join(f" {one}" for one in named if one)
    key = f", key {place['key']}" if place["key"] else ""
    return CatalogError(f"{path}:{line}: [[{kind}]] number {index + 1}{label}{key}: {what}", hint=hint)


def _line_of(text: str, kind: str, index: int) -> int:
    heads = [
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.split("#")[0].strip().replace(" ", "") == f"[[{kind}]]"
    ]
    return heads[index] if index < len(heads) else 1
