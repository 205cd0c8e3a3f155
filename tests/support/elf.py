"""Write ELF files byte by byte from the generic ABI, with any content in their tables.

This uses no code of the program, so that it does not repeat errors of the program's reader.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

PROGBITS, STRTAB, DYNAMIC, NOBITS, DYNSYM, VERNEED = 1, 3, 6, 8, 11, 0x6FFFFFFE
ALLOC, COMPRESSED = 2, 0x800  # flags
_HEADER, _PROGRAM, _SECTION = 64, 56, 64
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_SONAME, _DT_RUNPATH, _DT_VERNEED = 1, 5, 6, 14, 29, 0x6FFFFFFE


class Section(NamedTuple):
    """A section with its content."""

    name: str
    kind: int
    data: bytes
    link: int = 0
    info: int = 0
    flags: int = 0
    alignment: int = 8


def elf_file(sections: Sequence[Section], *, dynamic: str = "") -> bytes:
    """Return a shared object for x86_64; its addresses are the offsets in the file.

    Parameters
    ----------
    sections
        They are numbered from 1.
    dynamic
        Name of the section that the loader reads; empty for none.
    """
    names = b"\0" + b"".join(section.name.encode() + b"\0" for section in sections) + b".shstrtab\0"
    sections = [*sections, Section(".shstrtab", STRTAB, names)]
    programs = 2 if dynamic else 1
    at = _HEADER + programs * _PROGRAM
    body, table, name_at, spans = b"", bytes(_SECTION), 1, {}
    for section in sections:
        body += bytes(-len(body) % 8)
        spans[section.name] = (at + len(body), len(section.data))
        entry = (name_at, section.kind, section.flags, at + len(body), at + len(body), len(section.data))
        size = {DYNSYM: 24, DYNAMIC: 16}.get(section.kind, 0)
        table += struct.pack("<IIQQQQIIQQ", *entry, section.link, section.info, section.alignment, size)
        body += section.data
        name_at += len(section.name) + 1
    body += bytes(-len(body) % 8)
    end = at + len(body)
    head = b"\x7fELF" + bytes([2, 1, 1]) + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, end, 0, 64, 56, programs, 64, len(sections) + 1, len(sections)
    )
    whole = end + len(table)
    loads = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, whole, whole, 4096)
    if dynamic:
        start, size = spans[dynamic]
        loads += struct.pack("<IIQQQQQQ", 2, 6, start, start, start, size, size, 8)
    return head + loads + body + table


def version_needs(needs: Sequence[tuple[int, Sequence[int]]]) -> bytes:
    """Return the content of ``.gnu.version_r``: the name of each library, and the names of its versions."""
    data = b""
    for number, (library, versions) in enumerate(needs):
        following = 0 if number == len(needs) - 1 else 16 + 16 * len(versions)
        data += struct.pack("<HHIII", 1, len(versions), library, 16 if versions else 0, following)
        for place, version in enumerate(versions):
            data += struct.pack("<IHHII", 0, 0, 2, version, 0 if place == len(versions) - 1 else 16)
    return data


def shared_object(
    *,
    needed: Sequence[str] = ("libc.so.6",),
    soname: str = "",
    runpath: str = "",
    versions: Mapping[str, Sequence[str]] | None = None,
    symbols: Sequence[str] = (),
    exports: Sequence[str] = (),
    fatbin: bytes = b"",
    cuda: bytes = b"",
) -> bytes:
    """Return a consistent shared object with dynamic section, symbols, versions, and code for AMD or CUDA."""
    versions = {"libc.so.6": ["GLIBC_2.17"]} if versions is None else versions
    strings = b"\0"
    at: dict[str, int] = {}
    texts = [*needed, soname, runpath, *versions, *(name for names in versions.values() for name in names)]
    for text in filter(None, [*texts, *symbols, *exports]):
        at.setdefault(text, len(strings))
        strings += text.encode() + b"\0"
    table = bytes(24) + b"".join(struct.pack("<IBBHQQ", at[name], 0x12, 0, 0, 0, 0) for name in symbols)
    table += b"".join(struct.pack("<IBBHQQ", at[name], 0x12, 0, 1, 0, 0) for name in exports)
    needs = version_needs(
        [(at[library], [at[name] for name in names]) for library, names in versions.items()]
    )
    tags = [(_DT_NEEDED, at[name]) for name in needed]
    tags += [(_DT_SONAME, at[soname])] if soname else []
    tags += [(_DT_RUNPATH, at[runpath])] if runpath else []

    def sections(strtab: int, symtab: int, verneed: int) -> list[Section]:
        loaded = [*tags, (_DT_STRTAB, strtab), (_DT_SYMTAB, symtab), (_DT_VERNEED, verneed), (0, 0)]
        return [
            Section(".dynstr", STRTAB, strings),
            Section(".dynsym", DYNSYM, table, link=1),
            Section(".gnu.version_r", VERNEED, needs, link=1, info=len(versions)),
            Section(".dynamic", DYNAMIC, b"".join(struct.pack("<QQ", *tag) for tag in loaded), link=1),
            *([Section(".hip_fatbin", PROGBITS, fatbin)] if fatbin else []),
            *([Section(".nv_fatbin", PROGBITS, cuda)] if cuda else []),
        ]

    strtab = _HEADER + 2 * _PROGRAM
    symtab = -(-(strtab + len(strings)) // 8) * 8
    verneed = -(-(symtab + len(table)) // 8) * 8
    return elf_file(sections(strtab, symtab, verneed), dynamic=".dynamic")
