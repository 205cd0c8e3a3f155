"""The files of a consumer: the main file, and others next to it."""

from __future__ import annotations

import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from builders.constants import MOUNT_POINT, MOUNTED_INDEX
from builders.storage.files import write_atomic
from resolver.errors import UsageError
from resolver.texts import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from matrix.consumers.shared.installation import Installation
    from resolver.model import Distribution

MARK = "written by `matrix env"
"""Text at the top of every written file, which a user's file of the same name does not have."""
_READ = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
_HEAD = 1000  # bytes that are searched for the mark


def comments(notes: Iterable[str]) -> list[str]:
    """Return notes for the reader of a file as lines of comments; no note can end its line."""
    return [f"# {printable(note)}".rstrip() for note in notes]


class WrittenFile(msgspec.Struct, frozen=True):
    """A file to write."""

    name: str
    text: str
    executable: bool = False


class WheelSource(msgspec.Struct, frozen=True):
    """The location of the wheels for a consumer."""

    url: str
    is_wheelhouse: bool = False
    """Whether it is a directory with all files, so that no index is used."""

    def url_of(self, pick: Distribution, named: Mapping[str, str]) -> str:
        """Return the URL of a distribution that only its URL identifies; empty if its version does.

        `named` has the file names of our wheels that must be named.
        """
        if self.is_wheelhouse:
            return ""
        return f"{self.url}/{pick.name}/{quote(named[pick.name])}" if pick.name in named else pick.direct_url

    def options(self, indexes: Iterable[str], *, ours: bool) -> list[str]:
        """Return pip's options, for separate lines. With `ours`, wheels of our index are installed."""
        if self.is_wheelhouse:
            return ["--no-index", f"--find-links {self.url}"]
        urls = [self.url, *indexes] if ours else indexes
        return [f"--extra-index-url {url}" for url in dict.fromkeys(urls)]


class Layout(msgspec.Struct, frozen=True):
    """The locations of the files and of the index."""

    main: str
    """Name of the main file."""
    index: Path
    """The index directory of this machine, with symbolic links resolved."""
    url: str = ""
    """The URL of the index for the consumer, if the user named it."""
    folder: Path = Path()
    """The directory of the files."""
    wheelhouse: Path | None = None
    """Directory with all files to install, with symbolic links resolved. If it is set, no index is used."""
    environment: Path | None = None
    """The finished container or environment, as an absolute path, for consumers that only use it."""

    @property
    def bound(self) -> Path:
        """The directory that scripts bind into a container."""
        return self.wheelhouse or self.index

    def binds(self, installation: Installation) -> bool:
        """Return whether a container needs that directory while it is built."""
        return self.wheelhouse is not None or (bool(installation.built) and not self.url)

    @property
    def what(self) -> str:
        """The name of that directory in messages."""
        return "wheelhouse" if self.wheelhouse else "index"

    @property
    def variable(self) -> str:
        """The variable that users set if that directory has moved."""
        return f"MATRIX_{self.what.upper()}"

    @property
    def local(self) -> WheelSource:
        """The source for consumers that can read the file systems of this machine."""
        if self.wheelhouse is not None:
            return WheelSource(self.wheelhouse.as_uri(), is_wheelhouse=True)
        return WheelSource(self.url or (self.index / "simple").as_uri())

    @property
    def mounted(self) -> WheelSource:
        """The source for consumers that run in a container into which the directory is bound."""
        if self.wheelhouse is not None:
            return WheelSource(f"file://{MOUNT_POINT}", is_wheelhouse=True)
        return WheelSource(self.url or MOUNTED_INDEX)


def files_in_wheelhouse(folder: Path, picks: Iterable[Distribution]) -> dict[str, str]:
    """Return the file name of each distribution whose file is in the directory."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    wheels: dict[tuple[str, Version], str] = {}
    for name in sorted(names):  # the last one has the highest build tag
        with suppress(InvalidWheelFilename, InvalidVersion):
            project, version, *_ = parse_wheel_filename(name)
            wheels[project, version] = name
    present = {}
    for pick in picks:
        locked = (file.name for file in pick.files if file.name in names)
        if name := next(locked, "") or wheels.get((pick.name, Version(pick.pinned)), ""):
            present[pick.name] = name
    return present


def write_files(files: Sequence[WrittenFile], folder: Path, *, named: bool) -> list[Path]:
    """Write all files, or none if one would replace a file that the user wrote.

    The main file is the first. If the user named it, it may replace any file.
    """
    paths = [folder / file.name for file in files]
    for path in paths[1:] if named else paths:
        if path.is_dir() or (path.exists() and not _is_ours(path)):
            msg = f"{path} exists and was not written by `matrix env`. Nothing was written."
            raise UsageError(msg, hint="Move or remove it, or name another directory with -o DIR.")
    for file, path in zip(files, paths, strict=True):
        write_atomic(path, file.text)
        if file.executable and path.is_file():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (mode & _READ) >> 2)  # whoever may read a script may run it
    return paths


def _is_ours(path: Path) -> bool:
    with path.open("rb") as source:
        return MARK.encode() in source.read(_HEAD)
