"""What all JSON documents of ``--format json`` have, and the documents of errors, resolutions and conflicts.

Other documents are defined by the command that prints them. The published JSON Schemas are generated from
these types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from builders.findings import Finding
from resolver.model import SCHEMA, CoreItem, Notice, Preinstalled, Request, Resolution, Target
from resolver.versions import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resolver.model import Conflict, Suggestion


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


_BRIEF = 3500  # characters of the text of a brief document, which may have 4 kB with its keys


class BriefDocument(JsonDocument, kw_only=True):
    """What a screen shows of an answer, in at most 4 kB: for agents, and comments of a CI."""

    lines: list[str]


def brief_document(status: str, text: str, notices: Sequence[Notice] = ()) -> BriefDocument:
    """Return the lines of a text and the beginning of each notice with its id, as many as have space."""
    short = [f"{shorten(notice.short or notice)} [{notice.id}]" for notice in notices]
    lines = [line for line in text.splitlines() if line]
    room = _BRIEF - sum(map(len, short))
    kept = [line for number, line in enumerate(lines, start=1) if sum(map(len, lines[:number])) <= room]
    more = [f"and {len(lines) - len(kept)} more lines"] if len(lines) > len(kept) else []
    return BriefDocument(status=status, lines=[*kept, *more], warnings=short)


class LockChange(msgspec.Struct, frozen=True, omit_defaults=False):
    """A pick that differs between a lock and the resolution that replaces it."""

    name: str
    before: str
    """Its version in the lock; empty if the lock does not have it."""
    after: str
    """Its version now; empty if it is gone."""
    because: str

    def __str__(self) -> str:
        text = f"{self.name} {self.before or '(new)'} -> {self.after or '(removed)'}"
        return f"{text}: {self.because}" if self.because else text


class PreinstalledDocument(Preinstalled, frozen=True):
    """The distributions that ``--keep-installed`` keeps."""

    picks: dict[str, str] | UnsetType = UNSET
    """The kept distributions that the resolution contains."""
    ignored: list[str] | UnsetType = UNSET
    """Kept distributions that are not in the catalog, or that no distribution requires."""


class TargetDocument(Target, frozen=True, kw_only=True):
    """The target of a request, and the distributions to keep."""

    kept: PreinstalledDocument | UnsetType = UNSET


class ResolutionDocument(Resolution, frozen=True, kw_only=True):
    """A resolution."""

    target: TargetDocument
    changes: tuple[LockChange, ...] = ()
    """What differs from the lock that it replaces."""


class SuggestionDocument(msgspec.Struct, frozen=True):
    """A change after which the request resolves."""

    change: str
    request: tuple[str, ...]
    """The arguments of `matrix resolve` for it."""


class ConflictDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="status", tag="conflict"):
    """A conflict: the reason why there is no resolution."""

    schema: int = SCHEMA
    request: Request
    target: TargetDocument
    core: tuple[CoreItem, ...]
    suggestions: tuple[SuggestionDocument, ...]
    warnings: tuple[Notice, ...] = ()


def resolution_document(resolution: Resolution, changes: Sequence[LockChange] = ()) -> ResolutionDocument:
    """Return the JSON document of a resolution."""
    kept = _preinstalled(resolution.request)
    if kept:
        picks = {pick.name: pick.version for pick in resolution.picks if pick.origin == "preinstalled"}
        ignored = sorted(kept.installed.keys() - picks.keys() - {"python", "rocm"})
        kept = PreinstalledDocument(kept.source, kept.installed, kept.replaced, picks, ignored)
    target = TargetDocument(**asdict(resolution.target), kept=kept or UNSET)
    return ResolutionDocument(**{**asdict(resolution), "target": target, "changes": tuple(changes)})


def conflict_document(
    conflict: Conflict, arguments: Callable[[Suggestion], tuple[str, ...]]
) -> ConflictDocument:
    """Return the JSON document of a conflict; `arguments` returns those of a suggested command."""
    target = TargetDocument(**asdict(conflict.target), kept=_preinstalled(conflict.request) or UNSET)
    suggestions = tuple(SuggestionDocument(one.change, arguments(one)) for one in conflict.suggestions)
    return ConflictDocument(**{**asdict(conflict), "target": target, "suggestions": suggestions})


def _preinstalled(request: Request) -> PreinstalledDocument | None:
    preinstalled = request.preinstalled
    return PreinstalledDocument(preinstalled.source, preinstalled.installed) if preinstalled else None
