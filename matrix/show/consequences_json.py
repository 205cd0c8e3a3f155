"""The consequences of a change, as the JSON document of ``matrix diff``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from matrix.show.json_document import JsonDocument
from resolver.consequences.model import Consequence
from resolver.model import Target

if TYPE_CHECKING:
    from pathlib import Path

    from resolver.model import Request


class SideDocument(msgspec.Struct, kw_only=True):
    """One side of a comparison: a target and the facts."""

    target: Target
    shipped: str
    """The directory with the facts that another version of matrix ships; empty for those of this version."""
    catalogs: tuple[str, ...]

    @classmethod
    def of(cls, request: Request, shipped: Path | None = None) -> SideDocument:
        """Return the side of a request."""
        return cls(target=request.target, shipped=str(shipped or ""), catalogs=request.catalogs)


class DiffDocument(JsonDocument, kw_only=True):
    """The consequences of a change."""

    status: Literal["ok", "breaks"]
    before: SideDocument
    after: SideDocument
    consequences: list[Consequence]
