"""Requirements and constraints for pip."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.findings import Finding
from builders.glibc_tags import too_new_glibc
from builders.host import glibc_version
from builders.index import Index
from matrix.consumers import Consumer
from matrix.consumers.shared.requirements import (
    constraint_lines,
    preinstalled_note,
    requirement_lines,
    requirements_file,
)

if TYPE_CHECKING:
    from matrix.consumers.shared.files import File, Layout
    from matrix.consumers.shared.installation import Installation


def _emit(installation: Installation, layout: Layout) -> list[File]:
    """Return requirements that are complete by themselves, and constraints for later installs."""
    name = "constraints.txt"
    no_deps = "--no-deps " if installation.is_complete else ""
    notes = [
        f"Install with: python -m pip install {no_deps}-r {layout.main} -c {name}",
        f"Keep these versions in later installs with: -c {name}",
        *preinstalled_note(installation),
    ]
    lines = requirement_lines(installation, layout.local, installation.on_top)
    limits = constraint_lines(installation)
    return [
        requirements_file(layout.main, installation, lines, notes, "pip"),
        requirements_file(name, installation, limits, ["Constraints for pip and uv."], "pip"),
    ]


def _check(installation: Installation, layout: Layout) -> list[Finding]:
    """Report wheels that pip would skip on this machine because of its glibc."""
    glibc = glibc_version()
    index = Index(layout.index)
    findings = []
    for pick in installation.on_top:
        wheels = [path.name for path in index.wheels_of(pick.name, pick.pinned)]
        names = [pick.wheel.file] if pick.wheel and not wheels else wheels
        if required := too_new_glibc(names, glibc):
            message = (
                f"The wheel of {pick.name} {pick.pinned} requires glibc {required}, and this machine has "
                f"glibc {glibc}. pip skips the wheel and reports only the versions of other wheels."
            )
            fix = "Install it where glibc is new enough, or build it in a base image with an older glibc."
            evidence = {"wheels": names, "required": required, "glibc": glibc}
            findings.append(Finding("newer-glibc", "warning", message, fix, evidence))
    return findings


CONSUMER = Consumer(file="requirements.txt", emit=_emit, check=_check, supports_hashes=True)
