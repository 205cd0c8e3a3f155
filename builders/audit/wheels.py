"""Auditing any wheel, with a recipe or without: read it once, then judge what was read.

Reading gives a `Contents`; what the checks find in it is added to what was damaged.
"""

from __future__ import annotations

import errno
import hashlib
import stat
import zipfile
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, BinaryIO, Literal, cast

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.audit import checks, gpu, needs
from builders.audit.codeobjects import MACHINES, CodeObject, machine_of
from builders.audit.computed import check_computed_names
from builders.audit.contents import (
    BARE_OBJECT,
    LARGEST_METADATA,
    NOTHING,
    OP_TABLE,
    Contents,
    Expected,
    dist_infos,
    is_dist_info_of,
    largest_record,
)
from builders.audit.directory import DamagedError, check_directory, check_sizes
from builders.audit.elf import SharedObject, read_object
from builders.audit.fatbin import Seen, read_code_objects, watch_bundles
from builders.audit.members import Member, Passing
from builders.audit.optable import check_op_table
from builders.audit.platforms import platform_tag
from builders.audit.promises import SHARED_OBJECT, check_contents
from builders.findings import SEVERITIES, Finding, Severity, limited
from resolver.errors import UsageError

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from builders.audit.symbols import Symbols

CHECKS: tuple[Callable[[Contents, Expected], Iterator[Finding]], ...] = (
    checks.check_members,
    checks.check_dist_info,
    checks.check_record,
    checks.check_metadata,
    checks.check_tags,
    needs.check_versions,
    needs.check_needs,
    needs.check_symbols,
    needs.check_bundled,
    needs.check_search_paths,
    gpu.check_targets,
    gpu.check_label,
    check_op_table,
    check_computed_names,
    checks.check_requirements,
)
"""Every check, in the order in which findings of one severity are told."""
_PROBLEMS: Mapping[str, tuple[Severity, str]] = {
    "bundle-not-read": ("warning", "Which targets it holds is not known."),
    "names-only": ("info", ""),
}
"""Problems of GPU code that are no damage, with what to say."""
_LARGEST_TABLE = 1 << 16  # DeepSpeed's has 1 kB
_MOST_TABLES = 100  # a wheel has one


@dataclass(frozen=True)
class WheelAudit:
    """A wheel, what it holds, and what was found."""

    contents: Contents
    sha256: str
    findings: tuple[Finding, ...]
    path: Path = field(repr=False)

    @property
    def verdict(self) -> Literal["sound", "defective"]:
        """``defective`` if any finding is an error."""
        return "defective" if self.errors else "sound"

    @property
    def errors(self) -> list[Finding]:
        """The findings for which the wheel must not be published."""
        return [one for one in self.findings if one.severity == "error"]

    @property
    def objects(self) -> tuple[SharedObject, ...]:
        """The shared objects in it."""
        return self.contents.objects

    @cached_property
    def platform_tag(self) -> str:
        """The honest platform tag: the oldest glibc policy that it meets, or the plain one.

        auditwheel finds it when it is first asked for; it unpacks the wheel for that.
        """
        return platform_tag(self.path)


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
    _refuse_special(path)
    damaged: list[Finding] = []
    with ThreadPoolExecutor(1) as helper:
        digest = helper.submit(_digest, path)
        contents = read_wheel(path, damaged)
        found = limited(damaged)
        for check in CHECKS:
            found += limited(check(contents, expected))
    if expected.recipe is not None:
        found += check_contents([one.path for one in contents.objects], expected.recipe)
    findings = tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))
    return WheelAudit(contents, digest.result(), findings, path)


def _refuse_special(path: Path) -> None:
    """Refuse a named pipe or device before it is opened: to open a pipe waits until somebody writes."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # the reading has words for it
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        msg = f"{path} is no regular file: a wheel is read from any place, and a pipe or device is not."
        raise UsageError(msg, hint="Write it to a file first.")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
        with path.open("rb") as file, ThreadPoolExecutor(1) as helper:
            size = path.stat().st_size
            check_directory(file, size)
            with zipfile.ZipFile(file) as archive:
                check_sizes(archive, size)
                return _Reading(file, empty, found, helper).read(archive)
    except (zipfile.BadZipFile, DamagedError, NotImplementedError, ValueError, OverflowError) as error:
        raise _unsound(path, str(error)) from None
    except OSError as error:
        if error.errno == errno.EINVAL:  # a place before the file's beginning
            raise _unsound(path, "its directory points to a place outside it") from None
        msg = f"Cannot read {path}: {error.strerror or error}."
        raise UsageError(msg) from None


def _unsound(path: Path, why: str) -> UsageError:
    msg = f"{path} is no sound wheel: {why}."
    return UsageError(msg, hint="It may be cut short; fetch or build it again.")


class _Reading:
    """The reading of one wheel, member by member."""

    def __init__(
        self, file: io.BufferedReader, empty: Contents, found: list[Finding], helper: Executor
    ) -> None:
        self._file, self._empty, self._found, self._helper = file, empty, found, helper
        self._digests: dict[str, bytes] = {}
        self._texts: dict[str, bytes] = {}
        self._objects: list[SharedObject] = []
        self._symbols: dict[str, Symbols] = {}
        self._code: dict[str, tuple[CodeObject, ...]] = {}
        self._wanted: dict[str, tuple[str, int]] = {}

    def read(self, archive: zipfile.ZipFile) -> Contents:
        members = archive.infolist()
        there, name, version = dist_infos(members), self._empty.name, self._empty.version
        called_so = [one for one in there if is_dist_info_of(one, name, version)]
        dist_info = next(iter(called_so + there), "")
        most = {"METADATA": LARGEST_METADATA, "WHEEL": LARGEST_METADATA, "RECORD": largest_record(members)}
        self._wanted = {f"{dist_info}/{text}": (text, size) for text, size in most.items()}
        for info in members:
            if not info.is_dir():
                self._member(info)
        return replace(
            self._empty,
            members=tuple(members),
            dist_info=dist_info,
            digests=self._digests,
            texts=self._texts,
            objects=tuple(self._objects),
            symbols=self._symbols,
            code=self._code,
        )

    def _member(self, info: zipfile.ZipInfo) -> None:
        seen: dict[int, Seen] = {}
        shared = SHARED_OBJECT.search(info.filename)

        def watch(passing: Passing) -> None:
            seen.update(watch_bundles(passing))

        try:
            member = Member(self._file, info, helper=self._helper, watch=watch if shared else None)
        except DamagedError as error:
            self._say("member-damaged", info.filename, f"{error}")
            return
        self._digests[info.filename] = member.sha256
        name = info.filename.rpartition("/")[2]
        if info.filename in self._wanted:
            text, most = self._wanted[info.filename]
            if member.size <= most:  # else the check of it says so
                self._texts[text] = member.read()
        elif name == OP_TABLE and len(self._texts) < _MOST_TABLES:
            self._texts[info.filename] = member.read(_LARGEST_TABLE)
        elif shared:
            self._object(info.filename, member, seen)
        elif name.endswith(BARE_OBJECT):
            self._bare(info.filename, member)

    def _object(self, path: str, member: Member, seen: Mapping[int, Seen]) -> None:
        try:
            one, symbols = read_object(path, cast("BinaryIO", member))
        except DamagedError as error:
            self._say("not-elf", path, f"is no sound shared object: {error}")
            return
        self._objects.append(one)
        self._symbols[path] = symbols
        if one.fatbin is None:
            return
        code, problems = read_code_objects(cast("BinaryIO", member), *one.fatbin, seen)
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
