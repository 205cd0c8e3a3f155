"""GPU code objects in the section ``.hip_fatbin`` of a shared object.

The compiler puts one offload bundle there for each translation unit. A plain bundle begins with
``__CLANG_OFFLOAD_BUNDLE__`` and a table of entries, one for each offload target; a compressed one
begins with ``CCOB``, and the same bundle comes out of it. Layouts: clang's
``docs/ClangOffloadBundler.rst``; machines and features in an object's ELF flags: LLVM's
``docs/AMDGPUUsage.rst``. Every number read is checked before it is used.
"""

from __future__ import annotations

import re
import struct
import sys
import zlib
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import msgspec

from builders.audit.members import DamagedError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SECTION = ".hip_fatbin"

_PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
_PACKED = b"CCOB"
_MOST_ENTRIES = 1024  # LLVM knows some 60 targets
_LONGEST_ID = 1024
_CHUNK = 1 << 16
_HEAD = 1 << 16  # bytes of a code object that are looked at; its notes stand in front
_LONGEST_NOTE = 1 << 24
_MOST_PROBLEMS = 20
_MOST_COMPARED = 1 << 30  # bytes of compressed bundles that are unpacked to look at the objects
_SIZES = {1: "<I", 2: "<II", 3: "<QQ"}
"""Version of a compressed bundle to its sizes: of the whole (not in version 1), and unpacked."""
_METHODS = {0: "zlib", 1: "zstd"}
_HASH = 8  # bytes of a hash before the payload

_ENTRY_ID = re.compile(
    r"(?P<kind>[a-z0-9]+)-(?P<triple>.+)-"
    r"(?P<target>gfx[0-9a-z]+(?:-[0-9a-z]+)*-generic|gfx[0-9a-z]+|amdgcnspirv)"
    r"(?P<features>(?::[a-z]+[+-])*)"
)

_ELF_HEAD = struct.Struct("<4sBBBBB7xHHIQQQIHHHHHH")
_PROGRAM_HEADER = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_EM_AMDGPU = 224
_PT_NOTE = 4
_NT_AMDGPU_METADATA = 32
_ABI_WITH_FEATURES = 2  # code object version 4

MACHINES = {
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
"""``EF_AMDGPU_MACH``, the low byte of an object's ELF flags, to the target."""
_FEATURES = {"xnack": (0x300, {0x200: "-", 0x300: "+"}), "sramecc": (0xC00, {0x800: "-", 0xC00: "+"})}


@dataclass(frozen=True, slots=True)
class CodeObject:
    """An entry of a bundle with GPU code."""

    target: str
    """The offload target without its features, such as ``gfx90a``."""
    features: tuple[str, ...]
    """Features that the code insists on, such as ``xnack-``; with none it runs either way."""
    offset: int
    """Where its bundle begins, in bytes from the beginning of the section."""
    size: int
    """Bytes, not compressed."""
    packing: str = ""
    """``zlib`` or ``zstd`` in a compressed bundle, else empty."""

    @property
    def name(self) -> str:
        """The target with its features, as compilers take it: ``gfx90a:sramecc+:xnack-``."""
        return ":".join([self.target, *self.features])


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one place of a section."""

    id: str
    text: str
    """A clause without a full stop, such as ``the bundle ends after its section``."""
    offset: int


class _UnreadError(Exception):
    """A bundle is sound as far as is seen, but packed in a way that is not known here."""


class _Source(Protocol):
    """Bytes of one bundle, from its beginning."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Give the bytes there; fewer only where they end."""


class _Decompressor(Protocol):
    """What is used of a decompressor."""

    @property
    def needs_input(self) -> bool: ...
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, most: int, /) -> bytes: ...


@dataclass(slots=True)
class _Plain:
    stream: BinaryIO
    start: int
    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        self.stream.seek(self.start + offset)
        return self.stream.read(max(0, min(size, self.size - offset)))


class _Unpacked:
    """What a compressed payload unpacks to, read forward only and never kept as a whole."""

    def __init__(self, stream: BinaryIO, start: int, size: int, method: str, promised: int) -> None:
        self._stream, self._next, self._end = stream, start, start + size
        self._unpack: _Decompressor = _Zlib() if method == "zlib" else zstd.ZstdDecompressor()
        self._promised = promised
        self._kept = b""
        self._place = 0  # of the first kept byte

    def read_at(self, offset: int, size: int) -> bytes:
        if offset < self._place:
            msg = "the table of a compressed bundle goes backward"
            raise DamagedError(msg)
        while self._place + len(self._kept) < offset + size:
            more = self._more()
            if not more:
                break
            skipped = max(0, offset - self._place)
            self._kept += more
            dropped = min(skipped, len(self._kept))
            self._kept, self._place = self._kept[dropped:], self._place + dropped
        begin = offset - self._place
        return self._kept[begin : begin + size]

    def finish(self) -> int:
        """Unpack to the end and give the bytes of the stream that were used."""
        while self._more():
            self._place, self._kept = self._place + len(self._kept), b""
        return self._next - len(self._unpack.unused_data)

    def _more(self) -> bytes:
        if self._unpack.eof:
            return b""
        try:
            data = self._step()
        except (zlib.error, zstd.ZstdError, MemoryError, ValueError) as error:
            msg = f"a bundle cannot be decompressed ({error})"
            raise DamagedError(msg) from None
        if self._place + len(self._kept) + len(data) > self._promised:
            msg = "a compressed bundle unpacks to more than it says"
            raise DamagedError(msg)
        return data

    def _step(self) -> bytes:
        """Unpack until there is something, or nothing more."""
        while True:
            fresh = b""
            hungry = self._unpack.needs_input
            if hungry:
                self._stream.seek(self._next)
                fresh = self._stream.read(min(_CHUNK, self._end - self._next))
                self._next += len(fresh)
            data = self._unpack.decompress(fresh, 1 << 20)
            if data or self._unpack.eof:
                return data
            if hungry and not fresh:
                msg = "a compressed bundle is cut short"
                raise DamagedError(msg)


class _Zlib:
    """zlib's decompressor with the manners of zstd's."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj()

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, most: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, most)


def read_code_objects(stream: BinaryIO, start: int, size: int) -> tuple[list[CodeObject], list[Problem]]:
    """Read what GPU code a section holds.

    Parameters
    ----------
    stream
        The shared object, readable at any place.
    start, size
        The section's place in it, in bytes.

    Returns
    -------
    tuple
        The code objects in their order, and what could not be read or contradicts itself. Damage
        never ends the reading: it goes on with the next bundle.
    """
    section = _Section(stream, start, size)
    section.read()
    return section.objects, section.problems


class _Section:
    """The reading of one section."""

    def __init__(self, stream: BinaryIO, start: int, size: int) -> None:
        self._stream, self._start, self._size = stream, start, size
        self.objects: list[CodeObject] = []
        self.problems: list[Problem] = []
        self._unpacked = 0

    def read(self) -> None:
        """Walk from bundle to bundle; after damage go on where the next one seems to begin."""
        place = self._skip_padding(0)
        while place < self._size and len(self.problems) < _MOST_PROBLEMS:
            try:
                end = self._bundle(place)
            except (DamagedError, _UnreadError) as error:
                name = "fatbin-damaged" if isinstance(error, DamagedError) else "bundle-not-read"
                self.problems.append(Problem(name, str(error), place))
                end = self._next_magic(place + len(_PACKED))
            place = self._skip_padding(end)
        if self._unpacked > _MOST_COMPARED:
            text = "what lies after the first GiB of unpacked bundles was taken by its names alone"
            self.problems.append(Problem("names-only", text, 0))

    def _at(self, place: int, size: int) -> bytes:
        self._stream.seek(self._start + place)
        return self._stream.read(max(0, min(size, self._size - place)))

    def _skip_padding(self, place: int) -> int:
        """Find the next byte that is not zero."""
        while data := self._at(place, _CHUNK):
            kept = data.lstrip(b"\0")
            place += len(data) - len(kept)
            if kept:
                return place
        return self._size

    def _next_magic(self, place: int) -> int:
        """Find where the next bundle seems to begin."""
        overlap = len(_PLAIN) - 1
        while data := self._at(place, _CHUNK):
            found = [at for at in (data.find(_PLAIN), data.find(_PACKED)) if at >= 0]
            if found:
                return place + min(found)
            place += max(len(data) - overlap, 1) if len(data) == _CHUNK else len(data)
        return self._size

    def _bundle(self, place: int) -> int:
        """Read one bundle and give where it ends."""
        magic = self._at(place, len(_PLAIN))
        if magic == _PLAIN:
            whole = _Plain(self._stream, self._start + place, self._size - place)
            return place + self._entries(whole, whole.size, "", place)
        if magic.startswith(_PACKED):
            return place + self._packed(place)
        msg = "there are bytes that are no offload bundle"
        raise DamagedError(msg)

    def _packed(self, place: int) -> int:
        """Read a compressed bundle and give its length."""
        left = self._size - place
        version, method = _unpack("<HH", self._at(place + 4, 4))
        layout = _SIZES.get(version)
        packing = _METHODS.get(method)
        if layout is None or packing is None:
            msg = f"a compressed bundle is of version {version} and method {method}, which is not known here"
            raise _UnreadError(msg)
        length = struct.calcsize(layout)
        *whole, promised = _unpack(layout, self._at(place + 8, length))
        front = 8 + length + _HASH
        total = whole[0] if whole else left
        if not front <= total <= left:
            msg = f"a compressed bundle of {total} bytes has {left} left in its section"
            raise DamagedError(msg)
        begin = self._start + place + front
        payload = _Unpacked(self._stream, begin, total - front, packing, promised)
        self._entries(payload, promised, packing, place)
        self._unpacked += promised
        return total if whole else payload.finish() - self._start - place

    def _entries(self, source: _Source, size: int, packing: str, place: int) -> int:
        """Read the table of a bundle, look at each code object in it, and give the bundle's length."""
        if source.read_at(0, len(_PLAIN)) != _PLAIN:
            msg = "what a bundle unpacks to is no offload bundle"
            raise DamagedError(msg)
        (count,) = _unpack("<Q", source.read_at(24, 8))
        if not 0 < count <= _MOST_ENTRIES:
            msg = f"a bundle has {count} entries"
            raise DamagedError(msg)
        table, at = [], 32
        for _ in range(count):
            offset, length, letters = _unpack("<QQQ", source.read_at(at, 24))
            if letters > _LONGEST_ID:
                msg = f"a bundle has an entry name of {letters} bytes"
                raise DamagedError(msg)
            name = _whole(source.read_at(at + 24, letters), letters).decode("ascii", "backslashreplace")
            if offset + length > size:
                msg = f"the entry {name!r} ends after its bundle"
                raise DamagedError(msg)
            table.append((offset, length, name))
            at += 24 + letters
        for offset, length, name in sorted(table):
            if not name.startswith("host-"):
                self._object(source, (offset, length, name), packing, place)
        return max(at, *(offset + length for offset, length, _ in table))

    def _object(self, source: _Source, entry: tuple[int, int, str], packing: str, place: int) -> None:
        offset, length, name = entry
        said = _ENTRY_ID.fullmatch(name)
        if not said:
            self.problems.append(Problem("unknown-target", f"the entry {name!r} names no GPU target", place))
            return
        features = tuple(sorted(said["features"].split(":")[1:]))
        one = CodeObject(said["target"], features, place, length, packing)
        if length == 0:
            self.problems.append(Problem("empty-object", f"the entry {name!r} is empty", place))
            return
        self.objects.append(one)
        if self._unpacked > _MOST_COMPARED or not one.target.startswith("gfx"):
            return
        wrong = _disagreement(one, source, offset, length)
        if wrong:
            self.problems.append(Problem("object-disagrees", f"the entry {name!r} {wrong}", place))


def _disagreement(one: CodeObject, source: _Source, offset: int, length: int) -> str:
    """Compare an entry's name with the object itself; empty when they agree."""
    head = source.read_at(offset, min(length, _HEAD))
    if head.startswith(b"BC\xc0\xde"):
        return "holds LLVM bitcode, which no GPU runs"
    said = machine_of(head)
    if said is None:
        return "holds no AMDGPU code object"
    if said != one.name:
        return f"holds code for {said}"
    noted = _noted_target(head, source, offset, length)
    if noted and noted != one.name:
        return f"holds a note that says {noted}"
    return ""


def machine_of(head: bytes) -> str | None:
    """Read an ELF header: the offload target with its features, or None if it is no GPU code object."""
    if len(head) < _ELF_HEAD.size:
        return None
    magic, _, _, _, _, abi, _, machine, _, _, _, _, flags, *_ = _ELF_HEAD.unpack_from(head)
    if magic != b"\x7fELF" or machine != _EM_AMDGPU:
        return None
    target = MACHINES.get(flags & 0xFF, f"machine {flags & 0xFF:#x}")
    signs = {name: known.get(flags & mask) for name, (mask, known) in _FEATURES.items()}
    features = [f"{name}{sign}" for name, sign in sorted(signs.items()) if sign]
    return ":".join([target, *(features if abi >= _ABI_WITH_FEATURES else [])])


class _Metadata(msgspec.Struct):
    target: str = msgspec.field(name="amdhsa.target", default="")


def _noted_target(head: bytes, source: _Source, offset: int, length: int) -> str:
    """Read the target that the object's metadata note names; empty when there is none."""
    header = _ELF_HEAD.unpack_from(head)
    table, entry, count = header[10], header[14], header[15]
    for number in range(min(count, 64)):
        at = table + number * entry
        if at + _PROGRAM_HEADER.size > len(head):
            return ""
        kind, _, begin, _, _, size, _, _ = _PROGRAM_HEADER.unpack_from(head, at)
        if kind != _PT_NOTE or size > _LONGEST_NOTE or begin + size > length:
            continue
        inside = begin + size <= len(head)
        note = head[begin : begin + size] if inside else source.read_at(offset + begin, size)
        return _target_of_note(note)
    return ""


def _target_of_note(note: bytes) -> str:
    if len(note) < _NOTE.size:
        return ""
    letters, size, kind = _NOTE.unpack_from(note)
    at = _NOTE.size + (letters + 3) // 4 * 4
    if kind != _NT_AMDGPU_METADATA:
        return ""
    try:
        said = msgspec.msgpack.decode(note[at : at + size], type=_Metadata).target
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "nothing readable"
    return said.rpartition("--")[2] if "--" in said else said.partition("-unknown-")[2]


def _unpack(layout: str, data: bytes) -> tuple[int, ...]:
    return struct.unpack(layout, _whole(data, struct.calcsize(layout)))


def _whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        msg = "a bundle is cut short"
        raise DamagedError(msg)
    return data
