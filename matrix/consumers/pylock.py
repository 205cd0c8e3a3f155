"""A lock as ``pylock.toml`` (PEP 751), which uv and other installers read.

The specification lets an installer resolve nothing: it installs the files that are named, and every
file has a place and a hash. So what is built must be in the index, and what is published must be found
on its index page; nothing is named without a hash. The file names what the lock decides. What the lock
leaves to pip is not in it, and it says so itself.

Specification: https://packaging.python.org/en/latest/specifications/pylock-toml/
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import quote

from builders.files import sha256_of
from resolver.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from packaging.pylock import Package, PackageWheel

    from builders.index import Index
    from builders.published import File
    from resolver.model import Distribution, Resolution

    Find = Callable[[str, str, str], list[File]]
    """Project, version and index URL (empty: pip's own) to the wheels that are published."""

_HEAD = (
    "# Written by `matrix env --for pylock`. It names what matrix.lock decides and nothing else: what these\n\
# distributions need besides is left to pip or uv, and is not in here.\n"
)


def pylock(lock: Resolution, index: Index, find: Find, *, beside: Path, index_url: str = "") -> str:
    """Write a lock as ``pylock.toml``.

    Parameters
    ----------
    lock
        The resolution.
    index
        The directory with the wheels that were built.
    find
        Looks up what is published.
    beside
        The directory in which the file will stand: paths of wheels are relative to it.
    index_url
        URL at which the index is served; then wheels are named by URL.

    Returns
    -------
    str
        TOML text, validated.

    Raises
    ------
    UsageError
        The lock has no Python.
    MatrixError
        A wheel is missing from the index, or a published one is not found or has no hash.
    """
    import tomli_w
    from packaging.markers import Marker
    from packaging.pylock import Pylock
    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    python = lock.target.python
    if not python:
        msg = "The lock has no Python version."
        raise UsageError(msg, hint="Resolve with --python 3.12 (or another).")
    picks = [pick for pick in lock.picks if pick.kind == "distribution" and pick.origin != "preinstalled"]
    missing = [pick for pick in picks if pick.origin == "build" and not built_wheels(index, pick)]
    if missing:
        names = ", ".join(f"{pick.name} {pick.pinned}" for pick in missing)
        msg = f"pylock.toml names files with their hashes, and the index {index.root} lacks {names}."
        raise MatrixError(msg, hint="matrix build-wheels makes them.")
    packages = [
        _built(pick, index, beside, index_url) if pick.origin == "build" else _published(pick, find)
        for pick in sorted(picks, key=lambda pick: pick.name)
    ]
    made = Pylock(
        lock_version=Version("1.0"),
        environments=[Marker("sys_platform == 'linux' and platform_machine == 'x86_64'")],
        requires_python=SpecifierSet(f"=={python}.*"),
        created_by="matrix",
        packages=packages,
        tool={"matrix": _about(lock)},
    )
    made.validate()
    return _HEAD + tomli_w.dumps({key: _plain(value) for key, value in made.to_dict().items()})


def left_out(lock: Resolution) -> str:
    """Say what is not in the file."""
    kept = sorted(pick.name for pick in lock.picks if _is_kept(pick))
    said = (
        "pylock.toml names what matrix decided. What these distributions need besides (such as sympy for "
        "torch) is not in it: after installing, `pip check` names it."
    )
    return f"{said} Not in it either, because the base image holds them: {', '.join(kept)}." if kept else said


def _is_kept(pick: Distribution) -> bool:
    return pick.origin == "preinstalled"


def _about(lock: Resolution) -> dict[str, object]:
    """Say in the file's own table what it was made for."""
    target = lock.target
    image = {"base-image": target.base_image} if target.base_image else {}
    kept = {"kept": [f"{pick.name}=={pick.version}" for pick in lock.picks if _is_kept(pick)]}
    return {
        "site": target.site,
        "date": target.date,
        "backend": target.backend,
        **({"gfx": list(target.gfx)} if target.gfx else {}),
        **image,
        **(kept if kept["kept"] else {}),
        "complete": False,
    }


def built_wheels(index: Index, pick: Distribution) -> list[Path]:
    """Give the wheels of a pick that the index has."""
    from packaging.utils import parse_wheel_filename

    return [
        path for path in index.wheels(pick.name) if str(parse_wheel_filename(path.name)[1]) == pick.pinned
    ]


def _built(pick: Distribution, index: Index, beside: Path, index_url: str) -> Package:
    from packaging.pylock import PackageWheel

    wheels = []
    for path in built_wheels(index, pick):
        url = f"{index_url.rstrip('/')}/{pick.name}/{quote(path.name)}" if index_url else None
        runtime = None if url else _relative(path, beside)
        hashes = {"sha256": sha256_of(path)}
        wheels.append(
            PackageWheel(name=path.name, url=url, path=runtime, size=path.stat().st_size, hashes=hashes)
        )
    return _package(pick, wheels)


def _relative(path: Path, beside: Path) -> str:
    return os.path.relpath(path, beside).replace(os.sep, "/")


def _published(pick: Distribution, find: Find) -> Package:
    from packaging.pylock import PackageWheel

    files = find(pick.name, pick.version, pick.index)
    if pick.wheel is not None:
        files = [one for one in files if one.name == pick.wheel.file]
        wrong = [one for one in files if one.hashes.get("sha256", pick.wheel.sha256) != pick.wheel.sha256]
        if wrong:
            msg = f"{pick.wheel.file} on the index is not the file of the lock: its sha256 is another."
            raise MatrixError(msg, hint="Look at that file before you trust its origin again.")
    usable = [one for one in files if one.hashes]
    if not usable:
        what = "no hash for" if files else "no wheel of"
        msg = f"The index has {what} {pick.name} {pick.version}, and pylock.toml names nothing without one."
        raise MatrixError(msg, hint="matrix env --for cotainr needs no hashes.")
    wheels = [PackageWheel(name=one.name, url=one.url, hashes=dict(one.hashes)) for one in usable]
    return _package(pick, wheels, index=usable[0].index)


def _package(pick: Distribution, wheels: Sequence[PackageWheel], index: str | None = None) -> Package:
    from packaging.pylock import Package
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    return Package(
        name=canonicalize_name(pick.name), version=Version(pick.pinned), index=index, wheels=list(wheels)
    )


def _plain(value: object) -> object:
    """Give plain dictionaries and lists, as tomli_w writes them."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if one is not None}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
