"""The JSON documents of ``--format json``: their common keys, and the document for an error.

Each command defines its own documents. The published JSON Schemas are generated from these types.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from builders.findings import Finding


class JsonDocument(msgspec.Struct, kw_only=True):
    """A document of a command."""

    schema: Literal[1] = 1
    """Version of the document's format."""
    status: str
    """The answer in one word."""
    warnings: list[str] = []
    """All warnings of the command, which are printed on stderr, too."""


class ErrorDocument(JsonDocument, kw_only=True):
    """The error of a command; `MatrixError.details` adds keys that only some errors have."""

    status: Literal["error"] = "error"
    id: str
    message: str
    hint: str
    cycle: list[str] | UnsetType = UNSET
    diagnosis: list[Finding] | UnsetType = UNSET
    """The known causes of a failed build."""
    measured: dict[str, float] | UnsetType = UNSET
    """Time and memory that a failed build used."""
