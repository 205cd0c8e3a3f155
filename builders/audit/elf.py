"""What a shared object says of itself: its machine, needs, search paths, symbols and their versions.

pyelftools reads the structures. Sizes and counts in a damaged or hostile file can be anything, so
all reading is counted, and what reads more than any real file needs is called damaged.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

from builders.audit.codeobjects import SECTION
from builders.audit.directory import DamagedError
from builders.audit.symbols import Symbols, read_symbols

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_READS = 2_000_000
_MOST_BYTES = 1 << 28
_VERSION = re.compile(r"(GLIBC|GLIBCXX|CXXABI|GCC)_(\d+(?:\.\d+)*)")
_LOADED = {
    "DT_STRTAB": "table of names", "DT_SYMTAB": "table of symbols", "DT_VERNEED": "table of versions",
}  # fmt: skip
"""Tables of which the loader learns the addresses in the dynamic section."""
_RELR = {"GLIBC_ABI_DT_RELR": "2.36"}
"""Versions that stand for a feature, and the glibc that brought it."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A shared object in a wheel."""

    path: str
    needed: tuple[str, ...]
    """Libraries it names as NEEDED."""
    extension: bool = False
    """Whether it is a Python extension, which has a function ``PyInit_...``."""
    machine: str = ""
    """As in the ELF header, such as ``EM_X86_64``."""
    soname: str = ""
    search: tuple[str, ...] = ()
    """Directories of its RPATH and RUNPATH."""
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    """``GLIBC``, ``GLIBCXX``, ``CXXABI`` and ``GCC`` to the newest symbol version it needs."""
    cuda: bool = False
    """Whether it holds code for NVIDIA's GPUs (a section ``.nv_fatbin``)."""
    fatbin: tuple[int, int] | None = None
    """Place and size of the section with HIP code objects, in bytes."""


def version_key(version: str) -> tuple[int, ...]:
    """Give what versions of symbols are compared by.

    Examples
    --------
    >>> max(["2.9", "2.34", "2.3.4"], key=version_key)
    '2.34'
    """
    return tuple(int(part) for part in version.split("."))


def read_object(path: str, stream: BinaryIO) -> tuple[SharedObject, Symbols]:
    """Read a shared object and its dynamic symbols.

    Parameters
    ----------
    path
        What it is called in the wheel.
    stream
        Its bytes, readable at any place.

    Raises
    ------
    DamagedError
        It is no ELF file, is cut short, or contradicts itself.
    """
    try:
        return _read(path, _Counted(stream))
    except DamagedError:
        raise
    except Exception as error:  # noqa: BLE001  a damaged file breaks the parser anywhere
        msg = str(error) or type(error).__name__
        raise DamagedError(msg) from None


class _Counted(io.RawIOBase):
    """A stream that ends the reading of a file that makes its parser run in circles."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._reads = self._bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._stream.tell()

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._stream.seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        wanted = _MOST_BYTES if size is None or size < 0 else size
        self._reads += 1
        data = self._stream.read(min(wanted, _MOST_BYTES + 1 - self._bytes))
        self._bytes += len(data)
        if self._reads > _MOST_READS or self._bytes > _MOST_BYTES:
            msg = "its tables are larger than those of any real file"
            raise DamagedError(msg)
        return data


def _read(path: str, stream: _Counted) -> tuple[SharedObject, Symbols]:
    elf = ELFFile(cast("BinaryIO", stream))
    end = stream.seek(0, io.SEEK_END)
    dynamic: dict[str, list[str]] = {}
    versions: dict[str, str] = {}
    places: dict[str, tuple[int, int]] = {}
    read: dict[str, set[int]] = {}
    told: dict[str, set[int]] = {}
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_NOBITS" and section["sh_offset"] + section["sh_size"] > end:
            msg = f"its section {section.name} ends after the file"
            raise DamagedError(msg)
        places[section.name] = (int(section["sh_offset"]), int(section["sh_size"]))
        if isinstance(section, DynamicSection):
            read.setdefault("dynamic section", set()).add(int(section["sh_offset"]))
            strings = elf.get_section(section["sh_link"])
            read.setdefault("table of names", set()).add(int(strings["sh_offset"]))
            for tag in section.iter_tags():
                if kind := _LOADED.get(str(tag.entry.d_tag)):
                    told.setdefault(kind, set()).add(int(tag.entry.d_val))
                name = str(tag.entry.d_tag).removeprefix("DT_").lower()
                if name in {"needed", "soname", "rpath", "runpath"}:
                    dynamic.setdefault(name, []).append(str(getattr(tag, name)))
        elif isinstance(section, GNUVerNeedSection):
            read.setdefault("table of versions", set()).add(int(section["sh_offset"]))
            for name in _needed_versions(section):
                raise_floor(versions, name)
    if ".dynsym" in places:
        read["table of symbols"] = {places[".dynsym"][0]}
    _compare_with_loader(elf, read, told)
    symbols = _symbols(elf)
    one = SharedObject(
        path,
        tuple(dynamic.get("needed", [])),
        extension=symbols.extension,
        machine=str(elf["e_machine"]),
        soname="".join(dynamic.get("soname", [])[:1]),
        search=tuple(
            part
            for kind in ("rpath", "runpath")
            for text in dynamic.get(kind, [])
            for part in text.split(":")
        ),
        versions=dict(sorted(versions.items())),
        cuda=".nv_fatbin" in places,
        fatbin=places.get(SECTION),
    )
    return one, symbols


def _compare_with_loader(
    elf: Any,  # noqa: ANN401  pyelftools has no types
    read: dict[str, set[int]],
    told: dict[str, set[int]],
) -> None:
    """See that the sections that were read are what the loader reads.

    The loader knows the program headers only. An object can do without sections, or have some that
    tell of something else; what it needs would then seem to be nothing.

    Parameters
    ----------
    elf
        The object.
    read
        Kind of table to where those that were read lie in the file.
    told
        Kind of table to the addresses that the loader is told.

    Raises
    ------
    DamagedError
        Its section headers do not lead where its program headers do.
    """
    told["dynamic section"] = {int(one["p_vaddr"]) for one in elf.iter_segments("PT_DYNAMIC")}
    for kind, addresses in told.items():
        for address in addresses:
            if not read.get(kind, set()).intersection(elf.address_offsets(address)):
                msg = f"its section headers do not tell of the {kind} that the loader reads"
                raise DamagedError(msg)


def _needed_versions(section: GNUVerNeedSection) -> list[str]:
    return [str(one.name) for _, auxiliaries in section.iter_versions() for one in auxiliaries]


def raise_floor(versions: dict[str, str], name: str) -> None:
    """Note a symbol version such as ``GLIBCXX_3.4.29`` if it is the newest of its family so far."""
    said = _VERSION.fullmatch(name)
    family, version = (said[1], said[2]) if said else ("GLIBC", _RELR.get(name, ""))
    if version and version_key(version) > version_key(versions.get(family, "0")):
        versions[family] = version


def _symbols(elf: Any) -> Symbols:  # noqa: ANN401  pyelftools has no types
    """Read the dynamic symbols; pyelftools itself would take seconds for a large table."""
    table = elf.get_section_by_name(".dynsym")
    names = elf.get_section_by_name(".dynstr")
    if table is None or names is None or not elf.little_endian:
        return Symbols()
    return read_symbols(table.data(), names.data(), elf.elfclass)
