"""Adding rows to a file of facts: as text behind what is there, checked before anything is written.

Nothing that a person wrote is touched: comments, order and rows stay as they are.
"""

from __future__ import annotations

import datetime
import difflib
from typing import TYPE_CHECKING, Any

import msgspec
import tomli_w

from builders.files import atomic_path
from resolver.facts.catalog import files_of, read_afresh, shipped
from resolver.facts.schema import KINDS, SCHEMA, CatalogFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from resolver.facts import schema

_HEAD = f"# Facts beside the shipped ones.\nschema = {SCHEMA}\n"
_SET_BY_READING = {"from-file", "from-line"}


def with_rows(text: str, rows: Iterable[schema.Row]) -> str:
    """Give the text of a catalog file with rows added at its end."""
    added = "".join(f"\n{in_toml(row)}" for row in rows)
    begun = text or _HEAD
    return f"{begun if begun.endswith(chr(10)) else begun + chr(10)}{added}" if added else text


def in_toml(row: schema.Row) -> str:
    """Write a row as it would be written by hand: no key that holds its default."""
    kind = _kind(row)
    lines = [f"[[{kind}]]"]
    for key, value in _said(row).items():
        lines.append(f"{key} = {_value(value)}")
    return "\n".join(lines) + "\n"


def _value(value: object) -> str:
    """Write a value on one line, as tomli-w does not for tables and arrays."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).strip().removesuffix(" = 0")


def _kind(row: schema.Row) -> str:
    kinds = {
        field.type.__args__[0]: field.encode_name
        for field in msgspec.structs.fields(CatalogFile)
        if field.name in KINDS
    }
    return str(kinds[type(row)])


def _said(row: schema.Row) -> dict[str, Any]:
    said = {}
    for field in msgspec.structs.fields(row):
        value = getattr(row, field.name)
        if field.encode_name in _SET_BY_READING or value == field.default:
            continue
        if field.default_factory is not msgspec.NODEFAULT and value == field.default_factory():
            continue
        said[field.encode_name] = msgspec.to_builtins(value, builtin_types=(datetime.date,))
    last = ("status", "source", "note")
    return {key: said[key] for key in (*(key for key in said if key not in last), *last) if key in said}


def difference(path: Path, before: str, after: str) -> str:
    """Give a unified diff of a file."""
    old = str(path) if before else "/dev/null"
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), old, str(path), lineterm="", n=2)
    return "\n".join(lines)


def check(path: Path, text: str, overlays: Sequence[Path]) -> None:
    """See that the catalog loads with a file as it is going to be.

    Raises
    ------
    CatalogError
        It would not; nothing was written.
    """
    groups = [shipped(), *map(files_of, overlays)]
    inside = [number for number, one in enumerate(overlays, start=1) if one.is_dir() and one in path.parents]
    if not any(str(path) in group for group in groups):
        if inside:
            groups[inside[-1]].append(str(path))
        else:
            groups.append([str(path)])
    read_afresh(groups, instead={str(path): text})


def write(path: Path, text: str) -> None:
    """Give the file its new content at once."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
