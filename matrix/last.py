"""The last conflict of a directory, kept so that ``matrix explain`` can show it in full.

It is a convenience: what cannot be written is not kept, and what cannot be read is not there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zlib import crc32

from builders.cache import cache_root


def keep_conflict(document: dict[str, Any]) -> None:
    """Keep a conflict, as it is printed with ``--format json``, for the working directory."""
    from builders.files import write_atomic

    place = _place()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, json.dumps({"directory": str(Path.cwd()), "conflict": document}))
    except OSError:
        return


def forget_conflict() -> None:
    """Forget the conflict of the working directory: something resolved since."""
    try:
        _place().unlink(missing_ok=True)
    except OSError:
        return


def last_conflict() -> dict[str, Any] | None:
    """Give the conflict in which the last ``matrix resolve`` of the working directory ended, if it did."""
    try:
        kept = json.loads(_place().read_bytes())
        conflict: dict[str, Any] = kept["conflict"]
        return conflict if kept["directory"] == str(Path.cwd()) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _place() -> Path:
    return cache_root() / "last" / f"{crc32(str(Path.cwd()).encode()):08x}.json"
