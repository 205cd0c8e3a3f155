"""Read the files of an image or of a directory, without starting anything in it.

A SIF or squashfs is listed and unpacked by ``unsquashfs`` of squashfs-tools, in the sandbox for untrusted
programs; an archive of podman or docker, or an OCI layout, is read layer by layer, the last layer first.
Only the requested files are unpacked, a part at a time, so that little memory and disk is needed however
large the image is.

Layouts: pkg/sif/sif.go and descriptor.go of sylabs/sif (SIF), opencontainers/image-spec (layers, whiteouts).
"""

from __future__ import annotations

import gzip
import json
import os
import posixpath
import re
import shutil
import stat
import struct
import sys
import tarfile
import zlib
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from builders.containers.image import SIF_HEADER, form_of
from builders.containers.runtime import Bind, HostRuntime, View, run_in
from builders.storage.lease import TemporaryDirectory
from resolver.errors import CommandError, EnvironmentLacksError
from resolver.texts import printable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    Open = Callable[[], IO[bytes] | None]

_UNSTABLE = ("/dev", "/proc", "/run", "/sys", "/tmp")  # noqa: S108
"""Directories whose content does not belong to an image."""
_DESCRIPTOR = struct.Struct("<i?IIIqqqqqqq128s384s")
_PARTITION = struct.Struct("<ii")
_OF_PARTITION, _SQUASHFS, _ENCRYPTED, _PRIMARY = 0x4004, 1, 5, 2
_MOST_DESCRIPTORS = 1024
_LISTED = re.compile(
    rb"([-dlbcps])[\w-]{9} +\d+/\d+ +(\d+|\d+, *\d+) \d{4}-\d\d-\d\d \d\d:\d\d squashfs-root(/.*)"
)
"""A line of ``unsquashfs -lln``."""
_NOT_FATAL = 2
"""Exit code of unsquashfs if it could not set attributes."""
_BATCH = 1 << 28  # bytes that are unpacked at a time
_MOST_FILES = 5_000_000
_LARGEST_LISTING = 1 << 30
_LONGEST = 3600.0  # seconds for a part
_LARGEST_MANIFEST = 1 << 22
_MOST_UNPACKED = 1 << 38  # bytes of all layers
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_CHUNK = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"

_DAMAGE = (
    tarfile.TarError, zstd.ZstdError, zlib.error, struct.error, EOFError, OSError, ValueError, LookupError,
    TypeError, AttributeError, OverflowError, RecursionError,
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


def files_of(path: Path, wanted: Callable[[str], bool], log: Path) -> Iterator[ImageFile]:
    """Yield every regular file and symbolic link, with the content of the files whose path is wanted.

    `path` is an image, or a directory such as that of a virtual environment. `log` gets the output of
    unsquashfs. Raise `UsageError` if it is no image, and `EnvironmentLacksError` if it cannot be read: it is
    encrypted or damaged, or unsquashfs is not installed.
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
            yield from _of_squashfs(path, offset, wanted, log)
    except _DAMAGE as error:
        msg = f"Cannot read {path}: {printable(str(error)) or type(error).__name__}."
        raise EnvironmentLacksError(msg, hint="It may be incomplete. Copy or download it again.") from None


def how_read(path: Path) -> str:
    """Return how `files_of` reads an image, as a clause."""
    if _has_layers(path):
        return "its layers were read without starting it"
    if path.is_dir():
        return "its files were read"
    return "its file system (unsquashfs) was read without starting it"


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


def _of_squashfs(path: Path, offset: int, wanted: Callable[[str], bool], log: Path) -> Iterator[ImageFile]:
    if shutil.which("unsquashfs") is None:
        msg = f"unsquashfs is needed to read {path} without starting it, but is not on PATH."
        raise EnvironmentLacksError(msg, hint="Install squashfs-tools.")
    chosen: list[tuple[str, int]] = []
    for file in _listed(path, offset):
        if not file.link and wanted(file.path):
            chosen.append((file.path, file.size))
        else:
            yield file
    for batch in _batches(chosen):
        with TemporaryDirectory() as folder:
            names = folder.root / "names"
            names.write_bytes(b"".join(os.fsencode(name[1:]) + b"\n" for name, _ in batch))
            out = folder.root / "out"
            few = ["-n", "-q", "-no-xattrs", "-no-wild", "-p", "2", "-da", "32", "-fr", "32"]
            arguments = [*few, "-o", str(offset), "-d", str(out), "-ef", str(names), str(path)]
            _unsquash(path, folder.root, log, arguments)
            for name, size in batch:
                at = out / name[1:]
                if not stat.S_ISREG(at.lstat().st_mode):
                    msg = f"{printable(name)} is not the file that is listed"
                    raise ValueError(msg)
                yield ImageFile(name, size, at=at)


def _listed(path: Path, offset: int) -> Iterator[ImageFile]:
    """Yield the files and links of a squashfs, without their content."""
    with TemporaryDirectory() as folder:
        listing = folder.root / "listing"
        _unsquash(path, folder.root, listing, ["-lln", "-o", str(offset), str(path)])
        if listing.stat().st_size > _LARGEST_LISTING:
            msg = "it has more files than any real image"
            raise ValueError(msg)
        with listing.open("rb") as lines:
            for line in lines:
                match = _LISTED.fullmatch(line.rstrip(b"\n"))
                if match and match[1] == b"l":
                    name, _, target = os.fsdecode(match[3]).partition(" -> ")
                    yield ImageFile(name, link=target)
                elif match and match[1] == b"-":
                    yield ImageFile(os.fsdecode(match[3]), int(match[2]))


def _unsquash(path: Path, folder: Path, log: Path, arguments: Sequence[str]) -> None:
    """Run unsquashfs in the sandbox, where only the given directory can be written."""
    view = View(binds=[Bind(path), Bind(folder, writable=True)], untrusted=True)
    try:
        run_in(
            HostRuntime(), ["unsquashfs", *arguments], view, what=f"Reading {path}", log=log, timeout=_LONGEST
        )
    except CommandError as error:
        if error.code == _NOT_FATAL:  # root cannot give files to users that its namespace does not have
            return
        why = f": {printable(error.lines[-1])}" if error.lines else ""
        msg = f"Cannot read {path}: unsquashfs failed{why}."
        hint = "It may be damaged. Copy or download it again."
        raise EnvironmentLacksError(msg, hint=hint) from None


def _batches(files: Iterable[tuple[str, int]]) -> Iterator[list[tuple[str, int]]]:
    """Return files in groups whose size together is limited, unless one file alone is larger."""
    batch: list[tuple[str, int]] = []
    total = 0
    for name, size in files:
        if batch and total + size > _BATCH:
            yield batch
            batch, total = [], 0
        batch.append((name, size))
        total += size
    if batch:
        yield batch


def _of_layers(path: Path, wanted: Callable[[str], bool]) -> Iterator[ImageFile]:
    """Yield the files of an image with layers, and the variables of its configuration."""
    seen: set[str] = set()
    hidden: set[str] = set()
    """Directories that a later layer replaced."""
    counted = _Counted(_MOST_UNPACKED)
    with _members(path) as members, TemporaryDirectory() as folder:
        config, layers = _layers(members)
        variables = (config.get("config") or {}).get("Env") or []
        content = folder.root / "content"
        content.write_text("".join(f"export {line}\n" for line in map(str, variables)))
        yield ImageFile(VARIABLES, content.stat().st_size, at=content)
        for name in reversed(layers):
            with _layer(members[name], name, counted) as layer:
                yield from _of_layer(layer, wanted, content, seen, hidden)


VARIABLES = "/.singularity.d/env/00-image.sh"
"""The path under which `files_of` yields the variables of an archive's configuration."""


@contextmanager
def _members(path: Path) -> Iterator[dict[str, Open]]:
    """Return what opens each member of an archive, or each file of a directory, by name."""
    if path.is_dir():
        files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        yield {str(file.relative_to(path)): cast("Open", partial(file.open, "rb")) for file in files}
        return
    with tarfile.open(path, "r:") as archive:
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
    while "manifests" in manifest:
        manifest = read(blob(manifest["manifests"][0]))
    return read(blob(manifest["config"])), [blob(row) for row in manifest["layers"]]


@contextmanager
def _layer(open_: Open, name: str, counted: _Counted) -> Iterator[tarfile.TarFile]:
    file = open_()
    if file is None:
        msg = f"its layer {name} is not a file"
        raise ValueError(msg)
    start = file.read(4)
    file.seek(0)
    opener = zstd.open if start == _ZSTD else gzip.open if start.startswith(_GZIP) else nullcontext
    with file, opener(file) as source:
        counted.source = cast("BinaryIO", source)
        with tarfile.open(fileobj=cast("IO[bytes]", counted), mode="r|") as layer:
            yield layer


class _Counted:
    """A stream of one layer after another that limits how much is read from all of them."""

    source: BinaryIO

    def __init__(self, most: int) -> None:
        self._left = most

    def read(self, size: int) -> bytes:
        data = self.source.read(size)
        self._left -= len(data)
        if self._left < 0:
            msg = "its layers are larger than those of any real image"
            raise ValueError(msg)
        return data


def _of_layer(
    layer: tarfile.TarFile, wanted: Callable[[str], bool], content: Path, seen: set[str], hidden: set[str]
) -> Iterator[ImageFile]:
    """Yield the files of a layer that no later layer has replaced or removed."""
    removed: set[str] = set()
    for member in layer:
        if len(seen) > _MOST_FILES:
            msg = "it has more files than any real image"
            raise ValueError(msg)
        layer.members = []  # type: ignore[attr-defined]  # otherwise it keeps all of them
        path = posixpath.normpath(f"/{member.name}")
        folder, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            removed.add(folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}")
            continue
        is_old = path in seen or _is_below(path, hidden) or path.startswith(_UNSTABLE)
        if is_old or not (member.isfile() or member.issym() or member.islnk()):
            continue
        seen.add(path)
        if not member.isfile():
            yield ImageFile(path, link=member.linkname if member.issym() else f"/{member.linkname}")
            continue
        is_wanted = wanted(path)
        if is_wanted:
            with content.open("wb") as sink:
                shutil.copyfileobj(cast("BinaryIO", layer.extractfile(member)), sink, _CHUNK)
        yield ImageFile(path, member.size, at=content if is_wanted else None)
    hidden |= removed


def _is_below(path: str, folders: set[str]) -> bool:
    while path:
        if path in folders:
            return True
        path = path.rpartition("/")[0]
    return False
