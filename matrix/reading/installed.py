"""Read what is installed: environments (venv, conda, tykky), images, wheels and directories of wheels.

Nothing of it is executed, except that a script lists an image in an isolated container if unsquashfs is not
installed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.containers.files import how_read
from builders.containers.image import find_image, form_of
from builders.containers.inspection import inspect_image
from builders.installed.reading import read_installed
from builders.probe.environment import INSTALLERS
from builders.storage.files import cache_root
from matrix.reading.items import Item, Reading, Unread
from resolver.errors import UsageError

_IMAGES = {".sif", ".sqsh", ".squashfs", ".tar"}


def is_environment(path: Path) -> bool:
    """Return whether a path is a directory or an image, and not a file that describes an environment."""
    return path.is_dir() or path.suffix in _IMAGES


def recognises(path: Path) -> bool:
    """Return whether a path is installed, or a wheel."""
    return is_environment(path) or (path.suffix == ".whl" and path.is_file())


def read(path: Path) -> Reading:
    """Read a directory, an image or a wheel."""
    if path.is_file() and path.suffix == ".whl":
        return Reading(kind="wheel", name=str(path), items=[_of_wheel(path.name)])
    wheels = sorted(path.glob("*.whl")) if path.is_dir() and not _is_prefix(path) else []
    if wheels:
        items = [_of_wheel(file.name) for file in wheels]
        return Reading(kind="directory of wheels", name=str(path), items=items)
    is_image = path.is_file() or not _is_prefix(path)
    if path.is_file() and form_of(path) != "archive" and shutil.which("unsquashfs") is None:
        return _list_image(path)
    return _read_files(path, is_image=is_image)


def _is_prefix(path: Path) -> bool:
    return (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()


def _of_wheel(name: str) -> Item:
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise UsageError(f"{error}.") from None
    return Item(name=project, version=str(version), text=name)


def _read_files(path: Path, *, is_image: bool) -> Reading:
    log = cache_root() / "logs" / f"inspect-{os.uname().nodename}-{os.getpid()}.log"
    content = read_installed(path, log)
    log.unlink(missing_ok=True)
    reading = Reading(
        kind="image" if is_image else "environment",
        name=str(path),
        installed=True,
        how=f"{path}: {how_read(path)}" if is_image else "",
        content=content,
        platform=content.platform,
        python=content.python,
    )
    reading.unread += [Unread(0, name, "its metadata is damaged") for name in content.damaged]
    for name, version in sorted(content.versions.items()):
        if name in content.editable:
            reading.unread.append(Unread(0, name, "it is installed from a directory"))
        elif name not in INSTALLERS:
            reading.items.append(Item(name=name, version=version, installer="unknown"))
    known = content.versions.keys() | {"python"}
    for file in sorted(PurePosixPath(name) for name in content.files if "/conda-meta/" in name):
        name, version, build = ([*file.stem.rsplit("-", 2), "", ""])[:3]
        if name not in known and version:
            reading.items.append(Item(name=name, version=version, build=build, installer="conda"))
    return reading


def _list_image(path: Path) -> Reading:
    """List the distributions of the Python that has torch, else of the one that has most."""
    facts = inspect_image(find_image(path))
    python = max(facts.with_torch or facts.pythons, key=lambda each: len(each.holds), default=None)
    how = (
        f"{path} was listed by a script in an isolated container, because unsquashfs is not installed: names "
        "and versions were judged, not the content of files"
    )
    known = {
        "rocm": facts.rocm,
        "glibc": facts.glibc,
        "libstdc++": facts.libstdcxx,
        "os": facts.os,
        "mpi": facts.mpi,
    }
    platform = {name: version for name, version in known.items() if version}
    reading = Reading(kind="image", name=str(path), installed=True, how=how, platform=platform)
    if python is not None:
        reading.python = python.version
        reading.items += [
            Item(name=name, version=version, installer="unknown")
            for name, version in python.holds.items()
            if name not in INSTALLERS
        ]
    return reading
