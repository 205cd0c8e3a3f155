"""Reading a text file that a person names, with words for whatever is wrong with it."""

from __future__ import annotations

import stat
from codecs import BOM_UTF8
from typing import TYPE_CHECKING

from resolver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 16 * 2**20
"""Bytes; locks and lists of packages are far below, so more is a mistake."""


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

    Parameters
    ----------
    path
        The file.
    error
        What to raise.
    hint
        What to do when it is no text.
    largest
        How many bytes it may have.
    pipes
        Whether it may be a pipe, as a shell makes it of ``<(pip list)``.
    mark
        Whether it may begin with a byte order mark, which is then left out.

    Raises
    ------
    UsageError
        It is missing, no regular file, too large, or no text; or the kind of error that was given.
    """
    try:
        about = path.stat()
        if stat.S_ISDIR(about.st_mode):
            msg = f"{path} is a directory."
            raise error(msg, hint=hint)
        if not (stat.S_ISREG(about.st_mode) or (pipes and stat.S_ISFIFO(about.st_mode))):
            msg = f"{path} is no regular file."
            raise error(msg, hint=hint)
        with path.open("rb") as source:
            raw = source.read(largest + 1)
        if len(raw) > largest:
            msg = f"{path} has more than {largest // 2**20} MiB, which is too much for what it should be."
            raise error(msg, hint=hint)
    except FileNotFoundError:
        msg = f"There is no file {path}."
        raise error(msg, hint=hint) from None
    except (OSError, ValueError) as failure:
        reason = getattr(failure, "strerror", None) or failure
        msg = f"Cannot read {path}: {reason}."
        raise error(msg, hint=hint) from None
    if not mark and raw.startswith(BOM_UTF8):
        msg = f"{path} begins with a byte order mark."
        raise error(msg, hint="Save it as UTF-8 without a byte order mark.")
    return _decoded(raw, path, error, hint)


def _decoded(raw: bytes, path: Path, error: type[UsageError], hint: str) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        msg = f"{path} is UTF-16 text, not UTF-8."
        raise error(msg, hint="Save it as UTF-8.")
    if b"\0" in raw:
        msg = f"{path} is a binary file, not text: it has a zero byte at {raw.index(0)}."
        raise error(msg, hint=hint)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as failure:
        line = raw[: failure.start].count(b"\n") + 1
        msg = f"{path}:{line}: not UTF-8 text (byte {failure.start})."
        raise error(msg, hint=hint) from None
