"""Wheels that only require another distribution, which installs the same modules under another name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.wheels.wheel import NewMember, check_written, write_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from resolver.model import Distribution, Resolution


def alias_requirement(pick: Distribution, resolution: Resolution) -> str:
    """Return the only requirement of an alias: the distribution it stands for, pinned if the lock has it."""
    own = resolution.pick(pick.alias_of)
    return f"{pick.alias_of}=={own.pinned}" if own else pick.alias_of


def write_alias(
    pick: Distribution, resolution: Resolution, directory: Path, *, build_number: int | None = None
) -> Path:
    """Write the wheel of an alias, and return its path. Its bytes depend only on the arguments.

    `build_number` is the build tag (PEP 427), if the index has another wheel of this version.
    """
    stem = f"{pick.name.replace('-', '_')}-{pick.pinned}"
    info = f"{stem}.dist-info"
    torch = resolution.pick("torch")
    summary = f"Alias of {pick.alias_of}" + (f", the triton of {torch}" if torch else "")
    metadata = (
        f"Metadata-Version: 2.1\nName: {pick.name}\nVersion: {pick.pinned}\n"
        f"Summary: {summary}. It contains nothing but this requirement.\n"
        f"Requires-Dist: {alias_requirement(pick, resolution)}\n"
    )
    build = "" if build_number is None else f"Build: {build_number}\n"
    wheel = f"Wheel-Version: 1.0\nGenerator: rocm-matrix\nRoot-Is-Purelib: true\n{build}Tag: py3-none-any\n"
    texts = {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}
    number = "" if build_number is None else f"-{build_number}"
    path = directory / f"{stem}{number}-py3-none-any.whl"
    write_wheel(path, {name: NewMember(len(data), [data]) for name, data in texts.items()}, info)
    check_written(path)
    return path
