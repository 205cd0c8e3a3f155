"""What an index has published of one version: the files with their URLs and hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.sources import index_url, project_page
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class File:
    """A published wheel."""

    name: str
    url: str
    hashes: Mapping[str, str]
    """Algorithm to hexadecimal digest, as the index page says; empty where it says none."""
    index: str
    """URL of the index."""


def published_wheels(
    project: str, version: str, indexes: Sequence[str], *, python: str, machine: str = "x86_64"
) -> list[File]:
    """Find the wheels of one version for one Python on Linux.

    Parameters
    ----------
    project, version
        What is looked for; the version with its local label.
    indexes
        URLs of indexes, the first that has it decides; an empty one is the index of pip's configuration.
    python
        CPython minor.
    machine
        Architecture in platform tags.

    Returns
    -------
    list of File
        Sorted by name; empty if no index has it.

    Raises
    ------
    EnvironmentLacksError
        An index could not be reached.
    """
    for url in indexes:
        where = url or index_url()
        try:
            page = project_page(project, where)
        except MatrixError as error:
            if error.exit_code != 1 or url == indexes[-1]:
                raise
            continue
        found = [
            File(
                package.filename, package.url.partition("#")[0], dict(sorted(package.digests.items())), where
            )
            for package in page.packages
            if _fits(package.filename, project, version, python, machine)
        ]
        if found:
            return sorted({one.name: one for one in found}.values(), key=lambda one: one.name)
    return []


def _fits(file: str, project: str, version: str, python: str, machine: str) -> bool:
    try:
        name, found, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    if name != canonicalize_name(project) or found != Version(version):
        return False
    own = f"cp{python.replace('.', '')}"
    return any(
        (tag.interpreter in {own, "py3"} or (tag.abi == "abi3" and _at_most(tag.interpreter, own)))
        and tag.abi in {own, "abi3", "none"}
        and (tag.platform == "any" or (tag.platform.endswith(machine) and "linux" in tag.platform))
        and "musllinux" not in tag.platform
        for tag in tags
    )


def _at_most(interpreter: str, own: str) -> bool:
    one, other = interpreter.removeprefix("cp3"), own.removeprefix("cp3")
    return one.isdigit() and other.isdigit() and int(one) <= int(other)
