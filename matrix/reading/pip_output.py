"""Read what is installed: ``pip list`` as columns, freeze and JSON, ``pip freeze``, ``pip inspect``, SBOMs.

uv prints the same as pip. An SBOM is a list of an image's content: CycloneDX, SPDX, or LUMI's own form.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import re2
from packaging.utils import canonicalize_name

from builders.containers.sbom import sbom_of
from matrix.reading.items import Item, Reading, Unread, pip_item
from resolver.errors import UsageError
from resolver.texts import printable
from resolver.versions import is_version, minor, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

SBOM = "list of an image"
HINT = "Write the file with `pip list --format freeze > FILE`."
_NAME = re2.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_MESSAGE = re2.compile(r"(?i)(WARNING|DEPRECATION|Using Python|\[notice\]).*|[ -]*|#.*|Package +Version\b.*")
_HEAD = re2.compile(r"(?m)^Package +Version\b")
_ROW = re2.compile(r"[A-Za-z0-9][\w.-]* +\d[\w.!+]*( +/\S+)?")
"""A row of a list without its header, as of ``pip list | grep torch``; it is no requirement."""
_JSON = re2.compile(r"\s*(\[\s*(\{|\]|$)|\{)")
_PIN = re2.compile(r"[\w.-]+={2,3}[^=;,#\s*]+|[\w.-]+ @ \S+|-e \S+|#.*|")
_FROZEN = re2.compile(r"(?m)^# Editable install |^[\w.-]+ @ file://")
_COLUMNS = 2


def recognises(name: str, head: str) -> bool:
    """Return whether a text is the output of pip.

    A list may lack its header. A freeze is a requirements file, too: its name or marks that only
    ``pip freeze`` makes tell it.
    """
    if _HEAD.search(head) or _JSON.match(head):
        return True
    lines = [line.strip() for line in head.split("\n")]
    lines = lines if head.endswith("\n") or len(lines) == 1 else lines[:-1]  # the last may be cut off
    rows = [line for line in lines if line]
    if rows and all(map(_ROW.fullmatch, rows)) and any("  " in row for row in rows):
        return True
    is_named = re2.search(r"(?i)freeze|frozen", name) is not None
    return (is_named or _FROZEN.search(head) is not None) and any(lines) and all(map(_PIN.fullmatch, lines))


def read(text: str, name: str) -> Reading:
    r"""Read a list; raise `UsageError` if JSON is of another form.

    Examples
    --------
    >>> found = read("Package Version\n------- -------\nTorch   2.9.1+rocm6.4", "list.txt")
    >>> [str(item) for item in found.items]
    ['torch 2.9.1+rocm6.4']
    """
    reading = Reading(kind="output of pip", name=name, installed=True)
    if text.lstrip().startswith(("[", "{")) and not text.lstrip().startswith("[notice]"):
        _read_json(text, name, reading)
        return reading
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not _MESSAGE.fullmatch(line):
            item = _of_line(line, number)
            if item is None:
                reason = "it is not a line of `pip list` or `pip freeze`"
                reading.unread.append(Unread(number, printable(shorten(line)), reason))
            else:
                reading.items.append(item)
    return reading


def _of_line(line: str, number: int) -> Item | None:
    """Return what a line lists; None if it has another form."""
    if line.startswith(("-e ", "--editable")) or " @ " in line:
        return pip_item(line, line=number)
    name, exact, version = line.partition("==")
    version = version.lstrip("=").strip()
    if not exact:
        words = line.split()
        editable = len(words) > _COLUMNS and "/" in words[_COLUMNS]
        known = len(words) == _COLUMNS or editable
        name, version = words[:2] if known else ("", "")
        version = version if version[:1].isdigit() or is_version(version) else ""
    known_form = version and " " not in version and _NAME.fullmatch(name.strip())
    return _item(name.strip(), version, number, line) if known_form else None


def _item(name: str, version: str, line: int = 0, text: str = "") -> Item:
    text = printable(text or f"{name}=={version}")
    return Item(name=canonicalize_name(name), version=printable(version), line=line, text=text)


def _read_json(text: str, source: str, reading: Reading) -> None:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", 1)
        msg = f"{source}:{line}: not valid JSON: {error}."
        raise UsageError(msg, hint=HINT) from None
    if sbom := sbom_of(data):
        reading.kind, reading.how = SBOM, f"{source}: read as {sbom.form}"
        reading.python, reading.platform, reading.sha256 = sbom.python, sbom.platform, sbom.sha256
        data = [{"name": name, "version": version} for name, version in sbom.distributions]
    elif isinstance(data, dict) and isinstance(data.get("installed"), list):
        environment = data.get("environment")
        stated = environment.get("python_full_version") if isinstance(environment, dict) else None
        reading.python = minor(stated) if isinstance(stated, str) and is_version(stated) else ""
        data = [_inspected(row) for row in data["installed"]]
    if not isinstance(data, list):
        msg = f"{source}:1: this JSON is neither the output of `pip list --format json` nor an SBOM."
        raise UsageError(msg, hint=HINT)
    for number, row in enumerate(data, start=1):
        name, version = (row.get("name"), row.get("version")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(version, str) and _NAME.fullmatch(name)):
            msg = f"{source}: entry {number} has no valid name and version."
            raise UsageError(msg, hint=HINT)
        reading.items.append(_item(name, version))


def _inspected(row: object) -> Mapping[str, Any]:
    """Return the metadata of an entry of ``pip inspect``."""
    metadata = row.get("metadata") if isinstance(row, dict) else None
    return metadata if isinstance(metadata, dict) else {}
