"""A finished wheel under its label: the same files, other metadata, the same bytes every time.

Members are copied as they are compressed, in the order of their names, with the metadata at the end
(PEP 427) and without clock, owner or umask. So the bytes of the result depend on the content that the
build backend wrote and on the labels, not on when, where, or in which order it was packed; nor on the
zlib of this machine.
"""

from __future__ import annotations

import csv
import hashlib
import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from builders.audit.contents import as_recorded
from builders.files import atomic_path
from builders.labelling.archive import ArchiveWriter, Entry
from builders.labelling.metadata import Headers
from builders.labelling.pins import Change, Pin, PinStyle, pinned
from builders.labelling.raw import SIGNATURES, RawWheel
from resolver.errors import MatrixError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_OLDEST_WITH_REQUIRES = "1.2"
"""The core metadata version that brought ``Requires-Dist``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """What a wheel is to say of itself."""

    version: str
    """With its label, such as ``0.19.8+cpu.torch2.13.0``."""
    platform: str
    """Platform tag that an audit found, such as ``manylinux_2_35_x86_64``; ``any`` for a pure wheel."""
    build_number: int | None = None
    """Build tag (PEP 427) that tells a rebuild from the wheel before it."""
    pins: tuple[Pin, ...] = ()
    """What it requires in the very version it was built against (`runtime_pins`)."""
    loosening: PinStyle = "exact"
    sboms: Mapping[str, bytes] = field(default_factory=dict)
    """File name to content of what goes into ``.dist-info/sboms`` (PEP 770)."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A wheel that was written, and what is in it otherwise than in the one it was made from."""

    path: Path
    dropped_local: str
    """Local version label that the source had given itself, such as ``git.e37ed12``; empty if none."""
    requirements: tuple[Change, ...]
    notes: tuple[str, ...]
    """What else a person should know, in sentences."""


def label_wheel(raw: Path, labels: Labels, directory: Path) -> Labelled:
    """Write a copy of a wheel under its label.

    Nothing of the source's content is held in memory but its metadata, whatever the wheel's size.

    Parameters
    ----------
    raw
        The wheel as its build backend wrote it.
    labels
        What it is to say of itself.
    directory
        Where to write the new wheel.

    Raises
    ------
    RawWheelError
        The wheel is damaged, or would be unpacked elsewhere; nothing is left in the directory.
    MatrixError
        The labels do not make a wheel's name.
    """
    with raw.open("rb") as file:
        return _Relabelling(RawWheel(raw, file), raw, labels).write(directory)


class _Relabelling:
    """One wheel on its way from one name to another."""

    def __init__(self, source: RawWheel, raw: Path, labels: Labels) -> None:
        self._source, self._labels = source, labels
        try:
            self._version = Version(labels.version)
        except InvalidVersion:
            msg = f"{labels.version!r} is no version (PEP 440)."
            raise MatrixError(msg) from None
        stem = f"{source.name.replace('-', '_')}-{self._version}"
        self._info = f"{stem}.dist-info"
        python, abi, _ = raw.name.removesuffix(".whl").split("-")[-3:]
        # Where nothing compiled is inside, no ABI is needed.
        tag = f"{python}-{'none' if labels.platform == 'any' else abi}-{labels.platform}".lower()
        number = "" if labels.build_number is None else f"-{labels.build_number}"
        self._file = f"{stem}{number}-{tag}.whl"
        try:
            self._tags = sorted(map(str, parse_tag(tag)))
        except ValueError:
            msg = f"{labels.platform!r} is no platform tag (PEP 425)."
            raise MatrixError(msg) from None
        self._directories = {source.info: self._info}
        for top in {name.partition("/")[0] for name in source.members if "/" in name}:
            if top.endswith(".data") and _same(top, source.info):
                self._directories[top] = f"{stem}.data"
        self._notes: list[str] = []
        self._changes: tuple[Change, ...] = ()

    def write(self, directory: Path) -> Labelled:
        """Write the wheel."""
        texts = self._texts()
        copied = self._copied(texts)
        target = directory / self._file
        with atomic_path(target) as temporary, temporary.open("wb") as sink:
            writer, rows = ArchiveWriter(sink), []
            for name in sorted(copied, key=lambda one: (one.startswith(f"{self._info}/"), one)):
                info = self._source.members[copied[name]]
                writer.begin(_entry(name, info))
                digest = self._source.copy(info.filename, writer.write)
                rows.append((name, as_recorded(digest), str(info.file_size)))
            for name, data in sorted(texts.items()):
                writer.add_text(name, data)
                rows.append(_recorded(name, data))
            record = f"{self._info}/RECORD"
            writer.add_text(record, _record([*rows, (record, "", "")]))
            writer.finish()
        local = self._source.version.local or ""
        return Labelled(target, local, self._changes, tuple(self._notes))

    def _texts(self) -> dict[str, bytes]:
        """Make the files that are written anew."""
        sboms = {f"{self._info}/sboms/{name}": data for name, data in self._labels.sboms.items()}
        return {
            f"{self._info}/METADATA": self._metadata(),
            f"{self._info}/WHEEL": self._wheel(),
            **sboms,
        }

    def _copied(self, texts: Mapping[str, bytes]) -> dict[str, str]:
        """Say for every member that is taken over what it is called, and was."""
        found: dict[str, str] = {}
        for name in self._source.members:
            top, slash, rest = name.partition("/")
            new = self._directories.get(top, top) + slash + rest
            if top == self._source.info and rest in SIGNATURES:
                self._notes.append(f"The signature {rest} is left out: it was over the wheel as it was.")
            elif new in texts or (top == self._source.info and rest == "RECORD"):
                if "/sboms/" in new:
                    self._notes.append(f"{rest} of the source gave way to the one that was made here.")
            elif new in found:
                raise self._source.unsound(f"{found[new]} and {name} would both be {new}")
            else:
                found[new] = name
        return found

    def _metadata(self) -> bytes:
        headers = Headers.parse(self._source.read("METADATA"))
        name, version = self._one(headers, "Name"), self._one(headers, "Version")
        if canonicalize_name(name) != self._source.name:
            raise self._source.unsound(f"its metadata is of {name}")
        try:
            own = Version(version)
        except InvalidVersion:
            raise self._source.unsound(f"the version {version!r} of its metadata is none") from None
        if own != self._source.version:
            raise self._source.unsound(f"its metadata says version {version}")
        if own.public != self._version.public:
            self._notes.append(f"The source calls itself {version}; it is labelled as {self._version}.")
        headers = headers.with_values("Version", [str(self._version)])
        requires = pinned(headers.values("Requires-Dist"), self._labels.pins, self._labels.loosening)
        self._changes = requires.changes
        if requires.added:
            headers = _able_to_require(headers)
        return headers.edited("Requires-Dist", requires.kept, requires.added).render()

    def _wheel(self) -> bytes:
        headers = Headers.parse(self._source.read("WHEEL"))
        said = self._one(headers, "Wheel-Version")
        if said.partition(".")[0] != "1":
            raise self._source.unsound(f"it is of wheel format {said}; 1 is known")
        number = self._labels.build_number
        headers = headers.with_values("Build", [] if number is None else [str(number)])
        return headers.with_values("Tag", self._tags).render()

    def _one(self, headers: Headers, name: str) -> str:
        found = headers.values(name)
        if len(found) != 1 or not found[0]:
            raise self._source.unsound(f"its metadata has {len(found) or 'no'} {name}")
        return found[0]


def _able_to_require(headers: Headers) -> Headers:
    """Raise a core metadata version that is too old for ``Requires-Dist``."""
    said = headers.values("Metadata-Version")
    old = said and said[0].split(".") < _OLDEST_WITH_REQUIRES.split(".")
    return headers.with_values("Metadata-Version", [_OLDEST_WITH_REQUIRES]) if old else headers


def _same(directory: str, info: str) -> bool:
    """Tell whether a ``.data`` directory belongs to a ``.dist-info`` one; backends may spell them apart."""
    stem, other = directory.removesuffix(".data"), info.removesuffix(".dist-info")
    return canonicalize_name(stem) == canonicalize_name(other)


def _entry(name: str, info: zipfile.ZipInfo) -> Entry:
    """Take over what is known of a member; of its permissions only what installers look at."""
    executable = bool(info.external_attr >> 16 & 0o111)
    return Entry(name, info.compress_type, info.CRC, info.file_size, info.compress_size, executable)


def _recorded(name: str, data: bytes) -> tuple[str, str, str]:
    return name, as_recorded(hashlib.sha256(data).digest()), str(len(data))


def _record(rows: Iterable[tuple[str, str, str]]) -> bytes:
    """Write RECORD (PEP 376, PEP 427)."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
