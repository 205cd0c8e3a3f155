"""Read the preinstalled distributions from the output of pip.

All forms are accepted: ``pip list`` as columns, freeze and JSON, ``pip freeze``, and the same from uv.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from builders.containers.image import find_image, is_local
from builders.containers.inspection import inspect_image
from resolver.errors import UsageError
from resolver.model import IMAGE, Preinstalled
from resolver.texts import read_text
from resolver.versions import is_version, shorten

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog

_HINT = "Write the file with `pip list --format freeze > FILE`."
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_PIP_MESSAGE = re.compile(r"(WARNING|DEPRECATION|Using Python|\[notice\])", re.IGNORECASE)
_EGG = re.compile(r"[#&]egg=([\w.-]+)")
_COLUMNS = 2
"""Name and version, and for an editable project its directory."""


def read_preinstalled(source: str, catalog: Catalog, base_image: str = "") -> Preinstalled:
    """Return the distributions that ``--keep-installed`` names, in a file or in the base image.

    `base_image` is the value of ``--base-image``. An image on this machine is inspected; of any other, only
    the facts in the catalog are known.
    """
    if source == IMAGE:
        if not base_image or not is_local(Path(base_image)):
            return Preinstalled(IMAGE)
        installed = inspect_image(find_image(Path(base_image))).installed
        return Preinstalled(IMAGE, dict(sorted(installed.items())))
    dists = list(parse_pip_list(read_text(Path(source), hint=_HINT, pipes=True), source))
    if not dists:
        msg = f"{source} lists no distributions."
        raise UsageError(msg, hint=_HINT)
    known = {*catalog.package, "torch", "torchvision", "torchaudio", "python", "rocm"}
    return Preinstalled(source, dict(sorted(_versions(dists, source, known).items())))


def _versions(dists: Iterable[tuple[str, str, int]], source: str, known: set[str]) -> dict[str, str]:
    """Return the version of each name. Names in the catalog must have a valid version."""
    versions: dict[str, str] = {}
    for name, version, line in dists:
        if name in known and not version:
            msg = f"{source}:{line}: the line gives the URL of {name}, but not its version."
            raise UsageError(msg, hint=_HINT)
        if name in known and not is_version(version):
            msg = f"{source}:{line}: {shorten(version)!r} is not a valid version of {name} (PEP 440)."
            raise UsageError(msg, hint=_HINT)
        if versions.setdefault(name, version) != version:
            msg = f"{source}:{line}: {name} {version} contradicts {name} {versions[name]} on an earlier line."
            raise UsageError(msg, hint="List one environment per file.")
    return versions


def parse_pip_list(text: str, source: str) -> Iterator[tuple[str, str, int]]:
    """Yield the distributions in the output of pip; `source` is named in errors.

    Examples
    --------
    >>> [(name, version) for name, version, _ in parse_pip_list("Torch==2.9.1+rocm6.4", "list.txt")]
    [('torch', '2.9.1+rocm6.4')]
    """
    if text.lstrip().startswith(("[", "{")) and not text.lstrip().startswith("[notice]"):
        yield from _parse_json(text, source)
        return
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#") or _PIP_MESSAGE.match(line) or set(line) <= {"-", " "}:
            continue
        if line.split()[:_COLUMNS] == ["Package", "Version"]:
            continue
        yield from _parse_line(line, number, source)


def _parse_line(line: str, number: int, source: str) -> Iterator[tuple[str, str, int]]:
    if line.startswith(("-e ", "--editable")):
        egg = _EGG.search(line)
        if egg:
            yield canonicalize_name(egg[1]), "", number
        return
    name, version = _name_and_version(line)
    if name is None or not _NAME.fullmatch(name):
        msg = f"{source}:{number}: {shorten(line)!r} is not a line of `pip list` or `pip freeze`."
        raise UsageError(msg, hint=_HINT)
    yield canonicalize_name(name), version, number


def _name_and_version(line: str) -> tuple[str | None, str]:
    """Return name and version of a line; the name is None if the line has another form."""
    if " @ " in line:
        name, _, url = line.partition(" @ ")
        return name.strip(), _version_in_url(url.strip())
    if "==" in line:
        name, _, version = line.partition("==")
        version = version.lstrip("=").strip()
        return (name.strip(), version) if version and " " not in version else (None, "")
    words = line.split()
    editable = len(words) > _COLUMNS and "/" in words[_COLUMNS]
    if len(words) == _COLUMNS or editable:
        return (words[0], words[1]) if words[1][:1].isdigit() or is_version(words[1]) else (None, "")
    return None, ""


def _version_in_url(url: str) -> str:
    """Return the version in the file name of a wheel; empty for any other URL."""
    try:
        return str(parse_wheel_filename(unquote(urlsplit(url).path.rpartition("/")[2]))[1])
    except (InvalidWheelFilename, ValueError):
        return ""


def _parse_json(text: str, source: str) -> Iterator[tuple[str, str, int]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        msg = f"{source}:{line}: not valid JSON: {error}."
        raise UsageError(msg, hint=_HINT) from None
    if not isinstance(rows, list):
        msg = f"{source}:1: this JSON is not the output of `pip list --format json`."
        raise UsageError(msg, hint=_HINT)
    for number, row in enumerate(rows, start=1):
        name, version = (row.get("name"), row.get("version")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(version, str) and _NAME.fullmatch(name)):
            msg = f"{source}: entry {number} has no valid name and version."
            raise UsageError(msg, hint=_HINT)
        yield canonicalize_name(name), version, number
