"""Writing the label into a finished wheel: file name, metadata directory, version and record."""

from __future__ import annotations

import os
import re
import zipfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

from packaging.utils import parse_wheel_filename
from wheel.wheelfile import WheelError, WheelFile

from builders.files import atomic_path
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CLOCK = "SOURCE_DATE_EPOCH"
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
    _, _, _, tags = parse_wheel_filename(wheel.name)
    distribution = wheel.name.split("-")[0]
    python, abi, _ = wheel.name.removesuffix(".whl").split("-")[-3:]
    if platform == "any":
        abi = "none"  # nothing compiled is inside, so no ABI is needed
    number = [] if build_number is None else [str(build_number)]
    target = directory / ("-".join([distribution, version, *number, python, abi, platform]) + ".whl")
    abis = {"none"} if platform == "any" else {tag.abi for tag in tags}
    new_tags = sorted(f"{one}-{abi}-{platform}" for one in {tag.interpreter for tag in tags} for abi in abis)
    try:
        with WheelFile(str(wheel)) as source, _no_clock(), atomic_path(target) as temporary:
            _copy(source, temporary, target.name, version, _tag_lines(new_tags, number))
    except WheelError as error:
        msg = f"{wheel.name} is no sound wheel: {error}."
        raise MatrixError(msg) from None
    return target


def _copy(source: WheelFile, temporary: Path, final_name: str, version: str, tags: list[str]) -> None:
    """Write all members anew under the new version."""
    info = str(source.dist_info_path)
    stem = f"{final_name.partition('-')[0]}-{version}"  # as WheelFile names the record
    directories = {info: f"{stem}.dist-info", f"{info.removesuffix('.dist-info')}.data": f"{stem}.data"}
    # WheelFile takes name and version from the file name, so it needs the final one.
    staged = temporary.with_name(f"{temporary.stem}-staged") / final_name
    staged.parent.mkdir()
    try:
        with WheelFile(str(staged), "w", zipfile.ZIP_DEFLATED) as sink:
            for member in source.infolist():
                if member.filename == f"{info}/RECORD" or member.is_dir():
                    continue
                data = source.read(member)
                if member.filename == f"{info}/METADATA":
                    data = _with_version(data, version)
                elif member.filename == f"{info}/WHEEL":
                    data = _with_tags(data, tags)
                sink.writestr(_constant_info(member, _renamed(member.filename, directories)), data)
            if f"{stem}.dist-info/METADATA" not in sink.namelist():
                msg = f"{final_name} would have no metadata"
                raise WheelError(msg)
        staged.replace(temporary)
    finally:
        staged.unlink(missing_ok=True)
        staged.parent.rmdir()


@contextmanager
def _no_clock() -> Iterator[None]:
    """Let the wheel library date the record by a constant, as it does by ``SOURCE_DATE_EPOCH``."""
    before = os.environ.get(_CLOCK)
    os.environ[_CLOCK] = "0"  # which it takes as the earliest time there is
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CLOCK]
        else:
            os.environ[_CLOCK] = before


def _renamed(path: str, directories: dict[str, str]) -> str:
    top, slash, rest = path.partition("/")
    return directories.get(top, top) + slash + rest


def _constant_info(member: zipfile.ZipInfo, name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EARLIEST)
    info.external_attr = member.external_attr
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _with_version(metadata: bytes, version: str) -> bytes:
    headers, blank, description = re.split(rb"(\r?\n\r?\n|\Z)", metadata, maxsplit=1)
    changed, count = re.subn(rb"(?m)^Version:.*$", b"Version: " + version.encode(), headers, count=1)
    if not count:
        name = re.search(rb"(?m)^Name: *(.*)$", headers)
        msg = f"the metadata of {name[1].decode().strip() if name else 'it'} has no Version"
        raise WheelError(msg)
    return changed + blank + description


def _tag_lines(tags: list[str], number: list[str]) -> list[str]:
    return [*(f"Build: {one}" for one in number), *(f"Tag: {tag}" for tag in tags)]


def _with_tags(wheel: bytes, tags: list[str]) -> bytes:
    kept = [line for line in wheel.decode().splitlines() if line and not line.startswith(("Tag:", "Build:"))]
    return "\n".join([*kept, *tags, ""]).encode()
