"""Statements about the releases of a project, and the releases that the search added."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from resolver.facts.schema import Status
    from resolver.indexes import File
    from resolver.versions import Specifier

_PRERELEASE = re.compile(r"\d[-_.]?(a|b|c|pre|rc)|dev", re.IGNORECASE)


class Link(msgspec.Struct, frozen=True, gc=False):
    """A statement about releases of a distribution: a requirement, or the reason why they cannot be used."""

    subject: str
    """Name of the distribution, optionally with an extra: ``lightning[extra]``."""
    object: str
    """Name of the other distribution; empty if the statement is about the release alone."""
    version: str
    """The releases, as versions or a specifier; empty if the statement is about every release."""
    predicate: str
    """The statement, such as ``requires torch<2.2``; empty if it always holds and is never reported."""
    source: str


ALWAYS = Link("", "", "", "", "")
"""The reason for statements that hold by definition, such as that an extra has the version of its project."""


class Pick(msgspec.Struct, frozen=True, order=True):
    """A release that the search added."""

    name: str
    version: str
    files: tuple[File, ...]
    extras: tuple[str, ...]
    support: Status
    """``inferred`` if it is built, and the build may change its requirements."""


def is_prerelease(version: str) -> bool:
    """Return whether a version, or a version in a specifier, is a pre-release (PEP 440)."""
    return _PRERELEASE.search(version.partition("+")[0]) is not None


def names_prerelease(specifier: Specifier | None) -> bool:
    """Return whether a specifier contains a pre-release."""
    return specifier is not None and any(is_prerelease(clause.version) for clause in specifier)
