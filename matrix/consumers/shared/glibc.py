"""Compare the glibc that wheels require with that of the machine on which a consumer uses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.findings import Finding
from builders.wheels.glibc_tags import too_new_glibc
from matrix.show.render import shortened
from resolver.versions import sort_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.shared.files import Layout
    from matrix.consumers.shared.installation import Installation

_OLDEST = "2.0"


def wheel_names(installation: Installation) -> dict[str, list[str]]:
    """Return the file names of the wheels that may be installed, by distribution with its version."""
    names = {}
    for pick in installation.on_top:
        built = [path.name for path in installation.wheels.get(pick.name, ())]
        locked = [pick.wheel.file] if pick.wheel else [file.name for file in pick.files]
        names[f"{pick.name} {pick.pinned}"] = built or locked
    return names


def newest_required(installation: Installation) -> str:
    """Return the glibc that all wheels need, which is the newest that any of them needs; empty if none."""
    required = {too_new_glibc(names, _OLDEST) for names in wheel_names(installation).values()}
    return max(required, key=lambda glibc: sort_key(glibc or _OLDEST), default="")


def newer_glibc(installation: Installation, _: Layout) -> list[Finding]:
    """Report wheels that pip would skip because of the glibc of the machine that uses them."""
    glibc, machine = installation.host_glibc
    newer: dict[str, list[str]] = {}
    for title, names in wheel_names(installation).items():
        if required := too_new_glibc(names, glibc):
            newer.setdefault(required, []).append(title)
    findings = []
    for required, titles in newer.items():
        message = (
            f"{wheels_text(titles)} glibc {required}, and {machine} has glibc {glibc}. "
            "pip skips such wheels and reports only the versions of other wheels."
        )
        fix = (
            "Install where glibc is new enough, such as in the base image, or resolve again with "
            f"'glibc<={glibc}', which chooses a base image with an older glibc, and build the wheels again."
        )
        evidence = {"distributions": titles, "required": required, "glibc": glibc}
        findings.append(Finding("newer-glibc", "warning", message, fix, evidence))
    return findings


def wheels_text(titles: Sequence[str]) -> str:
    """Return the beginning of a sentence about what wheels require."""
    if len(titles) == 1:
        return f"The wheel of {titles[0]} requires"
    return f"The wheels of {shortened(titles, most=3)} require"
