"""The wheels of one version that an index publishes, with their URLs and hashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from builders.index_client import IndexClient
from builders.network.urls import without_password
from builders.sources import index_url
from resolver.environment import Environment
from resolver.errors import SourceError
from resolver.versions import minor

if TYPE_CHECKING:
    from resolver.indexes import File


def published_wheels(project: str, version: str, index: str, *, python: str) -> list[File]:
    """Return the wheels of one version for one Python on Linux, for any glibc, sorted by name.

    `version` has its local label. An empty `index` is the index in pip's configuration. `python` is a CPython
    version, such as ``3.12``.
    """
    where = index or index_url()
    published = IndexClient([where]).project(project)
    if published is None:
        msg = f"The index {without_password(where)} has no project {project}."
        raise SourceError(msg, hint="It may be an incomplete mirror. Configure another index for pip.")
    environment = Environment(minor(python))
    files = [
        file
        for release in published.releases
        if Version(release.version) == Version(version)
        for file in release.files
        if file.name.endswith(".whl") and environment.rank(file.name) is not None
    ]
    return sorted(files, key=lambda file: file.name)
