"""The contents of a wheel, and the values to compare them with."""

from __future__ import annotations

import fnmatch
import re
from email.parser import BytesHeaderParser
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from builders.audit.elf import Budget, read_object
from builders.audit.gpu_code import (
    ARCHITECTURES,
    ARCHIVE,
    CodeObject,
    code_object_name,
    read_archive,
    read_code_objects,
)
from builders.audit.platform_tags import ROCM_LIBRARIES
from builders.findings import Finding
from builders.wheels.wheel import DamagedError

if TYPE_CHECKING:
    import zipfile
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from email.message import Message

    from packaging.tags import Tag

    from builders.audit.elf import SharedObject
    from builders.audit.runtime_libraries import LibraryProvider, TorchLibraries
    from builders.wheels.wheel import Content, WheelReader
    from resolver.facts.schema import Recipe

BARE_OBJECT = (".hsaco", ".co")
"""Suffixes of GPU code objects in separate files, as in aiter and triton."""
SEPARATE_CODE = (*BARE_OBJECT, ARCHIVE)
"""Suffixes of all files that have GPU code outside of shared objects."""
OP_TABLE = "git_version_info_installed.py"
"""File in which the builds of DeepSpeed and Apex record the ops that they compiled."""
SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")
VARIANT = re.compile(
    r"[-_./](?P<device>cuda|rocm|hip|xpu|gpu|cpu|cu(?=\d))(?P<line>\d*)(?=[-_./])", re.IGNORECASE
)
"""The part of a path that tells the variants of an object for several devices or ROCm releases apart."""
OTHER_BACKENDS = (
    "libcu*.so*", "libnv*.so*", "libnccl.so*", "libsycl.so*", "libze_loader.so*", "libmkl_sycl*.so*",
)  # fmt: skip
"""Libraries of CUDA and of Intel GPUs."""
_END_OF_HEADERS = re.compile(rb"\r?\n\r?\n")
_LARGEST_TABLE = 1 << 14  # bytes of an op table; that of DeepSpeed has 1 kB
_MOST_TABLES = 10  # a wheel has one
_LARGEST_HEADERS = 1 << 18  # bytes


class Expected(msgspec.Struct, frozen=True):
    """The values to compare a wheel with; missing values are not compared."""

    architectures: tuple[str, ...] = ()
    """GPU architectures that it must contain code for."""
    recipe: Recipe | None = None
    torch: TorchLibraries | None = None
    """The torch that it will run with."""
    providers: tuple[LibraryProvider, ...] = ()
    """The base image, and the conda environment if there is one, that it will run in."""
    python: str = ""
    """Prefix of the Python that built it; some put their library directory into every RPATH."""
    cpu: str = ""
    """The oldest CPU that it must run on, as ``-march`` names it."""
    no_others: bool = False
    """Whether code for other architectures is an error, as in our own builds."""


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


def loaded_variants(contents: Contents, expected: Expected) -> Contents:
    """Return the contents without the objects in whose place another variant is loaded.

    Some packages have a library for each device and each ROCm release, and load one of them
    (bitsandbytes: ``libbitsandbytes_rocm70.so``). The others matter only if none of them is for the target.
    """
    torch = expected.torch
    rocm = torch.rocm if torch else ""
    is_rocm = bool(rocm or expected.architectures)
    foreign: tuple[str, ...] = OTHER_BACKENDS
    if torch and torch.version and not is_rocm:
        foreign = (*foreign, *ROCM_LIBRARIES)
    linked = {name for item in contents.objects for name in item.needed}
    groups: dict[str, list[tuple[str, SharedObject]]] = {}
    for item in contents.objects:
        match = VARIANT.search(item.path)
        if match and not linked & {PurePosixPath(item.path).name, item.soname}:
            line = match["line"] if match["device"].lower() in {"rocm", "hip"} else ""
            without = f"{item.path[: match.start()]}*{item.path[match.end() :]}"
            groups.setdefault(without, []).append((line, item))
    number = "".join(rocm.split(".")[:2])
    skipped: set[str] = set()
    for group in groups.values():
        kept = [(line, item) for line, item in group if not _is_foreign(item, foreign)]
        lines = {line for line, _ in kept if line}
        # bitsandbytes loads the library for torch's ROCm, else one for the same major release.
        fitting = lines & {number} or {line for line in lines if number and line[0] == number[0]} or lines
        kept = [(line, item) for line, item in kept if line in fitting or not (line or (fitting and is_rocm))]
        if kept:
            skipped |= {item.path for _, item in group} - {item.path for _, item in kept}
    if not skipped:
        return contents
    code = {path: objects for path, objects in contents.code.items() if path not in skipped}
    objects = tuple(item for item in contents.objects if item.path not in skipped)
    return replace(contents, objects=objects, code=code)


def _is_foreign(item: SharedObject, libraries: Sequence[str]) -> bool:
    needs = any(matches_any(name, libraries) for name in item.needed)
    return needs or (item.has_cuda_code and item.gpu_section is None)


def read_contents(
    file: str, wheel: WheelReader, selected: Callable[[zipfile.ZipInfo], bool] | None = None
) -> tuple[Contents, list[Finding]]:
    """Read a wheel; damaged members are findings.

    Members that `selected` selects are read only as far as necessary, and not hashed; without it, all are
    read.
    """
    objects = Objects(wheel.size)
    metadata = {f"{wheel.dist_info}/{name}": name for name in ("METADATA", "WHEEL", "RECORD")}
    too_large = {
        name: member.file_size
        for name in metadata.values()
        if (member := wheel.metadata_member(name)) and member.file_size > wheel.largest(name)
    }
    digests: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    for info in wheel.members:
        path = info.filename
        if info.is_dir() or (selected is not None and not selected(info)):
            continue
        try:
            if SHARED_OBJECT.search(path) or path.endswith(SEPARATE_CODE):
                digest = _read_code(wheel, info, objects, partly=selected is not None)
            else:
                digest = wheel.sha256(info) if selected is None else b""
                _read_text(wheel, info, metadata.get(path, ""), texts, too_large)
        except DamagedError as error:
            objects.damaged("member-damaged", path, str(error))
            continue
        if digest:
            digests[path] = digest
    contents = Contents(
        file,
        wheel.name,
        str(wheel.version),
        wheel.tags,
        wheel.members,
        tuple(wheel.dist_infos),
        wheel.dist_info,
        too_large,
        digests,
        texts,
        tuple(objects.objects),
        objects.code,
    )
    return contents, objects.findings


def _read_code(wheel: WheelReader, info: zipfile.ZipInfo, objects: Objects, *, partly: bool) -> bytes:
    """Read a shared object or a file with GPU code; return its SHA-256, empty if it is read only in part."""
    read = objects.read_object if SHARED_OBJECT.search(info.filename) else objects.read_bare_object
    if partly:
        with wheel.partly(info) as part:
            read(info.filename, part)
        return b""
    with wheel.unpacked(info) as (data, digest):
        read(info.filename, data)
    return digest


def _read_text(
    wheel: WheelReader,
    info: zipfile.ZipInfo,
    metadata: str,
    texts: dict[str, bytes],
    too_large: dict[str, int],
) -> None:
    """Read METADATA, WHEEL or RECORD (`metadata` is its name), or an op table; leave out other files."""
    if metadata and info.file_size <= wheel.largest(metadata):
        data = wheel.read(info)
        if metadata != "RECORD" and len(_END_OF_HEADERS.split(data, 1)[0]) > _LARGEST_HEADERS:
            too_large[metadata] = len(data)
        else:
            texts[metadata] = data
        return
    is_table = info.filename.rpartition("/")[2] == OP_TABLE and info.file_size <= _LARGEST_TABLE
    if is_table and len(texts) < _MOST_TABLES:
        texts[info.filename] = wheel.read(info)


class Objects:
    """The shared objects and GPU code objects that were read, and the problems of reading them."""

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
        code, problems = read_code_objects(path, data, *shared_object.gpu_section, self.budget)
        self.code[path] = tuple(code)
        self.findings += problems

    def read_bare_object(self, path: str, data: Content) -> None:
        """Read GPU code in a file of its own; leave out a file of another kind."""
        if path.endswith(ARCHIVE):
            try:
                code, problems = read_archive(path, data, self.budget)
            except DamagedError as error:
                self.damaged("kpack-damaged", path, f"cannot be read: {error}")
                return
            self.code[path] = tuple(code)
            self.findings += problems
            return
        name = code_object_name(data)
        if name is not None and name.partition(":")[0] in ARCHITECTURES.values():
            architecture, *features = name.split(":")
            self.code[path] = (CodeObject(architecture, tuple(features), 0, len(data)),)

    def damaged(self, name: str, path: str, text: str) -> None:
        """Report a file that cannot be read."""
        fix = "Download or build the wheel again."
        self.findings.append(Finding(name, "error", f"{path} {text}.", fix, {"member": path}))
