"""The tools for which `matrix env` writes files.

Every module of this package is one consumer and defines it as ``CONSUMER``; its name is the module's name. A
new consumer needs nothing else. Subpackages contain shared code.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from builders.findings import Finding
    from matrix.consumers.shared.files import File, Layout
    from matrix.consumers.shared.installation import Installation


def _no_findings(_: Installation, __: Layout) -> list[Finding]:
    return []


class Consumer(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that installs from the index, and how its files are written."""

    file: str
    """Name of the main file."""
    emit: Callable[[Installation, Layout], list[File]]
    """Returns the main file, then the others."""
    check: Callable[[Installation, Layout], list[Finding]] = _no_findings
    """Returns notes for the user about the files."""
    supports_hashes: bool = False
    hashes_hint: str = ""
    """What to do instead of ``--hashes``, and why."""


def consumer_names() -> list[str]:
    """Return the names of all consumers, without importing them."""
    return sorted(module.name for module in iter_modules(__path__) if not module.ispkg)


def load_consumer(name: str) -> Consumer:
    """Import one consumer."""
    consumer: Consumer = import_module(f"{__name__}.{name}").CONSUMER
    return consumer
