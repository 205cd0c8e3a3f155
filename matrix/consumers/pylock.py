"""A lock as ``pylock.toml`` (PEP 751), which uv and other installers read.

An installer of it resolves nothing, and every file has a location and a hash. So the index must contain our
wheels. Files that the lock lacks are looked up on their indexes. Specification:
https://packaging.python.org/en/latest/specifications/pylock-toml/
"""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packaging.markers import Marker
from packaging.pylock import (
    Package,
    PackageArchive,
    PackageSdist,
    PackageWheel,
    Pylock,
    is_valid_pylock_path,
)
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from builders.findings import Finding
from builders.index_client import IndexClient
from builders.network.urls import without_password
from builders.sources import index_url
from builders.storage.files import sha256_of
from matrix.consumers import Consumer
from matrix.consumers.shared.installation import WrittenFile, comments, files_in_wheelhouse, pin
from resolver.environment import Environment
from resolver.errors import MatrixError, SourceError, UsageError
from resolver.versions import minor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.shared.installation import Installation, Layout
    from resolver.indexes import File as LockedFile
    from resolver.model import Distribution

_HEAD = "# Written by `matrix env --for pylock`.\n"
_INCOMPLETE = (
    "# This file lists only the distributions in matrix.lock.\n"
    "# pip or uv must install their other dependencies.\n"
)


def _emit(installation: Installation, layout: Layout) -> list[WrittenFile]:
    import tomli_w

    if not is_valid_pylock_path(Path(layout.main)):
        msg = f"Installers do not read a lock named {layout.main}."
        raise UsageError(msg, hint="Name it pylock.toml or pylock.NAME.toml.")
    if installation.unbuilt and layout.wheelhouse is None:
        names = ", ".join(f"{pick.name} {pick.pinned}" for pick in installation.unbuilt)
        msg = (
            "pylock.toml lists files with their hashes, but the index "
            f"{layout.index} does not contain {names}."
        )
        raise MatrixError(msg, hint="Build them with `matrix build-wheels`.")
    folder = layout.wheelhouse
    present = files_in_wheelhouse(folder, installation.installed) if folder else {}
    packages = []
    for pick in sorted(installation.installed, key=lambda pick: pick.name):
        if folder and pick.name in present:
            packages.append(_from_wheelhouse(pick, folder / present[pick.name], layout))
        elif pick.origin == "build":
            packages.append(_built(pick, installation, layout))
        elif pick.files:
            packages.append(_locked(pick))
        else:
            packages.append(_published(pick, installation.python))
    lock = Pylock(
        lock_version=Version("1.0"),
        environments=[Marker("sys_platform == 'linux' and platform_machine == 'x86_64'")],
        requires_python=SpecifierSet(f"=={installation.python}.*"),
        created_by="matrix",
        packages=packages,
        tool={"matrix": _table(installation)},
    )
    lock.validate()
    text = tomli_w.dumps({key: _plain(value) for key, value in lock.to_dict().items()})
    note = "".join(f"{line}\n" for line in comments(installation.rocm_note))
    return [WrittenFile(layout.main, _HEAD + note + ("" if installation.is_complete else _INCOMPLETE) + text)]


def _check(installation: Installation, _: Layout) -> list[Finding]:
    messages = []
    if not installation.is_complete:
        messages.append(
            "pylock.toml lists only the distributions in the lock. Other dependencies, such as sympy for "
            "torch, are missing."
        )
    if installation.preinstalled:
        names = ", ".join(sorted(pick.name for pick in installation.preinstalled))
        messages.append(f"Not in pylock.toml, because the base image has them: {names}.")
    fix = "After installing, run `pip check` to list missing dependencies."
    return [Finding("pylock-incomplete", "warning", " ".join(messages), fix)] if messages else []


def _table(installation: Installation) -> dict[str, object]:
    target = installation.lock.target
    return {
        "site": target.site,
        "date": target.date,
        "backend": target.backend,
        **({"gfx": list(target.gfx)} if target.gfx else {}),
        **({"base-image": target.base_image} if target.base_image else {}),
        **({"kept": list(map(pin, installation.preinstalled))} if installation.preinstalled else {}),
        "complete": installation.is_complete,
    }


def _built(pick: Distribution, installation: Installation, layout: Layout) -> Package:
    wheels = []
    for path in installation.wheels[pick.name]:
        url = f"{layout.url}/{pick.name}/{quote(path.name)}" if layout.url else None
        relative = None if url else os.path.relpath(path, layout.folder.resolve())
        hashes = {"sha256": sha256_of(path)}
        wheels.append(
            PackageWheel(name=path.name, url=url, path=relative, size=path.stat().st_size, hashes=hashes)
        )
    return _package(pick, wheels)


def _from_wheelhouse(pick: Distribution, path: Path, layout: Layout) -> Package:
    relative = os.path.relpath(path, layout.folder.resolve())
    digest = sha256_of(path)
    locked = {file.sha256 for file in pick.files if file.name == path.name and file.sha256}
    if locked and digest not in locked:
        msg = f"{path} is not the locked file: its SHA-256 differs."
        raise MatrixError(msg, hint="Remove it, and run `matrix farm fetch --wheelhouse` again.")
    size, hashes = path.stat().st_size, {"sha256": digest}
    if path.suffix == ".whl":
        return _package(pick, [PackageWheel(name=path.name, path=relative, size=size, hashes=hashes)])
    return _package(pick, [], sdist=PackageSdist(name=path.name, path=relative, size=size, hashes=hashes))


def _locked(pick: Distribution) -> Package:
    if pick.direct_url:
        file = pick.files[0]
        archive = PackageArchive(url=file.url, size=file.size or None, hashes={"sha256": file.sha256})
        return _package(pick, [], archive=archive)
    unhashed = [file.name for file in pick.files if not file.sha256]
    if unhashed:
        msg = f"No SHA-256 is known for {unhashed[0]}, and pylock.toml requires hashes."
        raise MatrixError(msg, hint="Use `matrix env --for cotainr`, which needs no hashes.")
    first = pick.files[0]
    if pick.is_sdist:
        sdist = PackageSdist(
            name=first.name,
            url=first.url,
            size=first.size or None,
            upload_time=_time(first),
            hashes={"sha256": first.sha256},
        )
        return _package(pick, [], index=first.index, sdist=sdist)
    wheels = [
        PackageWheel(
            name=file.name,
            url=file.url,
            size=file.size or None,
            upload_time=_time(file),
            hashes={"sha256": file.sha256},
        )
        for file in pick.files
    ]
    return _package(pick, wheels, index=first.index)


def _time(file: LockedFile) -> datetime | None:
    with suppress(ValueError):
        return datetime.fromisoformat(file.uploaded)
    return None


def _published(pick: Distribution, python: str) -> Package:
    files = published_wheels(pick.name, pick.version, pick.index, python=python)
    if pick.wheel is not None:
        files = [file for file in files if file.name == pick.wheel.file]
        digest = pick.wheel.sha256
        if any(file.sha256 not in {"", digest} for file in files):
            msg = f"{pick.wheel.file} on the index is not the locked file: its SHA-256 differs."
            raise MatrixError(msg, hint="Find out why it changed before you install it.")
    usable = [file for file in files if file.sha256]
    if not usable:
        problem = "no hash for" if files else "no wheel of"
        msg = f"The index has {problem} {pick.name} {pick.version}, and pylock.toml requires hashes."
        raise MatrixError(msg, hint="Use `matrix env --for cotainr`, which needs no hashes.")
    wheels = [PackageWheel(name=file.name, url=file.url, hashes={"sha256": file.sha256}) for file in usable]
    return _package(pick, wheels, index=usable[0].index)


def _package(pick: Distribution, wheels: Sequence[PackageWheel], **source: Any) -> Package:  # noqa: ANN401
    return Package(
        name=canonicalize_name(pick.name), version=Version(pick.pinned), wheels=list(wheels) or None, **source
    )


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


CONSUMER = Consumer(
    file="pylock.toml",
    emit=_emit,
    check=_check,
)


def published_wheels(project: str, version: str, index: str, *, python: str) -> list[LockedFile]:
    """Return the wheels of a version (with its label) for a CPython (``3.12``), for any glibc, by name."""
    where = index or index_url()
    published = IndexClient([where]).project(project)
    if published is None:
        msg = f"The index {without_password(where)} has no project {project}."
        raise SourceError(msg, hint="It may be an incomplete mirror. Configure another index for pip.")
    environment = Environment(minor(python))
    files = [
        file
        for release in published.releases
        if Version(release.version) == Version(version)
        for file in release.files
        if file.name.endswith(".whl") and environment.rank(file.name) is not None
    ]
    return sorted(files, key=lambda file: file.name)
