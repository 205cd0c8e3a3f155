"""The contents of a wheel, and the values to compare them with."""

from __future__ import annotations

import fnmatch
import re
from email.parser import BytesHeaderParser
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builders.audit.elf import Budget, read_object
from builders.audit.gpu_code import ARCHITECTURES, CodeObject, code_object_name, read_code_objects
from builders.audit.kpack import ARCHIVE, read_archive
from builders.findings import Finding
from builders.wheels.wheel import DamagedError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from email.message import Message

    from packaging.tags import Tag

    from builders.audit.elf import SharedObject
    from builders.audit.gpu_code import CodeProblem
    from builders.audit.runtime_libraries import LibraryProvider, TorchLibraries
    from builders.findings import Severity
    from builders.wheels.wheel import Content, WheelReader
    from resolver.facts.schema import Recipe

BARE_OBJECT = (".hsaco", ".co")
"""Suffixes of GPU code objects in separate files, as in aiter and triton."""
SEPARATE_CODE = (*BARE_OBJECT, ARCHIVE)
"""Suffixes of all files that have GPU code outside of shared objects."""
OP_TABLE = "git_version_info_installed.py"
"""File in which the builds of DeepSpeed and Apex record the ops that they compiled."""
SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_LARGEST_TABLE = 1 << 14  # bytes of an op table; that of DeepSpeed has 1 kB
_MOST_TABLES = 10  # a wheel has one
_LARGEST_HEADERS = 1 << 18  # bytes
_HARMLESS: Mapping[str, tuple[Severity, str]] = {
    "bundle-not-read": ("warning", "Its GPU architectures are not known."),
    "names-only": ("info", ""),
}
"""Problems in GPU code that do not mean that the code is damaged."""


class Expected(msgspec.Struct, frozen=True):
    """The values to compare a wheel with; missing values are not compared."""

    architectures: tuple[str, ...] = ()
    """GPU architectures that it must contain code for: all of these."""
    recipe: Recipe | None = None
    torch: TorchLibraries | None = None
    """The torch that it will run with."""
    providers: tuple[LibraryProvider, ...] = ()
    """The base image, and the conda environment if there is one, that it will run in."""
    python: str = ""
    """Prefix of the Python that it was built with. Some builds of Python put their own library directory into
    the RPATH of every extension."""
    no_others: bool = False
    """Whether code for other architectures is an error, as in our own builds. Published wheels have many."""


class Contents(msgspec.Struct, frozen=True):
    """The contents of a wheel, as far as they were read."""

    file: str
    name: str
    version: str
    tags: tuple[Tag, ...]
    """From the file name."""
    members: tuple[zipfile.ZipInfo, ...]
    dist_infos: tuple[str, ...]
    """All ``.dist-info`` directories."""
    dist_info: str
    """The directory that METADATA, WHEEL and RECORD are read from; empty if there is none."""
    too_large: Mapping[str, int]
    """Sizes in bytes of METADATA, WHEEL or RECORD, if larger than in any real wheel."""
    digests: Mapping[str, bytes] = {}
    """SHA-256 of the content of each member."""
    texts: Mapping[str, bytes] = {}
    """Content of ``METADATA``, ``WHEEL``, ``RECORD`` and the members called `OP_TABLE`."""
    objects: tuple[SharedObject, ...] = ()
    code: Mapping[str, tuple[CodeObject, ...]] = {}
    """GPU code objects of each member."""

    @property
    def architectures(self) -> list[str]:
        """The GPU architectures in the wheel, with their features."""
        return sorted({code.name for objects in self.code.values() for code in objects})

    def header(self, text: str, name: str) -> list[str]:
        """Return all values of a header of METADATA or WHEEL."""
        return [str(value).strip() for value in _headers(self.texts.get(text, b"")).get_all(name, [])]

    def requirements(self) -> list[Requirement]:
        """Return the requirements that apply without extras, except invalid ones, which pip reports."""
        return list(_requirements(self.texts.get("METADATA", b"")))


@lru_cache(maxsize=4)
def _requirements(metadata: bytes) -> tuple[Requirement, ...]:
    requirements = []
    texts = dict.fromkeys(str(value).strip() for value in _headers(metadata).get_all("Requires-Dist", []))
    for text in texts:
        try:
            requirement = Requirement(text)
        except (InvalidRequirement, RecursionError):  # the latter: brackets that are too deeply nested
            continue
        if "extra" not in str(requirement.marker or ""):
            requirement.name = canonicalize_name(requirement.name)
            requirements.append(requirement)
    return tuple(requirements)


@lru_cache(maxsize=4)
def _headers(text: bytes) -> Message:
    return BytesHeaderParser().parsebytes(text)


def first_of(paths: Sequence[str]) -> str:
    """Return the first path and the number of others, for a message."""
    return paths[0] if len(paths) == 1 else f"{paths[0]} (and {len(paths) - 1} more)"


def matches_any(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches any of the glob patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def read_contents(
    file: str, wheel: WheelReader, selected: Callable[[zipfile.ZipInfo], bool] | None = None
) -> tuple[Contents, list[Finding]]:
    """Read a wheel; damaged members are reported as findings.

    The members that `selected` selects are read only as far as necessary, and are not hashed. Without it, all
    members are read.
    """
    reading = _WheelReading(wheel, partly=selected is not None)
    for info in wheel.members:
        if not info.is_dir() and (selected is None or selected(info)):
            reading.read(info)
    contents = Contents(
        file,
        wheel.name,
        str(wheel.version),
        wheel.tags,
        wheel.members,
        tuple(wheel.dist_infos),
        wheel.dist_info,
        reading.too_large,
        reading.digests,
        reading.texts,
        tuple(reading.objects),
        reading.code,
    )
    return contents, reading.findings


class Objects:
    """The shared objects and GPU code objects that were read, and the problems of reading them.

    `size` is that of all of them together in bytes; it limits the work.
    """

    def __init__(self, size: int) -> None:
        self.budget = Budget(size)
        self.findings: list[Finding] = []
        self.objects: list[SharedObject] = []
        self.code: dict[str, tuple[CodeObject, ...]] = {}

    def read_object(self, path: str, data: Content) -> None:
        """Read a shared object with its GPU code."""
        try:
            shared_object = read_object(path, data, self.budget)
        except DamagedError as error:
            self.damaged("not-elf", path, f"is not a valid shared object: {error}")
            return
        self.objects.append(shared_object)
        if shared_object.gpu_section is None:
            return
        code, problems = read_code_objects(data, *shared_object.gpu_section, self.budget)
        self.code[path] = tuple(code)
        self._problems(path, problems, {"section": ".hip_fatbin"})

    def _problems(self, path: str, problems: Iterable[CodeProblem], place: Mapping[str, str]) -> None:
        for problem in problems:
            evidence = {"member": path, **place, "offset": str(problem.offset)}
            severity, fix = _HARMLESS.get(problem.id, ("error", "Build the wheel again."))
            text = f"In the GPU code of {path}, {problem.text}."
            self.findings.append(Finding(problem.id, severity, text, fix, evidence))

    def read_bare_object(self, path: str, data: Content) -> None:
        """Read GPU code in a file of its own; leave out a file of another kind."""
        if path.endswith(ARCHIVE):
            try:
                code, problems = read_archive(data, self.budget)
            except DamagedError as error:
                self.damaged("kpack-damaged", path, f"cannot be read: {error}")
                return
            self.code[path] = tuple(code)
            self._problems(path, problems, {})
            return
        name = code_object_name(data)
        if name is not None and name.partition(":")[0] in ARCHITECTURES.values():
            architecture, *features = name.split(":")
            self.code[path] = (CodeObject(architecture, tuple(features), 0, len(data)),)

    def damaged(self, name: str, path: str, text: str) -> None:
        """Report a file that cannot be read."""
        fix = "Download or build the wheel again."
        self.findings.append(Finding(name, "error", f"{path} {text}.", fix, {"member": path}))


class _WheelReading(Objects):
    """Read one wheel, member by member."""

    def __init__(self, wheel: WheelReader, *, partly: bool) -> None:
        super().__init__(wheel.size)
        self._wheel = wheel
        self._partly = partly
        self.digests: dict[str, bytes] = {}
        self.texts: dict[str, bytes] = {}
        self._metadata = {f"{wheel.dist_info}/{name}": name for name in ("METADATA", "WHEEL", "RECORD")}
        self.too_large = {
            name: member.file_size
            for name in self._metadata.values()
            if (member := wheel.metadata_member(name)) and member.file_size > wheel.largest(name)
        }

    def read(self, info: zipfile.ZipInfo) -> None:
        path, name = info.filename, info.filename.rpartition("/")[2]
        is_object = SHARED_OBJECT.search(path)
        text = self._metadata.get(path, "")
        try:
            if self._partly and (is_object or name.endswith(SEPARATE_CODE)):
                with self._wheel.partly(info) as part:
                    self.read_object(path, part) if is_object else self.read_bare_object(path, part)
                return
            if is_object or name.endswith(SEPARATE_CODE):
                with self._wheel.unpacked(info) as (data, digest):
                    self.digests[path] = digest
                    self.read_object(path, data) if is_object else self.read_bare_object(path, data)
                return
            if not self._partly:
                self.digests[path] = self._wheel.sha256(info)
            if text and info.file_size <= self._wheel.largest(text):
                self._text(text, self._wheel.read(info))
            elif name == OP_TABLE and len(self.texts) < _MOST_TABLES and info.file_size <= _LARGEST_TABLE:
                self.texts[path] = self._wheel.read(info)
        except DamagedError as error:
            self.damaged("member-damaged", path, str(error))

    def _text(self, name: str, data: bytes) -> None:
        if name != "RECORD" and len(_END_OF_HEADERS.split(data, 1)[0]) > _LARGEST_HEADERS:
            self.too_large[name] = len(data)
        else:
            self.texts[name] = data
