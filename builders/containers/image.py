"""A base image: a file or an unpacked directory, known by its digest."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.cache import cache_root
from builders.files import sha256_of, write_atomic
from resolver.errors import EnvironmentLacksError, ImageChangedError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resolver.model import BaseImage

Form = Literal["sif", "squashfs", "archive", "directory"]

_SIF = struct.Struct("<32s10s3s3s16s8q")
"""Header of a SIF: launch script, magic, version, architecture, identity; times, counts, then offset and
length of the descriptors and of the data. Source: sylabs/sif pkg/sif/sif.go, apptainer/sif."""
_SIF_MAGIC = b"SIF_MAGIC\0"
_TAR_MAGIC, _TAR_AT = b"ustar", 257
_UNSTABLE = ("dev", "proc", "run", "sys", "tmp")
"""Directories of an unpacked image that say nothing of it."""
_READ = ("etc/os-release", "usr/lib/os-release", "var/lib/dpkg/status")
"""Files of an unpacked image whose content counts, besides ROCm's own ``.info``."""


@dataclass(frozen=True, slots=True)
class Image:
    """A base image on this machine."""

    name: str
    """As the catalog and the lock name it."""
    path: Path
    """The real file or directory, with no symbolic link left: sites repoint theirs without warning."""
    sha256: str
    """Of the file; of a directory what `tree_digest` says."""

    @property
    def digest(self) -> str:
        """The digest as the lock writes it."""
        return f"sha256:{self.sha256}"


class _Known(msgspec.Struct):
    """A digest that was computed, and the file that it was computed of."""

    path: str
    size: int
    mtime_ns: int
    inode: int
    sha256: str


def find_image(given: Path, name: str = "") -> Image:
    """Find a base image and its digest.

    Parameters
    ----------
    given
        A file or directory, or a symbolic link to one.
    name
        What it is called; the file's name without suffix when empty.

    Raises
    ------
    EnvironmentLacksError
        It is not there or may not be read.
    UsageError
        It is no image.
    """
    path = real_path(given)
    form = form_of(path)
    try:
        sha256 = tree_digest(path) if form == "directory" else _digest_of_file(path)
    except OSError as error:
        msg = f"Cannot read the base image {path}: {error.strerror}."
        raise EnvironmentLacksError(msg) from None
    return Image(name or stem(given), path, sha256)


def stem(path: Path) -> str:
    """Give what an image is called that has no other name.

    Examples
    --------
    >>> stem(Path("/images/lumi-rocm-6.2.sif"))
    'lumi-rocm-6.2'
    """
    return path.name.removesuffix(".sif").removesuffix(".tar") or path.name


def real_path(given: Path) -> Path:
    """Follow every symbolic link.

    Raises
    ------
    EnvironmentLacksError
        There is nothing at the end, or it may not be looked at.
    """
    text = str(given)
    if ":/" in text and not given.exists():
        address = text if "://" in text else text.replace(":/", "://", 1)
        msg = f"{address} is an address; a base image must be a file on this machine."
        raise EnvironmentLacksError(msg, hint=f"Pull it first: apptainer pull image.sif {address}")
    try:
        return given.resolve(strict=True)
    except FileNotFoundError:
        link = f", which {given} points to" if given.is_symlink() else ""
        msg = f"There is no base image {given.resolve()}{link}."
        raise EnvironmentLacksError(
            msg,
            hint="Name the path of an image on this machine; for an address: apptainer pull FILE ADDRESS.",
        ) from None
    except (OSError, RuntimeError) as error:
        msg = f"Cannot read the base image {given}: {getattr(error, 'strerror', '') or error}."
        raise EnvironmentLacksError(msg) from None


def form_of(path: Path) -> Form:
    """Say what kind of image a file or directory is.

    Raises
    ------
    EnvironmentLacksError
        It may not be read.
    UsageError
        It is none, or was cut off on its way here.
    """
    if path.is_dir():
        if (path / "usr").is_dir() or (path / "bin").is_dir():
            return "directory"
        msg = f"{path} is no unpacked image: it has neither usr nor bin."
        raise UsageError(msg)
    if not path.is_file():
        msg = f"{path} is neither a file nor a directory."
        raise UsageError(msg)
    try:
        with path.open("rb") as file:
            head = file.read(512)
    except OSError as error:
        msg = f"Cannot read the base image {path}: {error.strerror}."
        raise EnvironmentLacksError(msg) from None
    if len(head) >= _SIF.size and _SIF.unpack_from(head)[1] == _SIF_MAGIC:
        _require_whole(path, head)
        return "sif"
    if head.startswith(b"hsqs"):
        return "squashfs"
    if head[_TAR_AT : _TAR_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return "archive"
    msg = f"{path} is no image: neither SIF, squashfs, an archive of podman or docker, nor a directory."
    raise UsageError(msg)


def _require_whole(path: Path, head: bytes) -> None:
    *_, offset, length = _SIF.unpack_from(head)
    size = path.stat().st_size
    if size < offset + length:
        msg = f"{path} is cut off: it has {size:,} bytes of {offset + length:,}."
        raise UsageError(msg, hint="Copy it again.")


def known_digest(given: Path) -> str:
    """Give the digest of a file that was computed before, as the lock writes it; empty if none was."""
    try:
        known = _remembered(given.resolve(strict=True))
    except OSError:
        return ""
    return f"sha256:{known}" if known else ""


def check_digest(image: Image, locked_digest: str, locked_name: str) -> None:
    """See that an image is the one of the lock; a lock without a digest has nothing to compare with.

    Raises
    ------
    ImageChangedError
        It is another one.
    """
    if not locked_digest or locked_digest == image.digest:
        return
    msg = (
        f"The base image has changed. The lock was resolved for {locked_name} {locked_digest}; "
        f"{image.path} ({image.name}) is {image.digest}."
    )
    raise ImageChangedError(
        msg, hint=f"Name the old image, or resolve again: matrix resolve --base-image {image.path}"
    )


def locked_image(locked: BaseImage, given: Path | None = None) -> Image:
    """Find the base image of a lock, and see that it is still the same.

    Parameters
    ----------
    given
        Where it is, if not where the lock says.

    Raises
    ------
    EnvironmentLacksError
        It is not there, may not be read, or was never a file of this machine.
    ImageChangedError
        It is another one.
    UsageError
        What is there is no image.
    """
    if given is None and not locked.path:
        msg = f"The lock names the base image {locked.name}, and not where it is."
        raise EnvironmentLacksError(msg, hint="Name the file: --base-image PATH")
    image = find_image(given or Path(locked.path), locked.name)
    check_digest(image, locked.digest, locked.name)
    return image


def _digest_of_file(path: Path) -> str:
    known = _remembered(path)
    if known:
        return known
    before = path.stat()
    sha256 = sha256_of(path)
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        msg = f"{path} changed while it was read."
        raise EnvironmentLacksError(msg, hint="Wait until it is written, then run again.")
    entry = _Known(str(path), after.st_size, after.st_mtime_ns, after.st_ino, sha256)
    with suppress(OSError):  # a cache that cannot be written costs time only
        write_atomic(_memory(path), msgspec.json.encode(entry))
    return sha256


def _remembered(path: Path) -> str:
    """Give the digest of a file that has not changed since it was computed."""
    try:
        known = msgspec.json.decode(_memory(path).read_bytes(), type=_Known)
        now = path.stat()
    except (OSError, msgspec.DecodeError):
        return ""
    same = (known.path, known.size, known.mtime_ns, known.inode) == (
        str(path),
        now.st_size,
        now.st_mtime_ns,
        now.st_ino,
    )
    return known.sha256 if same else ""


def _memory(path: Path) -> Path:
    return cache_root() / "images" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def tree_digest(root: Path) -> str:
    """Give a digest of an unpacked image.

    It is the SHA-256 over one line for each entry, sorted by path: kind, whether it is executable,
    size, path, and where a symbolic link points. Of the files that say what the image is, the
    distribution's release, its list of packages and ROCm's ``.info``, the content counts as well.
    Owners and times do not count, nor does what is in ``/dev``, ``/proc``, ``/run``, ``/sys`` and
    ``/tmp``. A file that is exchanged for another of the same size elsewhere is not noticed.
    """
    total = hashlib.sha256()
    for relative, entry in sorted(_entries(root, "")):
        status = entry.stat(follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        size = status.st_size if stat.S_ISREG(kind) else 0
        target = str(Path(entry.path).readlink()) if entry.is_symlink() else ""
        runs = bool(status.st_mode & stat.S_IXUSR)
        total.update(f"{kind:o} {runs:d} {size} {relative!r} {target!r}\n".encode())
        if stat.S_ISREG(kind) and (relative in _READ or "/.info/" in relative):
            total.update(Path(entry.path).read_bytes())
    return total.hexdigest()


def _entries(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as found:
        for entry in found:
            relative = prefix + entry.name
            if relative in _UNSTABLE:
                continue
            yield relative, entry
            if entry.is_dir(follow_symlinks=False) and os.access(entry.path, os.R_OK | os.X_OK):
                yield from _entries(Path(entry.path), f"{relative}/")
