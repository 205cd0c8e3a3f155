"""The JSON documents of ``--format json``: what all of them begin with, and that of an error.

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
    """The number of its form."""
    status: str
    """The answer in one word."""


class ErrorDocument(JsonDocument, kw_only=True):
    """Why a command failed; see `MatrixError.details` for what only some errors have."""

    status: Literal["error"] = "error"
    id: str
    message: str
    hint: str
    cycle: list[str] | UnsetType = UNSET
    diagnosis: list[Finding] | UnsetType = UNSET
    """The known causes of a failed build."""
    measured: dict[str, float] | UnsetType = UNSET
    """What a failed build used."""
