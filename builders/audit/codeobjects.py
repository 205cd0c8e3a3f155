"""One GPU code object: what it is called, and whether it is what it is called.

Machines and features in an object's ELF flags, and the note with its metadata, are described in
LLVM's ``docs/AMDGPUUsage.rst``. Every number read is checked before it is used.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Protocol

import msgspec

SECTION = ".hip_fatbin"

_HEAD = 1 << 16  # bytes of a code object that are looked at; its notes stand in front
_LONGEST_NOTE = 1 << 24

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


class Source(Protocol):
    """Bytes of one bundle, from its beginning; asked for in the order of their places."""

    def read_at(self, offset: int, size: int) -> bytes:
        """Give the bytes there; fewer only where they end."""


def disagreement(one: CodeObject, source: Source, offset: int, length: int) -> str:
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


def _noted_target(head: bytes, source: Source, offset: int, length: int) -> str:
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
