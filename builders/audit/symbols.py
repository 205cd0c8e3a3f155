"""The dynamic symbols of a shared object that have to do with torch.

Torch promises no binary interface from one version to the next, so an extension that was built
against another torch asks for symbols that are not there, and says so only when it is loaded. Which
symbols are torch's is told by their names: C++ names in its namespaces, as the Itanium C++ ABI writes
them, and the names that its C interfaces begin with.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from builders.audit.directory import DamagedError

_SYMBOL = {64: struct.Struct("<IBBHQQ"), 32: struct.Struct("<IIIBBH")}
"""Class of an ELF file to the layout of a symbol."""
_INFO_AND_SECTION = {64: (1, 3), 32: (3, 5)}
"""Where in that layout binding and section stand; the name stands first."""
_UNDEFINED = 0
_WEAK = 2
_MOST_SYMBOLS = 4_000_000  # libtorch_cpu has 75 000
_MOST_BYTES = 1 << 26  # of the names kept, all together

_TORCH = re.compile(
    rb"(?:_Z(?:T[VTIS]|GV|GR)?(?:Z*N[rVK]*[RO]?(?:3c10|2at|5torch|6caffe2)|\d+THP)"
    rb"|THP[A-Z]|aoti_torch_|torch_)[^\0]*"
)


@dataclass(frozen=True, slots=True)
class Symbols:
    """What of torch's a shared object needs and gives."""

    extension: bool = False
    """Whether it defines a function ``PyInit_...``, as every Python extension does."""
    needs: frozenset[str] = frozenset()
    """Names that are undefined in it, weak ones left out."""
    gives: frozenset[str] = frozenset()
    """Names that are defined in it."""


def read_symbols(table: bytes, names: bytes, bits: int) -> Symbols:
    """Read a table of dynamic symbols.

    Parameters
    ----------
    table, names
        The sections ``.dynsym`` and ``.dynstr``.
    bits
        64 or 32, the class of the ELF file.

    Raises
    ------
    DamagedError
        The table is larger than that of any real file.
    """
    layout, (info, section) = _SYMBOL[bits], _INFO_AND_SECTION[bits]
    if len(table) > _MOST_SYMBOLS * layout.size:
        msg = "its table of symbols is larger than that of any real file"
        raise DamagedError(msg)
    whole = memoryview(table)[: len(table) // layout.size * layout.size]
    needs: set[bytes] = set()
    gives: set[bytes] = set()
    extension, kept = False, 0
    for symbol in layout.iter_unpack(whole):
        if symbol[section] != _UNDEFINED:
            found = gives
            extension = extension or names.startswith(b"PyInit_", symbol[0])
        elif symbol[info] >> 4 == _WEAK:
            continue
        else:
            found = needs
        said = _TORCH.match(names, symbol[0])
        if said and said[0] not in found:
            found.add(said[0])
            kept += len(said[0])
            if kept > _MOST_BYTES:
                msg = "the names of its symbols are longer than those of any real file"
                raise DamagedError(msg)
    return Symbols(extension, _texts(needs), _texts(gives))


def _texts(names: set[bytes]) -> frozenset[str]:
    return frozenset(name.decode("ascii", "backslashreplace") for name in names)
