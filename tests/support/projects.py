"""Sdists that tests write into a cache, and catalog rows with which `matrix` builds sdists and commits."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import tomli_w

SOURCE = {"status": "observed", "source": "tests"}
GIT_ROWS = """
[[release]]
package = "{name}"
version = "{version}"
git = {{ url = "{url}", commit = "{commit}" }}
backend = ["cpu"]
status = "observed"
source = "tests"
[[recipe]]
package = "{name}"
backend = "cpu"
{fields}
status = "observed"
source = "tests"
"""
"""A release from git and its recipe for the CPU, as text to be formatted."""


def write_sdist(cache: Path, name: str, files: Mapping[str, str]) -> str:
    """Write version 1.0 of a project as an sdist into a cache; return its SHA-256.

    The same files always give the same sdist.

    Parameters
    ----------
    cache
        The directory ``matrix`` in a cache.
    files
        Text by path in the project.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{name}-1.0/{member}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    packed = gzip.compress(buffer.getvalue(), mtime=0)
    digest = hashlib.sha256(packed).hexdigest()
    sdist = cache / "sources" / digest[:16] / f"{name}-1.0.tar.gz"
    sdist.parent.mkdir(parents=True, exist_ok=True)
    sdist.write_bytes(packed)
    return digest


def rows_of(
    name: str, sha256: str, undeclared: Iterable[str], *, version: str = "1.0", **recipe: object
) -> dict[str, dict[str, object]]:
    """Return the catalog rows of a project for the CPU, by kind.

    Parameters
    ----------
    undeclared
        Its build requirements.
    recipe
        Additional fields of the recipe, with underscores.
    """
    sdist = {"file": f"{name}-{version}.tar.gz", "sha256": sha256}
    fields = {key.replace("_", "-"): value for key, value in {"match_runtime": [], **recipe}.items()}
    return {
        "package": {"name": name, "title": "a project of the tests", "import-name": name, **SOURCE},
        "release": {"package": name, "version": version, "sdist": sdist, "backend": ["cpu"], **SOURCE},
        "recipe": {"package": name, "backend": "cpu", "undeclared": [*undeclared], **fields, **SOURCE},
    }


def write_catalog(file: Path, projects: Iterable[Mapping[str, object]]) -> None:
    """Write the rows of projects into a file for ``--catalog``."""
    projects = list(projects)
    kinds = ("package", "release", "recipe")
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = {kind: [project[kind] for project in projects] for kind in kinds}
    file.write_text(tomli_w.dumps({"schema": 1, **rows}))
