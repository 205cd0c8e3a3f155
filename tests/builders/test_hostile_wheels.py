"""Hostile wheels give findings or an error: no traceback, no hang, no unbounded memory."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import platform
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.audit import gpu_code
from builders.audit.elf import read_object
from builders.audit.gpu_code import read_code_objects
from builders.audit.wheel_audit import audit_wheel
from builders.wheels import wheel as wheel_module
from builders.wheels.wheel import DamagedError, WheelReader
from resolver.errors import UsageError
from tests.builders.bundles import HOST, PREFIX, code_object, padded, plain

MakeWheel = Callable[..., Path]
Compile = Callable[..., Path]

DATA = Path(__file__).parent / "data"
TAGS = f"cp311-cp311-linux_{platform.machine()}"
OP = "tiny/op.so"
GFX90A = plain([HOST, (f"{PREFIX}gfx90a", code_object(size=5000))])
GFX942 = plain([HOST, (f"{PREFIX}gfx942", code_object("gfx942", size=9000))])
quick = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
    max_examples=150,
)


def changes_of(least: int) -> st.SearchStrategy[list[tuple[float, bytes]]]:
    """Return changes of a file: positions, as fractions of its length, and the new bytes."""
    return st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=least, max_size=4)


@pytest.fixture(scope="session")
def real(compile_object: Compile, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Compile a shared object with C++ names, versions, and GPU code that clang really wrote."""
    section = tmp_path_factory.mktemp("section") / "fatbin"
    section.write_bytes(
        b"".join(padded((DATA / f"{name}.fatbin").read_bytes()) for name in ("plain", "zstd3"))
    )
    head = '.section .hip_fatbin,\\"a\\",@progbits\\n.p2align 12'
    source = f"""
__asm__("{head}\\n.incbin \\"{section}\\"\\n.text");
#include <stdio.h>
int gone(void) __asm__("_ZN2at4zeroEv");
int answer(void) {{ return puts("x") + gone(); }}
"""
    return compile_object("op.so", source).read_bytes()


@pytest.fixture(scope="session")
def wheel_bytes(real: bytes) -> bytes:
    """Return the bytes of a wheel with that object."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(OP, real)
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {TAGS}\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", f"{OP},,\n")
        archive.writestr("deepspeed/git_version_info_installed.py", "installed_ops={'a': 1}\n")
    return sink.getvalue()


@pytest.mark.slow
@quick
@given(changes=changes_of(0))
def test_changed_wheel_gives_verdict_or_error(
    changes: list[tuple[float, bytes]], wheel_bytes: bytes, tmp_path: Path
) -> None:
    data = bytearray(wheel_bytes)
    for where, new in changes:
        at = int(where * (len(data) - len(new)))
        data[at : at + len(new)] = new
    path = tmp_path / f"tiny-1.0-{TAGS}.whl"
    path.write_bytes(data)
    text: str
    try:
        text = audit_wheel(path).verdict
    except UsageError as error:
        text = error.message
    assert text in {"sound", "defective"} or "not a valid wheel" in text


@pytest.mark.slow
@quick
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)
)
def test_changed_object_is_read_or_damaged(changes: list[tuple[float, bytes]], real: bytes) -> None:
    data = bytearray(real)
    for where, new in changes:
        at = int(where**3 * (len(data) - len(new)))  # mostly where the headers are
        data[at : at + len(new)] = new
    try:
        item = read_object(OP, bytes(data))
    except DamagedError:
        return
    assert len(item.imports) < 100
    if item.gpu_section is not None:
        objects, problems = read_code_objects("x.so", bytes(data), *item.gpu_section)
        assert len(objects) <= 6
        assert len(problems) <= 20


def test_too_many_code_objects_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_code, "_MOST_OBJECTS", 10)
    data = padded(*[GFX90A] * 30)
    objects, problems = read_code_objects("x.so", data, 0, len(data))
    assert len(objects) == 11
    assert [problem.id for problem in problems] == ["fatbin-damaged"]


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        audit_wheel(path)
    return caught.value.message


def test_large_directory_is_rejected(make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = make_wheel()
    monkeypatch.setattr(wheel_module, "_LARGEST_DIRECTORY", 100)
    assert "its directory would have" in refusal(wheel)


@pytest.mark.parametrize("pointed", [True, False])
def test_large_zip64_directory_is_rejected(make_wheel: MakeWheel, *, pointed: bool) -> None:
    """The sizes are in the ZIP64 record, before its locator and at the offset it names."""
    wheel = make_wheel()
    data = wheel.read_bytes()
    at = data.rfind(b"PK\x05\x06")
    offset = at if pointed else 0
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 5, 5, 1 << 40, 100)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, offset, 1)
    wheel.write_bytes(data[:at] + record + locator + data[at:])
    assert "not a valid wheel" in refusal(wheel)


def test_directory_outside_of_the_file_is_rejected(make_wheel: MakeWheel) -> None:
    wheel = make_wheel()
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-3] + b"\x01\x00\x00")  # a comment that would begin before the directory
    assert "not a valid wheel" in refusal(wheel)


def test_member_without_name_is_rejected(make_wheel: MakeWheel) -> None:
    wheel = make_wheel()
    data = wheel.read_bytes()
    at = data.rindex(b"tiny.py")
    wheel.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    assert "a member has no name" in refusal(wheel)


def test_member_with_two_names_is_damaged(make_wheel: MakeWheel) -> None:
    """Otherwise one reader could audit a file, and another reader install a different file."""
    wheel = make_wheel()
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"tiny.py", b"evil.py", 1))
    (damaged,) = (finding for finding in audit_wheel(wheel).errors if finding.id == "member-damaged")
    assert "differ" in damaged.message


def test_overlapping_members_are_errors(tmp_path: Path) -> None:
    """Zip bombs use the same bytes many times in this way."""
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    data = b"x" * 2000
    with zipfile.ZipFile(path, "w") as sink:
        sink.writestr("a.py", data)
        sink.writestr("b.py", data)
        info = sink.getinfo("b.py")
        info.header_offset = sink.getinfo("a.py").header_offset
        info.filename = info.orig_filename = "a.py"
    report = audit_wheel(path)
    assert {"members-overlap", "member-twice"} <= {finding.id for finding in report.errors}


def test_sound_wheel_has_no_overlapping_members(make_wheel: MakeWheel) -> None:
    files = {f"tiny/é{n}.py": b"x" * n for n in range(30)}
    assert audit_wheel(make_wheel(files=files)).findings == ()


def test_member_larger_than_its_size_is_damaged(make_wheel: MakeWheel) -> None:
    """The directory states a small size; data beyond that size is not read."""
    wheel = make_wheel()
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed_data = bomb.compress(bytes(50_000_000)) + bomb.flush()
    with zipfile.ZipFile(wheel, "a") as sink:
        sink.writestr("bomb.bin", packed_data)
        info = sink.getinfo("bomb.bin")
        info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, 10
    damaged = [finding for finding in audit_wheel(wheel).errors if finding.id == "member-damaged"]
    assert len(damaged) == 1
    assert "does not have the 10 bytes" in damaged[0].message


def with_texts(wheel: Path, **texts: bytes) -> Path:
    """Rewrite a wheel with other METADATA, WHEEL or RECORD."""
    with zipfile.ZipFile(wheel) as source:
        members = {name: source.read(name) for name in source.namelist()}
    members |= {f"tiny-1.0.dist-info/{name}": data for name, data in texts.items()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as sink:
        for name, data in members.items():
            sink.writestr(name, data)
    return wheel


def test_record_too_large_for_its_members_is_not_read(make_wheel: MakeWheel) -> None:
    (finding,) = audit_wheel(with_texts(make_wheel(), RECORD=b"a\n" * (1 << 20))).findings
    assert finding.id == "record-damaged"
    assert "2097152 bytes" in finding.message


def test_findings_after_a_hundred_are_counted(make_wheel: MakeWheel) -> None:
    report = audit_wheel(
        with_texts(make_wheel(), RECORD=b"".join(b"%d,,\n" % number for number in range(5000)))
    )
    absent = [finding for finding in report.findings if finding.id == "record-names-absent"]
    assert len(absent) == 101
    assert absent[-1].message == "There are 4900 more findings of this kind."
    assert absent[-1].evidence == {"count": "4900"}
    assert {finding.severity for finding in absent} == {"error"}


def test_record_of_one_long_line_is_an_error(make_wheel: MakeWheel) -> None:
    report = audit_wheel(with_texts(make_wheel(), RECORD=b"," * 5000))
    assert "record-names-absent" in {finding.id for finding in report.errors}
    report = audit_wheel(with_texts(make_wheel(), RECORD=b"a" * 64_000 + b",,"))
    assert "record-names-absent" in {finding.id for finding in report.errors}


@pytest.mark.parametrize("text", ["METADATA", "WHEEL"])
def test_large_metadata_is_not_read(make_wheel: MakeWheel, text: str) -> None:
    report = audit_wheel(with_texts(make_wheel(), **{text: b"a: b\n" * (1 << 20)}))
    assert [finding.id for finding in report.errors] == ["record-hash-differs", "metadata-too-large"]
    assert text in report.errors[1].message
    assert text not in report.contents.texts


def test_metadata_with_large_headers_is_not_read(make_wheel: MakeWheel) -> None:
    head = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    report = audit_wheel(with_texts(make_wheel(), METADATA=head + b"Requires-Dist: a\n" * 20_000))
    assert "METADATA has 340046 bytes" in report.errors[1].message
    report = audit_wheel(with_texts(make_wheel(), METADATA=head + b"\n" + b"a long README\n" * 30_000))
    assert [finding.id for finding in report.errors] == ["record-hash-differs"]


def test_requirement_with_deep_brackets_is_ignored(make_wheel: MakeWheel) -> None:
    requirements = b"Requires-Dist: a; " + b"(" * 10_000 + b"\nRequires-Dist: b\n"
    head = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    wheel = with_texts(make_wheel(), METADATA=head + requirements)
    assert [str(requirement) for requirement in audit_wheel(wheel).contents.requirements()] == ["b"]


def test_directory_of_16_mib_is_rejected(tmp_path: Path) -> None:
    """Each of its bytes takes about 20 bytes of memory."""
    size = (1 << 24) + 1
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, size, 0, 0)
    path.write_bytes(bytes(size) + end)
    assert "its directory would have 16777217 bytes" in refusal(path)


def without_sections(data: bytes) -> bytes:
    """Remove the section headers, as ``strip --strip-section-headers`` does."""
    return data[:40] + bytes(8) + data[48:58] + bytes(6) + data[64:]


def with_section_moved(data: bytes, kind: int) -> bytes:
    """Make the header of one kind of section point to a copy at the end of the file."""
    changed = bytearray(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for at in range(table, table + size * count, size):
        if struct.unpack_from("<I", data, at + 4)[0] == kind:
            offset, length = struct.unpack_from("<QQ", data, at + 24)
            struct.pack_into("<Q", changed, at + 24, len(changed))
            changed += data[offset : offset + length]
    assert len(changed) > len(data)
    return bytes(changed)


def test_object_with_false_section_headers_is_damaged(make_wheel: MakeWheel, real: bytes) -> None:
    """The loader reads the program headers only, so such an object could need anything."""
    read_object(OP, real)
    report = audit_wheel(make_wheel(files={OP: without_sections(real)}, tags=TAGS))
    assert [finding.id for finding in report.errors] == ["not-elf"]
    assert "dynamic section that the loader reads" in report.errors[0].message
    for kind, text in ((6, "dynamic section"), (11, "table of symbols"), (0x6FFFFFFE, "table of versions")):
        with pytest.raises(DamagedError, match=f"{text} that the loader reads"):
            read_object(OP, with_section_moved(real, kind))


@pytest.mark.parametrize("end", [zlib.Z_SYNC_FLUSH, zlib.Z_FINISH])
def test_data_after_the_compressed_member_is_damage(make_wheel: MakeWheel, end: int) -> None:
    """Without an end mark, or with data after it, readers may unpack different files."""
    data = b"ANSWER = 42\n" * 100
    packer = zlib.compressobj(wbits=-15)
    compressed = packer.compress(data) + packer.flush(end) + b"junk" * (end == zlib.Z_FINISH)
    wheel = make_wheel()
    with zipfile.ZipFile(wheel, "a") as sink:
        sink.writestr("more.py", compressed)
        info = sink.getinfo("more.py")
        info.compress_type, info.file_size, info.CRC = zipfile.ZIP_DEFLATED, len(data), zlib.crc32(data)
    (damaged,) = (finding for finding in audit_wheel(wheel).errors if finding.id == "member-damaged")
    assert "ends too early or is followed by other data" in damaged.message


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("level", [0, 1, 9])
def test_reader_unpacks_every_compression(method: int, level: int, tmp_path: Path) -> None:
    data = b"".join(os.urandom(50_000) + bytes(900_000) for _ in range(5))
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", method, compresslevel=level) as sink:
        sink.writestr("member", data)
        sink.writestr("empty", b"")
    with WheelReader(path) as reader:
        member, empty = reader.members
        with reader.unpacked(member) as (content, digest):
            assert content[:] == data
            assert digest == hashlib.sha256(data).digest()
        with reader.unpacked(empty) as (content, _):
            assert content[:] == b""


def test_reader_rejects_wrong_checksum(tmp_path: Path) -> None:
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as sink:
        sink.writestr("member", b"content")
    path.write_bytes(path.read_bytes().replace(b"content", b"contend"))
    with WheelReader(path) as reader, pytest.raises(DamagedError, match="checksum"):
        reader.read(reader.members[0])


def test_audit_on_full_disk_is_an_error_message(
    make_wheel: MakeWheel, real: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert "No space left on device" in refusal(make_wheel(files={OP: real}, tags=TAGS))
