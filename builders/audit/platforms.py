"""Platform tags: what one promises, and which one a wheel deserves."""

from __future__ import annotations

import platform
import re
from functools import cache
from typing import TYPE_CHECKING

from builders.audit.elf import version_key
from builders.audit.promises import ROCM_LIBRARIES, TORCH_PROVIDES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from auditwheel.policy import Policy

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
_NUMBER = re.compile(r"\d+(?:\.\d+)*")
_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_PLATFORM = re.compile(r"(?P<kind>manylinux\d*|linux|musllinux)(?:_(?P<glibc>\d+_\d+))?_(?P<machine>.+)")


def promised_glibc(platform: str) -> str:
    """Give the glibc that a platform tag promises to run on; empty when it promises none.

    Examples
    --------
    >>> promised_glibc("manylinux_2_28_x86_64"), promised_glibc("manylinux2014_x86_64")
    ('2.28', '2.17')
    >>> promised_glibc("linux_x86_64")
    ''
    """
    said = _PLATFORM.fullmatch(platform)
    if not said or not said["kind"].startswith("manylinux"):
        return ""
    return (said["glibc"] or "").replace("_", ".") or _LEGACY.get(said["kind"], "")


def promised_versions(platform: str) -> Mapping[str, str]:
    """Give the newest symbol version of each family that a platform tag promises to run on.

    auditwheel's policies say which libstdc++ and libgcc the systems with some glibc have; where none is
    of the glibc promised, it is the next older one. Nothing is known of a glibc newer than all of them.

    Examples
    --------
    >>> promised_versions("manylinux_2_28_x86_64")["GLIBCXX"]
    '3.4.24'
    >>> promised_versions("linux_x86_64")
    {}
    """
    glibc = promised_glibc(platform)
    known = {
        version_key(said): one
        for one in policies(machine_of_tag(platform))
        if (said := promised_glibc(one.name))
    }
    fitting = [key for key in known if glibc and key <= version_key(glibc)]
    if not fitting or version_key(glibc) > max(known):
        return {}
    return {
        family: max(numbers, key=version_key)
        for family, versions in known[max(fitting)].symbol_versions.items()
        if (numbers := [one for one in versions if _NUMBER.fullmatch(one)])
    }


@cache
def policies(machine: str) -> tuple[Policy, ...]:
    """Give auditwheel's policies for systems with glibc; none for a machine that it does not know."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    if machine not in {one.value for one in Architecture}:
        return ()
    return tuple(WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine)))


def machine_of_tag(platform_tag: str) -> str:
    """Give the machine of a platform tag for Linux, such as ``x86_64``; empty for another tag."""
    said = _PLATFORM.fullmatch(platform_tag)
    return said["machine"] if said else ""


def platform_tag(wheel: Path) -> str:
    """Find the platform tag a wheel deserves, by the symbol versions that its objects need.

    auditwheel knows the policies. What torch and ROCm provide counts as given. A wheel without compiled
    code keeps ``any``.
    """
    from auditwheel.error import NonPlatformWheelError
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    given = frozenset([*TORCH_PROVIDES, *ROCM_LIBRARIES])
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
