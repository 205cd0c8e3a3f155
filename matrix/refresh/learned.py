"""What a source taught: rows that the catalog does not have, and what a person should look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resolver.facts import schema


@dataclass(slots=True)
class Learned:
    """What was learned.

    Attributes
    ----------
    rows
        New rows, in the order in which they are to be written.
    remarks
        Sentences on what a person must decide: a hash that differs, a release without a recipe.
    unreachable
        What could not be asked, and why.
    """

    rows: list[schema.Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
