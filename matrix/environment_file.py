"""Read what an environment consists of, from the files in which pip, conda and uv describe it."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from matrix.checking.check import read_document
from matrix.checking.line_rules import conda_name, is_pip_line
from matrix.checking.package_rules import torch_index
from matrix.pip_list import parse_pip_list
from matrix.pylock_file import is_pylock, read_pylock
from resolver.errors import UsageError
from resolver.repair import Wanted
from resolver.requirements import normalize_name, parse_requirement
from resolver.textfile import read_text

if TYPE_CHECKING:
    from pathlib import Path

    from matrix.checking.document import Entry

_CONDA_PIN = re.compile(r"(?:\S+::)?[\w.-]+\s*={1,2}\s*(\d[^=,|*\s]*)")
"""Matches a dependency of conda with an exact version, and maybe a build: ``numpy=1.26.4=py311_0``."""
_COLUMNS = re.compile(r"\s*(\[|Package\s+Version\b)")
"""Matches the beginning of the output of ``pip list``, as JSON or in columns."""


class Environment(msgspec.Struct):
    """The content of a file."""

    wanted: list[Wanted] = []
    unread: list[str] = []
    """Lines that were not used, each with the reason."""
    index_urls: list[str] = []
    """The package indexes that it names, other than those with torch for CUDA."""


def read_environment(path: Path) -> Environment:
    """Read a requirements file, a conda environment file, the output of pip, ``uv.lock`` or ``pylock.toml``.

    Raises
    ------
    UsageError
        The file cannot be read, or describes no environment.
    """
    if is_pylock(path):
        found = Environment()
        for package in read_pylock(path).packages:
            _add_text(found, package.requirement, package.name)
    else:
        text = read_text(path, pipes=True)
        if path.name == "uv.lock":
            found = _read_uv_lock(text, path)
        elif _COLUMNS.match(text):
            found = Environment([Wanted(dist.name, dist.version) for dist in parse_pip_list(text, str(path))])
        else:
            found = _read_lines(text, str(path))
    if not found.wanted:
        msg = f"{path} lists no distribution."
        hint = "Name a requirements file, a conda environment file, uv.lock, or the output of pip."
        raise UsageError(msg, hint=hint)
    return found


def _read_uv_lock(text: str, path: Path) -> Environment:
    """Read ``uv.lock``; the project itself and what it has in directories are not part of the environment."""
    try:
        packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
        found = Environment()
        for package in packages:
            if {"registry"} & package["source"].keys():
                found.wanted.append(Wanted(normalize_name(package["name"]), package["version"]))
            elif not {"virtual", "editable"} & package["source"].keys():
                found.unread.append(f"{package['name']}: it is not from a package index")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path} is not a lock of uv: {error}."
        raise UsageError(msg) from None
    return found


def _read_lines(text: str, name: str) -> Environment:
    document = read_document(text, name)
    found = Environment()
    for finding in document.findings:
        if finding.severity == "error":
            raise UsageError(f"{name}:{finding.evidence['line']}: {finding.message}", hint=finding.fix)
    for entry in document.conda:
        _add_conda(found, entry)
    for entry in document.entries:
        _add_line(found, entry)
    return found


def _add_conda(found: Environment, entry: Entry) -> None:
    name = conda_name(entry.text)
    pin = _CONDA_PIN.match(entry.text)
    version = pin[1] if pin else ""
    if is_pip_line(entry.text) or not name:
        found.unread.append(f"line {entry.line}, {entry.text}: it is not a conda package")
    elif name == "python":
        found.wanted.append(Wanted(name, version))
    elif name != "pip":
        found.wanted.append(Wanted(name, version, conda=True))


def _add_line(found: Environment, entry: Entry) -> None:
    line = entry.pip
    urls = line.values("--index-url", "--extra-index-url")
    if line.location and line.name:
        version = ""
        try:
            version = str(parse_wheel_filename(unquote(urlsplit(line.location).path.rpartition("/")[2]))[1])
        except (InvalidWheelFilename, ValueError):
            found.unread.append(f"line {entry.line}: the source of {line.name}, {line.location}")
        found.wanted.append(Wanted(line.name, version))
    elif line.requirement_text and not line.location:
        _add_text(found, line.requirement_text, f"line {entry.line}")
    elif urls:
        found.index_urls += [url for url in urls if not torch_index(url)]
    else:
        found.unread.append(f"line {entry.line}: {entry.text}")


def _add_text(found: Environment, text: str, place: str) -> None:
    try:
        requirement = parse_requirement(text)
    except UsageError as error:
        found.unread.append(f"{place}: {error.message.rstrip('.')}")
        return
    exact = re.fullmatch(r"={2,3}([^*]+)", str(requirement.specifier or ""))
    found.wanted.append(
        Wanted(
            requirement.name,
            exact[1] if exact else "",
            str(requirement.specifier or "") if not exact else "",
            requirement.extras,
            requirement.marker,
        )
    )
