"""All checks of a file, and the file as it should be."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from matrix.checking.about_conda import check_conda
from matrix.checking.about_extensions import check_extensions
from matrix.checking.about_indexes import check_indexes
from matrix.checking.about_lines import check_lines
from matrix.checking.about_paths import check_paths
from matrix.checking.about_torch import check_torch
from matrix.checking.findings import edited, in_order
from matrix.checking.reading import read_document

if TYPE_CHECKING:
    from matrix.checking.document import Document
    from matrix.checking.expected import Expected
    from matrix.checking.findings import Finding

_CHECKS = (check_lines, check_paths, check_indexes, check_torch, check_extensions, check_conda)
_MOST_ROUNDS = 50
"""One line may need several corrections, one after another; more than this is a fault of the program."""


def check(document: Document, expected: Expected) -> list[Finding]:
    """Find what is wrong with a file, in the order of its lines."""
    found = [*document.found, *(one for judge in _CHECKS for one in judge(document, expected))]
    return in_order(found)


def fixed(text: str, name: str, expected: Expected) -> str:
    """Correct what has one certain correction; all other lines stay byte for byte.

    Corrections are made round by round, because one may bring another to light: a line that is split in
    two has a requirement that nobody saw before.
    """
    for _ in range(_MOST_ROUNDS):
        document = read_document(text, name)
        # What cannot be read hides what it says, so that comes first.
        unread = [one.edit for one in document.found if one.edit is not None]
        edits = unread or [one.edit for one in check(document, expected) if one.edit is not None]
        new = "\n".join(edited(document.lines, edits)) if edits else text
        if new == text:
            break
        text = new
    return text


def difference(old: str, new: str, name: str) -> str:
    """Show what was changed, as a unified diff."""
    before, after = ([f"{line}\n" for line in text.removesuffix("\n").split("\n")] for text in (old, new))
    return "".join(difflib.unified_diff(before, after, name, f"{name} (corrected)", n=1)).rstrip("\n")
