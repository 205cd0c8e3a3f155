"""Comparing a wheel with what its recipe promises, and the platform tag it deserves."""

from __future__ import annotations

import fnmatch
import io
import platform
import re
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from builders.audit.elf import SharedObject, read_object
from builders.audit.findings import Finding
from builders.audit.members import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from resolver.facts.schema import Recipe

SHARED_OBJECT = re.compile(r"\.so(\.\d+)*$")
MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}

TORCH_PROVIDES = ("libc10*.so*", "libtorch*.so*")
"""Libraries that come with the pinned torch and are loaded before the extension."""


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
        members = [name for name in archive.namelist() if SHARED_OBJECT.search(name)]
        for name in members:
            try:
                objects.append(_read_object(name, archive.read(name)))
            except _OtherMachineError as error:
                text = f"{name} is {error}."
                findings.append(Finding("other-machine", "error", text, "Build on the target's CPU."))
            except (DamagedError, zipfile.BadZipFile) as error:
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
    found = read_object(name, io.BytesIO(data))
    wanted = MACHINES.get(platform.machine())
    if wanted and found.machine != wanted:
        msg = f"for {found.machine}, not for {platform.machine()}"
        raise _OtherMachineError(msg)
    return found
