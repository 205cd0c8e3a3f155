"""Requirements and constraints for pip."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from builders.findings import Finding
from builders.glibc_tags import too_new_glibc
from builders.host import glibc_version, missing_python
from builders.index import Index
from matrix.consumers import Consumer
from matrix.consumers.shared.requirements import (
    constraint_lines,
    preinstalled_note,
    requirement_lines,
    requirements_file,
)
from matrix.render import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.shared.files import File, Layout
    from matrix.consumers.shared.installation import Installation


def _emit(installation: Installation, layout: Layout) -> list[File]:
    """Return requirements that are complete by themselves, and constraints for later installs."""
    name = "constraints.txt"
    no_deps = "--no-deps " if installation.is_complete else ""
    notes = [
        f"Install with `python -m pip install {no_deps}-r {quote(layout.main)} -c {name}`.",
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
    """Report wheels that pip would skip on this machine because of its glibc or its Pythons."""
    glibc = glibc_version()
    index = Index(layout.index)
    newer: dict[str, list[str]] = {}
    other: dict[str, list[str]] = {}
    for pick in installation.on_top:
        wheels = [path.name for path in index.wheels_of(pick.name, pick.pinned)]
        names = wheels or [pick.wheel.file] if pick.wheel else wheels or [file.name for file in pick.files]
        if required := too_new_glibc(names, glibc):
            newer.setdefault(required, []).append(f"{pick.name} {pick.pinned}")
        if python := missing_python(names):
            other.setdefault(python, []).append(f"{pick.name} {pick.pinned}")
    findings = []
    for required, titles in newer.items():
        message = (
            f"{_wheels(titles)} glibc {required}, and this machine has glibc {glibc}. "
            "pip skips such wheels and reports only the versions of other wheels."
        )
        fix = "Install where glibc is new enough, or build in a base image with an older glibc."
        evidence = {"distributions": titles, "required": required, "glibc": glibc}
        findings.append(Finding("newer-glibc", "warning", message, fix, evidence))
    for python, titles in other.items():
        message = (
            f"{_wheels(titles)} Python {python}, and no python{python} is on PATH. "
            "The pip of another Python skips such wheels and reports only the versions of other wheels."
        )
        fix = f"Load or install Python {python}, or resolve with --python for the Python that you have."
        evidence = {"distributions": titles, "python": python}
        findings.append(Finding("missing-python", "warning", message, fix, evidence))
    return findings


def _wheels(titles: Sequence[str]) -> str:
    if len(titles) == 1:
        return f"The wheel of {titles[0]} requires"
    return f"The wheels of {shortened(titles, most=3)} require"


CONSUMER = Consumer(file="requirements.txt", emit=_emit, check=_check, supports_hashes=True)
