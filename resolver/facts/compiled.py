"""The compiled form of the catalog: what was read and validated once, in a form that loads at once.

It holds the rows as they are after validation and laid over one another, with the time and size of
every source file. When any of them changed, or the schema did, it is made anew. It is a cache: one
that is missing, damaged or cannot be written costs time and nothing else. Paths are plain text here:
importing pathlib would take longer than reading the rows.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from resolver.facts import schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


class _Compiled(msgspec.Struct, frozen=True, array_like=True):
    groups: list[list[str]]
    """The files that were asked for, in their layers."""
    stamp: list[tuple[str, int, int]]
    """Name, time of change and size of all files that were read, and of the schema's."""
    rows: schema.CatalogFile


def read(cache: Path | str, groups: Sequence[Sequence[str]]) -> schema.CatalogFile | None:
    """Give the rows of all files laid over one another, or None if they must be read anew."""
    try:
        with open(_place(cache, groups), "rb") as source:
            stored = msgspec.msgpack.decode(source.read(), type=_Compiled)
        same = stored.groups == _names(groups) and stored.stamp == _stamp(one for one, _, _ in stored.stamp)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return stored.rows if same else None


def write(
    cache: Path | str, groups: Sequence[Sequence[str]], files: Sequence[Path], rows: schema.CatalogFile
) -> None:
    """Keep the rows of all files; `files` names those that were included, too."""
    target = _place(cache, groups)
    new = f"{target}.{os.getpid()}"
    determining: list[str | Path] = [schema.__file__, __file__, *files]
    try:
        os.makedirs(cache, exist_ok=True)
        stamp = _stamp(os.path.abspath(path) for path in determining)
        with open(new, "wb") as sink:
            sink.write(msgspec.msgpack.encode(_Compiled(_names(groups), stamp, rows)))
        os.replace(new, target)
    except OSError:
        return


def _names(groups: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[os.path.abspath(path) for path in group] for group in groups]


def _place(cache: Path | str, groups: Sequence[Sequence[str]]) -> str:
    """Give each set of files its own compiled form; a name that two share costs time only."""
    return os.path.join(cache, f"{crc32(repr(_names(groups)).encode()):08x}.msgpack")


def _stamp(paths: Iterable[str]) -> list[tuple[str, int, int]]:
    """Give name, time of change and size of files."""
    found = []
    for path in paths:
        status = os.stat(path)
        found.append((path, status.st_mtime_ns, status.st_size))
    return found
