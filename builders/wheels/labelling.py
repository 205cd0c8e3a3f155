"""Label a built wheel: write its version, tags, requirements and SBOMs into its name and metadata.

An extension is compiled against one torch: another minor release, or the same release for another ROCm, has
different symbols. So the metadata requires ``torch==2.9.1+rocm6.4`` whatever the source requires, and pip
rejects any other torch. The pin is metadata only: uv can override it, and pip skips it with ``--no-deps``.

Aliases are wheels that only require another distribution, which has the same modules.
"""

from __future__ import annotations

import zipfile
from collections import deque
from email.parser import HeaderParser
from typing import TYPE_CHECKING

import msgspec
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from builders.storage.files import temporary_sibling
from builders.wheels.wheel import (
    DamagedError,
    NewMember,
    WheelReader,
    check_written,
    write_wheel,
)
from resolver.errors import MatrixError
from resolver.requirements import TRITON_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.requirements import Requirement

    from resolver.model import Distribution, Resolution


"""``exact``: the pin includes the local label; ``release``: any build of that release fits (PEP 440:
``==2.9.1`` also accepts ``2.9.1+rocm6.4``); ``none``: the requirements of the source stay."""

_CUDA_PREFIX = "nvidia-"  # of CUDA's packages, which no wheel for AMD GPUs may require
_FIRST_WITH_REQUIRES = "1.2"  # the core metadata version that introduced Requires-Dist
_SIGNATURES = ("RECORD.jws", "RECORD.p7s")


class Pin(msgspec.Struct, frozen=True):
    """A distribution that is required in an exact version, with its local label."""

    name: str
    version: str
    replaces: tuple[str, ...] = ()
    """Distributions with the same modules: requirements on them become requirements on this distribution."""
    always: bool = False
    """Whether to require it even if the source does not: Apex does not require torch."""


class RequirementChange(msgspec.Struct, frozen=True):
    """A difference between the requirements of the source and of the wheel; empty if added or removed."""

    before: str
    after: str
    why: str


class Labels(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata to write into a wheel."""

    version: str
    """With its label, such as ``0.19.8+cpu.torch2.13.0``."""
    platform: str
    """Platform tag from an audit, such as ``manylinux_2_35_x86_64``; ``any`` for a pure wheel."""
    build_number: int | None = None
    """Build tag (PEP 427) that distinguishes a rebuild from the previous wheel."""
    pins: tuple[Pin, ...] = ()
    """Distributions to require in the version that the wheel was built against (`runtime_pins`)."""
    sboms: Mapping[str, bytes] = {}
    """The content of each document in ``.dist-info/sboms`` (PEP 770), by file name."""


class Labelled(msgspec.Struct, frozen=True):
    """A labelled wheel, and how it differs from its source."""

    path: Path
    dropped_local: str
    """Local version label of the source, such as ``git.e37ed12``; empty if it had none."""
    requirements: tuple[RequirementChange, ...]
    notes: tuple[str, ...]
    """Other differences, in sentences."""


def runtime_pins(
    torch: str, others: Mapping[str, str] | None = None, *, add_torch: bool = True
) -> tuple[Pin, ...]:
    """Return the pins of a wheel that was built against a torch, a version with its local label (or empty).

    `others` are versions, by name, of other distributions that must be the same at run time: those in the
    recipe's `match_runtime`, and torch's triton (by its name for this torch, such as
    ``pytorch-triton-rocm``). `add_torch` is whether to require torch even if the source does not.

    >>> [f"{pin.name} {pin.version}" for pin in runtime_pins("2.9.1+rocm6.4", {"numpy": "2.1.0"})]
    ['torch 2.9.1+rocm6.4', 'numpy 2.1.0']
    """
    pins = [Pin("torch", torch, always=add_torch)] if torch else []
    for key, version in (others or {}).items():
        name = canonicalize_name(key)
        if name != "torch":
            replaces = tuple(other for other in TRITON_NAMES if other != name) if name in TRITON_NAMES else ()
            pins.append(Pin(name, version, replaces))
    return tuple(pins)


def pin_requirements(
    requirements: Sequence[str], pins: Iterable[Pin]
) -> tuple[tuple[str, ...], tuple[RequirementChange, ...]]:
    """Pin the requirements of a wheel, with extras and markers, and drop those on CUDA distributions."""
    pins = tuple(pins)
    by_name = {name: pin for pin in reversed(pins) for name in (pin.name, *pin.replaces)}
    written: list[str] = []
    changes: list[RequirementChange] = []
    unconditional: set[str] = set()
    for text in requirements:
        after, why = _pin(text, by_name)
        if why:
            changes.append(RequirementChange(text, after, why))
        if after and not (why and after in written):
            written.append(after)
        requirement = _parse(after)
        if requirement is not None and requirement.marker is None:
            unconditional.add(canonicalize_name(requirement.name))
    why = "built against it, although the source does not declare it"
    for pin in pins:
        if pin.always and pin.name not in unconditional:
            written.append(f"{pin.name}=={Version(pin.version)}")
            changes.append(RequirementChange("", written[-1], why))
    return tuple(written), tuple(changes)


def _pin(text: str, pins: Mapping[str, Pin]) -> tuple[str, str]:
    """Return the requirement after pinning, and the reason; no reason if it is unchanged."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    requirement = _parse(text)
    if requirement is None:
        return text, ""
    name = canonicalize_name(requirement.name)
    if name.startswith(_CUDA_PREFIX):
        return "", "for NVIDIA GPUs"
    pin = pins.get(name)
    if pin is None:
        return text, ""
    version = str(Version(pin.version))
    pinned = Requirement(requirement.name if name == pin.name else pin.name)
    pinned.extras, pinned.marker = requirement.extras, requirement.marker
    pinned.specifier = SpecifierSet(f"=={version}")
    if str(pinned) == str(requirement):
        return text, ""
    if name != pin.name:
        why = f"{pin.name} has the same modules and belongs to this torch"
    elif requirement.url or not requirement.specifier.contains(version, prereleases=True):
        why = "built against it, although the source requires another version"
    else:
        why = "built against it"
    return str(pinned), why


def _parse(text: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def label_wheel(raw: Path, labels: Labels, directory: Path) -> Labelled:
    """Write a copy of a wheel with other labels; a damaged wheel leaves no file.

    The audit has accepted the wheel, so its names, its metadata and the hashes in its RECORD are not judged
    again. Members are copied as the build backend compressed them. Apart from that, the bytes depend only on
    the content and the labels, not on when, where, or in which order the backend packed the wheel.
    """
    try:
        with WheelReader(raw) as wheel:
            return _Relabelling(wheel, raw.name, labels).write(directory)
    except DamagedError as error:
        msg = f"{raw.name} is not a valid wheel: {error}."
        raise MatrixError(msg, hint=f"Build it again. The file is {raw}.", id="bad-wheel") from None


class _Relabelling:
    """Relabel one wheel."""

    def __init__(self, wheel: WheelReader, file: str, labels: Labels) -> None:
        self._wheel, self._labels = wheel, labels
        self._members = {info.filename: info for info in wheel.members if not info.is_dir()}
        self._version = Version(labels.version)
        self._stem = f"{wheel.name.replace('-', '_')}-{self._version}"
        self._info = f"{self._stem}.dist-info"
        python, abi, _ = file.removesuffix(".whl").split("-")[-3:]
        # A wheel without compiled code needs no ABI.
        tag = f"{python}-{'none' if labels.platform == 'any' else abi}-{labels.platform}".lower()
        number = "" if labels.build_number is None else f"-{labels.build_number}"
        self._file = f"{self._stem}{number}-{tag}.whl"
        self._tags = sorted(map(str, parse_tag(tag)))
        self._notes: list[str] = []
        self._changes: tuple[RequirementChange, ...] = ()

    def write(self, directory: Path) -> Labelled:
        target = directory / self._file
        members = self._new_members()
        with temporary_sibling(target) as temporary:
            write_wheel(temporary, members, self._info)
            temporary.replace(target)  # what publishes it flushes its copy
        check_written(target)
        return Labelled(target, self._wheel.version.local or "", self._changes, tuple(self._notes))

    def _new_members(self) -> dict[str, NewMember]:
        build = [] if self._labels.build_number is None else [str(self._labels.build_number)]
        tags = {"Build": build, "Tag": self._tags}
        texts = {
            f"{self._info}/METADATA": self._metadata(),
            f"{self._info}/WHEEL": edit_headers(self._wheel.text("WHEEL"), tags),
            **{f"{self._info}/sboms/{name}": data for name, data in self._labels.sboms.items()},
        }
        members = {name: NewMember(len(data), [data]) for name, data in texts.items()}
        sources: dict[str, str] = {}
        for name, info in self._members.items():
            top, slash, rest = name.partition("/")
            new = self._renamed(top) + slash + rest
            if top == self._wheel.dist_info and rest in _SIGNATURES:
                self._notes.append(f"The signature {rest} was removed: it is not valid for the new wheel.")
            elif new in texts or (top == self._wheel.dist_info and rest == "RECORD"):
                if "/sboms/" in new:
                    self._notes.append(f"{rest} of the source was replaced.")
            elif new in sources:
                raise DamagedError(f"{sources[new]} and {name} would both be renamed to {new}")
            else:
                sources[new] = name
                executable = bool(info.external_attr >> 16 & 0o111)
                deflated = deque[bytes]() if info.compress_type == zipfile.ZIP_DEFLATED else None
                chunks = self._wheel.chunks(info, deflated)
                members[new] = NewMember(info.file_size, chunks, executable, deflated)
        return members

    def _renamed(self, top: str) -> str:
        if top == self._wheel.dist_info:
            return self._info
        own = canonicalize_name(self._wheel.dist_info.removesuffix(".dist-info"))
        if top.endswith(".data") and canonicalize_name(top.removesuffix(".data")) == own:
            return f"{self._stem}.data"
        return top

    def _metadata(self) -> bytes:
        text = self._wheel.text("METADATA")
        headers = _headers(text)
        own = Version(headers["version"][0])
        if own.public != self._version.public:
            self._notes.append(f"The source has version {own}; the wheel gets version {self._version}.")
        old = headers.get("requires-dist", [])
        pinned, self._changes = pin_requirements(old, self._labels.pins)
        changes = {"Version": [str(self._version)], "Requires-Dist": list(pinned)}
        format_version = "".join(headers.get("metadata-version", [])[:1])
        if len(pinned) > len(old) and format_version < _FIRST_WITH_REQUIRES:
            changes["Metadata-Version"] = [_FIRST_WITH_REQUIRES]
        return edit_headers(text, changes)


def _headers(text: bytes) -> dict[str, list[str]]:
    """Return the headers of METADATA, with names in lower case and folded lines joined."""
    headers: dict[str, list[str]] = {}
    for name, value in HeaderParser().parsestr(text.decode("latin-1")).items():
        joined = " ".join(line.strip() for line in value.splitlines())
        headers.setdefault(name.lower(), []).append(
            joined.encode("latin-1").decode("utf-8", "surrogateescape").strip()
        )
    return headers


def edit_headers(text: bytes, changes: Mapping[str, Sequence[str]]) -> bytes:
    """Replace headers in METADATA or WHEEL; an empty list removes them, and new names are appended.

    Other headers and the description do not change: Latin-1 keeps every byte, so nothing is re-encoded.
    """
    message = HeaderParser().parsestr(text.decode("latin-1"))
    pending = {
        name.lower(): [(name, value.encode("utf-8", "surrogateescape").decode("latin-1")) for value in values]
        for name, values in changes.items()
    }
    changed = set(pending)
    headers: list[tuple[str, str]] = []
    for name, value in message.items():
        headers += pending.pop(name.lower(), []) if name.lower() in changed else [(name, value)]
    headers += [header for rest in pending.values() for header in rest]
    lines = "".join(f"{name}: {value}\n" for name, value in headers)
    return f"{lines}\n{message.get_payload()}".encode("latin-1")


def alias_requirement(pick: Distribution, resolution: Resolution) -> str:
    """Return the only requirement of an alias: the distribution it stands for, pinned if the lock has it."""
    own = resolution.pick(pick.alias_of)
    return f"{pick.alias_of}=={own.pinned}" if own else pick.alias_of


def write_alias(
    pick: Distribution, resolution: Resolution, directory: Path, *, build_number: int | None = None
) -> Path:
    """Write the wheel of an alias, and return its path. Its bytes depend only on the arguments."""
    stem = f"{pick.name.replace('-', '_')}-{pick.pinned}"
    info = f"{stem}.dist-info"
    torch = resolution.pick("torch")
    summary = f"Alias of {pick.alias_of}" + (f", the triton of {torch}" if torch else "")
    metadata = (
        f"Metadata-Version: 2.1\nName: {pick.name}\nVersion: {pick.pinned}\n"
        f"Summary: {summary}. It contains nothing but this requirement.\n"
        f"Requires-Dist: {alias_requirement(pick, resolution)}\n"
    )
    build = "" if build_number is None else f"Build: {build_number}\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: rocm-matrix\nRoot-Is-Purelib: true\n{build}Tag: py3-none-any\n"
    texts = {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    number = "" if build_number is None else f"-{build_number}"
    path = directory / f"{stem}{number}-py3-none-any.whl"
    write_wheel(path, {name: NewMember(len(data), [data]) for name, data in texts.items()}, info)
    check_written(path)
    return path
