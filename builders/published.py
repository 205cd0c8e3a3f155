"""What an index has published of one version: the files with their URLs and hashes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.sources import index_url, project_page

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    project: str, version: str, index: str, *, python: str, machine: str = "x86_64"
) -> list[File]:
    """Find the wheels of one version for one Python on Linux.

    Parameters
    ----------
    project, version
        What is looked for; the version with its local label.
    index
        URL of the index; empty for the one of pip's configuration.
    python
        CPython minor.
    machine
        Architecture in platform tags.

    Returns
    -------
    list of File
        Sorted by name; empty if the index does not have this version.

    Raises
    ------
    SourceError
        The index does not have the project.
    EnvironmentLacksError
        The index could not be reached.
    """
    where = index or index_url()
    found = {
        package.filename: File(
            package.filename, package.url.partition("#")[0], dict(sorted(package.digests.items())), where
        )
        for package in project_page(project, where).packages
        if _fits(package.filename, project, version, python, machine)
    }
    return [found[name] for name in sorted(found)]


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
