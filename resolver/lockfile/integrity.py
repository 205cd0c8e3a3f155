"""A digest over what a lock says, so that an edit by hand is seen.

It is taken over the data and not over the bytes: line ends, a byte order mark, comments and the
order of keys may change on the way through editors and version control without changing what is said.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TABLE = "integrity"
"""The table at the end of a lock that holds the digest; the digest is over everything else."""


def digest_of(data: Mapping[str, object]) -> str:
    """Give the SHA-256 of data as TOML has it, over its one canonical form as JSON.

    Examples
    --------
    >>> digest_of({"a": 1, "b": []}) == digest_of({"b": [], "a": 1})
    True
    >>> digest_of({"a": 1}) == digest_of({"a": True})
    False
    """
    said = {key: value for key, value in data.items() if key != TABLE}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), default=_typed)
    return hashlib.sha256(text.encode()).hexdigest()


def _typed(value: object) -> object:
    """Give what JSON does not know, so that a date is never the same as a text that looks like it."""
    return {f"!{type(value).__name__}": value.isoformat() if isinstance(value, date) else str(value)}
