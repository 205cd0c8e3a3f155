"""Tiny wheels and indexes: stand-ins for wheels that take hours to build and gigabytes to download."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from wheel.wheelfile import WheelFile


def tiny_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    extras: Sequence[str] = (),
    tags: str = "py3-none-any",
) -> Path:
    """Write a pure wheel whose only module has its version.

    Parameters
    ----------
    folder
        Where to write the wheel.
    name, version
        Name and version of the distribution; the module has the same name.
    requires
        Its requirements.
    extras
        The extras that it provides.
    tags
        Interpreter, ABI and platform.
    """
    folder.mkdir(parents=True, exist_ok=True)
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    needs = "".join(f"Provides-Extra: {extra}\n" for extra in extras)
    needs += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    members = {
        f"{module}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tags}\n",
    }
    record = "".join(f"{member},,\n" for member in [*members, f"{info}/RECORD"])
    path = folder / f"{module}-{version}-{tags}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, text in (members | {f"{info}/RECORD": record}).items():
            archive.writestr(member, text)
    return path


def wheel_of(
    folder: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes],
    *,
    requires: Sequence[str] = (),
    description: str = "",
    tag: str = "py3-none-any",
) -> Path:
    """Write a wheel of some files, with their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    about = (
        f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: {str('any' in tag).lower()}\nTag: {tag}\n"
    )
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}\n{description}"
    members = {
        **files,
        f"{stem}.dist-info/METADATA": metadata.encode(),
        f"{stem}.dist-info/WHEEL": about.encode(),
    }
    path = folder / f"{stem}-{tag}.whl"
    with WheelFile(str(path), "w") as sink:
        for member, data in members.items():
            sink.writestr(member, data)
    path.chmod(0o644)
    return path


def tiny_index(root: Path, wheels: Mapping[str, Sequence[tuple[str, Sequence[str]]]]) -> Path:
    """Write an index like those of other servers: HTML pages with hashes.

    Parameters
    ----------
    root
        Its directory; the pages are below ``simple``.
    wheels
        Versions of each project, with their requirements.
    """
    for name, versions in wheels.items():
        folder = root / "simple" / name
        links = []
        for version, requires in versions:
            path = tiny_wheel(folder, name, version, requires=requires)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            links.append(f'<a href="{path.name.replace("+", "%2B")}#sha256={digest}">{path.name}</a>')
        (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{''.join(links)}</body></html>")
    (root / "simple").mkdir(parents=True, exist_ok=True)
    return root
