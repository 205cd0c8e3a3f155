"""Read a shared object: its machine, libraries, search paths, symbol versions, and torch's symbols.

pyelftools reads the structures. Sizes and counts in a damaged or hostile file can be anything, so all reads
are counted. A file whose tables are larger than those of any real file counts as damaged.

Torch promises no binary interface between versions: an extension for another torch imports symbols that do
not exist, and fails only when it is loaded. Torch's symbols are recognized by their names: C++ names in its
namespaces, in the Itanium C++ ABI, and the prefixes of its C interfaces.
"""

from __future__ import annotations

import io
import re
import struct
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

import msgspec

from builders.wheels.wheel import DamagedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

    from builders.wheels.wheel import Content


_GPU_SECTION = ".hip_fatbin"
_ARCHIVE_SECTION = ".rocm_kpack_ref"
_MOST_BYTES = 1 << 28
_MOST_SYMBOLS = 4_000_000  # libtorch_cpu has 75,000
_MOST_NAME_BYTES = 1 << 26  # of all names that are kept
_SYMBOL_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC|FABRIC)_(\d+(?:\.\d+)*)")
_GLIBC_NAME = re.compile(rb"GLIBC_2\.\d+(?:\.\d+)?")
_NAME = re.compile(rb"[\x21-\x7e]+")
_LIBRARY = re.compile(rb"lib[\w.+-]*\.so(?:\.[\w-]+)*")
_ELF_64 = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_ELF_HEADER, _SECTION_HEADER, _SMALLEST_VERSION = 64, 64, 16  # bytes
_DATA, _STRINGS, _ALLOCATED = 1, 3, 2  # SHT_PROGBITS, SHT_STRTAB, SHF_ALLOC
_CUDA_ALIGNMENT, _HIP_ALIGNMENT = 8, 4096
_SMALLEST_CODE = 1 << 12  # bytes
_LONGEST_NAME = 64  # bytes of the name of a section
_RELR = {"GLIBC_ABI_DT_RELR": "2.36"}
"""Versions that stand for a feature, and the glibc that introduced it."""
_PRODUCER = re.compile(rb"GNU (?:C|C\+\+|Fortran)\d* [\d.]+ [^\0]{1,4096}")
_CPU_OPTION = re.compile(rb"(?<= )-m(?:arch=\S+|avx512\w+)")
_MOST_STRINGS = 1 << 26  # bytes of .debug_str that are searched
_V4 = 8  # GNU_PROPERTY_X86_ISA_1_V4
_LOADER_TABLES = {
    "DT_STRTAB": "table of names", "DT_SYMTAB": "table of symbols", "DT_VERNEED": "table of versions",
}  # fmt: skip
"""Tables whose addresses the loader reads from the dynamic section."""

_SYMBOL = {64: struct.Struct("<IBBHQQ"), 32: struct.Struct("<IIIBBH")}
"""Layout of a symbol by class of the ELF file; the offset of its name comes first."""
_INFO_AND_SECTION = {64: (1, 3), 32: (3, 5)}
"""Positions of binding and section in that layout."""
_READ_TIME, _SYMBOL_TIME, _DIRECTORY_TIME = 4_000, 500, 1_000
"""The cost of a read by pyelftools, of a symbol, and of a directory in a search path."""
_UNDEFINED = 0
_WEAK = 2
_OF_TORCH = re.compile(
    rb"(?:_Z(?:T[VTIS]|GV|GR)?(?:Z{0,9}N[rVK]{0,3}[RO]?(?:3c10|2at|5torch|6caffe2)|\d{1,4}THP)"
    rb"|THP[A-Z]|aoti_torch_|torch_|ncclNetPlugin_v)[^\0]*"
)
"""Symbols of torch, and the interfaces that a network plugin offers to RCCL."""

_BASE = 600_000_000
_PER_BYTE = 5_000


class Budget:
    """The work that a file of `size` bytes justifies, in nanoseconds; real wheels use a small part."""

    def __init__(self, size: int) -> None:
        self._left = _BASE + _PER_BYTE * size

    def spend(self, work: int) -> None:
        """Subtract work that is about to be done; raise `DamagedError` if the budget is used up."""
        self._left -= work
        if self._left < 0:
            msg = "its tables are larger than those of any real file of this size"
            raise DamagedError(msg)


class SharedObject(msgspec.Struct, frozen=True):
    """A shared object in a wheel."""

    path: str
    needed: tuple[str, ...]
    """Names of the libraries that it needs (``DT_NEEDED``)."""
    machine: str = ""
    """The machine in the ELF header, such as ``EM_X86_64``."""
    soname: str = ""
    search_paths: tuple[str, ...] = ()
    """Directories of its RPATH and RUNPATH."""
    versions: Mapping[str, str] = {}
    """The newest symbol versions that it needs, by family (GLIBC, GLIBCXX, CXXABI, GCC, FABRIC)."""
    defines: Mapping[str, str] = {}
    imports: frozenset[str] = frozenset()
    """Its undefined symbols of torch and of RCCL's network plugins, without weak ones."""
    exports: frozenset[str] = frozenset()
    has_cuda_code: bool = False
    gpu_section: tuple[int, int] | None = None
    """Position and size of the section with HIP code objects, in bytes."""
    code_in_archives: bool = False
    """Whether its HIP code is in ``.kpack`` archives, which its section ``.rocm_kpack_ref`` names."""
    cpu_options: tuple[str, ...] = ()
    """For which CPU its host code was compiled (``-march``, ``-mavx512*``), if GCC recorded it (``-g``)."""
    needs_avx512: bool = False
    """Whether its linker recorded that it needs x86-64-v4; the loader then refuses an older CPU."""


def read_ends(
    start: bytes, part: Callable[[int, int], bytes | None]
) -> tuple[tuple[str, ...] | None, bool, bool, str]:
    """Return what the first bytes of a shared object, and some of its last ones, show.

    They are the libraries that it needs, and perhaps its own name (None if this is not shown); whether it has
    code for CUDA, and for HIP; and why it may have other code for GPUs (empty if it has none).

    `part` returns a part of the object (offset, size); None if it is not known. The table of sections is at
    the end, and so are often their names. A section without a known name may be code for GPUs if it is of
    the same kind: that of nvcc is read-only data with the alignment 8, which otherwise only ``.eh_frame``
    has, and that of HIP has the alignment of a page.
    """
    sections = sections_in(start, part)
    table = next((one for one in sections or () if (one.kind, one.flags) == (_STRINGS, _ALLOCATED)), None)
    names = None
    if table is not None:
        end = table.start + table.size
        names = start[table.start : end] if end <= len(start) else part(table.start, table.size)
    needed = libraries_in_start(start)
    if names is not None:
        needed = _libraries(names.split(b"\0"))
    if sections is None:
        return needed, False, False, "its sections were not read"
    known = {one.name for one in sections}
    unnamed = [one for one in sections if one.name is None and one.may_be_code]
    near = [one for one in unnamed if one.alignment == _CUDA_ALIGNMENT]
    if ".eh_frame" not in known:
        del near[:1]
    near += [one for one in unnamed if one.alignment == _HIP_ALIGNMENT]
    unknown = "a section of it, whose name was not read, may be code for GPUs" if near else ""
    return needed, ".nv_fatbin" in known, bool(known & {_GPU_SECTION, _ARCHIVE_SECTION}), unknown


class _Header(NamedTuple):
    """A section, of which only the header is known."""

    name: str | None
    """None if it is not known."""
    kind: int
    flags: int
    start: int
    size: int
    alignment: int

    @property
    def may_be_code(self) -> bool:
        """Whether it may be code for GPUs: read-only data of some size."""
        return (self.kind, self.flags) == (_DATA, _ALLOCATED) and self.size >= _SMALLEST_CODE


def sections_in(start: bytes, part: Callable[[int, int], bytes | None]) -> list[_Header] | None:
    """Return the sections of a 64-bit object; None if they are not known."""
    if len(start) < _ELF_HEADER or not start.startswith(_ELF_64):
        return None
    table, size, count, of_names = struct.unpack_from("<Q10xHHH", start, 40)
    if size != _SECTION_HEADER or not of_names < count:
        return None
    headers: list[tuple[int, int, int, int, int, int]] = []
    for at in range(table, table + size * count, size):
        first, place, alignment = part(at, 16), part(at + 24, 16), part(at + 48, 8)
        if first is None or place is None or alignment is None:
            return None
        headers.append(
            (*struct.unpack("<IIQ", first), *struct.unpack("<QQ", place), *struct.unpack("<Q", alignment))
        )
    *_, start_of_names, size_of_names, _ = headers[of_names]
    return [
        _Header(_name_at(part, start_of_names, size_of_names, header[0]), *header[1:]) for header in headers
    ]


def _name_at(part: Callable[[int, int], bytes | None], start: int, size: int, offset: int) -> str | None:
    """Return a name in the table of the names of sections; None if it is not known."""
    for length in range(1, min(size - offset, _LONGEST_NAME) + 1):
        text = part(start + offset, length)
        if text is None:
            return None
        if text.endswith(b"\0"):
            return text[:-1].decode("latin-1")
    return None


def _libraries(names: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.decode() for name in names if _LIBRARY.fullmatch(name)))


def libraries_in_start(start: bytes) -> tuple[str, ...] | None:
    r"""Return the libraries that an object needs, from its first bytes; None if they do not show them.

    The table of their names usually is at the start. It is recognized by a symbol version of glibc: other
    texts of a program do not stand directly beside one. The result may have the name of the object itself,
    too.

    >>> libraries_in_start(b"\x7fELF\0\0cudaFree\0libcudart.so.12\0libc.so.6\0GLIBC_2.17\0\0libcuda.so\0")
    ('libcudart.so.12', 'libc.so.6')
    """
    if not start.startswith(b"\x7fELF"):
        return None
    texts = start.split(b"\0")
    at = next((number for number, text in enumerate(texts) if _GLIBC_NAME.fullmatch(text)), None)
    if at is None:
        return None
    first = last = at
    while _NAME.fullmatch(texts[first - 1]):
        first -= 1
    while last + 1 < len(texts) and _NAME.fullmatch(texts[last + 1]):
        last += 1
    return _libraries(texts[first : last + 1])


def version_key(version: str) -> tuple[int, ...]:
    """Return the key by which symbol versions are compared.

    >>> max(["2.9", "2.34", "2.3.4"], key=version_key)
    '2.34'
    """
    return tuple(int(part) for part in version.split("."))


def read_object(path: str, data: Content, budget: Budget | None = None) -> SharedObject:
    """Read a shared object; raise `DamagedError` if it is not ELF, is cut short, or contradicts itself."""
    try:
        budget = budget or Budget(len(data))
        return _read(path, data, _CountedReader(data, budget), budget)
    except DamagedError:
        raise
    except Exception as error:  # noqa: BLE001  a damaged file can break the parser anywhere
        msg = str(error) or type(error).__name__
        raise DamagedError(msg) from None


class _CountedReader(io.RawIOBase):
    """A stream that limits how much a parser can read: a damaged file could make it read forever."""

    def __init__(self, data: Content, budget: Budget) -> None:
        self._data = data
        self._budget = budget
        self._at = self._bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        self._at = max(0, origin + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        most = _MOST_BYTES + 1 - self._bytes
        end = self._at + (most if size is None or size < 0 else min(size, most))
        data = self._data[self._at : end]
        self._at += len(data)
        self._bytes += len(data)
        self._budget.spend(_READ_TIME + len(data))
        if self._bytes > _MOST_BYTES:
            msg = "its tables are larger than those of any real file"
            raise DamagedError(msg)
        return data


def _read(path: str, data: Content, stream: _CountedReader, budget: Budget) -> SharedObject:
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerDefSection, GNUVerNeedSection

    elf = ELFFile(cast("BinaryIO", stream))
    end = stream.seek(0, io.SEEK_END)
    dynamic: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    defines: dict[str, str] = {}
    sections: dict[str, tuple[int, int]] = {}  # position and size
    read: dict[str, set[int]] = {}  # kind of table to the offsets of those that are read here
    loaded: dict[str, set[int]] = {}  # kind of table to the addresses that the loader gets
    for section in elf.iter_sections():
        start, size = int(section["sh_offset"]), int(section["sh_size"])
        if section["sh_type"] != "SHT_NOBITS" and start + size > end:
            raise DamagedError(f"its section {section.name} extends beyond the end of the file")
        sections[section.name] = start, size
        if isinstance(section, DynamicSection):
            read.setdefault("dynamic section", set()).add(start)
            strings = elf.get_section(section["sh_link"])
            read.setdefault("table of names", set()).add(int(strings["sh_offset"]))
            for tag in section.iter_tags():
                if kind := _LOADER_TABLES.get(str(tag.entry.d_tag)):
                    loaded.setdefault(kind, set()).add(int(tag.entry.d_val))
                name = str(tag.entry.d_tag).removeprefix("DT_").lower()
                if name in {"needed", "soname", "rpath", "runpath"}:
                    dynamic.setdefault(name, []).append(str(getattr(tag, name)))
        elif isinstance(section, GNUVerNeedSection | GNUVerDefSection):
            needed = isinstance(section, GNUVerNeedSection)
            read.setdefault("table of versions", set()).update([start] if needed else [])
            for name in _versions_in(section, size):
                add_version(versions if needed else defines, name)
    if ".dynsym" in sections:
        read["table of symbols"] = {sections[".dynsym"][0]}
    _compare_with_loader(elf, read, loaded)
    directories = [text for kind in ("rpath", "runpath") for text in dynamic.get(kind, [])]
    budget.spend(_DIRECTORY_TIME * sum(text.count(":") for text in directories))
    imports, exports = _symbols(elf, data, sections, budget)
    return SharedObject(
        path,
        tuple(dynamic.get("needed", [])),
        machine=str(elf["e_machine"]),
        soname="".join(dynamic.get("soname", [])[:1]),
        search_paths=tuple(directory for text in directories for directory in text.split(":")),
        versions=dict(sorted(versions.items())),
        defines=dict(sorted(defines.items())),
        imports=imports,
        exports=exports,
        has_cuda_code=".nv_fatbin" in sections,
        gpu_section=None if _ARCHIVE_SECTION in sections else sections.get(_GPU_SECTION),
        code_in_archives=_ARCHIVE_SECTION in sections,
        cpu_options=_cpu_options(data, *sections.get(".debug_str", (0, 0)), budget),
        needs_avx512=".note.gnu.property" in sections and _needs_v4(elf),
    )


def _cpu_options(data: Content, start: int, size: int, budget: Budget) -> tuple[str, ...]:
    """Return the options for the CPU that GCC recorded; of ``-march=native`` it records what it chose."""
    size = min(size, _MOST_STRINGS)
    budget.spend(size)
    producers = _PRODUCER.findall(data[start : start + size])
    return tuple(sorted({option.decode() for text in producers for option in _CPU_OPTION.findall(text)}))


def _needs_v4(elf: Any) -> bool:  # noqa: ANN401  pyelftools has no types
    """Return whether the linker noted that x86-64-v4 is needed."""
    notes = elf.get_section_by_name(".note.gnu.property").iter_notes()
    properties = (entry for note in notes for entry in note["n_desc"])
    return any(
        entry["pr_type"] == "GNU_PROPERTY_X86_ISA_1_NEEDED" and entry["pr_data"] & _V4 for entry in properties
    )


def _versions_in(section: GNUVerNeedSection | GNUVerDefSection, size: int) -> Iterator[str]:
    """Yield the symbol versions in a section of some bytes."""
    if int(section["sh_info"]) * _SMALLEST_VERSION > size:
        raise DamagedError(f"its section {section.name} does not have as many versions as it states")
    for _, names in section.iter_versions():
        yield from (str(each.name) for each in names)


def _compare_with_loader(
    elf: Any,  # noqa: ANN401  pyelftools has no types
    read: Mapping[str, set[int]],
    loaded: dict[str, set[int]],
) -> None:
    """Check that the sections that were read are those that the loader finds by the program headers."""
    loaded["dynamic section"] = {int(segment["p_vaddr"]) for segment in elf.iter_segments("PT_DYNAMIC")}
    for kind, addresses in loaded.items():
        for address in addresses:
            if not read.get(kind, set()).intersection(elf.address_offsets(address)):
                raise DamagedError(f"its section headers do not describe the {kind} that the loader reads")


def add_version(versions: dict[str, str], name: str) -> None:
    """Record a symbol version such as ``GLIBCXX_3.4.29`` if it is the newest of its family so far."""
    match = _SYMBOL_VERSION.fullmatch(name)
    family, version = (match[1], match[2]) if match else ("GLIBC", _RELR.get(name, ""))
    if version and version_key(version) > version_key(versions.get(family, "0")):
        versions[family] = version


def _symbols(
    elf: Any,  # noqa: ANN401  pyelftools has no types
    data: Content,
    sections: Mapping[str, tuple[int, int]],
    budget: Budget,
) -> tuple[frozenset[str], frozenset[str]]:
    table, names = sections.get(".dynsym"), sections.get(".dynstr")
    if table is None or names is None or not elf.little_endian:
        return frozenset(), frozenset()
    symbols, texts = (data[start : start + size] for start, size in (table, names))
    return read_symbols(symbols, texts, elf.elfclass, budget)


def read_symbols(
    table: bytes, names: bytes, bits: int, budget: Budget
) -> tuple[frozenset[str], frozenset[str]]:
    """Return `SharedObject.imports` and `SharedObject.exports`; pyelftools takes seconds for a large table.

    `table` and `names` are the sections ``.dynsym`` and ``.dynstr``; `bits` is 64 or 32.
    """
    layout, (info, section) = _SYMBOL[bits], _INFO_AND_SECTION[bits]
    if len(table) > _MOST_SYMBOLS * layout.size:
        msg = "its symbol table is larger than that of any real file"
        raise DamagedError(msg)
    budget.spend(_SYMBOL_TIME * (len(table) // layout.size))
    imports: set[int] = set()  # offsets of names
    exports: set[int] = set()
    for symbol in layout.iter_unpack(memoryview(table)[: len(table) // layout.size * layout.size]):
        defined = symbol[section] != _UNDEFINED
        if defined or symbol[info] >> 4 != _WEAK:
            (exports if defined else imports).add(symbol[0])
    texts: dict[int, bytes] = {}
    kept = 0
    for offset in imports | exports:
        if name := _OF_TORCH.match(names, offset):
            texts[offset] = name[0]
            kept += len(name[0])
            if kept > _MOST_NAME_BYTES:
                msg = "the names of its symbols are longer than those of any real file"
                raise DamagedError(msg)
    return _texts(texts, imports), _texts(texts, exports)


def _texts(names: Mapping[int, bytes], offsets: set[int]) -> frozenset[str]:
    return frozenset(
        name.decode("ascii", "backslashreplace") for offset, name in names.items() if offset in offsets
    )
