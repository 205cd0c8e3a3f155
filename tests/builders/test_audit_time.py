"""The size of a wheel limits the time of its audit, whatever its tables claim."""

from __future__ import annotations

import io
import platform
import struct
import time
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from builders.audit.wheel_audit import audit_wheel
from resolver.errors import UsageError
from tests.builders.bundles import HOST, PREFIX, code_object, packed, plain
from tests.support.elf import COMPRESSED, DYNAMIC, DYNSYM, PROGBITS, STRTAB, VERNEED, Section, elf_file

LARGEST = 32 * 1024  # bytes of a wheel
LONGEST = 2.0  # seconds of one CPU
TAGS = f"cp311-cp311-linux_{platform.machine()}"
INFO = "tiny-1.0.dist-info"
METADATA = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
MB = 1 << 20


def wheel(files: Mapping[str, bytes]) -> bytes:
    sink = io.BytesIO()
    texts = {f"{INFO}/METADATA": METADATA, f"{INFO}/WHEEL": f"Wheel-Version: 1.0\nTag: {TAGS}\n".encode()}
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, data in {**texts, **files}.items():
            archive.writestr(name, data)
    return sink.getvalue()


def op(*sections: Section) -> dict[str, bytes]:
    return {"tiny/op.so": elf_file(sections)}


def strings(data: bytes) -> Section:
    return Section(".dynstr", STRTAB, data)


def symbols(offsets: Iterable[int]) -> Section:
    return Section(
        ".dynsym", DYNSYM, b"".join(struct.pack("<IBBHQQ", at, 0x12, 0, 0, 0, 0) for at in offsets), link=1
    )


def needs(data: bytes, count: int) -> Section:
    return Section(".gnu.version_r", VERNEED, data, link=1, info=count)


def compressed_symbols() -> Section:
    """Return a table that is marked as compressed, as sections for debuggers may be."""
    data = struct.pack("<IIQQ", 1, 0, 10**10, 1) + zlib.compress(bytes(2000 * MB // 100))
    return Section(".dynsym", DYNSYM, data + bytes(-len(data) % 24), 1, 0, COMPRESSED)


def tags(*pairs: tuple[int, int]) -> Section:
    return Section(".dynamic", DYNAMIC, b"".join(struct.pack("<QQ", *pair) for pair in pairs), link=1)


def fatbin(data: bytes) -> dict[str, bytes]:
    return op(Section(".hip_fatbin", PROGBITS, data))


def shared_note() -> bytes:
    """Return a bundle whose entries all contain the same object, with a note of 4 MB."""
    note = b"\x81\xa1x\xdd" + struct.pack(">I", 4 * MB) + b"\xc0" * (4 * MB)
    head = bytearray(code_object()[:120])
    struct.pack_into("<QQQQ", head, 64 + 8, 120, 120, 120, 12 + 8 + len(note))
    body = bytes(head) + struct.pack("<III", 7, len(note), 32) + b"AMDGPU\0\0" + note
    name = f"{PREFIX}gfx90a".encode()
    front = 32 + 1000 * (24 + len(name))
    table = struct.pack("<QQQ", front, len(body), len(name)) + name
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 1000) + table * 1000 + body


def long_names() -> bytes:
    name = ("a-" + "gfxa-" * 250)[:256]
    return plain([(name, b"x")] * 1000, align=1)


def bombs(count: int, size: int) -> bytes:
    """Return compressed bundles; each contains a small table and unpacks to zeros."""
    return packed(plain([HOST], align=1) + bytes(size), 2) * count


HOSTILE: dict[str, Callable[[], Mapping[str, bytes]]] = {
    "version needs without end": lambda: op(
        strings(b"\0libc.so.6\0GLIBC_2.2\0"),
        needs(struct.pack("<HHIII", 1, 65535, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 2, 11, 0), 2**32 - 1),
    ),
    "one version need many times": lambda: op(
        strings(b"\0" + b"GLIBC_2.2" * 400_000 + b"\0"),
        needs(struct.pack("<HHIII", 1, 65535, 1, 16, 0) + struct.pack("<IHHII", 0, 0, 2, 1, 0), 2**32 - 1),
    ),
    "chain of version needs": lambda: op(
        strings(b"\0a\0"), needs(struct.pack("<HHIII", 1, 1, 1, 0, 16) * (MB // 2), 2**31)
    ),
    "many needed libraries": lambda: op(strings(b"\0" + b"a" * MB + b"\0"), tags(*[(1, 1)] * 300_000)),
    "needed libraries by long names": lambda: op(
        strings(b"\0" + b"lib" * 300_000 + b"\0"), tags(*[(1, n + 1) for n in range(3000)])
    ),
    "search path of colons": lambda: op(strings(b"\0" + b":" * (12 * MB) + b"\0"), tags((29, 1), (0, 0))),
    "one long symbol many times": lambda: op(strings(b"torch_" * MB + b"\0"), symbols([0] * 300_000)),
    "many long symbols": lambda: op(strings(b"torch_" * MB + b"\0"), symbols(range(0, 60_000, 6))),
    "mangled names without end": lambda: op(strings(b"_Z" + b"Z" * (4 * MB)), symbols([0] * 300_000)),
    "digits without end": lambda: op(strings(b"_Z" + b"1" * (4 * MB)), symbols([0] * 300_000)),
    "qualifiers without end": lambda: op(strings(b"_ZN" + b"rVK" * MB), symbols([0] * 300_000)),
    "compressed symbols": lambda: op(strings(b"\0"), compressed_symbols()),
    "many sections": lambda: op(*[Section("." + "a" * 300, PROGBITS, b"")] * 6_000),
    "many objects": lambda: {
        f"{number}.so": elf_file(
            [strings(b"\0a\0"), needs(struct.pack("<HHIII", 1, 1, 1, 0, 16) * 2000, 2**31)]
        )
        for number in range(50)
    },
    "entries that share a note": lambda: fatbin(shared_note()),
    "entries with long names": lambda: fatbin(long_names() * 6),
    "many compressed bundles": lambda: fatbin(bombs(4000, MB // 2)),
    "large compressed bundles": lambda: {
        f"{number}.so": object_with_bomb
        for object_with_bomb in [elf_file([Section(".hip_fatbin", PROGBITS, bombs(1, 200 * MB))])]
        for number in range(8)
    },
    "bundles of nothing": lambda: fatbin(plain([HOST], align=1) * 100_000),
    "section of magic numbers": lambda: fatbin(b"CCOB" * (4 * MB)),
    "small op tables": lambda: {
        f"p{number}/git_version_info_installed.py": b"=".join([b"a"] * 8000) + b"=1\n" for number in range(90)
    },
    "op tables": lambda: {
        f"p{number}/git_version_info_installed.py": b"a=" + b"1+" * 30_000 + b"1\n" for number in range(95)
    },
    "op tables of names": lambda: {
        f"p{number}/git_version_info_installed.py": b"=".join([b"a"] * 30_000) + b"=1\n"
        for number in range(95)
    },
    "many headers": lambda: {f"{INFO}/METADATA": METADATA + b"a:\n" * (4 * MB // 3 - 100)},
    "many requirements": lambda: {
        f"{INFO}/METADATA": METADATA
        + b'Requires-Dist: a[b,c]>1,<2;python_version>"3" and (os_name=="x" or extra=="y")\n' * 40_000
    },
    "different requirements": lambda: {
        f"{INFO}/METADATA": METADATA
        + b"".join(
            b'Requires-Dist: a%d;os_name=="x" and os_name=="x" and os_name=="x"\n' % n for n in range(3500)
        )
    },
    "nested markers": lambda: {
        f"{INFO}/METADATA": METADATA + b"Requires-Dist: a;" + b"(" * 100_000 + b"\n"
        b"Requires-Dist: a;" + b"(" * 400 + b'os_name=="x"' + b")" * 400 + b"\n"
    },
    "long marker": lambda: {
        f"{INFO}/METADATA": METADATA
        + b"Requires-Dist: a;"
        + b'os_name=="x" and ' * 200_000
        + b'os_name=="x"\n'
    },
    "long specifier": lambda: {f"{INFO}/METADATA": METADATA + b"Requires-Dist: a" + b"==1," * MB + b"==1\n"},
    "long version": lambda: {f"{INFO}/METADATA": METADATA + b"Version: " + b"1." * (2 * MB - 100) + b"x\n"},
    "folded header": lambda: {f"{INFO}/METADATA": METADATA + b"Name: a\n" + b" b\n" * MB},
    "many tags": lambda: {f"{INFO}/WHEEL": b"Tag: a\n" * (MB // 2)},
    "long record": lambda: {f"{INFO}/RECORD": b'"' + b'""' * 30_000},
    "many rows": lambda: {f"{INFO}/RECORD": b"a,sha256=,\n" * 5_000},
    "zeros": lambda: {"zeros": bytes(28 * MB)},
}


@pytest.mark.slow
@pytest.mark.parametrize("files", HOSTILE.values(), ids=HOSTILE)
def test_hostile_wheel_of_32_kb_takes_two_seconds_at_most(
    files: Callable[[], Mapping[str, bytes]], tmp_path: Path
) -> None:
    path = tmp_path / f"tiny-1.0-{TAGS}.whl"
    path.write_bytes(wheel(files()))
    assert path.stat().st_size <= LARGEST
    start = time.process_time()
    with suppress(UsageError):
        audit_wheel(path)
    assert time.process_time() - start < LONGEST
