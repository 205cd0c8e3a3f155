"""The two sides of a change, and its consequences."""

from __future__ import annotations

from typing import Literal

import msgspec

from resolver.facts.catalog import Catalog
from resolver.model import CoreItem, Request

Effect = Literal["breaks", "at-own-risk", "possible", "supported", "different"]
Kind = Literal["default", "base-image", "torch", "package", "lock", "wheel", "proven-set"]


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: the facts, and the request with the limits of the table, as for `Table`."""

    catalog: Catalog
    request: Request


class RowKey(msgspec.Struct, frozen=True):
    """A row of the table."""

    base_image: str
    """Empty if no base image works with this torch and Python, or if the sides name different images."""
    torch: str
    python: str


class Consequence(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a change on one thing.

    Attributes
    ----------
    effect
        ``breaks``: the thing was possible and no longer is; ``possible``: the reverse. ``at-own-risk``: the
        thing was supported and is now only possible at your own risk; ``supported``: the reverse.
    kind, name
        The thing.
    before, after
        Its version or state on each side; empty if impossible.
    where
        The rows of the table that are affected.
    was, now
        The facts that changed and are related to the effect, as they were and as they are. A fact that only
        one side has is in only one of these.
    core
        The minimal conflict on the side on which the thing, or its version, is impossible.
    """

    effect: Effect
    kind: Kind
    name: str
    before: str = ""
    after: str = ""
    where: tuple[RowKey, ...] = ()
    was: tuple[CoreItem, ...] = ()
    now: tuple[CoreItem, ...] = ()
    core: tuple[CoreItem, ...] = ()
