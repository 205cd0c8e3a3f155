"""Fetch sdists from the cache or the package index, check their hashes, and unpack them."""

from __future__ import annotations

import errno
import lzma
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from builders.index_client import IndexClient
from builders.network.download import MIRROR_HINT, Downloads, check_hash, download
from builders.network.pip_configuration import configured_index, pip_configuration
from builders.network.urls import OFFLINE_HINT, without_password
from builders.storage.files import TEMPORARY_PREFIX, cache_root
from builders.storage.io_errors import explain_io_errors
from resolver.errors import EnvironmentLacksError, SourceError
from resolver.versions import shorten

if sys.version_info >= (3, 12):
    import tarfile
else:  # Python 3.11.0 to 3.11.3 have no extraction filters
    import backports.tarfile as tarfile  # noqa: PLR0402  has no types, so it is not an attribute

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resolver.facts.schema import Sdist

_ZIP = b"PK\3\4"
_LONGEST_LINK = 4096  # bytes, PATH_MAX of Linux
_DEEPEST = 200  # directories in each other; os.makedirs and shutil.rmtree recurse
_DAMAGED = (
    tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, ValueError, KeyError, OverflowError,
    RecursionError,  # of a long chain of links
)  # fmt: skip
_ERRORS_OF_ARCHIVES = {
    None, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP,
    errno.EINVAL, errno.ENOENT, errno.EILSEQ,
}  # fmt: skip
"""Error numbers caused by names and kinds of members; errors of gzip have no number."""
_REJECTED = {
    tarfile.OutsideDestinationError: "it would be unpacked outside of the source",
    tarfile.SpecialFileError: "it is a device or a pipe",
    tarfile.AbsoluteLinkError: "it is a link to an absolute path",
    tarfile.LinkOutsideDestinationError: "it is a link to a file outside of the source",
}


def fetch_sdist(
    project: str,
    pin: Sdist,
    *,
    url: str = "",
    offline: bool = False,
    mirrors: Mapping[str, str] | None = None,
) -> Path:
    """Return the path of a pinned sdist, from the cache or from the index.

    Parameters
    ----------
    project
        Name of the project on the index.
    pin
        File name and SHA-256.
    url
        Its URL, if the lock has it; else the page of the project on the index is read.
    offline
        Whether only the cache is used.
    mirrors
        Maps URL prefixes of the index and its files to their replacement.

    Raises
    ------
    MatrixError
        The file has another hash. It is kept under a name that ends in ``.mismatch``.
    SourceError
        The index does not have the file.
    EnvironmentLacksError
        The network is missing, or the cache is not writable.
    UsageError
        A configuration file of pip cannot be read.
    """
    if Path(pin.file).name != pin.file or pin.file.startswith(".") or not pin.file:
        msg = f"{pin.file!r} is not a file name."
        raise SourceError(msg, hint="Correct the row in the catalog, and resolve again.")
    target = sdist_path(pin)
    if target.exists():
        check_hash(target, pin.sha256, origin=f"the cache ({target.parent})")
        return target
    if offline:
        msg = f"{pin.file} is not in the cache, and --offline is set."
        raise EnvironmentLacksError(msg, hint=OFFLINE_HINT)
    mirrors = mirrors or {}
    url = url or _file_url(project, pin.file, index_url(), mirrors)
    download(url, target, pin.sha256, Downloads(mirrors))
    return target


def sdist_path(pin: Sdist) -> Path:
    """Return the path of a pinned sdist in the cache, whether or not it exists."""
    return cache_root() / "sources" / pin.sha256[:16] / pin.file


def index_url() -> str:
    """Return the package index that pip is configured to use, or the public index.

    Raise `UsageError` if a configuration file of pip cannot be read.
    """
    return configured_index(pip_configuration())


def _file_url(project: str, file: str, index: str, mirrors: Mapping[str, str]) -> str:
    published = IndexClient([index], mirrors=mirrors, fresh_for=0).project(project)
    if published is None:
        msg = f"The index {without_password(index)} has no project {project}."
        raise SourceError(msg, hint="It may be an incomplete mirror. Configure another index for pip.")
    for release in published.releases:
        for entry in release.files:
            if entry.name == file:
                return entry.url
    msg = f"The index {without_password(index)} does not have {file}."
    raise SourceError(msg, hint=MIRROR_HINT)


def unpack_sdist(archive: Path, target: Path) -> Path:
    """Unpack an sdist into a directory and return its top directory there.

    tarfile's ``data`` filter (PEP 706) rejects members outside of the directory.

    Raise `SourceError` if the archive is damaged, or does not have exactly one top directory;
    `EnvironmentLacksError` if the disk is full or not writable.
    """
    target.mkdir(parents=True, exist_ok=True)
    with explain_io_errors(target, hint="Free some space, or choose another directory."):
        work = Path(tempfile.mkdtemp(dir=target, prefix=TEMPORARY_PREFIX))
        try:
            _extract(archive, work)
            tops = list(work.iterdir())
            if len(tops) != 1 or not tops[0].is_dir() or tops[0].is_symlink():
                found = "no top directory" if len(tops) == 1 else f"{len(tops)} top-level entries"
                msg = f"{archive.name} is not an sdist: it has {found}."
                raise SourceError(msg, hint="An sdist has exactly one top directory (PEP 517).")
            top = target / tops[0].name
            tops[0].replace(top)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return top


def _extract(archive: Path, target: Path) -> None:
    with archive.open("rb") as file:
        if file.read(len(_ZIP)) == _ZIP:
            msg = f"{archive.name} is a zip archive; an sdist is a gzipped tar archive (PEP 517)."
            raise SourceError(msg, hint="Pin the .tar.gz of that release, or its git commit.")
    member = ""

    def checked(info: tarfile.TarInfo, path: str) -> tarfile.TarInfo:
        nonlocal member
        member = info.name
        if member.count("/") > _DEEPEST:
            msg = "its path has too many directories"
            raise ValueError(msg)
        info = tarfile.data_filter(info, path)
        _check_link(info, target)
        return info

    try:
        with tarfile.open(archive, "r:*") as tar:
            tar.extractall(target, filter=checked)  # noqa: S202  the filter rejects paths outside
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno not in _ERRORS_OF_ARCHIVES:
            error.filename = None  # users do not know the temporary directory
            raise
        at = f" at the member {shorten(member)!r}" if member else ""
        msg = f"Cannot unpack {archive.name}{at}: {_reason(error)}."
        raise SourceError(msg, hint=f"Remove {archive} to download it again.") from None


def _check_link(member: tarfile.TarInfo, target: Path) -> None:
    """Raise errors for invalid links that tarfile would accept."""
    if member.islnk() and not (target / member.linkname).is_file():
        raise KeyError(member.linkname)
    if member.issym() and len(os.fsencode(member.linkname)) >= _LONGEST_LINK:
        raise OSError(errno.ENAMETOOLONG, "")
    if member.issym() and (target / member.name).is_dir():
        raise OSError(errno.EISDIR, "")


def _reason(error: Exception) -> str:
    """Return the reason for a failure without paths of this machine."""
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    if isinstance(error, RecursionError):
        return "it follows too many links"
    if isinstance(error, KeyError):
        return "it is a link to a file that is not in the archive"
    known = (reason for kind, reason in _REJECTED.items() if isinstance(error, kind))
    return next(known, str(error).rstrip(".") or "the archive ends too early")
