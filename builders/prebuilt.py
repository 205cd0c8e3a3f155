"""Wheels that others compiled and that PyPI does not have: they are audited when they are fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resolver.errors import AuditError
from resolver.facts.catalog import is_elsewhere
from resolver.label import built_for

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution, Resolution


def prebuilt(lock: Resolution, catalog: Catalog) -> list[Distribution]:
    """Return the distributions of a lock whose wheels were compiled by others."""

    def is_prebuilt(pick: Distribution) -> bool:
        row = catalog.release.get((pick.name, pick.version, pick.variant))
        compiled = is_elsewhere(row) if row else built_for(pick.version) is not None
        return compiled and pick.origin == "published" and bool(pick.files)

    return [pick for pick in lock.distributions if is_prebuilt(pick)]


def check_of(lock: Resolution, catalog: Catalog) -> Callable[[Distribution, Path], None]:
    """Return a function that audits a fetched wheel if others compiled it, and otherwise does nothing."""
    names = {pick.name for pick in prebuilt(lock, catalog)}

    def check(pick: Distribution, path: Path) -> None:
        if pick.name in names:
            check_prebuilt(pick, path, lock.target.gfx)

    return check


def check_prebuilt(pick: Distribution, path: Path, gfx: Sequence[str]) -> None:
    """Raise `AuditError` if the audit of a fetched wheel finds errors or a missing GPU architecture."""
    from builders.audit import audit_wheel

    audit = audit_wheel(path)
    problems = [str(finding) for finding in audit.errors]
    code = {item.architecture for objects in audit.contents.code.values() for item in objects}
    missing = [target for target in gfx if target not in code]
    if missing and not path.name.endswith("-any.whl"):
        problems.append(f"{path.name} contains no code for {', '.join(missing)}.")
    if not problems:
        return
    listed = "".join(f"\n  - {problem}" for problem in problems)
    failure = AuditError(
        f"{path.name}, which others compiled, is not used:{listed}\n  File: {path}",
        hint=f"To build {pick.name}, resolve again with --no-prebuilt.",
    )
    failure.findings = tuple(audit.errors)
    raise failure
