"""The JSON documents of `matrix diff` and `matrix inspect`, which `matrix report --include` reads, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from builders.findings import Finding
from matrix.show.json_document import JsonDocument
from resolver.answers.repair import Change
from resolver.consequences import Consequence
from resolver.model import CoreItem, Target


class SideDocument(msgspec.Struct, kw_only=True):
    """One side of a comparison: a target and the facts."""

    target: Target
    shipped: str
    """The directory with the facts that another version of matrix ships; empty for those of this version."""
    catalogs: tuple[str, ...]


class DiffDocument(JsonDocument, kw_only=True):
    """The consequences of a change."""

    status: Literal["ok", "breaks"]
    before: SideDocument
    after: SideDocument
    consequences: list[Consequence]


class InspectDocument(JsonDocument, kw_only=True):
    """Whether an environment fits, and what must change."""

    status: Literal["ok", "changed", "conflict", "errors"]
    """``ok``: it fits as it is. ``changed``: it fits with the changes. ``conflict``: nothing fits.
    ``errors``: a finding shows that it does not work."""
    verdict: str
    file: str
    against: str
    distributions: int
    changes: Sequence[Change]
    unread: Sequence[str]
    how: str = ""
    """How an image was read; empty for anything else."""
    platform: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Python, torch and triton of what is installed; ROCm, glibc, libstdc++ (as the GCC that has it) and the
    system of an image."""
    requirements: Sequence[str] = ()
    """The requirements of the environment that fits."""
    core: Sequence[CoreItem] = ()
    """The reasons for a conflict."""
    written: Sequence[str] = ()
    findings: Sequence[Finding] = ()
    """What the files show; for a file that describes an environment, what `matrix check` finds."""
