"""Writing a row as a person would: in TOML, without keys that hold their default."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import msgspec
import tomli_w

from resolver.facts.schema import KINDS, CatalogFile

if TYPE_CHECKING:
    from resolver.facts.schema import Row

_SET_BY_READING = {"from-file", "from-line"}
_AT_THE_END = ("status", "source", "note")


def as_written(row: Row) -> dict[str, Any]:
    """Give the keys of a row as they stand in a file; dates stay dates."""
    said = {}
    for field in msgspec.structs.fields(row):
        value = getattr(row, field.name)
        if field.encode_name in _SET_BY_READING or value == field.default:
            continue
        if field.default_factory is not msgspec.NODEFAULT and value == field.default_factory():
            continue
        said[field.encode_name] = msgspec.to_builtins(value, builtin_types=(datetime.date,))
    keys = [*(key for key in said if key not in _AT_THE_END), *_AT_THE_END]
    return {key: said[key] for key in keys if key in said}


def in_toml(row: Row) -> str:
    """Write a row as TOML, each key on a line."""
    lines = [f"[[{_kind(row)}]]", *(f"{key} = {_value(value)}" for key, value in as_written(row).items())]
    return "\n".join(lines) + "\n"


def _kind(row: Row) -> str:
    kinds = {
        field.type.__args__[0]: field.encode_name
        for field in msgspec.structs.fields(CatalogFile)
        if field.name in KINDS
    }
    return str(kinds[type(row)])


def _value(value: object) -> str:
    """Write a value on one line, as tomli-w does not for tables and arrays."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(name)} = {_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"x": value}).strip().removeprefix("x = ")


def _key(name: str) -> str:
    return tomli_w.dumps({name: 0}).strip().removesuffix(" = 0")
