"""A lock as ``pylock.toml`` (PEP 751), which uv and other installers read.

An installer of it resolves nothing, and every file has a location and a hash. So the index must contain our
wheels, and the lock must be complete. Specification:
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
from builders.storage.files import sha256_of
from matrix.consumers import Consumer
from matrix.consumers.shared.installation import WrittenFile, comments, files_in_wheelhouse, pin
from resolver.errors import MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matrix.consumers.shared.installation import Installation, Layout
    from resolver.indexes import File as LockedFile
    from resolver.model import Distribution

_HEAD = "# Written by `matrix env --for pylock`.\n"


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
    if installation.incomplete:
        raise MatrixError(f"Installers of pylock.toml resolve nothing. {installation.incomplete}")
    folder = layout.wheelhouse
    present = files_in_wheelhouse(folder, installation.installed) if folder else {}
    packages = []
    for pick in sorted(installation.installed, key=lambda pick: pick.name):
        if folder and pick.name in present:
            packages.append(_from_wheelhouse(pick, folder / present[pick.name], layout))
        elif pick.origin == "build":
            packages.append(_built(pick, installation, layout))
        else:
            packages.append(_locked(pick))
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
    return [WrittenFile(layout.main, _HEAD + note + text)]


def _check(installation: Installation, _: Layout) -> list[Finding]:
    if not installation.preinstalled:
        return []
    names = ", ".join(sorted(pick.name for pick in installation.preinstalled))
    message = f"Not in pylock.toml, because the base image has them: {names}."
    return [Finding("pylock-incomplete", "warning", message)]


def _table(installation: Installation) -> dict[str, object]:
    target = installation.lock.target
    return {
        "site": target.site,
        "date": target.date,
        "backend": target.backend,
        **({"gfx": list(target.gfx)} if target.gfx else {}),
        **({"base-image": target.base_image} if target.base_image else {}),
        **({"kept": list(map(pin, installation.preinstalled))} if installation.preinstalled else {}),
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
