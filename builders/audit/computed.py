"""Libraries whose names are computed when they are loaded, so that no NEEDED entry tells of them.

bitsandbytes loads ``libbitsandbytes_rocmXY.so`` by the ROCm of the torch that runs. Rules as read in
``bitsandbytes/cextension.py`` and ``cuda_specs.py`` of the wheels 0.49.2 and 0.50.2 on PyPI: up to
0.49 XY is ten times major plus minor (8.2 and 7.12 are the same); from 0.50 on major and minor one
after the other, and where that one is missing, another of the same major with a warning.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from packaging.version import Version

from builders.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builders.audit.contents import Contents, Expected

_FIRST_WITH_RULE = Version("0.47")
_FIRST_WITH_FALLBACK = Version("0.50")
_LIBRARY = re.compile(r"libbitsandbytes_rocm(\d)(\d+)\.so")


def bitsandbytes_library(version: str, rocm: str) -> str:
    """Give the library that a release of bitsandbytes asks for.

    Parameters
    ----------
    version
        The release, 0.47 or newer.
    rocm
        ROCm of the torch that runs: major and minor, such as ``7.2``.

    Examples
    --------
    >>> bitsandbytes_library("0.49.2", "7.2"), bitsandbytes_library("0.49.2", "7.14")
    ('libbitsandbytes_rocm72.so', 'libbitsandbytes_rocm84.so')
    >>> bitsandbytes_library("0.50.0", "7.14")
    'libbitsandbytes_rocm714.so'
    """
    major, minor = (int(part) for part in rocm.split(".")[:2])
    fallback = Version(version) >= _FIRST_WITH_FALLBACK
    return f"libbitsandbytes_rocm{f'{major}{minor}' if fallback else major * 10 + minor}.so"


def check_computed_names(contents: Contents, expected: Expected) -> Iterator[Finding]:
    """See that the library which bitsandbytes will ask for beside this torch is in the wheel."""
    rocm = expected.torch.rocm if expected.torch else ""
    version = Version(contents.version)
    if contents.name != "bitsandbytes" or not rocm or version < _FIRST_WITH_RULE:
        return
    held = {PurePosixPath(one.path).name for one in contents.objects}
    wanted = bitsandbytes_library(contents.version, rocm)
    if wanted in held:
        return
    there = sorted(name for name in held if _LIBRARY.fullmatch(name))
    listed = ", ".join(there) or "none for ROCm"
    text = f"With torch's ROCm {rocm}, bitsandbytes asks for {wanted}, which is not there; it holds {listed}."
    where = {"library": wanted}
    major = rocm.partition(".")[0]
    near = [name for name in there if (said := _LIBRARY.fullmatch(name)) and said[1] == major]
    if version >= _FIRST_WITH_FALLBACK and near:
        cure = "It takes another library of the same major version; build the wheel for this ROCm to be sure."
        yield Finding("computed-name-missing", "warning", text, cure, where)
    else:
        cure = "Build it with the ROCm that torch was built for, or give its ROCm version to the build."
        yield Finding("computed-name-missing", "error", text, cure, where)
