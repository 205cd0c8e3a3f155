"""Locks with something else in them, and a digest that is right for it."""

from __future__ import annotations

import tomllib
from typing import Any

import tomli_w

from resolver.lockfile.integrity import TABLE, digest_of


def edited(text: str, where: str, value: object) -> dict[str, Any]:
    """Change one value of a lock; None takes away the table that holds it."""
    data = tomllib.loads(text)
    *path, last = where.split(".")
    here: Any = data
    above: Any = None
    for key in path:
        above, here = here, here[int(key)] if isinstance(here, list) else here[key]
    if value is None:
        del above[path[-1]]
    elif isinstance(here, list):
        here[int(last)] = value
    else:
        here[last] = value
    return data


def signed(data: dict[str, Any]) -> str:
    """Write data as a lock with its digest."""
    said = {key: value for key, value in data.items() if key != TABLE}
    return tomli_w.dumps(said | {TABLE: {"sha256": digest_of(said)}})
