"""Pack the source tree of a commit or of a directory into an sdist: the same files give the same bytes."""

from __future__ import annotations

import gzip
import io
import tarfile
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from builders.network.git import ALL, fetch_git
from builders.network.urls import git_commit, local_path, mirrored, without_password
from builders.storage.lease import TemporaryDirectory
from resolver.errors import SourceError
from resolver.facts.schema import Git

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_NOT_SOURCE = {".git", ".venv", "build", "dist", "venv"}
_TIME = 631152000
"""The time of all files, 1990: a wheel is a zip archive, which has no time before 1980 in any zone."""


@contextmanager
def source_tree(url: str, mirrors: Mapping[str, str], *, offline: bool = False) -> Iterator[Path]:
    """Yield the directory that a URL names, on this machine or a commit with its submodules.

    Raise `SourceError` if a part of a commit is outside of it; other errors are those of `fetch_git`.
    """
    location, _, subdirectory = url.partition("#subdirectory=")
    commit, path = git_commit(location), local_path(mirrored(location, mirrors))
    if commit is not None:
        fetched = fetch_git(Git(*commit, ALL), offline=offline, mirrors=mirrors)
        with TemporaryDirectory() as directory:
            top = directory.root / "source"
            fetched.checkout(top, directory.root / "git.log")
            part = top / subdirectory
            if not part.resolve().is_relative_to(top.resolve()):  # also by a link in the commit
                msg = f"{subdirectory!r} is outside of the source {without_password(location)}."
                raise SourceError(msg, hint="Name a directory of the repository.")
            yield part
    elif path is not None:
        yield path / subdirectory


def pack_directory(directory: Path, file: IO[bytes], name: str) -> None:
    """Write a source tree into an sdist with the top directory `name`, which is ``NAME-VERSION``.

    An sdist has a PKG-INFO, from which setuptools-scm reads the version: the sdist has no history.
    """

    def normal(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name.endswith("/__pycache__"):
            return None
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        member.mtime, member.uid, member.gid, member.uname, member.gname = _TIME, 0, 0, "", ""
        return member

    # Not compressed: not every zlib makes the same bytes of the same text.
    with (
        gzip.GzipFile("", "wb", 0, fileobj=file, mtime=0) as stored,
        tarfile.open(fileobj=stored, mode="w") as archive,
    ):
        for path in sorted(directory.iterdir()):
            if path.name not in _NOT_SOURCE:
                archive.add(path, f"{name}/{path.name}", filter=normal)
        if not (directory / "PKG-INFO").exists():
            project, _, version = name.rpartition("-")
            text = f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n".encode()
            member = tarfile.TarInfo(f"{name}/PKG-INFO")
            member.size, member.mtime = len(text), _TIME
            archive.addfile(member, io.BytesIO(text))
