"""Read the packages of a ``pylock.toml`` (PEP 751) as exact requirements."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from packaging.pylock import Package, Pylock, PylockValidationError

from resolver.errors import UsageError
from resolver.texts import check_texts, is_url, read_text

_HINT = "Write it again with the program that wrote it."
_NAME = re.compile(r"pylock(\.[^.]+)?\.toml")
_CHOICE = re.compile(r"\b(extras|dependency_groups)\b")


class LockedPackage(NamedTuple):
    """A package of the file."""

    name: str
    requirement: str
    """Its requirement: an exact version or a URL, with its marker."""
    index_url: str
    """The index that it comes from; empty if the file does not name one."""


def is_pylock(path: Path) -> bool:
    """Return whether installers accept a file of this name as a lock.

    Examples
    --------
    >>> is_pylock(Path("pylock.toml")), is_pylock(Path("pylock.gpu.toml")), is_pylock(Path("pyproject.toml"))
    (True, True, False)
    """
    return _NAME.fullmatch(path.name) is not None


def read_pylock(path: Path) -> tuple[list[LockedPackage], str]:
    """Read the packages that a lock installs by default, without extras and with its default groups.

    The second value is the specifier of Python; empty if the file allows every Python.

    Hashes and files are not read: `matrix` locks the files that fit the target.
    """
    try:
        data = tomllib.loads(read_text(path, pipes=True))
        check_texts(data, path, UsageError, _HINT)
        lock = Pylock.from_dict(data)
    except (ValueError, RecursionError, PylockValidationError) as error:
        msg = f"{path} is not a valid lock (PEP 751): {error}."
        raise UsageError(msg, hint=_HINT) from None
    packages = [
        LockedPackage(package.name, _requirement(package, lock, path.parent), package.index or "")
        for package in lock.packages
        if _is_default(package, lock)
    ]
    return packages, str(lock.requires_python or "")


def _is_default(package: Package, lock: Pylock) -> bool:
    """Return whether a package is installed without extras and with the default groups.

    Its marker decides, if it mentions extras or groups; `packaging` evaluates other variables for this
    machine.
    """
    if package.marker is None or not _CHOICE.search(str(package.marker)):
        return True
    chosen = {"extras": frozenset[str](), "dependency_groups": frozenset(lock.default_groups or ())}
    return package.marker.evaluate(chosen, context="lock_file")


def _requirement(package: Package, lock: Pylock, folder: Path) -> str:
    url = _url(package, folder)
    if not is_url(url):
        msg = f"{package.name} has a URL with characters that a URL must not have: {url!r}."
        raise UsageError(msg, hint=_HINT)
    if url:
        text = f"{package.name} @ {url}"
    elif package.version is None:
        text = package.name
    else:
        # Our own wheels have a label, and no index serves them.
        is_built = lock.created_by == "matrix" and package.index is None
        text = f"{package.name}=={package.version.public if is_built else package.version}"
    marker = "" if package.marker is None or _CHOICE.search(str(package.marker)) else str(package.marker)
    return f"{text} ; {marker}" if marker else text


def _url(package: Package, folder: Path) -> str:
    """Return the URL of a package that is named by its location rather than its version."""
    if package.vcs is not None:
        source = package.vcs
        url = f"{source.type}+{source.url or _local(folder, source.path)}@{source.commit_id}"
    elif package.archive is not None:
        url = package.archive.url or _local(folder, package.archive.path)
    elif package.directory is not None:
        url = _local(folder, package.directory.path)
    else:
        return ""
    source_tree = package.vcs or package.archive or package.directory
    subdirectory = source_tree.subdirectory if source_tree else ""
    return f"{url}#subdirectory={subdirectory}" if subdirectory else url


def _local(folder: Path, path: str | None) -> str:
    return (folder / (path or "")).resolve().as_uri()
