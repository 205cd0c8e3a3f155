"""The JSON documents of `matrix diff` and `matrix check`, which `matrix report --include` reads, too."""

from __future__ import annotations

from typing import Literal

import msgspec

from matrix.judging.verdict import Judgement, Verdict
from matrix.show.json_document import JsonDocument
from resolver.consequences import Consequence
from resolver.model import Target


class SideDocument(msgspec.Struct, kw_only=True):
    """One side of a comparison: a target and the facts."""

    target: Target
    catalogs: tuple[str, ...]


class DiffDocument(JsonDocument, kw_only=True):
    """The consequences of a change."""

    status: Literal["ok", "breaks"]
    before: SideDocument
    after: SideDocument
    consequences: list[Consequence]


class CheckDocument(JsonDocument, kw_only=True):
    """What things are, whether they work at the site, and why not."""

    status: Verdict
    """The worst verdict."""
    things: list[Judgement]
