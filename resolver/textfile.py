"""Read a text file from the user, with a clear error for each kind of problem."""

from __future__ import annotations

import stat
from codecs import BOM_UTF8
from typing import TYPE_CHECKING

from resolver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 16 * 2**20  # bytes; far above any lock or list of packages, so anything larger is a mistake


def read_text(
    path: Path,
    *,
    error: type[UsageError] = UsageError,
    hint: str = "",
    largest: int = LARGEST,
    pipes: bool = False,
    mark: bool = True,
) -> str:
    """Read a file as UTF-8 text.

    `error` is the exception to raise, `largest` the maximum size in bytes. `pipes` allows a pipe, such as
    ``<(pip list)`` of a shell; `mark` allows a byte order mark, which is removed.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            msg = f"{path} is a directory, not a file."
            raise error(msg, hint=hint)
        if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
            msg = f"{path} is not a regular file."
            raise error(msg, hint=hint)
        with path.open("rb") as source:
            raw = source.read(largest + 1)
    except FileNotFoundError:
        msg = f"The file {path} does not exist."
        raise error(msg, hint=hint) from None
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        msg = f"Cannot read {path}: {reason}."
        raise error(msg, hint=hint) from None
    if len(raw) > largest:
        msg = f"{path} is larger than {largest // 2**20} MiB."
        raise error(msg, hint=hint)
    if not mark and raw.startswith(BOM_UTF8):
        msg = f"{path} begins with a byte order mark."
        raise error(msg, hint="Save it as UTF-8 without a byte order mark.")
    return _decoded(raw, path, error, hint)


def _decoded(raw: bytes, path: Path, error: type[UsageError], hint: str) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        msg = f"{path} is UTF-16 text, not UTF-8."
        raise error(msg, hint="Save it as UTF-8.")
    if b"\0" in raw:
        msg = f"{path} is a binary file, not text: byte {raw.index(0)} is zero."
        raise error(msg, hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = raw[: failure.start].count(b"\n") + 1
        msg = f"{path}:{line}: not UTF-8 text (byte {failure.start})."
        raise error(msg, hint=hint) from None
