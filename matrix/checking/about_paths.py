"""Whether what a line names is there where pip runs."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from matrix.checking.about_lines import INDEXES, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matrix.checking.document import Document, Entry
    from matrix.checking.expected import Expected
    from matrix.checking.findings import Finding

_VISIBLE = ("/tmp/", "/var/tmp/", "/mnt/", "/srv/", "/media/")  # noqa: S108  places inside a container
"""What cotainr's container shows of the machine, and where base images have a place to bind to."""
_WITH_PATH = (*INDEXES, "--find-links", "--constraint", "--requirement")


def check_paths(document: Document, expected: Expected) -> Iterator[Finding]:
    """Check every path and file URL."""
    for entry in document.entries:
        line = entry.pip
        editable = line.values("--editable")
        if editable and expected.consumer != "pip":
            told = "Only this file is copied to where pip runs, so there is nothing to install from."
            if "://" in editable[0]:
                told = "The sources would be kept inside the container, in the directory that pip runs in."
            yield finding("editable", entry, told, remedy="Name a wheel, or a version in an index.")
            continue
        places = [value for flag, value in line.options if flag in _WITH_PATH]
        for place in [*places, *([line.place] if line.place else [])]:
            yield from _place(entry, place, expected)


def _place(entry: Entry, place: str, expected: Expected) -> Iterator[Finding]:
    parts = urlsplit(place.partition("#")[0].removeprefix("git+")) if "[" not in place else None
    if parts is None or (parts.scheme and parts.scheme != "file") or "${" in place:
        return
    path = unquote(parts.path)
    relative = not path.startswith("/") or bool(parts.netloc.strip(".") == "" and parts.netloc)
    if relative and expected.consumer != "pip":
        told = f"{place} is looked for where pip runs, and nothing but this file is copied there."
        yield finding("relative-path", entry, told, remedy="Write an absolute path that is visible there.")
    elif expected.consumer == "cotainr" and not f"{path}/".startswith(_VISIBLE):
        told = (
            f"{path} is not visible while cotainr builds (only /tmp, /var/tmp and loopback are): pip passes "
            "it over and then finds no version, or another."
        )
        remedy = ""
        corrected: tuple[str, ...] = ()
        if any(flag in INDEXES for flag, _ in entry.pip.options):
            corrected = (entry.text.replace(place, "file:///mnt/simple"),)
            bound = path.rstrip("/").removesuffix("/simple") or "/"
            remedy = f"Bind it before cotainr runs: export SINGULARITY_BIND={bound}:/mnt:ro"
        yield finding("hidden-path", entry, told, corrected=corrected, remedy=remedy or _COPY)


_COPY = "Copy it to /tmp in the same job, or bind its directory to /mnt before cotainr runs."
