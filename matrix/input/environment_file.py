"""Read what an environment consists of: from its directory or image, or from a file that describes it."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.containers.files import how_read
from builders.containers.image import find_image, form_of
from builders.containers.inspection import inspect_image
from builders.installed.reading import Installed, read_installed
from builders.probe.environment import INSTALLERS
from builders.storage.files import cache_root
from matrix.input.environment_formats import is_pylock, is_recipe, parse_pip_list, read_pylock, read_recipe
from matrix.judging.corrections import read_document
from matrix.judging.lines import conda_name, is_pip_line
from matrix.judging.packages import torch_index
from matrix.reading.items import Item
from matrix.reading.pip_line import url_path
from matrix.reading.requirements import Document
from resolver.errors import UsageError
from resolver.requirements import normalize_name, parse_requirement
from resolver.texts import read_text

if TYPE_CHECKING:
    from matrix.reading.requirements import Entry

_CONDA_PIN = re.compile(r"(?:\S+::)?[\w.-]+\s*={1,2}\s*(\d[^=,|*\s]*)")
"""Matches a dependency of conda with an exact version, and maybe a build: ``numpy=1.26.4=py311_0``."""
_COLUMNS = re.compile(r"\s*(\[|Package\s+Version\b)")


_IMAGES = {".sif", ".sqsh", ".squashfs", ".tar"}


class DescribedEnvironment(msgspec.Struct):
    """The content of a file, directory or image."""

    wanted: list[Item] = []
    unread: list[str] = []
    """Lines that were not used, each with the reason."""
    index_urls: list[str] = []
    """The package indexes that it names, other than PyTorch's."""
    has_rocm_index: bool = False
    """Whether it names PyTorch's index for ROCm."""
    platform: dict[str, str] = {}
    """What else an image has: ROCm, glibc, libstdc++ (as the GCC that has it), operating system, MPI."""
    installed: bool = False
    """Whether it is installed, so that labels are not needed to find the right build."""
    how: str = ""
    """How an image was read; empty for anything else."""
    content: Installed | None = None
    """Its files; None if it is a file that describes an environment, or if the files cannot be read."""
    document: Document | None = None
    """The file, if `matrix check` reads files of its kind."""


def is_environment(path: Path) -> bool:
    """Return whether a path is a directory or an image, and not a file that describes an environment."""
    return path.is_dir() or path.suffix in _IMAGES


def read_environment(path: Path) -> DescribedEnvironment:
    """Read an environment, image, directory of wheels, or file that lists an environment.

    Nothing of it is executed, except that a script lists an image in an isolated container if unsquashfs is
    not installed.
    """
    if path.suffix == ".whl" and path.is_file():
        found = DescribedEnvironment([_of_wheel(path.name)])
    elif path.is_dir() and not _is_prefix(path) and any(path.glob("*.whl")):
        found = DescribedEnvironment([_of_wheel(file.name) for file in sorted(path.glob("*.whl"))])
    elif is_environment(path):
        found = _read_installed(path)
    elif is_pylock(path):
        found = DescribedEnvironment()
        for name, requirement, _ in read_pylock(path)[0]:
            _add_text(found, requirement, name)
    else:
        text = read_text(path, pipes=True)
        if is_recipe(path.name, text):
            found = _read_recipe(text)
        elif path.name == "uv.lock":
            found = _read_uv_lock(text, path)
        elif _COLUMNS.match(text):
            found = DescribedEnvironment(
                [Item(name=name, version=version) for name, version, _ in parse_pip_list(text, str(path))]
            )
        else:
            found = _read_lines(text, str(path))
    if not found.wanted and not found.document and not (found.content and found.content.is_image):
        msg = f"{path} has no distribution."
        hint = "Name an environment, an image, a requirements file, uv.lock, or the output of pip."
        raise UsageError(msg, hint=hint)
    return found


def _read_installed(path: Path) -> DescribedEnvironment:
    """Read what is installed, without starting it if possible; of conda's packages, those for CUDA, too."""
    is_image = path.is_file() or not _is_prefix(path)
    if is_image and path.is_file() and form_of(path) != "archive" and shutil.which("unsquashfs") is None:
        return _list_image(path)
    log = cache_root() / "logs" / f"inspect-{os.uname().nodename}-{os.getpid()}.log"
    content = read_installed(path, log)
    log.unlink(missing_ok=True)
    found = DescribedEnvironment(
        installed=True, how=f"{path}: {how_read(path)}" if is_image else "", content=content
    )
    if content.python:
        found.wanted.append(Item(name="python", version=content.python))
    found.unread += [f"{name}: its metadata is damaged" for name in content.damaged]
    for name, version in sorted(content.versions.items()):
        if name in content.editable:
            found.unread.append(f"{name}: it is installed from a directory")
        elif name not in INSTALLERS:
            found.wanted.append(Item(name=name, version=version))
    for file in sorted(PurePosixPath(name) for name in content.files if "/conda-meta/" in name):
        name, _, rest = file.stem.rpartition("-")[0].rpartition("-")
        if name.startswith(("cuda", "pytorch-cuda", "libcu")):
            found.wanted.append(Item(name=name, version=rest, installer="conda"))
    found.platform = content.platform
    return found


def _is_prefix(path: Path) -> bool:
    return (path / "pyvenv.cfg").is_file() or (path / "conda-meta").is_dir()


def _list_image(path: Path) -> DescribedEnvironment:
    """List the distributions of the Python that has torch, else of the one that has most."""
    facts = inspect_image(find_image(path))
    python = max(facts.with_torch or facts.pythons, key=lambda each: len(each.holds), default=None)
    how = (
        f"{path} was listed by a script in an isolated container, because unsquashfs is not installed: names "
        "and versions were judged, not the content of files"
    )
    found = DescribedEnvironment(installed=True, how=how)
    known = {
        "rocm": facts.rocm,
        "glibc": facts.glibc,
        "libstdc++": facts.libstdcxx,
        "os": facts.os,
        "mpi": facts.mpi,
    }
    found.platform = {name: version for name, version in known.items() if version}
    if python is not None:
        found.wanted.append(Item(name="python", version=python.version))
        found.wanted += [
            Item(name=each[0], version=each[1]) for each in python.holds.items() if each[0] not in INSTALLERS
        ]
    return found


def _of_wheel(name: str) -> Item:
    try:
        project, version, _, _ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise UsageError(f"{error}.") from None
    return Item(name=project, version=str(version))


def _read_uv_lock(text: str, path: Path) -> DescribedEnvironment:
    try:
        packages: list[dict[str, Any]] = tomllib.loads(text)["package"]
        found = DescribedEnvironment()
        for package in packages:
            if {"registry"} & package["source"].keys():
                found.wanted.append(Item(name=normalize_name(package["name"]), version=package["version"]))
            elif not {"virtual", "editable"} & package["source"].keys():
                found.unread.append(f"{package['name']}: it is not from a package index")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path} is not a lock of uv: {error}."
        raise UsageError(msg) from None
    return found


def _read_lines(text: str, name: str) -> DescribedEnvironment:
    document = read_document(text, name)
    found = DescribedEnvironment(document=document)
    for entry in document.conda:
        _add_conda(found, entry)
    for entry in document.entries:
        _add_line(found, entry)
    return found


def _read_recipe(text: str) -> DescribedEnvironment:
    pip, conda, unread = read_recipe(text)
    found = DescribedEnvironment(unread=unread)
    for entry in conda:
        _add_conda(found, entry)
    for entry in pip:
        _add_line(found, entry)
    return found


def _add_conda(found: DescribedEnvironment, entry: Entry) -> None:
    name = conda_name(entry.text)
    pin = _CONDA_PIN.match(entry.text)
    version = pin[1].rstrip(".") if pin else ""  # 1.12.* and =1.12 mean the same
    if is_pip_line(entry.text) or not name:
        found.unread.append(f"line {entry.line}, {entry.text}: it is not a conda package")
    elif name == "python":
        found.wanted.append(Item(name=name, version=version))
    elif name != "pip":
        found.wanted.append(Item(name=name, version=version, installer="conda"))


def _add_line(found: DescribedEnvironment, entry: Entry) -> None:
    line = entry.pip
    urls = line.values("--index-url", "--extra-index-url")
    if line.location and line.name:
        version = ""
        try:
            version = _of_wheel(url_path(line.location).rpartition("/")[2]).version
        except UsageError:
            found.unread.append(f"line {entry.line}: the source of {line.name}, {line.location}")
        found.wanted.append(Item(name=line.name, version=version))
    elif line.requirement_text and not line.location:
        _add_text(found, line.requirement_text, f"line {entry.line}")
    elif urls:
        found.index_urls += [url for url in urls if not torch_index(url)]
        found.has_rocm_index = found.has_rocm_index or any(torch_index(url)[:4] == "rocm" for url in urls)
    else:
        found.unread.append(f"line {entry.line}: {entry.text}")


def _add_text(found: DescribedEnvironment, text: str, place: str) -> None:
    try:
        requirement = parse_requirement(text)
    except UsageError as error:
        found.unread.append(f"{place}: {error.message.rstrip('.')}")
        return
    exact = re.fullmatch(r"={2,3}([^*]+)", str(requirement.specifier or ""))
    found.wanted.append(
        Item(
            name=requirement.name,
            version=exact[1] if exact else "",
            specifier=str(requirement.specifier or "") if not exact else "",
            extras=requirement.extras,
            marker=requirement.marker,
        )
    )
