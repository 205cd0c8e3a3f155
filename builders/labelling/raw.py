"""Reading the wheel that a build backend made: each member once, checked, never whole in memory.

`wheel.wheelfile` finds everything by the file name, which some backends spell otherwise than the
directories inside, and takes for granted that RECORD is well-formed; what is read here comes out of
a build that anybody's code took part in.
"""

from __future__ import annotations

import hashlib
import stat
import struct
import zipfile
import zlib
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.audit.contents import as_recorded, record_rows
from builders.audit.directory import DamagedError, check_sizes
from resolver.errors import RawWheelError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from packaging.version import Version

    Write = Callable[[bytes], object]

_LENGTHS = struct.Struct("<HH")
_LENGTHS_AT, _HEADER_SIZE = 26, 30  # in a local header (PKWARE's APPNOTE 4.3.7)
_CHUNK = 1 << 20
_LARGEST_TEXT = 1 << 26  # a RECORD of a wheel with 100 000 files has some 10 MB
_STRONG = ("sha256", "sha384", "sha512")
_NEEDED = ("METADATA", "WHEEL", "RECORD")
SIGNATURES = ("RECORD.jws", "RECORD.p7s")
"""Signatures over RECORD (PEP 427), which are void once it is made anew."""


class RawWheel:
    """A wheel opened for reading.

    Parameters
    ----------
    path
        The wheel.
    file
        The same, opened in binary; it stays open as long as members are read.

    Raises
    ------
    RawWheelError
        It is no wheel, holds what would be unpacked elsewhere, or would unpack to an absurd size.
    """

    name: str
    """Normalised (PEP 503)."""
    version: Version
    """As the file name says."""
    members: Mapping[str, zipfile.ZipInfo]
    """All files in it."""
    info: str
    """Name of the metadata directory."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._recorded: dict[str, tuple[str, str]] = {}
        try:
            self.name, self.version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            why = "wheels are called NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
            raise self.unsound(why) from None
        try:
            self._archive = zipfile.ZipFile(file)
            check_sizes(self._archive, path.stat().st_size)
        except (zipfile.BadZipFile, DamagedError, NotImplementedError, UnicodeDecodeError) as error:
            raise self.unsound(str(error)) from None
        self.members = self._files()
        self.info = self._dist_info()
        self._recorded = self._record()

    def unsound(self, why: str) -> RawWheelError:
        """Give the error that says why this is no sound wheel."""
        msg = f"{self._path.name} is no sound wheel: {why.rstrip('.')}."
        return RawWheelError(msg, hint=f"Build it again. The file is {self._path}.")

    def read(self, name: str) -> bytes:
        """Read a file of the metadata directory.

        Raises
        ------
        RawWheelError
            It is damaged, or larger than any such file is.
        """
        info = self.members[f"{self.info}/{name}"]
        if info.file_size > _LARGEST_TEXT:
            raise self.unsound(f"its {name} has {info.file_size} bytes")
        pieces: list[bytes] = []
        self._pass(info, packed=_drop, content=pieces.append)
        return b"".join(pieces)

    def copy(self, name: str, write: Write) -> bytes:
        """Hand over a member as it is compressed, and check what it unpacks to.

        Parameters
        ----------
        name
            The member.
        write
            Called with its bytes, piece by piece.

        Returns
        -------
        bytes
            SHA-256 of the content.

        Raises
        ------
        RawWheelError
            It is not what directory and RECORD say: what was written is not to be used.
        """
        return self._pass(self.members[name], packed=write, content=_drop)

    def _pass(self, info: zipfile.ZipInfo, *, packed: Write, content: Write) -> bytes:
        """Go through a member once; give the SHA-256 of its content if it is what it should be."""
        seen = _Seen(info, self._recorded.get(info.filename, ("sha256", "")), content)
        try:
            self._unpack(info, packed, seen.look)
            seen.judge()
        except DamagedError as error:
            raise self.unsound(f"{info.filename} {error}") from None
        except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
            raise self.unsound(f"{info.filename} cannot be unpacked ({error})") from None
        return seen.digest.digest()

    def _unpack(self, info: zipfile.ZipInfo, packed: Write, content: Write) -> None:
        self._archive.open(info).close()  # compares its two headers, refuses what is encrypted
        self._file.seek(info.header_offset + _LENGTHS_AT)
        name, extra = _LENGTHS.unpack(self._file.read(_LENGTHS.size))
        self._file.seek(info.header_offset + _HEADER_SIZE + name + extra)
        left = info.compress_size
        state = zlib.decompressobj(-zlib.MAX_WBITS) if info.compress_type == zipfile.ZIP_DEFLATED else None
        while left:
            data = self._file.read(min(_CHUNK, left))
            if not data:
                msg = "is cut short"
                raise DamagedError(msg)
            left -= len(data)
            packed(data)
            if state is None:
                content(data)
                continue
            while data:
                content(state.decompress(data, _CHUNK))
                data = state.unconsumed_tail
        if state is not None:
            content(state.flush())
            if not state.eof or state.unused_data:
                msg = "is cut short, or something stands behind it"
                raise DamagedError(msg)

    def _files(self) -> dict[str, zipfile.ZipInfo]:
        """Give the files, none of which may be unpacked elsewhere, as a link, or over another."""
        found: dict[str, zipfile.ZipInfo] = {}
        for info in self._archive.infolist():
            name, kind = info.filename, stat.S_IFMT(info.external_attr >> 16)
            path = PurePosixPath(name)
            if path.is_absolute() or "\\" in name or ".." in path.parts:
                raise self.unsound(f"{name} would be unpacked outside the environment")
            if info.is_dir():
                continue
            if kind not in {0, stat.S_IFREG}:
                raise self.unsound(f"{name} is a link or a device, which wheels cannot hold")
            if info.compress_type not in {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED}:
                raise self.unsound(
                    f"{name} is compressed by method {info.compress_type}; wheels are deflated"
                )
            if name in found:
                raise self.unsound(f"{name} is in it twice")
            found[name] = info
        return found

    def _dist_info(self) -> str:
        tops = {name.partition("/")[0] for name in self.members if "/" in name}
        found = sorted(top for top in tops if top.endswith(".dist-info"))
        if len(found) != 1:
            raise self.unsound(f"it has {len(found)} metadata directories instead of one")
        (info,) = found
        if not canonicalize_name(info).startswith(f"{self.name}-"):
            raise self.unsound(f"its metadata directory {info} is of another distribution")
        for name in _NEEDED:
            if f"{info}/{name}" not in self.members:
                raise self.unsound(f"it has no {name}")
        return info

    def _record(self) -> dict[str, tuple[str, str]]:
        """Read RECORD: member to algorithm and digest in base 64. Each file must be in there (PEP 427)."""
        found: dict[str, tuple[str, str]] = {}
        try:
            for row in record_rows(self.read("RECORD")):
                if len(row) > 1 and row[1]:
                    algorithm, _, digest = row[1].partition("=")
                    found[row[0]] = algorithm.lower(), digest.rstrip("=")
        except DamagedError as error:
            raise self.unsound(str(error)) from None
        unhashed = {f"{self.info}/{one}" for one in ("RECORD", *SIGNATURES)}
        for name in self.members:
            algorithm, digest = found.get(name, ("", ""))
            if name in unhashed:
                found.pop(name, None)
            elif algorithm not in _STRONG or not digest:
                raise self.unsound(f"RECORD has no SHA-256 of {name}")
        return found


class _Seen:
    """What the content of a member is, as far as it was seen, against what it is said to be."""

    def __init__(self, info: zipfile.ZipInfo, recorded: tuple[str, str], content: Write) -> None:
        self._info, self._content = info, content
        self._algorithm, self._wanted = recorded
        self.digest = hashlib.sha256()
        self._other = None if self._algorithm == "sha256" else hashlib.new(self._algorithm)
        self._size = self._crc = 0

    def look(self, piece: bytes) -> None:
        """Take the next piece."""
        self.digest.update(piece)
        if self._other is not None:
            self._other.update(piece)
        self._crc = zlib.crc32(piece, self._crc)
        self._size += len(piece)
        if self._size > self._info.file_size:
            msg = "unpacks to more than the wheel's directory says"
            raise DamagedError(msg)
        self._content(piece)

    def judge(self) -> None:
        """Compare, when all was seen."""
        if self._size != self._info.file_size or self._crc != self._info.CRC:
            msg = "is not what its checksum says"
            raise DamagedError(msg)
        found = as_recorded((self._other or self.digest).digest()).partition("=")[2]
        if self._wanted and found != self._wanted:
            msg = f"is not what RECORD says: its {self._algorithm} differs"
            raise DamagedError(msg)


def _drop(_: bytes) -> None:
    pass
