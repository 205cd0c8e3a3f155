"""One offload bundle: a table of entries, one for each offload target, and the code behind it.

A plain bundle begins with ``__CLANG_OFFLOAD_BUNDLE__``; a compressed one begins with ``CCOB``, and
the same bundle comes out of it. Layouts: clang's ``docs/ClangOffloadBundler.rst``. Every number read
is checked before it is used.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO

from builders.audit.codeobjects import CodeObject, disagreement
from builders.audit.members import DamagedError
from builders.audit.payload import Payload

if TYPE_CHECKING:
    from builders.audit.codeobjects import Source

PLAIN = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED = b"CCOB"

_MOST_ENTRIES = 1024  # LLVM knows some 60 targets
_LONGEST_ID = 1024
_SIZES = {1: "<I", 2: "<II", 3: "<QQ"}
"""Version of a compressed bundle to its sizes: of the whole (not in version 1), and unpacked."""
_METHODS = {0: "zlib", 1: "zstd"}
_HASH = 8  # bytes of a hash before the payload

_ENTRY_ID = re.compile(
    r"(?P<kind>[a-z0-9]+)-(?P<triple>.+)-"
    r"(?P<target>gfx[0-9a-z]+(?:-[0-9a-z]+)*-generic|gfx[0-9a-z]+|amdgcnspirv)"
    r"(?P<features>(?::[a-z]+[+-])*)"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong at one place of a section."""

    id: str
    text: str
    """A clause without a full stop, such as ``the bundle ends after its section``."""
    offset: int


@dataclass(slots=True)
class Found:
    """What bundles held so far."""

    objects: list[CodeObject] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class UnreadError(Exception):
    """A bundle is sound as far as is seen, but packed in a way that is not known here."""


@dataclass(slots=True)
class Stored:
    """The bytes of a plain bundle in a stream."""

    stream: BinaryIO
    start: int
    size: int

    def read_at(self, offset: int, size: int) -> bytes:
        """Give the bytes there; fewer only where they end."""
        self.stream.seek(self.start + offset)
        return self.stream.read(max(0, min(size, self.size - offset)))


def read_packed(
    stream: BinaryIO, start: int, left: int, found: Found, *, place: int, most: int
) -> tuple[int, int]:
    """Read a compressed bundle.

    Parameters
    ----------
    stream
        The shared object, readable at any place.
    start, left
        Where the bundle begins in it, and how many bytes its section has from there.
    found
        Gets the code objects and problems.
    place
        The same beginning, counted from that of the section; noted with what is found.
    most
        Bytes that may be unpacked. Of a bundle that promises more only the table is read, and entries
        are not compared with the objects behind them.

    Returns
    -------
    tuple
        The bundle's length, and the bytes that it promises to unpack to.

    Raises
    ------
    DamagedError
        It contradicts itself or ends too early.
    UnreadError
        It is packed in a way that is not known here, or its length is only known after all of it is
        unpacked, which is more than may be.
    """
    whole = Stored(stream, start, left)
    version, method = _unpack("<HH", whole.read_at(4, 4))
    layout = _SIZES.get(version)
    packing = _METHODS.get(method)
    if layout is None or packing is None:
        msg = f"a compressed bundle is of version {version} and method {method}, which is not known here"
        raise UnreadError(msg)
    length = struct.calcsize(layout)
    *said, promised = _unpack(layout, whole.read_at(8, length))
    front = 8 + length + _HASH
    total = said[0] if said else left
    if not front <= total <= left:
        msg = f"a compressed bundle of {total} bytes has {left} left in its section"
        raise DamagedError(msg)
    if not said and promised > most:
        msg = f"a compressed bundle that does not say its length would unpack to {promised} bytes"
        raise UnreadError(msg)
    payload = Payload(stream, start + front, total - front, packing, promised)
    read_entries(payload, promised, found, place=place, packing=packing, compare=promised <= most)
    return (total if said else payload.finish() - start), promised


def read_entries(
    source: Source, size: int, found: Found, *, place: int, packing: str = "", compare: bool = True
) -> int:
    """Read the table of a bundle, look at each code object in it, and give the bundle's length.

    Parameters
    ----------
    source
        The bundle's bytes, not compressed.
    size
        How many there are at most.
    found
        Gets the code objects and problems.
    place
        Where the bundle begins; noted with what is found.
    packing
        How it was compressed; noted with what is found.
    compare
        Whether entries are compared with the objects behind them.

    Raises
    ------
    DamagedError
        It contradicts itself or ends too early.
    """
    if source.read_at(0, len(PLAIN)) != PLAIN:
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
            one = _named(name, length, packing, place, found)
            if one is not None and compare and one.target.startswith("gfx"):
                wrong = disagreement(one, source, offset, length)
                if wrong:
                    found.problems.append(Problem("object-disagrees", f"the entry {name!r} {wrong}", place))
    return max(at, *(offset + length for offset, length, _ in table))


def _named(name: str, length: int, packing: str, place: int, found: Found) -> CodeObject | None:
    """Note the code object that an entry names; None where there is none to look at."""
    said = _ENTRY_ID.fullmatch(name)
    if not said:
        found.problems.append(Problem("unknown-target", f"the entry {name!r} names no GPU target", place))
        return None
    if length == 0:
        found.problems.append(Problem("empty-object", f"the entry {name!r} is empty", place))
        return None
    features = tuple(sorted(said["features"].split(":")[1:]))
    one = CodeObject(said["target"], features, place, length, packing)
    found.objects.append(one)
    return one


def _unpack(layout: str, data: bytes) -> tuple[int, ...]:
    return struct.unpack(layout, _whole(data, struct.calcsize(layout)))


def _whole(data: bytes, size: int) -> bytes:
    if len(data) < size:
        msg = "a bundle is cut short"
        raise DamagedError(msg)
    return data
