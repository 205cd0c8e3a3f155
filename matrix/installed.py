"""What is installed already, as pip writes it down.

Read are ``pip list`` (columns), ``pip list --format freeze``, ``pip freeze`` and ``pip list --format json``,
and what uv prints for the same commands.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from resolver.errors import UsageError
from resolver.model import IMAGE, Preinstalled
from resolver.textfile import read_text
from resolver.versions import is_version, shorten

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from resolver.facts.catalog import Catalog

_HINT = "Write the file with: pip list --format freeze > FILE"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_SAID_BY_PIP = re.compile(r"(WARNING|DEPRECATION|Using Python|\[notice\])", re.IGNORECASE)
_EGG = re.compile(r"[#&]egg=([\w.-]+)")
_COLUMNS = 2
"""Name and version; a third is the directory of an editable project."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One line: a distribution, its version where the line says it, and the line's number from 1."""

    name: str
    version: str
    line: int


def read_preinstalled(where: str, catalog: Catalog) -> Preinstalled:
    """Read what ``--keep-installed`` names.

    Parameters
    ----------
    where
        A file, or ``image``: then the catalog says what the chosen base image holds.
    catalog
        The facts; only of what they speak must the version be known.

    Raises
    ------
    UsageError
        The file cannot be read, lists nothing, or has a line that means nothing; with the line.
    """
    if where == IMAGE:
        return Preinstalled(IMAGE)
    path = Path(where)
    text = read_text(path, hint=_HINT, pipes=True)
    listed = list(read_list(text, where))
    if not listed:
        msg = f"{where} lists nothing that is installed."
        raise UsageError(msg, hint=_HINT)
    return Preinstalled(where, dict(sorted(_settled(listed, where, _known(catalog)).items())))


def _known(catalog: Catalog) -> set[str]:
    return {*catalog.package, "torch", "torchvision", "torchaudio", "python", "rocm"}


def _settled(listed: Iterable[Listed], where: str, known: set[str]) -> dict[str, str]:
    """Give one version for each name; what the catalog knows must have one that can be read."""
    found: dict[str, str] = {}
    for one in listed:
        if one.name in known and not one.version:
            msg = f"{where}:{one.line}: it says where {one.name} came from, and not its version."
            raise UsageError(msg, hint=_HINT)
        if one.name in known and not is_version(one.version):
            msg = f"{where}:{one.line}: {shorten(one.version)!r} is no version of {one.name} (PEP 440)."
            raise UsageError(msg, hint=_HINT)
        if found.setdefault(one.name, one.version) != one.version:
            msg = f"{where}:{one.line}: {one.name} {one.version} is here, and {found[one.name]} above."
            raise UsageError(msg, hint="List one environment; pip list in another one goes to another file.")
    return found


def read_list(text: str, where: str) -> Iterator[Listed]:
    """Read what pip printed.

    Parameters
    ----------
    text
        The list.
    where
        The file, for messages.

    Raises
    ------
    UsageError
        A line is nothing that pip prints.

    Examples
    --------
    >>> [(one.name, one.version) for one in read_list("Torch==2.9.1+rocm6.4", "list.txt")]
    [('torch', '2.9.1+rocm6.4')]
    """
    if text.lstrip().startswith(("[", "{")) and not text.lstrip().startswith("[notice]"):
        yield from _read_json(text, where)
        return
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or _SAID_BY_PIP.match(line) or set(line) <= {"-", " "}:
            continue
        if line.split()[:_COLUMNS] == ["Package", "Version"]:
            continue
        yield from _read_line(line, number, where)


def _read_line(line: str, number: int, where: str) -> Iterator[Listed]:
    if line.startswith(("-e ", "--editable")):
        egg = _EGG.search(line)
        if egg:
            yield Listed(canonicalize_name(egg[1]), "", number)
        return
    name, version = _parts(line)
    if name is None or not _NAME.fullmatch(name):
        msg = f"{where}:{number}: {shorten(line)!r} is nothing that pip list or pip freeze prints."
        raise UsageError(msg, hint=_HINT)
    yield Listed(canonicalize_name(name), version, number)


def _parts(line: str) -> tuple[str | None, str]:
    """Give name and version of a line; None where it has another form."""
    if " @ " in line:
        name, _, url = line.partition(" @ ")
        return name.strip(), _version_in(url.strip())
    if "==" in line:
        name, _, version = line.partition("==")
        version = version.lstrip("=").strip()
        return (name.strip(), version) if version and " " not in version else (None, "")
    words = line.split()
    editable = len(words) > _COLUMNS and "/" in words[_COLUMNS]
    if len(words) == _COLUMNS or editable:
        return (words[0], words[1]) if words[1][:1].isdigit() or is_version(words[1]) else (None, "")
    return None, ""


def _version_in(url: str) -> str:
    """Give the version that the name of a wheel in a URL says; empty for anything else."""
    try:
        return str(parse_wheel_filename(unquote(urlsplit(url).path.rpartition("/")[2]))[1])
    except (InvalidWheelFilename, ValueError):
        return ""


def _read_json(text: str, where: str) -> Iterator[Listed]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        msg = f"{where}:{line}: not valid JSON: {error}."
        raise UsageError(msg, hint=_HINT) from None
    if not isinstance(rows, list):
        msg = f"{where}:1: this is JSON, and not what pip list --format json prints."
        raise UsageError(msg, hint=_HINT)
    for number, row in enumerate(rows, start=1):
        name, version = (row.get("name"), row.get("version")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(version, str) and _NAME.fullmatch(name)):
            msg = f"{where}: entry {number} has no name and version, as pip list --format json gives them."
            raise UsageError(msg, hint=_HINT)
        yield Listed(canonicalize_name(name), version, number)
