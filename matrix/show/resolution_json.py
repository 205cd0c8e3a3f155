"""Resolutions and conflicts as JSON documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from resolver.lock import encode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resolver.model import Conflict, Resolution


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


def resolution_document(resolution: Resolution, changes: Sequence[LockChange] = ()) -> dict[str, Any]:
    """Return the JSON document of a resolution: with the kept distributions, and its changes to a lock."""
    document = _with_kept(resolution)
    if kept := document["target"].get("kept"):
        picks = {pick.name: pick.version for pick in resolution.picks if pick.origin == "preinstalled"}
        kept["picks"] = picks
        kept["ignored"] = sorted(kept["installed"].keys() - picks.keys() - {"python", "rocm"})
    return {**document, "changes": list(changes)}


def conflict_document(conflict: Conflict) -> dict[str, Any]:
    """Return the JSON document of a conflict: with the kept distributions."""
    return _with_kept(conflict)


def _with_kept(answer: Resolution | Conflict) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(answer, enc_hook=encode)
    if answer.request.preinstalled:
        document["target"]["kept"] = msgspec.to_builtins(answer.request.preinstalled)
    return document
