"""Auditing any wheel, with a recipe or without: read it once, then judge what was read.

Reading gives a `Contents`; what `checks` finds in it is added to what was damaged.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.audit import checks
from builders.audit.codeobjects import MACHINES, CodeObject, machine_of, read_code_objects
from builders.audit.contents import BARE_OBJECT, NOTHING, Contents, Expected
from builders.audit.elf import SharedObject, read_object
from builders.audit.findings import Finding, Severity
from builders.audit.members import DamagedError, Member, check_sizes
from builders.audit.promises import SHARED_OBJECT, check_contents
from resolver.errors import UsageError

if TYPE_CHECKING:
    import io
    from collections.abc import Mapping
    from pathlib import Path


_PROBLEMS: Mapping[str, tuple[Severity, str]] = {
    "bundle-not-read": ("warning", "Which targets it holds is not known."),
    "names-only": ("info", ""),
}
"""Problems of GPU code that are no damage, with what to say."""
_LARGEST_TEXT = 1 << 26  # a RECORD of a wheel with 100 000 files has some 10 MB


@dataclass(frozen=True, slots=True)
class WheelAudit:
    """A wheel, what it holds, and what was found."""

    contents: Contents
    sha256: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Literal["sound", "defective"]:
        """``defective`` if any finding is an error."""
        return "defective" if any(one.severity == "error" for one in self.findings) else "sound"


def audit_wheel(path: Path, expected: Expected = NOTHING) -> WheelAudit:
    """Read a wheel and judge it.

    Parameters
    ----------
    path
        The wheel file; nothing of it is unpacked to disk.
    expected
        What it is compared with besides itself.

    Raises
    ------
    UsageError
        The file cannot be read, or is no wheel.
    """
    found: list[Finding] = []
    contents = read_wheel(path, found)
    for check in checks.ALL:
        found += check(contents, expected)
    if expected.recipe is not None:
        found += check_contents([one.path for one in contents.objects], expected.recipe)
    order = ("error", "warning", "info")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return WheelAudit(contents, digest, tuple(sorted(found, key=lambda one: order.index(one.severity))))


def read_wheel(path: Path, found: list[Finding]) -> Contents:
    """Read a wheel; what is damaged in it is added to the findings.

    Raises
    ------
    UsageError
        The file cannot be read, or is no wheel.
    """
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename:
        msg = f"{path.name} is not the name of a wheel."
        raise UsageError(msg, hint="Wheels are called NAME-VERSION-PYTHON-ABI-PLATFORM.whl.") from None
    empty = Contents(path.name, name, str(version), tuple(sorted(tags, key=str)))
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            check_sizes(archive, path.stat().st_size)
            return _Reading(file, empty, found).read(archive)
    except (zipfile.BadZipFile, DamagedError, NotImplementedError, UnicodeDecodeError) as error:
        msg = f"{path} is no sound wheel: {error}."
        raise UsageError(msg, hint="It may be cut short; fetch or build it again.") from None
    except OSError as error:
        msg = f"Cannot read {path}: {error.strerror or error}."
        raise UsageError(msg) from None


class _Reading:
    """The reading of one wheel, member by member."""

    def __init__(self, file: io.BufferedReader, empty: Contents, found: list[Finding]) -> None:
        self._file, self._empty, self._found = file, empty, found
        self._digests: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._objects: list[SharedObject] = []
        self._code: dict[str, tuple[CodeObject, ...]] = {}

    def read(self, archive: zipfile.ZipFile) -> Contents:
        members = archive.infolist()
        for info in members:
            if not info.is_dir():
                self._member(info)
        return replace(
            self._empty,
            members=tuple(members),
            digests=self._digests,
            texts=self._texts,
            objects=tuple(self._objects),
            code=self._code,
        )

    def _member(self, info: zipfile.ZipInfo) -> None:
        try:
            member = Member(self._file, info)
        except DamagedError as error:
            self._say("member-damaged", info.filename, f"{error}")
            return
        self._digests[info.filename] = member.sha256
        folder, _, name = info.filename.rpartition("/")
        if folder.endswith(".dist-info") and "/" not in folder and name in {"METADATA", "WHEEL", "RECORD"}:
            self._texts[name] = member.read(_LARGEST_TEXT)
        elif SHARED_OBJECT.search(info.filename):
            self._object(info.filename, member)
        elif name.endswith(BARE_OBJECT):
            self._bare(info.filename, member)

    def _object(self, path: str, member: Member) -> None:
        try:
            one = read_object(path, cast("BinaryIO", member))
        except DamagedError as error:
            self._say("not-elf", path, f"is no sound shared object: {error}")
            return
        self._objects.append(one)
        if one.fatbin is None:
            return
        code, problems = read_code_objects(cast("BinaryIO", member), *one.fatbin)
        self._code[path] = tuple(code)
        for problem in problems:
            evidence = {"member": path, "section": ".hip_fatbin", "offset": str(problem.offset)}
            severity, cure = _PROBLEMS.get(problem.id, ("error", "Build it again."))
            text = f"In the GPU code of {path}, {problem.text}."
            self._found.append(Finding(problem.id, severity, text, cure, evidence))

    def _bare(self, path: str, member: Member) -> None:
        """Read a code object that stands in a file of its own, as aiter's and triton's do."""
        said = machine_of(member.read(64))
        if said is not None and said.partition(":")[0] in MACHINES.values():
            target, *features = said.split(":")
            self._code[path] = (CodeObject(target, tuple(features), 0, member.size),)

    def _say(self, name: str, path: str, text: str) -> None:
        cure = "Fetch or build the wheel again."
        self._found.append(Finding(name, "error", f"{path} {text}.", cure, {"member": path}))
