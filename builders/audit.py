"""Judging a wheel by what is in it: an exit code proves nothing.

DeepSpeed's build ends well with no ops at all when torch is not found, and Apex's with shims that
import. Each ``check_*`` function below gives typed findings; the same list feeds the terminal, the
JSON and the provenance.
"""

from __future__ import annotations

import fnmatch
import io
import platform
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from resolver.facts.schema import Recipe

Severity = Literal["error", "info"]

_SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}

TORCH_PROVIDES = ("libc10*.so*", "libtorch*.so*")
"""Libraries that come with the pinned torch and are loaded before the extension."""


class AuditError(MatrixError):
    """A wheel does not hold what it promises."""

    id: ClassVar[str] = "audit"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found in a wheel."""

    id: str
    severity: Severity
    text: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """A shared object in a wheel."""

    path: str
    needed: tuple[str, ...]
    """Libraries it names as NEEDED."""
    extension: bool = False
    """Whether it is a Python extension, which has a function ``PyInit_...``."""


@dataclass(frozen=True, slots=True)
class Audit:
    """What a wheel holds, and what is wrong with it."""

    platform_tag: str
    """The honest platform tag: the oldest glibc policy that it meets, or the plain one."""
    objects: tuple[SharedObject, ...] = ()
    findings: tuple[Finding, ...] = field(default=())

    @property
    def errors(self) -> list[Finding]:
        """The findings for which the wheel must not be published."""
        return [one for one in self.findings if one.severity == "error"]


def audit(wheel: Path, recipe: Recipe) -> Audit:
    """Compare a wheel with what its recipe promises.

    Parameters
    ----------
    wheel
        The wheel file; it is read, not unpacked.
    recipe
        Says what must be inside.

    Returns
    -------
    Audit
        With the shared objects, the platform tag and all findings.
    """
    findings: list[Finding] = []
    objects: list[SharedObject] = []
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if _SHARED_OBJECT.search(name)]
        for name in members:
            try:
                objects.append(_read_object(name, archive.read(name)))
            except _OtherMachineError as error:
                text = f"{name} is {error}."
                findings.append(Finding("other-machine", "error", text, "Build on the target's CPU."))
            except Exception as error:  # noqa: BLE001  a damaged file breaks the parser anywhere
                text = f"{name} is no shared object: {error}."
                findings.append(Finding("not-elf", "error", text, "Look at the build's log."))
    findings += check_contents([one.path for one in objects], recipe)
    tag = platform_tag(wheel) if len(objects) == len(members) else plain_platform()
    return Audit(tag, tuple(objects), tuple(findings))


def check_contents(objects: Sequence[str], recipe: Recipe) -> Iterator[Finding]:
    """See that every shared object that the recipe promises is there.

    Yields
    ------
    Finding
        ``object-found`` for each promise kept, ``object-missing`` for each broken one.
    """
    for promised in recipe.must_contain:
        found = [name for name in objects if fnmatch.fnmatchcase(name, promised)]
        if found:
            yield Finding("object-found", "info", f"holds {', '.join(found)}")
        else:
            held = f"it holds {', '.join(objects)}" if objects else "it holds no shared object at all"
            yield Finding(
                "object-missing",
                "error",
                f"{promised} is not in the wheel; {held}.",
                "The build chose not to compile it; its log says why.",
            )


def platform_tag(wheel: Path) -> str:
    """Find the platform tag a wheel deserves, by the symbol versions that its objects need.

    auditwheel knows the policies. What torch provides counts as given. A wheel without compiled
    code keeps ``any``.
    """
    from auditwheel.error import NonPlatformWheelError  # noqa: PLC0415  imports slowly
    from auditwheel.libc import Libc  # noqa: PLC0415
    from auditwheel.wheel_abi import analyze_wheel_abi  # noqa: PLC0415

    given = frozenset(TORCH_PROVIDES)
    try:
        report = analyze_wheel_abi(
            Libc.GLIBC, None, wheel, given, disable_isa_ext_check=True, allow_graft=False
        )
    except NonPlatformWheelError:
        return "any"
    except RuntimeError:  # shared objects where only Python belongs: no policy is met
        return plain_platform()
    return str(report.overall_policy.name)


def plain_platform() -> str:
    """Give the platform tag that promises nothing about glibc."""
    return f"linux_{platform.machine()}"


class _OtherMachineError(Exception):
    """A shared object is for another CPU."""


def _read_object(name: str, data: bytes) -> SharedObject:
    elf = ELFFile(io.BytesIO(data))
    wanted = _MACHINES.get(platform.machine())
    if wanted and elf["e_machine"] != wanted:
        msg = f"for {elf['e_machine']}, not for {platform.machine()}"
        raise _OtherMachineError(msg)
    needed = [
        str(tag.needed)  # type: ignore[attr-defined]  # pyelftools sets it by the tag's name
        for section in elf.iter_sections()
        if isinstance(section, DynamicSection)
        for tag in section.iter_tags("DT_NEEDED")
    ]
    symbols = elf.get_section_by_name(".dynsym")
    extension = isinstance(symbols, SymbolTableSection) and any(
        symbol.name.startswith("PyInit_") and symbol["st_shndx"] != "SHN_UNDEF"
        for symbol in symbols.iter_symbols()
    )
    return SharedObject(name, tuple(needed), extension)
