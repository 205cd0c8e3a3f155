"""Read the files of an image or of a directory, without starting anything in it.

A SIF or squashfs is read by `builders.containers.squashfs`; an archive of podman or docker, or an OCI layout,
layer by layer, the last layer first. Only the requested files are unpacked, one at a time and under a name of
our own, so that little memory and disk is needed however large the image is, and no name or link in it can
lead to a file of this machine.

Layouts: pkg/sif/sif.go and descriptor.go of sylabs/sif (SIF), opencontainers/image-spec (layers, whiteouts).
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import posixpath
import shutil
import struct
import sys
import tarfile
import zlib
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from builders.containers.image import SIF_HEADER, form_of
from builders.containers.squashfs import Squashfs
from builders.storage.lease import TemporaryDirectory
from resolver.errors import EnvironmentLacksError
from resolver.texts import printable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Self

    Open = Callable[[], IO[bytes] | None]

_UNSTABLE = ("/dev", "/proc", "/run", "/sys", "/tmp")  # noqa: S108
"""Directories whose content does not belong to an image."""
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_PARTITION = struct.Struct("<ii")
_OF_PARTITION, _SQUASHFS, _ENCRYPTED, _PRIMARY = 0x4004, 1, 5, 2
_MOST_DESCRIPTORS = 1024
_MOST_FILES = 5_000_000
_LARGEST_MANIFEST = 1 << 22
_MOST_UNPACKED = 1 << 38  # bytes of all layers, or of the requested files of a squashfs
_SMALL_UNPACKED, _MOST_RATIO = 1 << 30, 100
"""Layers up to this size in bytes may be compressed at any ratio, and larger ones at this one."""
_DEEPEST_INDEX = 8
_LONGEST_PATH = 4096  # characters, as in Linux
_LARGEST_HEADER = 1 << 20  # bytes of an extended header of a member
_EXTENDED = (
    tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)  # fmt: skip
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"

_DAMAGE = (
    tarfile.TarError, zstd.ZstdError, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError, ValueError,
    LookupError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What damaged or hostile images cause."""


class ImageFile(NamedTuple):
    """A file or a symbolic link."""

    path: str
    """Absolute, as programs in the image see it; below a directory that is no image, its path here."""
    size: int = 0
    """In bytes."""
    link: str = ""
    """The target of a symbolic link."""
    at: Path | None = None
    """Where its content is, until the next file is read; None for a link or a file that is not wanted."""


def files_of(path: Path, wanted: Callable[[str], bool]) -> Iterator[ImageFile]:
    """Yield every regular file and symbolic link, with the content of the files whose path is wanted.

    `path` is an image, or a directory such as that of a virtual environment. Raise `UsageError` if it is no
    image, and `EnvironmentLacksError` if it cannot be read because it is encrypted, damaged or too large.
    """
    has_layers = _has_layers(path)
    if path.is_dir() and not has_layers:
        is_prefix = (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()
        yield from _of_directory(path, str(path) if is_prefix else "", wanted)
        return
    try:
        if has_layers:
            yield from _of_layers(path, wanted)
        else:
            offset = _partition(path) if form_of(path) == "sif" else 0
            yield from _of_squashfs(path, offset, wanted)
    except _DAMAGE as error:
        msg = f"Cannot read {path}: {printable(str(error)) or type(error).__name__}."
        raise EnvironmentLacksError(msg, hint="It may be incomplete. Copy or download it again.") from None


def how_read(path: Path) -> str:
    """Return how `files_of` reads an image, as a clause."""
    if _has_layers(path):
        return "its layers were read without starting it"
    if path.is_dir():
        return "its files were read"
    return "its file system was read without starting it"


def _has_layers(path: Path) -> bool:
    """Return whether an image is an archive of layers, or an OCI layout in a directory."""
    return (path / "oci-layout").is_file() if path.is_dir() else form_of(path) == "archive"


def _of_directory(root: Path, prefix: str, wanted: Callable[[str], bool]) -> Iterator[ImageFile]:
    """Yield the files below a directory; no link is followed."""
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            path = f"{prefix}/{Path(entry.path).relative_to(root)}"
            if not prefix and path in _UNSTABLE:
                continue
            with suppress(OSError):
                if entry.is_symlink():
                    yield ImageFile(path, link=str(Path(entry.path).readlink()))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    at = Path(entry.path) if wanted(path) else None
                    yield ImageFile(path, entry.stat().st_size, at=at)


def _partition(path: Path) -> int:
    """Return the offset of the primary partition of a SIF."""
    with path.open("rb") as file:
        header = SIF_HEADER.unpack(_read_at(file, 0, SIF_HEADER.size))
        total, offset = header[8], header[9]
        if not 0 < total <= _MOST_DESCRIPTORS:
            msg = f"its header states {total} descriptors"
            raise ValueError(msg)
        data = _read_at(file, offset, total * _DESCRIPTOR.size)
    for kind, used, _, _, _, start, *_, extra in _DESCRIPTOR.iter_unpack(data):
        system, part = _PARTITION.unpack_from(extra)
        if kind != _OF_PARTITION or not used or part != _PRIMARY:
            continue
        if system == _ENCRYPTED:
            msg = f"{path} is encrypted, so it cannot be read."
            raise EnvironmentLacksError(msg, hint="Build an unencrypted image from the same definition file.")
        if system != _SQUASHFS:
            msg = f"its file system has type {system}, and only squashfs (1) can be read"
            raise ValueError(msg)
        return int(start)
    msg = "it has no primary partition"
    raise ValueError(msg)


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    data = file.read(size)
    if len(data) < size:
        msg = "it is cut short"
        raise ValueError(msg)
    return data


def _of_squashfs(path: Path, offset: int, wanted: Callable[[str], bool]) -> Iterator[ImageFile]:
    limit = _Limit(_MOST_UNPACKED)
    with path.open("rb") as file, TemporaryDirectory() as folder:
        content = folder.root / "content"
        image = Squashfs(file, offset)
        for entry in image.entries():
            limit.count_file(entry.path, entry.link)
            if entry.link or not wanted(entry.path):
                yield ImageFile(entry.path, entry.size, entry.link)
                continue
            limit.spend(entry.size)
            content.unlink(missing_ok=True)  # ext4 writes a file to disk that is emptied and written again
            with content.open("xb") as sink:
                for chunk in image.chunks(entry):
                    sink.seek(chunk, os.SEEK_CUR) if isinstance(chunk, int) else sink.write(chunk)
                sink.truncate(entry.size)
            yield ImageFile(entry.path, entry.size, at=content)


def _of_layers(path: Path, wanted: Callable[[str], bool]) -> Iterator[ImageFile]:
    """Yield the files of an image with layers, and the variables of its configuration."""
    seen: set[str] = set()
    hidden = set(_UNSTABLE)
    """Also the directories that a later layer replaced."""
    packed = sum(file.lstat().st_size for file in path.rglob("*")) if path.is_dir() else path.stat().st_size
    limit = _Limit(min(_MOST_UNPACKED, max(_SMALL_UNPACKED, _MOST_RATIO * packed)))
    with _members(path) as members, TemporaryDirectory() as folder:
        config, layers = _layers(members)
        variables = (config.get("config") or {}).get("Env") or []
        content = folder.root / "content"
        content.write_text("".join(f"export {line}\n" for line in map(str, variables)))
        yield ImageFile(VARIABLES, content.stat().st_size, at=content)
        for name in reversed(layers):
            with _layer(members[name], name, limit) as layer:
                yield from _of_layer(layer, wanted, content, seen, hidden, limit=limit)


VARIABLES = "/.singularity.d/env/00-image.sh"
"""The path under which `files_of` yields the variables of an archive's configuration."""


@contextmanager
def _members(path: Path) -> Iterator[dict[str, Open]]:
    """Return what opens each member of an archive, or each file of a directory, by name."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        yield {str(file.relative_to(path)): cast("Open", partial(file.open, "rb")) for file in files}
        return
    with tarfile.open(path, "r:", tarinfo=_Member) as archive:
        yield {member.name.removeprefix("./"): partial(archive.extractfile, member) for member in archive}


def _layers(members: Mapping[str, Open]) -> tuple[dict[str, Any], list[str]]:
    """Return the configuration, and the names of the layers, from the first to the last."""

    def read(name: str) -> Any:  # noqa: ANN401  JSON
        file = members[name]()
        if file is None:
            return {}
        with file:
            return json.loads(file.read(_LARGEST_MANIFEST))

    def blob(row: dict[str, Any]) -> str:
        return "blobs/" + str(row["digest"]).replace(":", "/")

    if "manifest.json" in members:
        (first, *_) = read("manifest.json")
        return read(first["Config"]), first["Layers"]
    manifest = read("index.json")
    for _ in range(_DEEPEST_INDEX):
        if "manifests" in manifest:
            manifest = read(blob(manifest["manifests"][0]))
    if "config" not in manifest:
        msg = "its index leads to no manifest"
        raise ValueError(msg)
    return read(blob(manifest["config"])), [blob(row) for row in manifest["layers"]]


@contextmanager
def _layer(open_: Open, name: str, limit: _Limit) -> Iterator[tarfile.TarFile]:
    file = open_()
    if file is None:
        msg = f"its layer {name} is not a file"
        raise ValueError(msg)
    start = file.read(4)
    file.seek(0)
    opener = zstd.open if start == _ZSTD else gzip.open if start.startswith(_GZIP) else nullcontext
    with file, opener(file) as source:
        limit.source = cast("BinaryIO", source)
        with tarfile.open(fileobj=cast("IO[bytes]", limit), mode="r|", tarinfo=_Member) as layer:
            yield layer


class _Member(tarfile.TarInfo):
    """A member whose extended headers, which tarfile reads as a whole, are limited."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _EXTENDED and member.size > _LARGEST_HEADER:
            msg = f"a header of it has {member.size:,} bytes"
            raise ValueError(msg)
        return member


class _Limit:
    """Limits of the files of an image and of the bytes that are unpacked; also a stream of its layers."""

    source: BinaryIO
    """The layer that is read."""

    def __init__(self, most: int) -> None:
        self._files, self._bytes = _MOST_FILES, most

    def read(self, size: int) -> bytes:
        data = self.source.read(size)
        self.spend(len(data))
        return data

    def spend(self, size: int) -> None:
        """Count bytes that are unpacked."""
        self._bytes -= size
        if self._bytes < 0:
            msg = "it unpacks to more than any real image of its size"
            raise ValueError(msg)

    def count_file(self, path: str, link: str) -> None:
        """Count a file, and check the length of its path and of the target of its link."""
        self._files -= 1
        if self._files < 0:
            msg = "it has more files than any real image"
            raise ValueError(msg)
        if max(len(path), len(link)) > _LONGEST_PATH:
            msg = f"a path in it has {max(len(path), len(link)):,} characters"
            raise ValueError(msg)


def _of_layer(
    layer: tarfile.TarFile,
    wanted: Callable[[str], bool],
    content: Path,
    seen: set[str],
    hidden: set[str],
    *,
    limit: _Limit,
) -> Iterator[ImageFile]:
    """Yield the files of a layer that no later layer has replaced or removed."""
    removed: set[str] = set()
    for member in layer:
        limit.count_file(member.name, member.linkname)
        layer.members = []  # type: ignore[attr-defined]  # otherwise it keeps all of them
        path = posixpath.normpath(f"/{member.name}")
        folder, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            removed.add(folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}")
            continue
        is_old = path in seen or _is_below(path, hidden)
        if is_old or not (member.isfile() or member.issym() or member.islnk()):
            continue
        seen.add(path)
        if not member.isfile():
            yield ImageFile(path, link=member.linkname if member.issym() else f"/{member.linkname}")
            continue
        is_wanted = wanted(path)
        if is_wanted:
            limit.spend(member.size)  # a sparse member has more bytes than its layer
            content.unlink()
            with content.open("xb") as sink:
                shutil.copyfileobj(cast("BinaryIO", layer.extractfile(member)), sink, _CHUNK)
        yield ImageFile(path, member.size, at=content if is_wanted else None)
    hidden |= removed


def _is_below(path: str, folders: set[str]) -> bool:
    while path:
        if path in folders:
            return True
        path = path.rpartition("/")[0]
    return False
