"""Read GPU code: offload bundles, archives, and the code objects in them.

``.hip_fatbin`` contains one offload bundle for each translation unit: a table of entries, one for each GPU
architecture, followed by the code. A plain bundle begins with ``__CLANG_OFFLOAD_BUNDLE__``, a compressed
one with ``CCOB``. Layouts: clang's ``docs/ClangOffloadBundler.rst`` and LLVM's ``docs/AMDGPUUsage.rst``.

An archive (``.kpack``) holds the code of shared objects outside of them. Its header has the offset of a table
of contents (MessagePack) at the end of the file. The table has a number for the code of each shared object
and architecture. The code with a number is a part of the file, or a zstd frame in one list of frames. The
layout is that of AMD's writer [1]_. No archive of AMD was at hand, so unknown keys are ignored, and an
unknown compression leaves the names in the table.

Every number that is read is checked before it is used.

.. [1] https://github.com/ROCm/rocm-systems, shared/kpack, and https://github.com/stellaraccident/rocm-kpack
"""

from __future__ import annotations

import io
import mmap
import re
import struct
import sys
import tempfile
import zlib
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import msgspec

from builders.audit.elf import Budget
from builders.findings import Finding
from builders.wheels.wheel import DamagedError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from builders.findings import Severity
    from builders.wheels.wheel import Content

    Buffer = Content | memoryview

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
_COMPRESSED = b"CCOB"
_MAGIC = re.compile(_PLAIN + b"|" + _COMPRESSED)

_MOST_ENTRIES = 1024  # of a bundle; LLVM knows some 60 architectures
_LONGEST_ID = 256  # bytes of the name of an entry; real ones have some 60
_LARGEST_TABLE = 32 + _MOST_ENTRIES * (24 + _LONGEST_ID)
_MOST_PROBLEMS = 20
_MOST_OBJECTS = 100_000  # of a section; flash-attn has some thousand
_MOST_COMPARED = 1 << 30  # bytes of compressed bundles of a section that are unpacked to compare the objects
_LONGEST_NOTE = 1 << 24
_ENTRY_TIME, _UNPACKED_BYTE_TIME, _NOTE_BYTE_TIME = 30_000, 3, 20
"""Nanoseconds for a bundle's entry, an unpacked byte, and a byte of a metadata note; see `Budget`."""
_CHUNK = 1 << 16
_MOST_AT_ONCE = 1 << 17  # bytes; malloc returns larger blocks to the system, and each costs page faults
_LARGEST_IN_MEMORY = 1 << 24  # bytes of a bundle

_SIZES = {1: "<I", 2: "<II", 3: "<QQ"}
"""Size fields by version of a compressed bundle: total size (not in version 1) and unpacked size."""
_METHODS = {0: "zlib", 1: "zstd"}
_HASH = 8  # bytes of a hash before the payload
_ENTRY_ID = re.compile(
    r"(?P<kind>[a-z0-9]+)-(?P<triple>.+)-"
    r"(?P<architecture>gfx[0-9a-z]+(?:-[0-9a-z]+)*-generic|gfx[0-9a-z]+|amdgcnspirv)"
    r"(?P<features>(?::[a-z]+[+-])*)"
)

_ELF_HEADER = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_EM_AMDGPU = 224
_PT_NOTE = 4
_NT_AMDGPU_METADATA = 32
_ABI_WITH_FEATURES = 2  # code object version 4

_HARMLESS: Mapping[str, tuple[Severity, str]] = {
    "bundle-not-read": ("warning", "Its GPU architectures are not known."),
    "names-only": ("info", ""),
}
"""Problems that do not mean that the code is damaged."""

ARCHITECTURES = {
    0x20: "gfx600", 0x21: "gfx601", 0x22: "gfx700", 0x23: "gfx701", 0x24: "gfx702", 0x25: "gfx703",
    0x26: "gfx704", 0x28: "gfx801", 0x29: "gfx802", 0x2A: "gfx803", 0x2B: "gfx810", 0x2C: "gfx900",
    0x2D: "gfx902", 0x2E: "gfx904", 0x2F: "gfx906", 0x30: "gfx908", 0x31: "gfx909", 0x32: "gfx90c",
    0x33: "gfx1010", 0x34: "gfx1011", 0x35: "gfx1012", 0x36: "gfx1030", 0x37: "gfx1031", 0x38: "gfx1032",
    0x39: "gfx1033", 0x3A: "gfx602", 0x3B: "gfx705", 0x3C: "gfx805", 0x3D: "gfx1035", 0x3E: "gfx1034",
    0x3F: "gfx90a", 0x40: "gfx940", 0x41: "gfx1100", 0x42: "gfx1013", 0x43: "gfx1150", 0x44: "gfx1103",
    0x45: "gfx1036", 0x46: "gfx1101", 0x47: "gfx1102", 0x48: "gfx1200", 0x49: "gfx1250", 0x4A: "gfx1151",
    0x4B: "gfx941", 0x4C: "gfx942", 0x4E: "gfx1201", 0x4F: "gfx950", 0x51: "gfx9-generic",
    0x52: "gfx10-1-generic", 0x53: "gfx10-3-generic", 0x54: "gfx11-generic", 0x55: "gfx1152",
    0x58: "gfx1153", 0x59: "gfx12-generic", 0x5A: "gfx1251", 0x5F: "gfx9-4-generic",
}  # fmt: skip
"""GPU architectures by ``EF_AMDGPU_MACH``, the low byte of an object's ELF flags."""
_FEATURES = {"xnack": (0x300, {0x200: "-", 0x300: "+"}), "sramecc": (0xC00, {0x800: "-", 0xC00: "+"})}

ARCHIVE = ".kpack"
"""Suffix of the archives."""
STRAY_FIX = "Remove the file, or choose another release (TheRock issue 7081: hipErrorInvalidImage)."
_XNACK = re.compile(r":xnack[+-]")
_ARCHIVE_MAGIC = b"KPAK"
_ARCHIVE_HEADER = 16
_ARCHIVE_VERSION = 1
_LARGEST_CONTENTS = 1 << 26  # bytes; a hundred per shared object and architecture


class CodeObject(msgspec.Struct, frozen=True):
    """A GPU code object: an entry of a bundle, or a separate file."""

    architecture: str
    """Without features, such as ``gfx90a``."""
    features: tuple[str, ...]
    """Features that the code requires, such as ``xnack-``. Code without a feature runs with both settings."""
    offset: int
    """Offset of its bundle in the section, in bytes."""
    size: int
    """Uncompressed size in bytes."""
    compression: str = ""
    """``zlib`` or ``zstd`` in a compressed bundle, else empty."""

    @property
    def name(self) -> str:
        """The architecture with its features, as compilers accept it: ``gfx90a:sramecc+:xnack-``."""
        return ":".join([self.architecture, *self.features])


def read_code_objects(
    path: str, data: Content, start: int, size: int, budget: Budget | None = None
) -> tuple[list[CodeObject], list[Finding]]:
    """Read the GPU code of a section (in bytes) of a shared object, and report its problems.

    After damage, reading continues with the next bundle.
    """
    section = _Section(path, data, start, min(start + size, len(data)), budget or Budget(len(data)))
    section.read()
    return section.objects, section.problems


def _problem(id: str, path: str, text: str, offset: int, **place: str) -> Finding:  # noqa: A002
    """Return the finding about GPU code; `text` is a clause without a full stop."""
    evidence = {"member": path, **place, "offset": str(offset)}
    severity, fix = _HARMLESS.get(id, ("error", "Build the wheel again."))
    return Finding(id, severity, f"In the GPU code of {path}, {text}.", fix, evidence)


def code_object_name(data: Buffer, offset: int = 0) -> str | None:
    """Return the architecture and features in an ELF header; None if the data is not a GPU code object."""
    header = data[offset : offset + _ELF_HEADER.size]
    if len(header) < _ELF_HEADER.size:
        return None
    magic, _, _, _, _, abi, _, machine, _, _, _, _, flags, *_ = _ELF_HEADER.unpack(header)
    if magic != b"\x7fELF" or machine != _EM_AMDGPU:
        return None
    architecture = ARCHITECTURES.get(flags & 0xFF, f"machine {flags & 0xFF:#x}")
    signs = {name: known.get(flags & mask) for name, (mask, known) in _FEATURES.items()}
    features = [f"{name}{sign}" for name, sign in sorted(signs.items()) if sign]
    return ":".join([architecture, *(features if abi >= _ABI_WITH_FEATURES else [])])


class _Section(msgspec.Struct):
    """Read one section, bundle by bundle."""

    path: str
    data: Content
    start: int
    end: int
    budget: Budget
    objects: list[CodeObject] = []
    problems: list[Finding] = []
    unpacked: int = 0
    names_only: bool = False
    memory: io.BytesIO = msgspec.field(default_factory=io.BytesIO)
    """Buffer for compressed bundles, which are unpacked one after another."""

    def read(self) -> None:
        at = self._skip_zeros(self.start)
        while at < self.end and len(self.problems) < _MOST_PROBLEMS:
            if len(self.objects) > _MOST_OBJECTS:
                text = f"there are more than {_MOST_OBJECTS} code objects; the rest was not read"
                self._problem("fatbin-damaged", text, at)
                return
            try:
                end = self._read_bundle(at)
            except DamagedError as error:
                end = self._skip_bundle("fatbin-damaged", str(error), at)
            at = self._skip_zeros(end)
            if isinstance(self.data, mmap.mmap):
                self.data.madvise(mmap.MADV_DONTNEED)  # otherwise all pages that were read stay in memory
        if self.names_only:
            text = "only the entry names were read, because the bundles would unpack to more than 1 GiB"
            self._problem("names-only", text, self.start)

    def _problem(self, name: str, text: str, at: int) -> None:
        self.problems.append(_problem(name, self.path, text, at - self.start, section=".hip_fatbin"))

    def _skip_zeros(self, at: int) -> int:
        while at < self.end:
            data = self.data[at : min(at + _CHUNK, self.end)]
            rest = data.lstrip(b"\0")
            at += len(data) - len(rest)
            if rest:
                break
        return at

    def _skip_bundle(self, name: str, text: str, at: int) -> int:
        """Report a bundle that is not read; return the offset of the next one, or of the end."""
        self._problem(name, text, at)
        at += len(_COMPRESSED)
        while at < self.end:
            following = _MAGIC.search(self.data[at : min(at + _CHUNK + len(_PLAIN), self.end)])
            if following:
                return at + following.start()
            at += _CHUNK
        return self.end

    def _read_bundle(self, at: int) -> int:
        """Read the bundle at an offset, and return the offset of its end."""
        magic = self.data[at : min(at + len(_PLAIN), self.end)]
        if magic == _PLAIN:
            entries, length = _read_table(self.data, at, self.end - at)
            self._add(entries, at)
            self._compare(entries, self.data, at, at)
            return at + length
        if magic.startswith(_COMPRESSED):
            return self._read_compressed(at)
        msg = "there are bytes that are not an offload bundle"
        raise DamagedError(msg)

    def _read_compressed(self, at: int) -> int:
        left = self.end - at
        version, method = _unpack("<HH", self.data, at + 4, self.end)
        layout, compression = _SIZES.get(version), _METHODS.get(method)
        if layout is None or compression is None:
            text = f"a compressed bundle has the unknown version {version} or method {method}"
            return self._skip_bundle("bundle-not-read", text, at)
        # Version 1 states no length: the next bundle begins where the decompressor stopped.
        *length, promised = _unpack(layout, self.data, at + 8, self.end)
        payload = at + 8 + struct.calcsize(layout) + _HASH
        end = at + (length[0] if length else left)
        if not payload <= end <= self.end:
            msg = f"a compressed bundle has {end - at} bytes, but only {left} are left in its section"
            raise DamagedError(msg)
        # A few kilobytes can promise any size, so all bundles of a section share one limit.
        compare = promised <= _MOST_COMPARED - self.unpacked
        if not length and not compare:
            text = f"a compressed bundle that does not state its length would unpack to {promised} bytes"
            return self._skip_bundle("bundle-not-read", text, at)
        most = promised if compare else min(promised, _LARGEST_TABLE)
        with self._decompressed(payload, end, compression, most) as (data, consumed):
            if compare and len(data) > promised:
                msg = "a compressed bundle unpacks to more than its header states"
                raise DamagedError(msg)
            entries, _ = _read_table(data, 0, promised)
            self._add(entries, at, compression)
            if compare:
                self.unpacked += promised
                self._compare(entries, data, 0, at)
            else:
                self.names_only = True
        return end if length else consumed

    @contextmanager
    def _decompressed(
        self, start: int, end: int, compression: str, most: int
    ) -> Iterator[tuple[Buffer, int]]:
        """Decompress a payload to memory, or to a file if it is large; yield it, and where it ends."""
        decompressor = zlib.decompressobj() if compression == "zlib" else zstd.ZstdDecompressor()
        at, size = start, 0
        large = most > _LARGEST_IN_MEMORY
        self.memory.seek(0)
        with tempfile.TemporaryFile(prefix="matrix-") if large else nullcontext(self.memory) as file:
            while not decompressor.eof and size <= most:
                # zlib hands back the input that it did not use; zstd keeps it, and says if it needs more.
                packed = getattr(decompressor, "unconsumed_tail", b"")
                if getattr(decompressor, "needs_input", not packed):
                    packed = self.data[at : min(at + _CHUNK, end)]
                    at += len(packed)
                    if not packed:
                        msg = "a compressed bundle is cut short"
                        raise DamagedError(msg)
                try:
                    piece = decompressor.decompress(packed, _MOST_AT_ONCE)
                except (zlib.error, zstd.ZstdError, ValueError) as error:
                    raise DamagedError(f"a bundle cannot be decompressed ({error})") from None
                size += len(piece)
                self.budget.spend(_UNPACKED_BYTE_TIME * len(piece))
                file.write(piece)
            if not large or not size:
                with self.memory.getbuffer() as buffer, buffer[:size] as content:
                    yield content, at - len(decompressor.unused_data)
                return
            file.flush()
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield content, at - len(decompressor.unused_data)

    def _add(self, entries: list[tuple[int, int, str]], bundle: int, compression: str = "") -> None:
        self.budget.spend(_ENTRY_TIME * (len(entries) + 1))
        for _, size, entry in entries:
            name = _ENTRY_ID.fullmatch(entry)
            if not name:
                text = f"the entry {entry!r} does not name a GPU architecture"
                self._problem("unknown-target", text, bundle)
            elif size == 0:
                self._problem("empty-object", f"the entry {entry!r} is empty", bundle)
            else:
                features = tuple(sorted(name["features"].split(":")[1:]))
                at = bundle - self.start
                self.objects.append(CodeObject(name["architecture"], features, at, size, compression))

    def _compare(self, entries: list[tuple[int, int, str]], data: Buffer, base: int, bundle: int) -> None:
        for offset, size, entry in entries:
            name = _ENTRY_ID.fullmatch(entry)
            if not name or not size or not name["architecture"].startswith("gfx"):
                continue
            features = sorted(name["features"].split(":")[1:])
            expected = ":".join([name["architecture"], *features])
            self.budget.spend(_NOTE_BYTE_TIME * min(size, _LONGEST_NOTE))
            wrong = _disagreement(expected, data, base + offset, size)
            if wrong:
                self._problem("object-disagrees", f"the entry {entry!r} {wrong}", bundle)


def _read_table(data: Buffer, base: int, size: int) -> tuple[list[tuple[int, int, str]], int]:
    """Read the table of a plain bundle: its entries for GPUs (offset, size, name), and its length."""
    end = base + size
    if data[base : min(base + len(_PLAIN), end)] != _PLAIN:
        msg = "the content of a compressed bundle is not an offload bundle"
        raise DamagedError(msg)
    (count,) = _unpack("<Q", data, base + 24, end)
    if not 0 < count <= _MOST_ENTRIES:
        raise DamagedError(f"a bundle has {count} entries, which is not between 1 and {_MOST_ENTRIES}")
    entries, at = [], 32
    for _ in range(count):
        offset, length, letters = _unpack("<QQQ", data, base + at, end)
        if letters > _LONGEST_ID:
            raise DamagedError(f"a bundle has an entry name of {letters} bytes, more than {_LONGEST_ID}")
        (text,) = struct.unpack(f"{letters}s", _whole(data, base + at + 24, letters, end))
        name = text.decode("ascii", "backslashreplace")
        if offset + length > size:
            raise DamagedError(f"the entry {name!r} extends beyond its bundle")
        entries.append((offset, length, name))
        at += 24 + letters
    entries.sort()
    # The entry of the host has no code: it stands for the object around the bundle.
    length = max(at, *(offset + size for offset, size, _ in entries))
    return [entry for entry in entries if not entry[2].startswith("host-")], length


def _unpack(layout: str, data: Buffer, at: int, end: int) -> tuple[int, ...]:
    return struct.unpack(layout, _whole(data, at, struct.calcsize(layout), end))


def _whole(data: Buffer, at: int, size: int, end: int) -> bytes:
    if at + size > min(end, len(data)):
        msg = "a bundle is cut short"
        raise DamagedError(msg)
    return bytes(data[at : at + size])


def _disagreement(expected: str, data: Buffer, offset: int, size: int) -> str:
    """Return how an entry differs from its object, as a clause; empty if it does not."""
    if data[offset : offset + 4] == b"BC\xc0\xde":
        return "contains LLVM bitcode, which GPUs cannot run"
    actual = code_object_name(data, offset) if size >= _ELF_HEADER.size else None
    if actual is None:
        return "does not contain an AMDGPU code object"
    if actual != expected:
        return f"contains code for {actual}"
    noted = _noted_name(data, offset, size)
    return f"has a metadata note for {noted}" if noted and noted != expected else ""


class _Metadata(msgspec.Struct):
    target: str = msgspec.field(name="amdhsa.target", default="")


def _noted_name(data: Buffer, offset: int, size: int) -> str:
    """Return the architecture and features in a code object's metadata note; empty if there is none."""
    header = _ELF_HEADER.unpack(data[offset : offset + _ELF_HEADER.size])
    table, entry_size, count = header[10], header[14], header[15]
    for number in range(min(count, 64)):
        at = table + number * entry_size
        if at + _PROGRAM_HEADER.size > min(size, len(data) - offset):
            return ""
        program = _PROGRAM_HEADER.unpack(data[offset + at : offset + at + _PROGRAM_HEADER.size])
        kind, begin, length = program[0], program[2], program[5]
        if kind == _PT_NOTE and length <= _LONGEST_NOTE and begin + length <= size:
            return _name_in_note(bytes(data[offset + begin : offset + begin + length]))
    return ""


def _name_in_note(note: bytes) -> str:
    if len(note) < _NOTE.size:
        return ""
    letters, size, kind = _NOTE.unpack_from(note)
    at = _NOTE.size + (letters + 3) // 4 * 4
    if kind != _NT_AMDGPU_METADATA:
        return ""
    try:
        target = msgspec.msgpack.decode(note[at : at + size], type=_Metadata).target
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "nothing readable"
    return target.rpartition("--")[2] if "--" in target else target.partition("-unknown-")[2]


class _ArchiveEntry(msgspec.Struct):
    ordinal: int
    original_size: int = 0


class _ArchivePart(msgspec.Struct):
    offset: int
    size: int


class _ArchiveTable(msgspec.Struct):
    toc: dict[str, dict[str, _ArchiveEntry]]
    compression_scheme: str = "none"
    blobs: list[_ArchivePart] = []
    zstd_offset: int = 0
    zstd_size: int = 0


def read_archive(path: str, data: Content, budget: Budget) -> tuple[list[CodeObject], list[Finding]]:
    """Return the code objects of an archive, and their problems.

    Raise `DamagedError` if the header or the table of contents is damaged, or has an unknown version.
    """
    table, start = _archive_table(data)
    entries = [(file, name, entry) for file, targets in table.toc.items() for name, entry in targets.items()]
    budget.spend(_ENTRY_TIME * (len(entries) + 1))
    parts = _parts(table, data, len(entries), start)
    objects: list[CodeObject] = []
    problems: list[Finding] = []
    for file, name, entry in entries:
        architecture, *features = name.split(":")
        compression = "zstd" if parts is not None and table.compression_scheme != "none" else ""
        wrong = ""
        if parts is not None and 0 <= entry.ordinal < len(parts):
            wrong = _archive_disagreement(name, _first_bytes(data, *parts[entry.ordinal], compression))
        elif parts is not None:
            wrong = "is not in the archive"
        if wrong and len(problems) < _MOST_PROBLEMS:
            text = f"the code of {file} for {name} {wrong}"
            problems.append(_problem("object-disagrees", path, text, start))
        objects.append(
            CodeObject(architecture, tuple(sorted(features)), start, entry.original_size, compression)
        )
    if parts is None:
        text = f"the compression {table.compression_scheme!r} is not known, so only the names were read"
        problems.append(_problem("names-only", path, text, start))
    return objects, problems


def stray_archives(paths: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield the archives for one setting of XNACK, each with the archive for both settings beside it.

    The HIP runtime may read the first instead of the second, and then no kernel runs.
    """
    for path in sorted(paths):
        both = _XNACK.sub("", path)
        if path.endswith(ARCHIVE) and both != path and both in paths:
            yield path, both


def _archive_table(data: Content) -> tuple[_ArchiveTable, int]:
    """Return the table of contents, and its offset."""
    header = bytes(data[:_ARCHIVE_HEADER])
    if len(header) < _ARCHIVE_HEADER or header[:4] != _ARCHIVE_MAGIC:
        msg = "it does not begin with the header of a .kpack archive"
        raise DamagedError(msg)
    version, start = int.from_bytes(header[4:8], "little"), int.from_bytes(header[8:], "little")
    if version != _ARCHIVE_VERSION:
        raise DamagedError(f"it has the unknown version {version}")
    if not _ARCHIVE_HEADER <= start < len(data) or len(data) - start > _LARGEST_CONTENTS:
        raise DamagedError(f"its table of contents at {start} is not in the file, or too large")
    try:
        table = msgspec.msgpack.decode(bytes(data[start : len(data)]), type=_ArchiveTable)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedError(f"its table of contents cannot be read ({error})") from None
    if sum(map(len, table.toc.values())) > _MOST_OBJECTS:
        raise DamagedError(f"it has more than {_MOST_OBJECTS} code objects")
    return table, start


def _parts(table: _ArchiveTable, data: Content, count: int, end: int) -> list[tuple[int, int]] | None:
    """Return position and size of each code object by its number; None if the compression is not known."""
    if table.compression_scheme == "none":
        return [(blob.offset, blob.size) for blob in table.blobs if 0 <= blob.offset <= end - blob.size]
    if table.compression_scheme != "zstd-per-kernel":
        return None
    return list(_frames(data, table.zstd_offset, count, min(end, table.zstd_offset + table.zstd_size)))


def _frames(data: Content, at: int, count: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield position and size of each zstd frame of a list, as far as the list reaches."""
    at += 4  # the number of frames
    for _ in range(count):
        size = int.from_bytes(bytes(data[at : at + 4]), "little") if 0 <= at <= end - 4 else 0
        if not 0 < size <= end - at - 4:
            return
        yield at + 4, size
        at += 4 + size


def _first_bytes(data: Content, at: int, size: int, compression: str) -> bytes:
    part = bytes(data[at : at + min(size, 1 << 16)])
    if not compression:
        return part[: _ELF_HEADER.size]
    try:
        return zstd.ZstdDecompressor().decompress(part, _ELF_HEADER.size)
    except zstd.ZstdError:
        return b""


def _archive_disagreement(name: str, start: bytes) -> str:
    actual = code_object_name(memoryview(start))
    if actual is None:
        return "is not an AMDGPU code object"
    architecture, *features = name.split(":")
    expected = ":".join([architecture, *sorted(features)])
    return "" if actual == expected else f"is for {actual}"
