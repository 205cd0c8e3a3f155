"""Read and write wheels. No other module opens them as zip files.

Wheels are untrusted input. A file that would fill memory or disk is rejected before it is read, no member is
written under its own name, and each member is checked against its size and checksum.
"""

from __future__ import annotations

import base64
import copy
import csv
import hashlib
import io
import mmap
import os
import stat
import struct
import tempfile
import time
import zipfile
from collections import deque
from contextlib import contextmanager
from itertools import pairwise
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from zlib_ng import zlib_ng as zlib

from builders.wheels.deflate import HIGHEST_RATIO, InflateError, known_end, unpacked_end

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path
    from typing import Self

    from packaging.tags import Tag

LARGEST_METADATA = 1 << 22  # bytes of METADATA or WHEEL; a long README has 0.2 MB
_LARGEST_DIRECTORY = 1 << 24  # bytes; torch's directory, with 14,000 members, has 2 MB
_MOST_UNPACKED = 1 << 36  # bytes: ten times the largest known wheel
_ALWAYS_ALLOWED = 1 << 28  # unpacked bytes, whatever the ratio
_CHUNK = 1 << 18
_WORTH_A_THREAD = 1 << 20  # bytes
_MOST_PENDING = 8  # chunks that wait to be hashed
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a member in a zip file; lengths of its name and its extra field
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)  # the oldest date that a zip file can hold


class DamagedError(Exception):
    """A file contradicts itself or exceeds a limit; the message is a clause without a full stop."""


class WheelReader:
    """A wheel, opened for reading. Use it as a context manager.

    `file` is its content, if it is not a local file. Raise `DamagedError` if the file is not a wheel, or
    would fill memory or disk; `OSError` if it cannot be read.
    """

    name: str
    version: Version
    tags: tuple[Tag, ...]
    """Name, version and tags are those of the file name; the name is normalized."""
    members: tuple[zipfile.ZipInfo, ...]
    size: int
    """Size of the file in bytes."""

    def __init__(self, path: Path, file: BinaryIO | io.FileIO | None = None) -> None:
        try:
            self.name, self.version, _, tags = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            msg = "its name is not of the form NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
            raise DamagedError(msg) from None
        self.tags = tuple(sorted(tags, key=str))
        self._file = file if file is not None else _open(path)
        try:
            self._archive = zipfile.ZipFile(self._file)
            self.members = tuple(self._archive.infolist())
            self.size = self._file.seek(0, io.SEEK_END)
            _check_directory(self.members, self.size)
        except (zipfile.BadZipFile, NotImplementedError, ValueError, OverflowError) as error:
            self._file.close()
            raise DamagedError(str(error).rstrip(".")) from None
        except BaseException:
            self._file.close()
            raise
        self.dist_infos = sorted(
            top
            for top in {info.filename.partition("/")[0] for info in self.members}
            if top.endswith(".dist-info")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._archive.close()
        self._file.close()

    @property
    def dist_info(self) -> str:
        """The directory with METADATA, WHEEL and RECORD; empty if there is none."""
        own = [name for name in self.dist_infos if is_dist_info_of(name, self.name, str(self.version))]
        return next(iter(own + self.dist_infos), "")

    def metadata_member(self, name: str) -> zipfile.ZipInfo | None:
        """Return a member of `dist_info`, such as METADATA; None if it does not exist."""
        path = f"{self.dist_info}/{name}"
        return next((info for info in reversed(self.members) if info.filename == path), None)

    def largest(self, name: str) -> int:
        """Return the maximum size of METADATA, WHEEL or RECORD in bytes."""
        if name != "RECORD":
            return LARGEST_METADATA
        return (1 << 16) + sum(200 + 2 * len(info.filename.encode()) for info in self.members)

    def text(self, name: str) -> bytes:
        """Return METADATA, WHEEL or RECORD; raise `DamagedError` if it is missing, too large or damaged."""
        member = self.metadata_member(name)
        if member is None or member.file_size > self.largest(name):
            raise DamagedError(f"its {name} file is missing or too large")
        try:
            return self.read(member)
        except DamagedError as error:
            raise DamagedError(f"its {name} {error}") from None

    def read(self, info: zipfile.ZipInfo) -> bytes:
        """Return the content of a small member."""
        return b"".join(self.chunks(info))

    def chunks(self, info: zipfile.ZipInfo, deflated: deque[bytes] | None = None) -> Iterator[bytes]:
        """Yield the content of a member; its compressed data, if it is deflated, goes to `deflated`.

        Raise `DamagedError` if the member cannot be read, or its size or checksum is wrong: chunks that were
        yielded before must be discarded.
        """
        if info.flag_bits & 1:
            msg = "is encrypted"
            raise DamagedError(msg)
        if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            raise DamagedError(f"is compressed by method {info.compress_type}; wheels are stored or deflated")
        size = checksum = 0
        try:
            for data in self._unpacked(info, deflated):
                size += len(data)
                if size > info.file_size:
                    break
                checksum = zlib.crc32(data, checksum)
                yield data
        except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, InflateError) as error:
            raise DamagedError(f"cannot be unpacked ({str(error) or type(error).__name__})") from None
        if size != info.file_size:
            raise DamagedError(f"does not have the {info.file_size} bytes that the wheel's directory states")
        if checksum != info.CRC:
            msg = "does not match its checksum"
            raise DamagedError(msg)

    def _unpacked(self, info: zipfile.ZipInfo, deflated: deque[bytes] | None) -> Iterator[bytes]:
        # zlib-ng inflates twice as fast as zlib, and keeps the bytes after the compressed data. `zipfile`
        # returns the compressed bytes of a member if its entry calls it stored.
        packed = copy.copy(info)
        packed.compress_type, packed.file_size = zipfile.ZIP_STORED, info.compress_size
        packed.CRC = None  # type: ignore[assignment]  # `zipfile` then compares nothing
        with self._archive.open(packed) as source:
            if info.compress_type == zipfile.ZIP_STORED:
                yield from iter(lambda: source.read(_CHUNK), b"")
                return
            inflater = zlib.decompressobj(-zlib.MAX_WBITS)
            while (data := source.read(_CHUNK)) and not inflater.eof:
                if deflated is not None:
                    deflated.append(data)
                while data and not inflater.eof:
                    yield inflater.decompress(data, _CHUNK)
                    data = inflater.unconsumed_tail
            yield inflater.flush()
            if not inflater.eof or inflater.unused_data or data:
                msg = "its compressed data ends too early or is followed by other data"
                raise ValueError(msg)

    def start(self, info: zipfile.ZipInfo, packed: int) -> bytes:
        """Return what the first bytes of a member, `packed` in the wheel, contain, without its checksum."""
        data = self._packed(info, 0, packed)
        if info.compress_type == zipfile.ZIP_STORED:
            return data
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, HIGHEST_RATIO * packed)
        except InflateError as error:
            raise DamagedError(f"cannot be unpacked ({error})") from None

    def end(self, info: zipfile.ZipInfo, packed: int) -> Callable[[int, int], bytes | None]:
        """Return what the last bytes of a member, `packed` in the wheel, contain; see `known_end`."""
        data = self._packed(info, max(0, info.compress_size - packed), packed)
        if info.compress_type == zipfile.ZIP_STORED:
            return known_end(data, data, info.file_size)
        return unpacked_end(data, info.file_size)

    def _packed(self, info: zipfile.ZipInfo, start: int, size: int) -> bytes:
        """Return a part of a member as it is in the wheel."""
        if info.flag_bits & 1 or info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
            msg = "cannot be unpacked (it is encrypted, or neither stored nor deflated)"
            raise DamagedError(msg)
        stored = copy.copy(info)
        stored.file_size = info.compress_size
        return StoredMember(self._file, stored)[start : start + size]

    def sha256(self, info: zipfile.ZipInfo, sink: BinaryIO | None = None) -> bytes:
        """Return the SHA-256 of a member's content, which is also written to the sink."""
        digest = hashlib.sha256()

        def consume(data: bytes) -> None:
            digest.update(data)
            if sink is not None:
                sink.write(data)

        if info.file_size < _WORTH_A_THREAD:
            for data in self.chunks(info):
                consume(data)
            return digest.digest()
        from concurrent.futures import ThreadPoolExecutor

        # Inflating, hashing and writing all release the interpreter's lock.
        with ThreadPoolExecutor(1) as helper:
            pending: deque[Future[None]] = deque()
            for data in self.chunks(info):
                pending.append(helper.submit(consume, data))
                if len(pending) > _MOST_PENDING:
                    pending.popleft().result()
            for future in pending:
                future.result()
        return digest.digest()

    @contextmanager
    def unpacked(self, info: zipfile.ZipInfo) -> Iterator[tuple[mmap.mmap | bytes, bytes]]:
        """Unpack a member to a temporary file without a name; yield its content and its SHA-256."""
        with tempfile.TemporaryFile(prefix="matrix-") as file:
            digest = self.sha256(info, file)
            file.flush()
            if not info.file_size:
                yield b"", digest
                return
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content, digest

    @contextmanager
    def partly(self, info: zipfile.ZipInfo) -> Iterator[Content]:
        """Yield the content of a member; slices of a stored one are read when used, without its checksum."""
        if info.compress_type == zipfile.ZIP_STORED and info.file_size > _CHUNK:
            yield StoredMember(self._file, info)
            return
        with self.unpacked(info) as (content, _):
            yield content


class StoredMember:
    """The content of a member that is not compressed; a slice is read when it is used."""

    def __init__(self, file: BinaryIO, info: zipfile.ZipInfo) -> None:
        self._file = file
        self._size = info.file_size
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER.size)
        if len(header) < _LOCAL_HEADER.size:
            msg = "is cut short"
            raise DamagedError(msg)
        *_, name, extra = _LOCAL_HEADER.unpack(header)
        self._start = info.header_offset + _LOCAL_HEADER.size + name + extra

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, end, _ = part.indices(self._size)
        self._file.seek(self._start + start)
        return self._file.read(max(0, end - start))


Content = mmap.mmap | bytes | StoredMember
"""The content of a member, of which slices are read."""


def _open(path: Path) -> BinaryIO:
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a named pipe would wait for ever
        msg = "it is not a regular file"
        raise DamagedError(msg)
    return cast("BinaryIO", LimitedFile(path, "rb"))


class LimitedFile(io.FileIO):
    """A file that rejects huge reads and seeks before its start, which a damaged directory would cause."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Change the position; reject one before the start of the file."""
        if whence == io.SEEK_SET and offset < 0:
            msg = "its directory points outside the file"
            raise DamagedError(msg)
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes; reject a read of more than the largest directory that is accepted."""
        if size is not None and size > _LARGEST_DIRECTORY:
            raise DamagedError(f"its directory would have {size} bytes")
        return super().read(-1 if size is None else size)


def _check_directory(members: Sequence[zipfile.ZipInfo], file_size: int) -> None:
    if not all(info.filename for info in members):
        msg = "a member has no name"
        raise DamagedError(msg)
    if any(info.header_offset < 0 for info in members):
        msg = "its directory points outside the file"
        raise DamagedError(msg)
    total = sum(info.file_size for info in members)
    if total > _MOST_UNPACKED or total > max(_ALWAYS_ALLOWED, HIGHEST_RATIO * file_size):
        raise DamagedError(f"its members would unpack to {total} bytes; the file has {file_size}")


def is_unsafe(name: str) -> bool:
    """Return whether a member of this name would be unpacked outside the environment."""
    return name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts


def is_special(info: zipfile.ZipInfo) -> bool:
    """Return whether a member is a link or a device."""
    return stat.S_IFMT(info.external_attr >> 16) not in {0, stat.S_IFREG, stat.S_IFDIR}


def overlapping(members: Sequence[zipfile.ZipInfo]) -> Iterator[tuple[str, str]]:
    """Yield each pair of members of which the second begins inside the first."""
    ordered = sorted(members, key=lambda info: info.header_offset)
    for first, second in pairwise(ordered):
        least = first.header_offset + 30 + len(first.filename.encode()) + first.compress_size
        if second.header_offset < least:
            yield first.filename, second.filename


def is_dist_info_of(directory: str, name: str, version: str) -> bool:
    """Return whether a ``.dist-info`` directory belongs to a name and a version, in any spelling.

    >>> is_dist_info_of("Flash_Attn-2.8.dist-info", "flash-attn", "2.8")
    True
    """
    project, _, release = directory.removesuffix(".dist-info").rpartition("-")
    try:
        return canonicalize_name(project) == name and Version(release) == Version(version)
    except InvalidVersion:
        return False


def record_rows(text: bytes) -> Iterator[list[str]]:
    """Yield the rows of a RECORD: path, hash, size; raise `DamagedError` if it is not CSV in UTF-8."""
    try:
        yield from csv.reader(io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline=""))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DamagedError(f"RECORD cannot be read ({error})") from None


def recorded_hash(digest: bytes) -> str:
    """Return a SHA-256 in the form of RECORD: URL-safe base64 without padding."""
    return f"sha256={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


class NewMember(NamedTuple):
    """The content of a member to be written."""

    size: int
    chunks: Iterable[bytes]
    executable: bool = False
    deflated: deque[bytes] | None = None
    """The content as deflated data, which `WheelReader.chunks` adds; None to store the content."""


def write_wheel(path: Path, members: Mapping[str, NewMember], dist_info: str) -> None:
    """Write a wheel and its RECORD; the bytes depend only on the members and on ``SOURCE_DATE_EPOCH``."""
    rows = []
    with zipfile.ZipFile(path, "w") as archive:
        for name in sorted(members, key=lambda one: (one.startswith(f"{dist_info}/"), one)):
            digest = recorded_hash(_write_member(archive, name, members[name]))
            rows.append((name, digest, str(members[name].size)))
        record = f"{dist_info}/RECORD"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
        data = text.getvalue().encode()
        _write_member(archive, record, NewMember(len(data), [data]))


def check_written(path: Path) -> None:
    """Let an independent reader check a wheel that we wrote: its name, RECORD, members and metadata.

    `write_wheel` has hashed the other members while it copied; to unpack everything again would double the
    time of labelling.
    """
    from wheel.wheelfile import WheelFile  # 20 ms

    with WheelFile(path) as wheel:
        for info in wheel.infolist():
            with wheel.open(info) as member:
                if info.filename.startswith(f"{wheel.dist_info_path}/"):
                    member.read()


def _write_member(archive: zipfile.ZipFile, name: str, member: NewMember) -> bytes:
    info = zipfile.ZipInfo(name, _date())
    info.compress_type = zipfile.ZIP_STORED if member.deflated is None else zipfile.ZIP_DEFLATED
    info.create_system = 3  # Unix
    info.external_attr = (stat.S_IFREG | (0o755 if member.executable else 0o644)) << 16
    info.file_size = member.size  # decides whether 64-bit sizes are needed
    digest = hashlib.sha256()
    with archive.open(info, "w") as sink:
        if member.deflated is not None:
            # `zipfile` has no way to write compressed data as it is.
            sink._compressor = _Copier(member.deflated)  # type: ignore[attr-defined]  # noqa: SLF001
        for data in member.chunks:
            digest.update(data)
            sink.write(data)
    return digest.digest()


class _Copier:
    """Stand in for a compressor whose result is known."""

    def __init__(self, deflated: deque[bytes]) -> None:
        self._deflated = deflated

    def compress(self, _: bytes) -> bytes:
        return self.flush()

    def flush(self) -> bytes:
        data = b"".join(self._deflated)
        self._deflated.clear()
        return data


def _date() -> tuple[int, int, int, int, int, int]:
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not epoch.isdecimal():
        return _FIRST_DATE
    return max(_FIRST_DATE, time.gmtime(int(epoch))[:6])
