"""The local version label of a wheel that we build, such as ``rocm6.4.torch2.9.1.gfx90a``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from packaging.version import Version

from resolver.versions import minor


def wheel_label(*, backend: str, torch: str = "", rocm: str = "", gfx: Sequence[str] = ()) -> str:
    """Return the local version label of a wheel.

    Parameters
    ----------
    backend
        ``rocm`` or ``cpu``.
    torch
        Version of the torch it was built against; its own local label is ignored. Empty if the environment
        has no torch.
    rocm
        ROCm version of the base image; the label contains major.minor. Empty if the environment has none.
    gfx
        GPU architectures that the wheel has code for.

    Returns
    -------
    str
        Lower case, parts joined by dots. This is the normal form of PEP 440, so pip and uv compare
        exactly this text.

    Examples
    --------
    >>> wheel_label(backend="rocm", torch="2.5.1+rocm6.2", rocm="6.2.3", gfx=["gfx90a"])
    'rocm6.2.torch2.5.1.gfx90a'
    >>> wheel_label(backend="cpu", torch="2.13.0+cpu")
    'cpu.torch2.13.0'
    >>> wheel_label(backend="cpu")
    'cpu.notorch'
    """
    parts = [
        f"rocm{minor(rocm)}" if backend == "rocm" and rocm else backend,
        f"torch{Version(torch).public}" if torch else "notorch",
    ]
    return ".".join([*parts, *gfx]).lower()


def labelled(version: str, label: str) -> str:
    """Return a version with its local part replaced by the label.

    Examples
    --------
    >>> labelled("0.19.8", "cpu.torch2.13.0"), labelled("1.9.0+git.e37ed12", "cpu.torch2.9.1")
    ('0.19.8+cpu.torch2.13.0', '1.9.0+cpu.torch2.9.1')
    """
    return f"{Version(version).public}+{label}"


class BuiltFor(NamedTuple):
    """The versions and GPU architectures in the label of a wheel."""

    backend: str
    rocm: str
    """Empty for the CPU backend, and if it was built without ROCm."""
    torch: str
    """Empty if it was built without torch."""
    gfx: tuple[str, ...]


_LABEL = re.compile(
    r"(?:(?P<is_rocm>rocm)(?P<rocm>[\d.]*)|cpu)\.(?:torch(?P<torch>[^+]+?)|notorch)(?P<gfx>(?:\.gfx[^.]+)*)"
)


def built_for(version: str) -> BuiltFor | None:
    """Return the content of a version's local label; None if the label is not ours.

    Examples
    --------
    >>> built_for("1.9.0+rocm6.4.torch2.9.1.gfx90a.gfx942")
    BuiltFor(backend='rocm', rocm='6.4', torch='2.9.1', gfx=('gfx90a', 'gfx942'))
    >>> built_for("0.19.8+cpu.torch2.13.0")
    BuiltFor(backend='cpu', rocm='', torch='2.13.0', gfx=())
    >>> built_for("4.0+rocm.notorch.gfx90a")
    BuiltFor(backend='rocm', rocm='', torch='', gfx=('gfx90a',))
    >>> built_for("2.9.1+rocm6.4") is None
    True
    """
    match = _LABEL.fullmatch(Version(version).local or "") if "+" in version else None
    if match is None:
        return None
    backend = "rocm" if match["is_rocm"] else "cpu"
    return BuiltFor(backend, match["rocm"] or "", match["torch"] or "", tuple(match["gfx"].split(".")[1:]))


def names_torch(version: str) -> bool:
    """Return whether a version's local label contains the version of torch that the wheel was built for.

    Examples
    --------
    >>> names_torch("1.9.0+rocm6.4.torch2.9.1.gfx90a"), names_torch("2.9.1+rocm6.4"), names_torch("1.0")
    (True, False, False)
    """
    return re.search(r"(?:^|\.)torch\d", Version(version).local or "") is not None
