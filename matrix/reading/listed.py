"""Read lists of what is installed: the output of pip, uv, conda and mamba in all forms, and SBOMs.

pip and uv: ``list`` as columns, freeze and JSON, ``freeze``, ``inspect``. conda and mamba: ``list`` as
columns, ``--export``, ``--explicit`` and ``--json``. PyTorch's ``collect_env``, also that of vLLM, lists what
matters for torch. An SBOM lists an image's content: CycloneDX, SPDX, or LUMI's own form.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import re2
from packaging.utils import canonicalize_name

from builders.containers.sbom import sbom_of
from matrix.reading.items import Item, Reading, Unread, pip_item
from resolver.errors import UsageError
from resolver.requirements import normalize_name
from resolver.texts import printable
from resolver.versions import is_version, minor, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping

SBOM = "list of an image"
HINT = "Write the file with `pip list --format freeze > FILE`."
_HEAD = 4096
"""How much of a text decides whose list it is, in characters."""
_NAME = re2.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_MESSAGE = re2.compile(r"(?i)(WARNING|DEPRECATION|Using Python|\[notice\]).*|[ -]*|#.*|Package +Version\b.*")
_OF_PIP = re2.compile(r"(?m)^Package +Version\b|\A\s*(\[\s*(\{|\]|$)|\{)")
_PIP_ROW = re2.compile(r"[A-Za-z0-9][\w.-]* +\d[\w.!+]*( +/\S+)?")
"""A row of a list without its header, as of ``pip list | grep torch``; it is no requirement."""
_PIN = re2.compile(r"[\w.-]+={2,3}[^=;,#\s*]+|[\w.-]+ @ \S+|-e \S+|#.*|")
_FROZEN = re2.compile(r"(?m)^# Editable install |^[\w.-]+ @ file://")
_PIP_COLUMNS = 2
_OF_CONDA = re2.compile(
    r"(?m)^# packages in environment at|^#? *Name +Version +Build|^@EXPLICIT[ \t\r]*$"
    r"|^# platform: \S+[ \t\r]*$"
    r"|^ *\[\s*\{[^}]*\"build_string\""
)
_COLUMNS = re2.compile(r"\s*([\w.-]+)\s+([\w.!+]+)\s+([\w.*+]+|<pip>)(?:\s+([\w./:-]+|<[^>\s]*>))?\s*")
_ROW = re2.compile(r"[\w.-]+ +\d[\w.!+]* {2,}[\w.]+(?: +[\w./:-]+)?")
"""A row of a list of conda without its header."""
_EXPORT = re2.compile(r"([\w.-]+)=([^=\s]+)=([^=\s]+)")
_OF_TORCH = re2.compile(r"(?m)^[ \t]*(?:\[pip3?\] [\w.-]+==|PyTorch version: \d)")
"""Source: pytorch/pytorch torch/utils/collect_env.py, and collect_env.py of vllm-project/vllm."""
_STATED = {"PyTorch version": "torch", "vLLM Version": "vllm"}
_HEADER = re2.compile(r"[#─-].*|@EXPLICIT|(?:Name|List of packages)\b.*")


def recognises(name: str, head: str) -> bool:
    """Return whether a text is the output of pip or conda; it may lack its header.

    A freeze is a requirements file, too: its name or marks that only ``pip freeze`` makes tell it.
    """
    if _is_of_conda(head) or _OF_PIP.search(head) or _OF_TORCH.search(head):
        return True
    lines = _whole_lines(head)
    rows = [line for line in lines if line]
    if rows and all(map(_PIP_ROW.fullmatch, rows)) and any("  " in row for row in rows):
        return True
    is_named = re2.search(r"(?i)freeze|frozen", name) is not None
    return (is_named or _FROZEN.search(head) is not None) and any(lines) and all(map(_PIN.fullmatch, lines))


def _whole_lines(head: str) -> list[str]:
    """Return the lines of the beginning of a text; the last may be cut off."""
    lines = [line.strip() for line in head.split("\n")]
    return lines if head.endswith("\n") or len(lines) == 1 else lines[:-1]


def _is_of_conda(head: str) -> bool:
    if _OF_CONDA.search(head):
        return True
    lines = [line for line in _whole_lines(head) if line and not line.startswith("#")]
    return bool(lines) and any(all(map(form.fullmatch, lines)) for form in (_EXPORT, _ROW))


def read(text: str, name: str) -> Reading:
    r"""Read a list; raise `UsageError` if JSON is of another form.

    Examples
    --------
    >>> found = read("Package Version\n------- -------\nTorch   2.9.1+rocm6.4", "list.txt")
    >>> [str(item) for item in found.items]
    ['torch 2.9.1+rocm6.4']
    >>> found = read("# Name  Version  Build  Channel\nflash-attn  2.5.8  pypi_0  pypi", "list.txt")
    >>> [(str(item), item.installer) for item in found.items]
    [('flash-attn 2.5.8', 'pip')]
    """
    if _OF_TORCH.search(text[:_HEAD]):
        return _of_torch(text, name)
    by_conda = _is_of_conda(text[:_HEAD])
    kind = "output of conda list" if by_conda else "output of pip"
    reading = Reading(kind=kind, name=name, installed=True)
    keep = reading.add if by_conda else reading.items.append  # conda lists Python, too
    if text.lstrip().startswith(("[", "{")) and not text.lstrip().startswith("[notice]"):
        for row in _rows(text, name, reading):
            keep(_of_conda_row(row) if by_conda else _item(row["name"], row["version"]))
        return reading
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if _HEADER.fullmatch(line) or not line if by_conda else _MESSAGE.fullmatch(line):
            continue
        item = _of_conda(line, number) if by_conda else _of_pip(line, number)
        if item is not None:
            keep(item)
        else:
            listed = "`conda list`" if by_conda else "`pip list` or `pip freeze`"
            reading.unread.append(Unread(number, printable(shorten(line)), f"it is not a line of {listed}"))
    return reading


def _of_torch(text: str, name: str) -> Reading:
    """Read what PyTorch reports in a ticket: the platform, and the libraries that it finds relevant."""
    reading = Reading(kind="output of collect_env", name=name, installed=True)
    found: dict[str, Item] = {}
    stated: dict[str, Item] = {}
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        tool, bracket, listed = line.partition("] ")
        key, _, value = line.partition(": ")
        version = value.partition("-")[0].split()[0] if value.strip(" -") else ""
        if listed in {"No relevant packages", "Could not collect"}:
            continue
        if bracket and tool in {"[pip", "[pip3", "[conda"}:
            item = _of_conda(listed, number) if tool == "[conda" else _of_pip(listed, number)
            if item:
                found.setdefault(item.name, item)  # conda also lists what pip installed
        elif key in _STATED and is_version(version):
            stated[_STATED[key]] = _item(_STATED[key], version, number, line)
        elif key == "Python version" and is_version(version):
            reading.python = minor(version)
        elif key == "ROCM used to build PyTorch" and is_version(version):
            reading.platform = {"rocm": minor(version)}
    reading.items = [*(stated | found).values()]
    return reading


def _of_pip(line: str, number: int) -> Item | None:
    """Return what a line lists; None if it has another form."""
    if line.startswith(("-e ", "--editable")) or " @ " in line:
        return pip_item(line, line=number)
    name, exact, version = line.partition("==")
    version = version.lstrip("=").strip()
    if not exact:
        words = line.split()
        editable = len(words) > _PIP_COLUMNS and "/" in words[_PIP_COLUMNS]
        known = len(words) == _PIP_COLUMNS or editable
        name, version = words[:2] if known else ("", "")
        version = version if version[:1].isdigit() or is_version(version) else ""
    known_form = version and " " not in version and _NAME.fullmatch(name.strip())
    return _item(name.strip(), version, number, line) if known_form else None


def _item(name: str, version: str, line: int = 0, text: str = "") -> Item:
    text = printable(text or f"{name}=={version}")
    return Item(name=canonicalize_name(name), version=printable(version), line=line, text=text)


def _of_conda(line: str, number: int) -> Item | None:
    if line.startswith(("http://", "https://", "file://")):
        return url_item(line, number)
    match = _EXPORT.fullmatch(line) or _COLUMNS.fullmatch(line)
    if match is None:
        return None
    channel = match[4] if match.re.groups > 3 else ""  # noqa: PLR2004  columns
    return _conda_item(match[1], match[2], match[3], channel or "", line=number, text=line)


def _of_conda_row(row: Mapping[str, Any]) -> Item:
    build = str(row.get("build_string") or row.get("build") or "")
    return _conda_item(row["name"], row["version"], build, str(row.get("channel") or ""))


def _conda_item(name: str, version: str, build: str, channel: str, *, line: int = 0, text: str = "") -> Item:
    by_pip = channel == "pypi" or build in {"<pip>", "pypi_0"}
    return Item(
        name=normalize_name(name) if by_pip else name.lower(),
        version=printable(version),
        installer="pip" if by_pip else "conda",
        build="" if by_pip else printable(build),
        line=line,
        text=printable(text or f"{name} {version} {build} {channel}".strip()),
    )


def url_item(line: str, number: int = 0) -> Item:
    """Return the package of conda that a URL names: its file is NAME-VERSION-BUILD.

    Examples
    --------
    >>> item = url_item("https://conda.anaconda.org/conda-forge/linux-64/numpy-1.26.4-py311_0.conda")
    >>> item.name, item.version, item.build
    ('numpy', '1.26.4', 'py311_0')
    """
    url, _, digest = line.partition("#")
    file = urlsplit(url).path.rpartition("/")[2] if "[" not in url else ""
    stem = file.removesuffix(".conda").removesuffix(".tar.bz2")
    name, version, build = ([*stem.rsplit("-", 2), "", ""])[:3]
    return Item(
        name=name.lower(),
        version=version,
        installer="conda",
        build=build,
        url=printable(url),
        hashes=(f"md5:{digest}",) if digest else (),
        line=number,
        text=printable(line),
    )


def _rows(text: str, source: str, reading: Reading) -> list[dict[str, Any]]:
    """Return the entries of JSON that have a name and a version."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        msg = f"{source}:{getattr(error, 'lineno', 1)}: not valid JSON: {error}."
        raise UsageError(msg, hint=HINT) from None
    if sbom := sbom_of(data):
        reading.kind, reading.how = SBOM, f"{source}: read as {sbom.form}"
        reading.python, reading.platform, reading.sha256 = sbom.python, sbom.platform, sbom.sha256
        data = [{"name": name, "version": version} for name, version in sbom.distributions]
    elif isinstance(data, dict) and isinstance(data.get("installed"), list):  # of pip inspect
        environment = data.get("environment")
        stated = environment.get("python_full_version") if isinstance(environment, dict) else None
        reading.python = minor(stated) if isinstance(stated, str) and is_version(stated) else ""
        data = [row.get("metadata") if isinstance(row, dict) else None for row in data["installed"]]
    if not isinstance(data, list):
        msg = f"{source}:1: this JSON is neither the output of `pip list --format json` nor an SBOM."
        raise UsageError(msg, hint=HINT)
    for number, row in enumerate(data, start=1):
        name, version = (row.get("name"), row.get("version")) if isinstance(row, dict) else (None, None)
        if not (isinstance(name, str) and isinstance(version, str) and _NAME.fullmatch(name.lstrip("_"))):
            msg = f"{source}: entry {number} has no valid name and version."
            raise UsageError(msg, hint=HINT)
    return data
