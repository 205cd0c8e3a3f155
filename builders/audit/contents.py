"""What a wheel holds, as far as an audit reads it, and what it is compared with."""

from __future__ import annotations

import base64
import csv
import io
import stat
from dataclasses import dataclass, field
from email.parser import BytesHeaderParser
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builders.audit.directory import DamagedError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from email.message import Message

    from packaging.tags import Tag

    from builders.audit.codeobjects import CodeObject
    from builders.audit.elf import SharedObject
    from builders.audit.surroundings import Provider, Torch
    from builders.audit.symbols import Symbols
    from resolver.facts.schema import Recipe

OP_TABLE = "git_version_info_installed.py"
"""Where DeepSpeed's and Apex's builds record what they compiled, beside their package's own modules."""
BARE_OBJECT = (".hsaco", ".co")
"""Endings of GPU code objects in files of their own, as aiter and triton have them."""
LARGEST_METADATA = 1 << 22
"""Bytes of ``METADATA`` or ``WHEEL`` beyond which they are not read: 4 MiB; a long README has 0.2."""
_MOST_REQUIREMENTS = 10_000
_LONGEST_LINE = 1 << 18  # of RECORD: names of members have 64 KiB at most


@dataclass(frozen=True, slots=True)
class Contents:
    """What a wheel holds, as far as it was read."""

    file: str
    name: str
    version: str
    tags: tuple[Tag, ...]
    """Of the file name."""
    members: tuple[zipfile.ZipInfo, ...] = ()
    dist_info: str = ""
    """The directory that METADATA, WHEEL and RECORD are read from; empty when there is none."""
    digests: Mapping[str, bytes] = field(default_factory=dict)
    """Member to the SHA-256 of its content."""
    texts: Mapping[str, bytes] = field(default_factory=dict)
    """``METADATA``, ``WHEEL`` and ``RECORD``, where they are there, and the one called `OP_TABLE`."""
    objects: tuple[SharedObject, ...] = ()
    symbols: Mapping[str, Symbols] = field(default_factory=dict)
    """Member to its dynamic symbols that have to do with torch."""
    code: Mapping[str, tuple[CodeObject, ...]] = field(default_factory=dict)
    """Member to its GPU code objects."""

    @property
    def targets(self) -> list[str]:
        """Every offload target in the wheel, with its features."""
        return sorted({one.name for found in self.code.values() for one in found})

    def header(self, text: str, name: str) -> list[str]:
        """Give all values of a header of METADATA or WHEEL."""
        return [str(one).strip() for one in _headers(self.texts.get(text, b"")).get_all(name, [])]

    def member(self, text: str) -> zipfile.ZipInfo | None:
        """Give the member that is METADATA, WHEEL or RECORD; None where there is none."""
        path = f"{self.dist_info}/{text}"
        return next((info for info in reversed(self.members) if info.filename == path), None)


@lru_cache(maxsize=4)
def _headers(text: bytes) -> Message:
    """Parse headers once, though several checks ask for them."""
    return BytesHeaderParser().parsebytes(text)


def dist_infos(members: Iterable[zipfile.ZipInfo]) -> list[str]:
    """Give the directories that tell of a distribution, as pip counts them: at the top, by their ending."""
    tops = {info.filename.partition("/")[0] for info in members}
    return sorted(one for one in tops if one.endswith(".dist-info"))


def is_dist_info_of(directory: str, name: str, version: str) -> bool:
    """Tell whether such a directory is called by a name and a version, in any spelling.

    Examples
    --------
    >>> is_dist_info_of("Flash_Attn-2.8.dist-info", "flash-attn", "2.8")
    True
    """
    project, _, said = directory.removesuffix(".dist-info").rpartition("-")
    try:
        return canonicalize_name(project) == name and Version(said) == Version(version)
    except InvalidVersion:
        return False


@dataclass(frozen=True, slots=True)
class Expected:
    """What a wheel is compared with; what is not given is not compared."""

    targets: tuple[str, ...] = ()
    """Offload targets that it must hold code for, each and no other."""
    recipe: Recipe | None = None
    torch: Torch | None = None
    """The torch that it will run with."""
    providers: tuple[Provider, ...] = ()
    """The base image, and the conda environment if there is one, that it will run in."""
    python: str = ""
    """Prefix of the Python that it was built with. Pythons that were installed apart from the system's
    have a flag among their own that puts their library directory into every extension's RPATH."""


NOTHING = Expected()
"""Nothing is expected: a wheel is compared with itself only."""


def largest_record(members: Iterable[zipfile.ZipInfo]) -> int:
    """Give the bytes that an honest RECORD has at most, by the members that it can name.

    A row is a path, of which quotes are doubled, a hash and a size.
    """
    return (1 << 16) + sum(200 + 2 * len(info.filename.encode()) for info in members)


def record_rows(text: bytes) -> Iterator[Sequence[str]]:
    """Yield the rows of a RECORD: path, ``sha256=...``, size.

    Raises
    ------
    DamagedError
        It is no table.
    """
    try:
        lines = io.TextIOWrapper(io.BytesIO(text), encoding="utf-8", newline="")
        yield from csv.reader(iter(lambda: _line(lines), ""))
    except (UnicodeDecodeError, csv.Error) as error:
        msg = f"RECORD cannot be read ({error})"
        raise DamagedError(msg) from None


def _line(lines: io.TextIOWrapper) -> str:
    line = lines.readline(_LONGEST_LINE)
    if len(line) == _LONGEST_LINE:
        msg = f"RECORD has a line of {_LONGEST_LINE} characters or more"
        raise DamagedError(msg)
    return line


def as_recorded(digest: bytes) -> str:
    """Write a SHA-256 as a RECORD does (PEP 376): URL-safe base 64 without padding."""
    return "sha256=" + base64.urlsafe_b64encode(digest).decode().rstrip("=")


def is_link(info: zipfile.ZipInfo) -> bool:
    """Tell whether a member would be unpacked as a symbolic link."""
    return stat.S_ISLNK(info.external_attr >> 16)


def requirements_of(contents: Contents) -> list[Requirement]:
    """Give what it requires without an extra; what cannot be read is left to pip.

    Of more than 10 000 requirements the rest is not looked at.
    """
    found = []
    for text in islice(contents.header("METADATA", "Requires-Dist"), _MOST_REQUIREMENTS):
        try:
            one = Requirement(text)
        except InvalidRequirement:
            continue
        if "extra" not in str(one.marker or ""):
            one.name = canonicalize_name(one.name)
            found.append(one)
    return found


def some_of(paths: list[str]) -> str:
    """Name the first of some members, and say how many more there are."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"
