"""The text of a lock to data, and words for what a file is that is no lock."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Any

from resolver.errors import LockError
from resolver.facts.schema import KINDS
from resolver.textfile import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

AGAIN = "Write it anew with: matrix resolve"
_OTHER = "Name the lock that `matrix resolve` wrote with --lock, or write one with: matrix resolve"

_TOML: tuple[tuple[str, Callable[[Mapping[str, Any]], bool]], ...] = (
    ("a pylock.toml (PEP 751)", lambda data: "lock-version" in data),
    ("a poetry.lock", lambda data: "lock-version" in _table(data, "metadata")),
    ("a pdm.lock", lambda data: "lock_version" in _table(data, "metadata")),
    ("a uv.lock", lambda data: "version" in data and "requires-python" in data),
    ("a Cargo.lock", lambda data: "version" in data and isinstance(data.get("package"), list)),
    ("a pyproject.toml", lambda data: "project" in data or "build-system" in data),
    ("a catalog file", lambda data: "schema" in data and any(_key(one) in data for one in KINDS)),
    ("a request (matrix.toml)", lambda data: "requirements" in data and "schema" not in data),
)
_JSON = (
    ("a Pipfile.lock", ("_meta", "default")),
    ("a package-lock.json", ("lockfileVersion",)),
    ("what a command of matrix prints with --format json", ("schema", "status")),
)
_TEXT = (
    ("a web page", re.compile(r"\s*<(!doctype|html)", re.IGNORECASE)),
    ("a lock of conda-lock or pixi", re.compile(r"(?m)^(metadata|environments|packages?):\s*$")),
    ("a conda environment file", re.compile(r"(?m)^dependencies:\s*$")),
    ("a requirements file", re.compile(r"(?m)\A(\s*(#.*|-.*)?\n)*[A-Za-z0-9][\w.-]*\s*(==|>=|<=|~=|@)")),
)
_CONFLICT = re.compile(r"(?m)^(<{7} |={7}$|>{7} )")


def read_data(path: Path) -> dict[str, Any]:
    """Read a lock file as data, of whatever schema.

    Raises
    ------
    LockError
        It is missing, no text, no TOML, or something else than a lock of matrix, which is named.
    """
    if not path.exists():
        msg = f"There is no lock file {path}."
        raise LockError(msg, hint="Write it with: matrix resolve")
    text = read_text(path, error=LockError, hint=_OTHER)
    if not text.strip():
        msg = f"{path} is empty."
        raise LockError(msg, hint=AGAIN)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_toml(path, text, error) from None
    other = next((what for what, seems in _TOML if seems(data)), None)
    if "target" not in data and other:
        raise _another(path, other)
    return data


def _no_toml(path: Path, text: str, error: Exception) -> LockError:
    if _CONFLICT.search(text):
        line = text[: _CONFLICT.search(text).start()].count("\n") + 1  # type: ignore[union-attr]
        return LockError(f"{path}:{line}: a merge conflict was left in the lock.", hint=AGAIN)
    other = _of_json(text) or next((what for what, pattern in _TEXT if pattern.search(text)), None)
    if other:
        return _another(path, other)
    return LockError(f"{path} is no lock: as TOML it cannot be read: {error}.", hint=AGAIN)


def _of_json(text: str) -> str | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return next((what for what, keys in _JSON if all(key in data for key in keys)), "JSON")


def _another(path: Path, what: str) -> LockError:
    return LockError(f"{path} is no lock of matrix: it seems to be {what}.", hint=_OTHER)


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def _key(kind: str) -> str:
    return kind.replace("_", "-")
