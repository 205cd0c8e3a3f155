"""Write offload bundles and AMDGPU code objects byte by byte from their documentation.

This module uses no code of the program, so that it does not repeat errors of the program's reader.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

MACHINES = {"gfx90a": 0x3F, "gfx942": 0x4C, "gfx1030": 0x36, "gfx1100": 0x41}
XNACK = {"": 0x100, "xnack-": 0x200, "xnack+": 0x300}
PREFIX = "hipv4-amdgcn-amd-amdhsa--"
HOST = ("host-x86_64-unknown-linux-gnu-", b"")


def code_object(
    target: str = "gfx90a", *, xnack: str = "", noted: str | None = None, size: int = 600
) -> bytes:
    """Return an ELF header with the target in its flags, and a metadata note."""
    message = f"amdgcn-amd-amdhsa--{noted if noted is not None else ':'.join(filter(None, [target, xnack]))}"
    text = message.encode()
    metadata = b"\x81" + b"\xad" + b"amdhsa.target" + b"\xd9" + bytes([len(text)]) + text
    note = struct.pack("<III", 7, len(metadata), 32) + b"AMDGPU\0\0" + metadata
    flags = MACHINES[target] | XNACK[xnack]
    head = b"\x7fELF" + bytes([2, 1, 1, 64, 3]) + bytes(7)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 224, 1, 0, 64, 0, flags, 64, 56, 1, 64, 0, 0)
    program = struct.pack("<IIQQQQQQ", 4, 4, 120, 120, 120, len(note), len(note), 4)
    return (head + program + note).ljust(size, b"\x90")


def plain(entries: Sequence[tuple[str, bytes]], *, align: int = 4096) -> bytes:
    """Return an uncompressed bundle: magic, count, table, and each entry at a multiple of `align`."""
    front = 32 + sum(24 + len(name) for name, _ in entries)
    offset = -(-front // align) * align
    table, body = b"", b""
    for name, data in entries:
        body += bytes(-len(body) % align)
        table += struct.pack("<QQQ", offset + len(body), len(data), len(name)) + name.encode()
        body += data
    return (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(entries)) + table).ljust(offset, b"\0") + body


def packed(bundle: bytes, version: int, *, method: int = 0, payload: bytes | None = None) -> bytes:
    """Return a compressed bundle of a version, by default with zlib."""
    payload = zlib.compress(bundle) if payload is None else payload
    layout = {1: "<HHI", 2: "<HHII", 3: "<HHQQ"}[version]
    total = 4 + struct.calcsize(layout) + 8 + len(payload)
    sizes = (len(bundle),) if version == 1 else (total, len(bundle))
    return b"CCOB" + struct.pack(layout, version, method, *sizes) + b"\xaa" * 8 + payload


def padded(*bundles: bytes, align: int = 4096) -> bytes:
    """Concatenate bundles as a linker does."""
    return b"".join(bundle + bytes(-len(bundle) % align) for bundle in bundles)
