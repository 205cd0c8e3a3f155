"""A base image: a file or an unpacked directory, identified by its digest."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import replace

from builders.constants import SQUASHFS_MAGIC
from builders.storage.files import cache_root, sha256_of, write_atomic
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError, did_you_mean
from resolver.versions import shorten

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.model import BaseImage, Resolution

Form = Literal["sif", "squashfs", "archive", "directory"]

SIF_HEADER = struct.Struct("<32s10s3s3s16s8q")
"""Header of a SIF: launch script, magic, version, architecture, identity; times, counts, then offset and
length of the descriptors and of the data. Source: sylabs/sif pkg/sif/sif.go, apptainer/sif."""
_SIF_MAGIC = b"SIF_MAGIC\0"
_TAR_MAGIC, _TAR_AT = b"ustar", 257
_UNSTABLE = ("dev", "proc", "run", "sys", "tmp")
"""Directories of an unpacked image whose content does not belong to it."""
_DIGESTED = ("etc/os-release", "usr/lib/os-release", "var/lib/dpkg/status")
"""Files of an unpacked image whose content is part of its digest, in addition to ROCm's ``.info``."""
_LARGEST_DIGESTED = 100_000_000  # bytes of such a file

_FileState = tuple[str, int, int, int]
"""Path, size, time of the last change and inode."""


class LocalImage(msgspec.Struct, frozen=True):
    """A base image on this machine."""

    name: str
    """Its name in the catalog and the lock."""
    path: Path
    """The real path: sites repoint their symbolic links without warning."""
    sha256: str
    """The SHA-256 of the file; for a directory the result of `tree_digest`."""

    @property
    def digest(self) -> str:
        """The digest as in the lock."""
        return f"sha256:{self.sha256}"


def find_image(given: Path, name: str = "") -> LocalImage:
    """Return the base image that a path or link means, with its digest; `name` is by default the `stem`."""
    path = real_path(given)
    form = form_of(path)
    try:
        sha256 = tree_digest(path) if form == "directory" else _digest_of_file(path)
    except OSError as error:
        msg = f"Cannot read the base image {path}: {error.strerror}."
        raise EnvironmentLacksError(msg) from None
    return LocalImage(name or stem(given), path, sha256)


def stem(path: Path) -> str:
    """Return the default name of an image: its file name, or that of its list, without the suffix.

    Examples
    --------
    >>> stem(Path("/images/lumi-rocm-6.2.sif"))
    'lumi-rocm-6.2'
    """
    name = path.name
    for suffix in (".json", ".cdx", ".spdx", ".cyclonedx", ".sbom", ".sif", ".tar"):
        name = name.removesuffix(suffix)
    return name or path.name


def real_path(given: Path) -> Path:
    """Return the path of an image without symbolic links."""
    text = str(given)
    if ":/" in text and not given.exists():
        address = text if "://" in text else text.replace(":/", "://", 1)
        msg = f"{address} is an address; a base image must be a file on this machine."
        raise EnvironmentLacksError(msg, hint=f"Pull it first with `apptainer pull image.sif {address}`.")
    try:
        return given.resolve(strict=True)
    except FileNotFoundError:
        link = f", which {given} points to," if given.is_symlink() else ""
        msg = f"The base image {given.resolve()}{link} does not exist."
        pull = "To download an image, run `apptainer pull FILE ADDRESS`."
        hint = f"{pull} Run this on a machine that has it, or name a copy with --base-image."
        raise EnvironmentLacksError(msg, hint=hint) from None
    except (OSError, RuntimeError) as error:
        msg = f"Cannot read the base image {given}: {getattr(error, 'strerror', '') or error}."
        raise EnvironmentLacksError(msg) from None


def form_of(path: Path) -> Form:
    """Return the kind of image that a file or directory is."""
    if path.is_dir():
        if (path / "usr").is_dir() or (path / "bin").is_dir():
            return "directory"
        msg = f"{path} is not an unpacked image: it has neither usr nor bin."
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
    if len(head) >= SIF_HEADER.size and SIF_HEADER.unpack_from(head)[1] == _SIF_MAGIC:
        *_, offset, length = SIF_HEADER.unpack_from(head)
        if (size := path.stat().st_size) < offset + length:
            msg = f"{path} is truncated: it has {size:,} of {offset + length:,} bytes."
            raise UsageError(msg, hint="Copy it again.")
        return "sif"
    if head.startswith(SQUASHFS_MAGIC):
        return "squashfs"
    if head[_TAR_AT : _TAR_AT + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return "archive"
    msg = f"{path} is not an image: neither SIF, squashfs, an archive of podman or docker, nor a directory."
    raise UsageError(msg)


def cached_digest(given: Path) -> str:
    """Return the digest of a file, as in the lock, if it was computed before; else an empty string."""
    try:
        known = _valid_cached_digest(given.resolve(strict=True))
    except OSError:
        return ""
    return f"sha256:{known}" if known else ""


def check_digest(image: LocalImage, locked_digest: str, locked_name: str) -> None:
    """Check that an image is the image in the lock, if the lock has its digest."""
    if not locked_digest or locked_digest == image.digest:
        return
    msg = (
        f"The base image has changed. The lock was resolved for {locked_name} {locked_digest}; "
        f"{image.path} ({image.name}) is {image.digest}."
    )
    raise MatrixError(
        msg,
        hint=f"Name the old image, or resolve again with `matrix resolve --base-image {image.path}`.",
        id="image-changed",
    )


def locked_image(locked: BaseImage, given: Path | None = None) -> LocalImage:
    """Return the base image of a lock, by default at the lock's path; check that it has not changed."""
    if given is None and not locked.path:
        msg = f"The lock has no path for the base image {locked.name}."
        raise EnvironmentLacksError(msg, hint="Name the image file with --base-image PATH.")
    image = find_image(given or Path(locked.path), locked.name)
    check_digest(image, locked.digest, locked.name)
    return image


def _digest_of_file(path: Path) -> str:
    cached = _valid_cached_digest(path)
    if cached:
        return cached
    before = path.stat()
    sha256 = sha256_of(path)
    after = path.stat()
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        msg = f"{path} changed while it was read."
        raise EnvironmentLacksError(msg, hint="Wait until the file is complete, then run the command again.")
    with suppress(OSError):  # without a cache it only takes longer
        write_atomic(_cache_file(path), msgspec.json.encode((_state(path, after), sha256)))
    return sha256


def _valid_cached_digest(path: Path) -> str:
    """Return the digest of a file that has not changed since it was computed, or an empty string."""
    try:
        state, sha256 = msgspec.json.decode(_cache_file(path).read_bytes(), type=tuple[_FileState, str])
        now = _state(path, path.stat())
    except (OSError, msgspec.DecodeError):
        return ""
    return sha256 if state == now else ""


def _state(path: Path, status: os.stat_result) -> _FileState:
    return str(path), status.st_size, status.st_mtime_ns, status.st_ino


def _cache_file(path: Path) -> Path:
    return cache_root() / "images" / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def tree_digest(root: Path) -> str:
    """Return the digest of an unpacked image.

    It is the SHA-256 over one line per entry, sorted by path: kind, whether it is executable, size, path, and
    target of a symbolic link. The content of files that identify the image is included: the distribution's
    release, its list of packages, and ROCm's ``.info``. Owners and times are ignored, and so are ``/dev``,
    ``/proc``, ``/run``, ``/sys`` and ``/tmp``. Replacing any other file with a file of the same size does
    not change the digest.
    """
    total = hashlib.sha256()
    for relative, entry in sorted(_entries(root, "")):
        status = entry.stat(follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        size = status.st_size if stat.S_ISREG(kind) else 0
        target = str(Path(entry.path).readlink()) if entry.is_symlink() else ""
        executable = bool(status.st_mode & stat.S_IXUSR)
        total.update(f"{kind:o} {executable:d} {size} {relative!r} {target!r}\n".encode())
        if stat.S_ISREG(kind) and (relative in _DIGESTED or "/.info/" in relative):
            with Path(entry.path).open("rb") as file:
                total.update(file.read(_LARGEST_DIGESTED))
    return total.hexdigest()


def _entries(folder: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            relative = prefix + entry.name
            if relative in _UNSTABLE:
                continue
            yield relative, entry
            if entry.is_dir(follow_symlinks=False) and os.access(entry.path, os.R_OK | os.X_OK):
                yield from _entries(Path(entry.path), f"{relative}/")


def is_local(path: Path) -> bool:
    """Return whether a path exists on this machine; False if it cannot be checked."""
    try:
        return path.exists()
    except OSError:  # too long for a path, or in a directory that cannot be read
        return False


def image_name(given: str, catalog: Catalog) -> str:
    """Return the file name of an image if the catalog has it (LUMI's end in ``.sif``), else its `stem`.

    Of a list of an image's content, it is the name of the image.
    """
    path = Path(given)
    if given in catalog.image and not is_local(path):
        return given
    if path.name in catalog.image:
        return path.name
    if is_local(path):
        of_list = f"{stem(path)}.sif" if path.suffix == ".json" else ""
        return of_list if of_list in catalog.image else stem(path)
    if "://" in given:
        msg = f"{given} is an address; a base image must be a file on this machine."
        raise EnvironmentLacksError(msg, hint=f"Pull it first with `apptainer pull image.sif {given}`.")
    if "/" in given:
        msg = f"{shorten(given)} does not exist, and the catalog has no base image {shorten(path.name)}."
        raise UsageError(msg, hint=did_you_mean(path.name, catalog.image))
    return given


def with_pinned_image(resolution: Resolution, lock: Path) -> Resolution:
    """Add the digest of the base image, if it is known or the image is a link; prefer a copy beside the lock.

    Sites repoint links, so the path is then that of the file. For other files of a site, only a build
    computes the digest, because that reads tens of gigabytes.
    """
    image = resolution.image
    if image is None or not image.path.startswith("/") or not is_local(path := Path(image.path)):
        return resolution
    digest = image.digest or cached_digest(path)
    if path.is_symlink():
        found = find_image(path)
        digest, path = digest or found.digest, found.path
    if digest:
        copy = copy_path(LocalImage(image.name, path, digest.removeprefix("sha256:")), lock)
        path = copy if copy.is_file() and find_image(copy).digest == digest else path
    return replace(resolution, image=replace(image, digest=digest, path=str(path)))


def copy_path(image: LocalImage, lock: Path) -> Path:
    """Return where a copy of an image is kept, beside a lock."""
    return lock.absolute().parent / f"{stem(Path(image.name))}-{image.sha256[:12]}.sif"
