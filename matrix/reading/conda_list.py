"""Read the output of ``conda list``: columns, ``--export``, ``--explicit`` and ``--json``, also of mamba."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import re2

from matrix.reading.items import Item, Reading, Unread
from resolver.errors import UsageError
from resolver.requirements import normalize_name
from resolver.texts import printable
from resolver.versions import shorten

_HEAD = re2.compile(
    r"(?m)^# packages in environment at|^#? *Name +Version +Build|^@EXPLICIT[ \t\r]*$"
    r"|^# platform: \S+[ \t\r]*$"
    r"|^ *\[\s*\{[^}]*\"build_string\""
)
_COLUMNS = re2.compile(r"\s*([\w.-]+)\s+([\w.!+]+)\s+([\w.*+]+|<pip>)(?:\s+([\w./:-]+|<[^>\s]*>))?\s*")
_ROW = re2.compile(r"[\w.-]+ +\d[\w.!+]* {2,}[\w.]+(?: +[\w./:-]+)?")
"""A row of a list without its header, as of ``conda list | grep torch``."""
_EXPORT = re2.compile(r"([\w.-]+)=([^=\s]+)=([^=\s]+)")
_HEADER = re2.compile(r"[#─-].*|@EXPLICIT|(?:Name|List of packages)\b.*")


def recognises(_: str, head: str) -> bool:
    """Return whether a text is the output of ``conda list``, by its header or the form of all lines."""
    if _HEAD.search(head):
        return True
    lines = [line for line in head.split("\n") if line.strip() and not line.startswith("#")]
    # The last line may be cut off.
    lines = lines[:-1] if len(lines) > 1 and not head.endswith("\n") else lines
    return bool(lines) and any(
        all(form.fullmatch(line.strip()) for line in lines) for form in (_EXPORT, _ROW)
    )


def read(text: str, name: str) -> Reading:
    r"""Read a list.

    Examples
    --------
    >>> found = read("# Name  Version  Build  Channel\nflash-attn  2.5.8  pypi_0  pypi", "list.txt")
    >>> [(str(item), item.installer) for item in found.items]
    [('flash-attn 2.5.8', 'pip')]
    """
    reading = Reading(kind="output of conda list", name=name, installed=True)
    if text.lstrip().startswith("["):
        for row in _rows(text, name):
            reading.add(_of_row(row))
    else:
        for number, raw in enumerate(text.split("\n"), start=1):
            _read_line(raw.strip(), number, reading)
    return reading


def _read_line(line: str, number: int, reading: Reading) -> None:
    if line.startswith(("http://", "https://", "file://")):
        reading.add(url_item(line, number))
    elif match := _EXPORT.fullmatch(line) or _COLUMNS.fullmatch(line):
        channel = match[4] if match.re.groups > 3 else ""  # noqa: PLR2004  columns
        reading.add(_item(match[1], match[2], match[3], channel or "", line=number, text=line))
    elif line and not _HEADER.fullmatch(line):
        reading.unread.append(Unread(number, printable(shorten(line)), "it is not a line of `conda list`"))


def _item(name: str, version: str, build: str, channel: str, *, line: int = 0, text: str = "") -> Item:
    by_pip = channel == "pypi" or build in {"<pip>", "pypi_0"}
    return Item(
        name=normalize_name(name) if by_pip else name.lower(),
        version=printable(version),
        installer="pip" if by_pip else "conda",
        build="" if by_pip else printable(build),
        channel="" if by_pip else printable(channel),
        line=line,
        text=printable(text or f"{name} {version} {build} {channel}".strip()),
    )


def url_item(line: str, number: int = 0) -> Item:
    """Return the package of conda that a URL names: its file is NAME-VERSION-BUILD.

    Examples
    --------
    >>> item = url_item("https://conda.anaconda.org/conda-forge/linux-64/numpy-1.26.4-py311_0.conda")
    >>> item.name, item.version, item.build, item.channel
    ('numpy', '1.26.4', 'py311_0', 'conda-forge')
    """
    url, _, digest = line.partition("#")
    folder, _, file = urlsplit(url).path.rpartition("/") if "[" not in url else ("", "", "")
    stem = file.removesuffix(".conda").removesuffix(".tar.bz2")
    name, version, build = ([*stem.rsplit("-", 2), "", ""])[:3]
    channel = folder.rpartition("/")[0].rpartition("/")[2]
    return Item(
        name=name.lower(),
        version=version,
        installer="conda",
        build=build,
        channel=channel,
        url=printable(url),
        hashes=(f"md5:{digest}",) if digest else (),
        line=number,
        text=printable(line),
    )


def _rows(text: str, name: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{name}:{getattr(error, 'lineno', 1)}: not valid JSON: {error}."
        raise UsageError(msg) from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not all(isinstance(row.get(key), str) for key in ("name", "version")):
            msg = f"{name}: entry {number} has no valid name and version."
            raise UsageError(msg)
    return rows  # type: ignore[no-any-return]


def _of_row(row: dict[str, Any]) -> Item:
    build = str(row.get("build_string") or row.get("build") or "")
    return _item(row["name"], row["version"], build, str(row.get("channel") or ""))
