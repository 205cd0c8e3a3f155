"""Recognise what a path is, and read it with the reader for it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from matrix.input.environment_file import read_environment
from matrix.reading.items import Reading, Unread

if TYPE_CHECKING:
    from pathlib import Path

_HARMLESS = re.compile(
    r"line \d+: --(only-binary|no-binary|pre|prefer-binary|trusted-host|require-hashes|no-index)\b"
)


def read(path: Path) -> Reading:
    """Read a thing; nothing of it is executed."""
    found = read_environment(path)
    python = next((item.version for item in found.wanted if item.name == "python" and item.version), "")
    return Reading(
        kind=_kind(path, found.document),
        name=str(path),
        items=[item for item in found.wanted if not (item.name == "python" and item.version)],
        unread=[Unread(0, text, "", not _HARMLESS.search(text)) for text in found.unread],
        python=python,
        index_urls=[*found.index_urls, *(["https://download.pytorch.org/whl/rocm6"] * found.has_rocm_index)],
        installed=found.installed,
        content=found.content,
        platform=found.platform,
        how=found.how,
        document=found.document,
    )


def _kind(path: Path, document: object) -> str:
    if document is not None:
        return "conda environment file" if getattr(document, "kind", "") == "conda" else "requirements file"
    return "environment" if path.is_dir() else path.suffix.lstrip(".") or path.name
