"""Unpacking archives that nobody vouches for.

Members that would land outside, links that lead out and devices are refused (PEP 706's ``data``
filter); so is what would fill the disk or the memory. What is unpacked gets its name when all of it
is there.
"""

from __future__ import annotations

import shutil
import tempfile
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from builders.files import TEMPORARY_PREFIX
from builders.io_errors import explain_io_errors
from builders.sources.formats import tarfile, zstd
from resolver.errors import SourceError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO

MOST_BYTES = 16 * 2**30  # pytorch with all its submodules has some 2 GiB
MOST_MEMBERS = 500_000  # ... and some 80 000 files
_LONGEST_HEADER = 2**20  # bytes that are read at once; a long name has a few thousand
_DAMAGE = (tarfile.TarError, zlib.error, zstd.ZstdError, EOFError, ValueError)


def unpack_sdist(archive: Path, target: Path) -> Path:
    """Unpack an sdist into a directory and give its top directory there.

    Raises
    ------
    SourceError
        The archive is damaged or hostile, or holds more or less than one top directory.
    EnvironmentLacksError
        The disk is full or cannot be written.
    """
    target.mkdir(parents=True, exist_ok=True)
    with explain_io_errors(target, hint="Free some space, or choose another directory."):
        work = Path(tempfile.mkdtemp(dir=target, prefix=TEMPORARY_PREFIX))
        try:
            _extract(archive, work)
            tops = list(work.iterdir())
            if len(tops) != 1 or not tops[0].is_dir() or tops[0].is_symlink():
                msg = (
                    f"{archive.name} is no sdist: it holds {len(tops)} things at its top, not one directory."
                )
                raise SourceError(msg)
            top = target / tops[0].name
            tops[0].replace(top)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return top


def _extract(archive: Path, target: Path) -> None:
    count = size = 0

    def admit(member: Any, path: str) -> Any:  # noqa: ANN401  the backport has no types
        nonlocal count, size
        count, size = count + 1, size + member.size
        if count > MOST_MEMBERS or size > MOST_BYTES:
            msg = f"it unpacks to more than {MOST_MEMBERS} members or {MOST_BYTES // 2**30} GiB"
            raise ValueError(msg)
        return tarfile.data_filter(member, path)

    with reading(archive) as tar:
        tar.extractall(target, filter=admit)


@contextmanager
def reading(archive: Path) -> Iterator[Any]:
    """Open a tar archive, gzipped, zstandard or whatever ``tarfile`` knows, and say what is wrong with it.

    Raises
    ------
    SourceError
        It is damaged, or another kind of archive.
    """
    hint = f"Remove {archive} to fetch it again."
    with archive.open("rb") as raw:
        start = raw.read(4)
    if start == b"PK\3\4":
        msg = f"{archive.name} is a zip archive; an sdist is a gzipped tar archive (PEP 517)."
        raise SourceError(msg, hint="Pin the .tar.gz of that release, or its git commit.")
    try:
        with (
            _uncompressed(archive, start) as source,
            tarfile.open(fileobj=cast("BinaryIO", _Guarded(source)), mode="r:") as tar,
        ):
            yield tar
    except _DAMAGE as error:
        msg = f"{archive.name} cannot be unpacked: {error}"
        raise SourceError(msg, hint=hint) from None
    except OSError as error:
        if error.errno is not None:  # the system's, not gzip's
            raise
        msg = f"{archive.name} cannot be unpacked: {error}"
        raise SourceError(msg, hint=hint) from None


@contextmanager
def _uncompressed(archive: Path, start: bytes) -> Iterator[BinaryIO]:
    import bz2
    import gzip
    import lzma

    kinds: dict[bytes, Any] = {b"\x1f\x8b": gzip, b"BZ": bz2, b"\xfd7": lzma, b"\x28\xb5": zstd}
    opener = kinds.get(start[:2])
    with opener.open(archive, "rb") if opener else archive.open("rb") as source:
        yield source


class _Guarded:
    """A file that is never asked for more at once than a header can sensibly hold.

    ``tarfile`` reads an extended header whole, so one that claims gigabytes would fill the memory.
    """

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self.seek, self.tell, self.seekable = source.seek, source.tell, source.seekable
        self.readable = source.readable

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER:
            msg = f"it wants to read {size} bytes at once"
            raise ValueError(msg)
        return self._source.read(size)
