"""`matrix.lock`: a resolution as TOML, with a digest of its content at the end.

The same resolution is always written as the same bytes. A lock that was edited or cut short is rejected: its
facts, versions and hashes belong together, and only the resolver may change them. The digest covers
the data rather than the bytes, so that line endings and comments may change in editors and version control.
"""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from resolver.errors import LockError, UsageError
from resolver.model import SCHEMA, Requirement, Resolution
from resolver.requirements import parse_requirement
from resolver.textfile import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = "# Written by `matrix resolve`. To change it, change the request and resolve again.\n"
_INTEGRITY = "integrity"
"""The table with the digest of all other data."""
_AGAIN = "Write it again with `matrix resolve`."


def dumps(resolution: Resolution) -> str:
    """Return the text of a lock."""
    import tomli_w

    data = _without_empty(msgspec.to_builtins(resolution, builtin_types=(date,), enc_hook=encode))
    data[_INTEGRITY] = {"sha256": digest_of(data)}
    return _HEAD + tomli_w.dumps(data, multiline_strings=False)


def encode(value: object) -> str:
    """Return the encoded form of a `Requirement`: its text. For msgspec's `enc_hook`."""
    if isinstance(value, Requirement):
        return value.text
    raise NotImplementedError


def decode(kind: type, value: object) -> Requirement:
    """Return the `Requirement` that a text encodes. For msgspec's `dec_hook`."""
    if kind is not Requirement:
        raise NotImplementedError
    if not isinstance(value, str):
        msg = "Expected a requirement as text"
        raise TypeError(msg)
    try:
        return parse_requirement(value)
    except UsageError as error:
        raise ValueError(error.message.rstrip(".")) from None


def _without_empty(value: Any) -> Any:  # noqa: ANN401  any TOML value
    """Return a value without keys that are empty or None: TOML has no null, and people read the file."""
    if isinstance(value, dict):
        items = {key: _without_empty(item) for key, item in value.items()}
        return {key: item for key, item in items.items() if item not in ("", None, [], {})}
    if isinstance(value, list | tuple):
        return [_without_empty(item) for item in value]
    return value


def digest_of(data: Mapping[str, object]) -> str:
    """Return the SHA-256 of a lock's data in canonical form, without the digest itself.

    Examples
    --------
    >>> digest_of({"a": 1, "b": []}) == digest_of({"b": [], "a": 1})
    True
    >>> digest_of({"a": 1}) == digest_of({"a": True})
    False
    """
    content = {key: value for key, value in data.items() if key != _INTEGRITY}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=_typed)
    return hashlib.sha256(text.encode()).hexdigest()


def _typed(value: object) -> object:
    """Encode a TOML value that JSON lacks, so that a date differs from its text."""
    return {f"!{type(value).__name__}": value.isoformat() if isinstance(value, date) else str(value)}


def read_lock(path: Path) -> Resolution:
    """Read the resolution in a lock file.

    Raises
    ------
    LockError
        The file is missing or not a lock, was written by another version of matrix, or was changed
        after matrix wrote it.
    """
    data = _read_toml(path)
    schema = data.get("schema")
    if "request" not in data or "target" not in data or schema is None:
        msg = f"{path} is not a matrix lock."
        raise LockError(msg, hint="Name the lock with --lock, or write one with `matrix resolve`.")
    if schema != SCHEMA or isinstance(schema, bool):
        msg = f"{path} has unknown schema version {schema!r}. This version of matrix reads {SCHEMA}."
        raise LockError(
            msg, hint=f"Use the version of matrix that wrote it, or {_AGAIN[0].lower()}{_AGAIN[1:]}"
        )
    written = data.pop(_INTEGRITY, None)
    if written is None:
        msg = f"{path} has no digest ([{_INTEGRITY}] at its end). It was cut short or edited."
        raise LockError(msg, hint=_AGAIN)
    if written != {"sha256": digest_of(data)}:
        msg = f"{path} does not match its digest. It was changed after matrix wrote it."
        raise LockError(msg, hint=f"Change the request instead. {_AGAIN}")
    try:
        return msgspec.convert(data, Resolution, dec_hook=decode)
    except msgspec.ValidationError as error:
        msg = f"{path} is not a lock that this version of matrix can read: {error}."
        raise LockError(msg, hint=_AGAIN) from None


def _read_toml(path: Path) -> dict[str, Any]:
    if not path.exists():
        msg = f"There is no lock file {path}."
        raise LockError(msg, hint="Write it with `matrix resolve`.")
    text = read_text(path, error=LockError, hint="Name the lock that `matrix resolve` wrote.")
    if not text.strip():
        msg = f"{path} is empty."
        raise LockError(msg, hint=_AGAIN)
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not a matrix lock, because it is not valid TOML: {error}."
        raise LockError(msg, hint=_AGAIN) from None
