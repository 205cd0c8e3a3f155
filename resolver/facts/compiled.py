"""The compiled form of the catalog: what was read and validated once, in a form that loads at once.

It holds the rows as they are after validation, with the time and size of every source file. When
any of them changed, or the schema did, it is made anew. It is a cache: one that is missing, damaged
or cannot be written costs time and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resolver.facts import schema

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Compiled(msgspec.Struct, frozen=True, array_like=True):
    stamp: list[tuple[str, int, int]]
    files: list[schema.CatalogFile]


def read(cache: Path, paths: Sequence[Path]) -> list[schema.CatalogFile] | None:
    """Give the rows of all files, or None if they must be read anew."""
    try:
        stored = msgspec.msgpack.decode(_place(cache, paths).read_bytes(), type=_Compiled)
        return stored.files if stored.stamp == _stamp(paths) else None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write(cache: Path, paths: Sequence[Path], files: list[schema.CatalogFile]) -> None:
    """Keep the rows of all files."""
    with suppress(OSError):
        target = _place(cache, paths)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=target.parent)
        with os.fdopen(handle, "wb") as sink:
            sink.write(msgspec.msgpack.encode(_Compiled(_stamp(paths), files)))
        Path(name).replace(target)


def _place(cache: Path, paths: Sequence[Path]) -> Path:
    """Give each set of files its own compiled form."""
    names = "\n".join(str(path.absolute()) for path in paths)
    return cache / f"{hashlib.sha256(names.encode()).hexdigest()[:16]}.msgpack"


def _stamp(paths: Sequence[Path]) -> list[tuple[str, int, int]]:
    """Give name, time of change and size of all files that determine the rows, the schema's too."""
    found = []
    for path in (Path(schema.__file__), Path(__file__), *paths):
        status = path.stat()
        found.append((str(path), status.st_mtime_ns, status.st_size))
    return found
