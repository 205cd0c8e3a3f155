"""Print a conflict with the commands that avoid it, and save it for ``matrix explain``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import msgspec

from builders.storage.files import cache_root, write_atomic
from matrix.show.resolution_text import conflict_text, suggestions_text
from resolver.lock import decode, encode

if TYPE_CHECKING:
    from matrix.command_line.context import Context
    from matrix.show.json_document import ConflictDocument
    from resolver.model import Conflict


def show_conflict(conflict: Conflict, context: Context, output: Path | None = None) -> None:
    """Print a conflict as the result of a command, and save it for ``matrix explain``.

    `output` is the lock that the command would have written, for the suggested commands.
    """
    from matrix.command_line.arguments import suggested_arguments
    from matrix.show.json_document import brief_document, conflict_document

    console = context.console
    document = conflict_document(conflict, lambda one: suggested_arguments(one, context, output))
    _save_conflict(document)
    if context.args.format == "json":
        for warning in conflict.warnings:
            console.warning(warning)
        console.document(document)
    elif context.args.format == "brief":
        text = f"{conflict_text(document)}\n{suggestions_text(document)}"
        console.document(brief_document("conflict", text, conflict.warnings))
    else:
        if not console.has_shown_conflict:
            console.text(conflict_text(conflict))
        console.text(suggestions_text(document))
        for warning in conflict.warnings:
            console.warning(warning)
        console.info("\nAll sources of these facts: `matrix explain`")


def _save_conflict(document: ConflictDocument) -> None:
    """Save the conflict and the working directory. This is a convenience, so errors are ignored."""
    path = _conflict_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, msgspec.json.encode((str(Path.cwd()), document), enc_hook=encode))
    except (OSError, ValueError):  # a directory may have a name that is not UTF-8
        return


def forget_conflict() -> None:
    """Remove the saved conflict of the working directory after a request has resolved."""
    try:
        _conflict_path().unlink(missing_ok=True)
    except OSError:
        return


def last_conflict() -> ConflictDocument | None:
    """Return the conflict of the last ``matrix resolve`` in the working directory, if it ended with one."""
    from matrix.show.json_document import ConflictDocument

    try:
        directory, conflict = msgspec.json.decode(
            _conflict_path().read_bytes(), type=tuple[str, ConflictDocument], dec_hook=decode
        )
    except (OSError, ValueError):
        return None
    return conflict if directory == str(Path.cwd()) else None


def _conflict_path() -> Path:
    return cache_root() / "last" / f"{crc32(os.fsencode(Path.cwd())):08x}.json"
