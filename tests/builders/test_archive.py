"""Zip files that are written here, read by the standard library."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import pytest

from builders.labelling.archive import ArchiveWriter, Entry


class Holes(io.RawIOBase):
    """Stand-in for a large file: blocks of zeros are passed over, and become holes on the disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: object) -> int:
        assert isinstance(data, bytes)
        if len(data) >= BLOCK - 1:
            self._file.seek(len(data), 1)
            return len(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()


BLOCK = 1 << 26


def stored(name: str, data: bytes, *, executable: bool = False) -> Entry:
    return Entry(name, zipfile.ZIP_STORED, zlib.crc32(data), len(data), len(data), executable)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    packer = zlib.compressobj(wbits=-15)
    text = b"words " * 1000
    packed = packer.compress(text) + packer.flush()
    path = tmp_path / "a.zip"
    with path.open("wb") as sink:
        writer = ArchiveWriter(sink)
        writer.begin(Entry("words", zipfile.ZIP_DEFLATED, zlib.crc32(text), len(text), len(packed), True))
        writer.write(packed[:5])
        writer.write(packed[5:])
        writer.add_text("größe.txt", b"1")
        writer.add_text("empty", b"")
        writer.finish()
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert {one: archive.read(one) for one in archive.namelist()} == {
            "words": text,
            "größe.txt": b"1",
            "empty": b"",
        }
        assert [one.external_attr >> 16 & 0o777 for one in archive.infolist()] == [0o755, 0o644, 0o644]
        assert {one.date_time for one in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert [one.extra for one in archive.infolist()] == [b"", b"", b""]


@pytest.mark.parametrize("size", [(1 << 32) + BLOCK, 1 << 32, (1 << 32) - 1])
def test_members_and_places_beyond_4_gib(tmp_path: Path, size: int) -> None:
    """The last of these sizes is the number that stands for one that is elsewhere."""
    path = tmp_path / "large.zip"
    with Holes(path) as sink:
        writer = ArchiveWriter(sink)  # type: ignore[arg-type]
        writer.begin(Entry("large", zipfile.ZIP_STORED, 0, size, size))
        for _ in range(size // BLOCK):
            writer.write(bytes(BLOCK))
        if size % BLOCK:
            writer.write(bytes(size % BLOCK))
        writer.add_text("small", b"behind it")
        writer.finish()
    with zipfile.ZipFile(path) as archive:
        large, small = archive.infolist()
        assert (large.file_size, large.compress_size, large.header_offset) == (size, size, 0)
        assert small.header_offset > size
        assert struct.unpack("<2H2Q", large.extra) == (1, 16, size, size)
        assert struct.unpack("<2HQ", small.extra) == (1, 8, small.header_offset)
        assert archive.read("small") == b"behind it"
        with archive.open("large") as source:
            assert source.read(10) == bytes(10)
    with path.open("rb") as file:  # readers of streams have nothing but the header before the data
        header = file.read(30 + len("large") + 20)
    assert struct.unpack_from("<HH2Q", header, 35) == (1, 16, size, size)
    assert struct.unpack_from("<2I", header, 18) == (0xFFFFFFFF, 0xFFFFFFFF)


def test_more_members_than_16_bits_can_count(tmp_path: Path) -> None:
    path = tmp_path / "many.zip"
    with path.open("wb") as sink:
        writer = ArchiveWriter(sink)
        for number in range(1 << 16):
            writer.add_text(str(number), b"")
        writer.finish()
    with zipfile.ZipFile(path) as archive:
        assert len(archive.namelist()) == 1 << 16
    end = path.read_bytes()[-22 - 20 - 56 :]
    assert end.startswith(b"PK\x06\x06")
    assert struct.unpack_from("<2Q", end, 24) == (1 << 16, 1 << 16)
