"""What an index reads of a wheel file."""

from __future__ import annotations

import hashlib
import zipfile
from datetime import UTC, datetime
from email.parser import BytesHeaderParser
from typing import TYPE_CHECKING

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from builders.files import TEMPORARY_PREFIX, sha256_of
from builders.index.pages import Entry, Hashes, link_of
from resolver.errors import MatrixError

if TYPE_CHECKING:
    from pathlib import Path


def entry_of(wheel: Path) -> Entry:
    """Read what a page says of a wheel, but for when it came.

    Raises
    ------
    MatrixError
        It is no wheel, or has no metadata; or no file at all, such as a pipe, which would be waited for.
    """
    if not wheel.is_file():
        msg = f"{wheel.name} is no wheel: it is no regular file."
        raise MatrixError(msg)
    metadata = metadata_of(wheel)
    requires = BytesHeaderParser().parsebytes(metadata).get("Requires-Python", "")
    return Entry(
        filename=wheel.name,
        url=link_of(wheel.name),
        hashes=Hashes(sha256_of(wheel)),
        size=wheel.stat().st_size,
        requires_python=str(requires),
        version=str(parse_wheel_filename(wheel.name)[1]),
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
    )


def is_wheel(name: str) -> bool:
    """Tell whether a file name is that of a finished wheel."""
    if not name.endswith(".whl") or name.startswith(TEMPORARY_PREFIX):
        return False
    try:
        parse_wheel_filename(name)
    except InvalidWheelFilename:
        return False
    return True


def upload_time(path: Path) -> str:
    """Give the time at which a file came, as PEP 700 writes it."""
    return datetime.fromtimestamp(int(path.stat().st_mtime), tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata_of(wheel: Path) -> bytes:
    """Read the METADATA inside a wheel.

    Raises
    ------
    MatrixError
        It is no wheel, or has none.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next(one for one in archive.namelist() if one.endswith(".dist-info/METADATA"))
            return archive.read(name)
    except (zipfile.BadZipFile, StopIteration):
        msg = f"{wheel.name} is no wheel: it has no metadata that can be read."
        raise MatrixError(msg) from None
