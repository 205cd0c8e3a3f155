"""Platform tags (PEP 600): the symbol versions that a tag promises, and the tag that a wheel earns."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.audit.elf import version_key
from resolver.versions import sort_key

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from auditwheel.policy import Policy


MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
TORCH_LIBRARIES = ("libc10*.so*", "libtorch*.so*")
"""Libraries that come with torch and are loaded before the extension."""
ROCM_LIBRARIES = (
    "libamdhip64.so*", "libamd_comgr.so*", "libhip*.so*", "libhsa-runtime64.so*", "libMIOpen*.so*",
    "libroc*.so*", "librccl.so*",
)  # fmt: skip
"""Libraries of ROCm that come with torch's ROCm wheel or the base image."""
CUDA_LIBRARIES = (
    "libc10_cuda.so*", "libcaffe2_nvrtc.so*", "libcublas*.so*", "libcuda.so*", "libcudart.so*",
    "libcudf*.so*", "libcudla.so*", "libcudnn*.so*", "libcudss*.so*", "libcufft*.so*", "libcufile*.so*",
    "libcugraph*.so*", "libcuml*.so*", "libcupti.so*", "libcurand.so*", "libcusolver*.so*",
    "libcusparse*.so*", "libcustatevec*.so*", "libcutensor*.so*", "libcuvs*.so*", "libkvikio.so*",
    "libnccl*.so*", "libnppi*.so*", "libnppc*.so*", "libnvToolsExt.so*", "libnvcomp*.so*", "libnvcuvid.so*",
    "libnvidia-*.so*", "libnvinfer*.so*", "libnvJitLink.so*", "libnvjpeg*.so*", "libnvonnxparser.so*",
    "libnvrtc*.so*", "libnvshmem*.so*", "librmm.so*", "libtorch_cuda*.so*",
)  # fmt: skip
"""Libraries of CUDA, of NVIDIA's packages for it, and of torch for CUDA."""
_NUMBER = re.compile(r"\d+(?:\.\d+)*")

_LEGACY = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}
_PLATFORM = re.compile(r"(?P<kind>manylinux\d*|linux|musllinux)(?:_(?P<glibc>\d+_\d+))?_(?P<machine>.+)")


def promised_glibc(platform_tag: str) -> str:
    """Return the oldest glibc that a platform tag promises to run on; empty if there is no promise.

    >>> [promised_glibc(tag) for tag in ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "linux_x86_64")]
    ['2.28', '2.17', '']
    """
    match = _PLATFORM.fullmatch(platform_tag)
    if not match or not match["kind"].startswith("manylinux"):
        return ""
    return (match["glibc"] or "").replace("_", ".") or _LEGACY.get(match["kind"], "")


def machine_of_tag(platform_tag: str) -> str:
    """Return the machine of a platform tag for Linux, such as ``x86_64``; empty for other tags."""
    match = _PLATFORM.fullmatch(platform_tag)
    return match["machine"] if match else ""


def required_glibc(filename: str) -> str:
    """Return the oldest glibc with which pip accepts a wheel; empty if any will do, or the name is invalid.

    >>> required_glibc("apex-1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl")
    '2.17'
    >>> required_glibc("six-1.17.0-py2.py3-none-any.whl")
    ''
    """
    try:
        tags = parse_wheel_filename(filename)[3]
    except InvalidWheelFilename:
        return ""
    required = [promised_glibc(tag.platform) for tag in tags]
    return min(required, key=sort_key) if all(required) else ""


def too_new_glibc(filenames: Iterable[str], glibc: str) -> str:
    """Return the glibc that wheels require if none runs with `glibc`; empty if one does, or it is unknown."""
    required = [required_glibc(name) for name in filenames]
    if not glibc or not required or not all(required):
        return ""
    lowest = min(required, key=sort_key)
    return lowest if sort_key(lowest) > sort_key(glibc) else ""


def promised_versions(platform_tag: str) -> Mapping[str, str]:
    """Return the newest symbol version of each family on the systems that a platform tag promises.

    auditwheel's policies list the versions of libstdc++ and libgcc for each glibc; between two policies, the
    older one applies. The result is empty if the promised glibc is newer than all policies.

    >>> promised_versions("manylinux_2_28_x86_64")["GLIBCXX"], promised_versions("linux_x86_64")
    ('3.4.24', {})
    """
    glibc = promised_glibc(platform_tag)
    known = {
        version_key(version): policy
        for policy in policies(machine_of_tag(platform_tag))
        if (version := promised_glibc(policy.name))
    }
    fitting = [key for key in known if glibc and key <= version_key(glibc)]
    if not fitting or version_key(glibc) > max(known):
        return {}
    return {
        family: max(numbers, key=version_key)
        for family, versions in known[max(fitting)].symbol_versions.items()
        if (numbers := [version for version in versions if _NUMBER.fullmatch(version)])
    }


@cache
def policies(machine: str) -> tuple[Policy, ...]:
    """Return auditwheel's policies for systems with glibc; none for an unknown machine."""
    from auditwheel.architecture import Architecture
    from auditwheel.libc import Libc
    from auditwheel.policy import WheelPolicies

    if machine not in {architecture.value for architecture in Architecture}:
        return ()
    return tuple(WheelPolicies(libc=Libc.GLIBC, arch=Architecture(machine)))


@cache
def libraries_of_system() -> frozenset[str]:
    """Return the libraries that some platform tag lets a wheel expect of every system."""
    return frozenset().union(*(policy.whitelist for policy in policies("x86_64")))


def platform_tag(wheel: Path) -> str:
    """Return the platform tag that a wheel qualifies for by auditwheel's policies, or ``any``.

    Libraries of torch and ROCm count as present.
    """
    from auditwheel.error import NonPlatformWheelError
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    excluded = frozenset([*TORCH_LIBRARIES, *ROCM_LIBRARIES])
    try:
        report = analyze_wheel_abi(
            Libc.GLIBC, None, wheel, excluded, disable_isa_ext_check=True, allow_graft=False
        )
    except NonPlatformWheelError:
        return "any"
    except RuntimeError:  # shared objects in the directory for pure Python: no policy is met
        return plain_platform()
    return str(report.overall_policy.name)


def plain_platform() -> str:
    """Return the platform tag that promises nothing about glibc."""
    return f"linux_{platform.machine()}"
