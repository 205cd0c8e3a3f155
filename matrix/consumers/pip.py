"""Requirements and constraints for pip."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from builders.findings import Finding
from builders.machine.host import missing_python
from matrix.consumers import Consumer
from matrix.consumers.shared.requirements import (
    constraint_lines,
    newer_glibc,
    preinstalled_note,
    requirement_lines,
    requirements_file,
    wheel_names,
    wheels_text,
)
from resolver.versions import grouped

if TYPE_CHECKING:
    from matrix.consumers.shared.installation import Installation, Layout, WrittenFile


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    name = "constraints.txt"
    notes = [
        f"Install with `python -m pip install {installation.no_deps}-r {quote(layout.main)} -c {name}`.",
        f"Keep these versions in later installs with: -c {name}",
        *preinstalled_note(installation),
    ]
    lines = requirement_lines(installation, layout, layout.local, installation.on_top)
    limits = constraint_lines(installation)
    return [
        requirements_file(layout.main, installation, lines, notes, "pip"),
        requirements_file(name, installation, limits, ["Constraints for pip and uv."], "pip"),
    ]


def _check(installation: Installation, layout: Layout) -> list[Finding]:
    other = grouped(
        (python, title)
        for title, names in wheel_names(installation).items()
        if (python := missing_python(names))
    )
    findings = newer_glibc(installation, layout)
    for python, titles in other.items():
        message = (
            f"{wheels_text(titles)} Python {python}, and no python{python} is on PATH. "
            "The pip of another Python skips such wheels and reports only the versions of other wheels."
        )
        fix = f"Load or install Python {python}, or resolve with --python for the Python that you have."
        evidence = {"distributions": titles, "python": python}
        findings.append(Finding("missing-python", "warning", message, fix, evidence))
    return findings


CONSUMER = Consumer(file="requirements.txt", emit=_emit, check=_check, runs_on_host=True)
