"""The wheels of one version that an index publishes, with their URLs and hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.index_client import IndexClient
from builders.sources import index_url
from builders.urls import without_password
from resolver.errors import SourceError

if TYPE_CHECKING:
    from resolver.indexes import File


def published_wheels(
    project: str, version: str, index: str, *, python: str, machine: str = "x86_64"
) -> list[File]:
    """Return the wheels of one version for one Python on Linux, sorted by name.

    Parameters
    ----------
    project, version
        The version with its local label.
    index
        URL of the index; empty for the index in pip's configuration.
    python
        CPython minor version, such as ``3.12``.
    machine
        Architecture in platform tags.

    Raises
    ------
    SourceError
        The index does not have the project.
    EnvironmentLacksError
        The index cannot be reached.
    """
    where = index or index_url()
    published = IndexClient([where]).project(project)
    if published is None:
        msg = f"The index {without_password(where)} has no project {project}."
        raise SourceError(msg, hint="It may be an incomplete mirror. Configure another index for pip.")
    files = [file for release in published.releases for file in release.files]
    return sorted(
        (file for file in files if _fits(file.name, project, version, python, machine)),
        key=lambda file: file.name,
    )


def _fits(file: str, project: str, version: str, python: str, machine: str) -> bool:
    try:
        name, release, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    if name != canonicalize_name(project) or release != Version(version):
        return False
    major, minor = (int(part) for part in python.split(".")[:2])
    interpreter = f"cp{major}{minor}"
    # The glibc of the machine where the wheel will be installed is not known here.
    platforms = [
        tag.platform
        for tag in tags
        if tag.platform.startswith(("manylinux", f"linux_{machine}")) and tag.platform.endswith(machine)
    ]
    supported = {
        *cpython_tags((major, minor), [interpreter], platforms or ["any"]),
        *compatible_tags((major, minor), interpreter, platforms or ["any"]),
    }
    return not supported.isdisjoint(tags)
