"""Writing the label into a finished wheel: file name, metadata directory, version and record."""

from __future__ import annotations

import re
import zipfile
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename
from wheel.wheelfile import WheelFile

from builders.files import atomic_path
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from pathlib import Path

_EARLIEST = (1980, 1, 1, 0, 0, 0)  # the oldest time a zip file can hold: members carry no clock


def relabel(
    wheel: Path, version: str, platform: str, directory: Path, *, build_number: int | None = None
) -> Path:
    """Write a copy of a wheel under another version and platform tag.

    Member order, permissions and content stay; times are set to a constant and the record is
    made anew, so the same content gives the same bytes.

    Parameters
    ----------
    wheel
        The wheel as its build backend wrote it.
    version
        The version to give it, such as ``0.19.8+cpu.torch2.13.0``.
    platform
        The platform tag that an audit found, such as ``manylinux_2_35_x86_64``.
    directory
        Where to write the new wheel.
    build_number
        Build tag (PEP 427) that tells a rebuild from the wheel before it.

    Returns
    -------
    Path
        The new wheel.

    Raises
    ------
    MatrixError
        The wheel has no metadata, or a member that does not match its record.
    """
    name, _, _, tags = parse_wheel_filename(wheel.name)
    distribution = wheel.name.split("-")[0]
    python, abi, _ = wheel.name.removesuffix(".whl").split("-")[-3:]
    number = [] if build_number is None else [str(build_number)]
    target = directory / ("-".join([distribution, version, *number, python, abi, platform]) + ".whl")
    new_tags = sorted({f"{tag.interpreter}-{tag.abi}-{platform}" for tag in tags})
    with WheelFile(str(wheel)) as source:
        info = str(source.dist_info_path)
        new_info = f"{distribution}-{version}.dist-info"
        new_data = f"{distribution}-{version}.data"
        old_data = f"{info.removesuffix('.dist-info')}.data"
        with atomic_path(target) as temporary:
            # WheelFile takes name and version from the file name, so it needs the final one.
            staged = temporary.with_name(f"{temporary.stem}-staged") / target.name
            staged.parent.mkdir()
            try:
                with WheelFile(str(staged), "w", zipfile.ZIP_DEFLATED) as sink:
                    for member in source.infolist():
                        if member.filename == f"{info}/RECORD" or member.is_dir():
                            continue
                        data = source.read(member)
                        if member.filename == f"{info}/METADATA":
                            data = _with_version(data, version, str(name))
                        elif member.filename == f"{info}/WHEEL":
                            data = _with_tags(data, new_tags, number)
                        renamed = _renamed(member.filename, {info: new_info, old_data: new_data})
                        sink.writestr(_constant_info(member, renamed), data)
                staged.replace(temporary)
            finally:
                staged.unlink(missing_ok=True)
                staged.parent.rmdir()
    return target


def _renamed(path: str, directories: dict[str, str]) -> str:
    top, slash, rest = path.partition("/")
    return directories.get(top, top) + slash + rest


def _constant_info(member: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EARLIEST)
    info.external_attr = member.external_attr
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _with_version(metadata: bytes, version: str, name: str) -> bytes:
    # Only the first such line is the header; the description after it stays byte for byte.
    changed, count = re.subn(rb"(?m)^Version:.*$", b"Version: " + version.encode(), metadata, count=1)
    if not count:
        msg = f"The metadata of {name} has no Version."
        raise MatrixError(msg)
    return changed


def _with_tags(wheel: bytes, tags: list[str], number: list[str]) -> bytes:
    kept = [line for line in wheel.decode().splitlines() if line and not line.startswith(("Tag:", "Build:"))]
    build = [f"Build: {one}" for one in number]
    return "\n".join([*kept, *build, *(f"Tag: {tag}" for tag in tags), ""]).encode()
