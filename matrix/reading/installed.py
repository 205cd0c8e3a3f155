"""Read what is installed: environments (venv, conda, tykky), images, wheels and directories of wheels.

Nothing of it is executed.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.containers.files import how_read
from builders.installed.reading import read_installed
from builders.probe.environment import INSTALLERS
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
    content = read_installed(path)
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
