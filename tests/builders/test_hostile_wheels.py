"""Wheels that anybody may have made: an answer always, never a traceback, never a full memory."""

from __future__ import annotations

import io
import platform
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders.audit import audit_wheel, contents, directory, fatbin
from builders.audit.elf import read_object
from builders.audit.fatbin import Seen, read_code_objects, watch_bundles
from builders.audit.members import DamagedError, Member, Passing
from resolver.errors import UsageError
from tests.builders.bundles import HOST, PREFIX, code_object, packed, padded, plain

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
    """Give changes of a file: where, as a part of its length, and the new bytes."""
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
    """Write a whole wheel with that object."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(OP, real)
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {TAGS}\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", f"{OP},,\n")
        archive.writestr("deepspeed/git_version_info_installed.py", "installed_ops={'a': 1}\n")
    return sink.getvalue()


@quick
@given(changes=changes_of(0))
def test_a_changed_wheel_is_judged_or_refused(
    changes: list[tuple[float, bytes]], wheel_bytes: bytes, tmp_path: Path
) -> None:
    data = bytearray(wheel_bytes)
    for where, new in changes:
        at = int(where * (len(data) - len(new)))
        data[at : at + len(new)] = new
    path = tmp_path / f"tiny-1.0-{TAGS}.whl"
    path.write_bytes(data)
    said: str
    try:
        said = audit_wheel(path).verdict
    except UsageError as error:
        said = error.message
    assert said in {"sound", "defective"} or "no sound wheel" in said


@quick
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=4)
)
def test_a_changed_object_is_read_or_refused(changes: list[tuple[float, bytes]], real: bytes) -> None:
    data = bytearray(real)
    for where, new in changes:
        at = int(where**3 * (len(data) - len(new)))  # mostly where the headers are
        data[at : at + len(new)] = new
    try:
        one, symbols = read_object(OP, io.BytesIO(data))
    except DamagedError:
        return
    assert len(symbols.needs) < 100
    if one.fatbin is not None:
        objects, problems = read_code_objects(io.BytesIO(data), *one.fatbin)
        assert len(objects) <= 6
        assert len(problems) <= 20


def pieces(data: bytes, seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    at = 0
    while at < len(data):
        size = chance.choice([1, 7, 100, 5000, 70_000])
        yield data[at : at + size]
        at += size


def watched(data: bytes, seed: int = 1) -> dict[int, Seen]:
    return watch_bundles(Passing(pieces(data, seed), len(data)))


def test_bundles_are_seen_in_passing() -> None:
    data = b"\x7fELF" + bytes(4092) + padded(GFX90A, GFX942) + b"end"
    second = 4096 + len(padded(GFX90A))
    seen = watched(data)
    assert {place: one.end for place, one in seen.items()} == {
        4096: 4096 + len(GFX90A),
        second: second + len(GFX942),
    }
    assert [one.next for one in seen.values()] == [second, len(data) - 3]
    assert [each.name for one in seen.values() for each in one.found.objects] == ["gfx90a", "gfx942"]


class _Forbidden(io.BytesIO):
    """A stream that gives nothing but the first bytes of a section."""

    def read(self, size: int | None = -1) -> bytes:
        assert self.tell() < 8192, f"read at {self.tell()}"
        return super().read(size)


def test_what_was_seen_is_not_read_again() -> None:
    data = bytes(4096) + padded(*[GFX90A] * 50)
    section = (4096, len(data) - 4096)
    objects, problems = read_code_objects(_Forbidden(data), *section, watched(data))
    assert problems == []
    assert objects == read_code_objects(io.BytesIO(data), *section)[0]
    assert len({one.offset for one in objects}) == 50
    with pytest.raises(AssertionError, match="read at"):
        read_code_objects(_Forbidden(data), *section)


@quick
@given(
    bundles=st.lists(st.sampled_from([GFX90A, GFX942, packed(GFX942, 3), b"noise", bytes(50)]), max_size=6),
    cut=st.integers(0, 40_000),
    start=st.sampled_from([0, 16, 4096]),
    changes=st.lists(st.tuples(st.integers(0, 40_000), st.binary(min_size=1, max_size=4)), max_size=3),
)
def test_seen_or_not_the_answer_is_the_same(
    bundles: list[bytes], cut: int, start: int, changes: list[tuple[int, bytes]]
) -> None:
    body = bytearray(padded(*bundles))
    for at, new in changes:
        if at + len(new) <= len(body):
            body[at : at + len(new)] = new
    data = bytes(start) + bytes(body) + padded(GFX90A)
    section = (start, min(cut, len(body)))
    assert read_code_objects(io.BytesIO(data), *section, watched(data)) == read_code_objects(
        io.BytesIO(data), *section
    )


def test_more_code_objects_than_any_file_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fatbin, "_MOST_OBJECTS", 10)
    data = padded(*[GFX90A] * 30)
    for seen in ({}, watched(data)):
        objects, problems = read_code_objects(io.BytesIO(data), 0, len(data), seen)
        assert len(objects) == 11
        assert [one.id for one in problems] == ["fatbin-damaged"]
    assert len(watched(data)) <= 11


def test_passing_goes_forward_only() -> None:
    passing = Passing(pieces(b"abcdefgh" * 1000, 3), 8000)
    assert passing.read_at(8, 4) == b"abcd"
    assert passing.find(b"h", 12) == 15
    assert passing.find(b"nowhere", 15) is None
    assert passing.read_at(8000, 5) == b""
    with pytest.raises(DamagedError, match="backward"):
        passing.read_at(8, 1)
    assert Passing(iter([bytes(10), b"\0\0x"]), 13).skip_zeros(2) == 12
    assert Passing(iter([bytes(10)]), 10).skip_zeros(2) == 10


def test_sums_on_another_thread_are_the_same(tmp_path: Path) -> None:
    data = random.Random(1).randbytes(3_000_000) + bytes(9_000_000)
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as sink:
        sink.writestr("member", data)
    with path.open("rb") as file, ThreadPoolExecutor(1) as helper:
        info = zipfile.ZipFile(file).getinfo("member")
        beside = Member(file, info, helper=helper, watch=lambda passing: passing.read_at(5, 5))
        assert beside.sha256 == Member(file, info).sha256
        info.CRC ^= 1
        with pytest.raises(DamagedError, match="checksum"):
            Member(file, info, helper=helper)


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        audit_wheel(path)
    return caught.value.message


def test_a_directory_that_would_fill_the_memory(
    make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel()
    monkeypatch.setattr(directory, "_LARGEST_DIRECTORY", 100)
    assert "its directory would have" in refusal(wheel)


@pytest.mark.parametrize("pointed", [True, False])
def test_the_directory_of_a_large_archive(make_wheel: MakeWheel, *, pointed: bool) -> None:
    """The sizes stand in another record then, before its locator and where that points to."""
    wheel = make_wheel()
    data = wheel.read_bytes()
    at = data.rfind(b"PK\x05\x06")
    place = at if pointed else 0
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 5, 5, 1 << 40, 100)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, place, 1)
    wheel.write_bytes(data[:at] + record + locator + data[at:])
    assert f"its directory would have {1 << 40} bytes" in refusal(wheel)


def test_a_directory_that_points_out_of_the_file(make_wheel: MakeWheel) -> None:
    wheel = make_wheel()
    data = wheel.read_bytes()
    wheel.write_bytes(data[:-3] + b"\x01\x00\x00")  # a comment that would begin before the directory
    assert "no sound wheel" in refusal(wheel)


def test_a_member_without_a_name(make_wheel: MakeWheel) -> None:
    wheel = make_wheel()
    data = wheel.read_bytes()
    at = data.rindex(b"tiny.py")
    wheel.write_bytes(data[:at] + b"\0" + data[at + 1 :])
    assert "a member has no name" in refusal(wheel)


def test_a_member_that_is_called_otherwise_inside(make_wheel: MakeWheel) -> None:
    """One reader would install another file than another reader audited."""
    wheel = make_wheel()
    data = wheel.read_bytes()
    wheel.write_bytes(data.replace(b"tiny.py", b"evil.py", 1))
    (damaged,) = (one for one in audit_wheel(wheel).errors if one.id == "member-damaged")
    assert "called otherwise" in damaged.message


def test_members_that_overlap(tmp_path: Path) -> None:
    """As in a bomb that counts the same bytes many times."""
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    data = b"x" * 2000
    with zipfile.ZipFile(path, "w") as sink:
        sink.writestr("a.py", data)
        sink.writestr("b.py", data)
        info = sink.getinfo("b.py")
        info.header_offset = sink.getinfo("a.py").header_offset
        info.filename = info.orig_filename = "a.py"
    report = audit_wheel(path)
    assert {"members-overlap", "member-twice"} <= {one.id for one in report.errors}


def test_sound_wheels_do_not_overlap(make_wheel: MakeWheel) -> None:
    files = {f"tiny/é{n}.py": b"x" * n for n in range(30)}
    assert audit_wheel(make_wheel(files=files)).findings == ()


def test_a_member_that_unpacks_to_more_than_it_says(make_wheel: MakeWheel) -> None:
    """The directory promises little; what comes beyond it is not read."""
    wheel = make_wheel()
    bomb = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed_data = bomb.compress(bytes(50_000_000)) + bomb.flush()
    with zipfile.ZipFile(wheel, "a") as sink:
        sink.writestr("bomb.bin", packed_data)
        info = sink.getinfo("bomb.bin")
        info.compress_type, info.file_size = zipfile.ZIP_DEFLATED, 10
    damaged = [one for one in audit_wheel(wheel).errors if one.id == "member-damaged"]
    assert len(damaged) == 1
    assert "is not of 10 bytes" in damaged[0].message


def with_texts(wheel: Path, **texts: bytes) -> Path:
    """Write a wheel anew with other METADATA, WHEEL or RECORD."""
    with zipfile.ZipFile(wheel) as source:
        members = {name: source.read(name) for name in source.namelist()}
    members |= {f"tiny-1.0.dist-info/{name}": data for name, data in texts.items()}
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as sink:
        for name, data in members.items():
            sink.writestr(name, data)
    return wheel


def test_a_record_that_no_members_account_for_is_not_read(make_wheel: MakeWheel) -> None:
    (one,) = audit_wheel(with_texts(make_wheel(), RECORD=b"a\n" * (1 << 20))).findings
    assert one.id == "record-damaged"
    assert "2097152 bytes" in one.message


def test_many_findings_of_one_kind_are_counted(make_wheel: MakeWheel) -> None:
    report = audit_wheel(with_texts(make_wheel(), RECORD=b"".join(b"%d,,\n" % one for one in range(5000))))
    absent = [one for one in report.findings if one.id == "record-names-absent"]
    assert len(absent) == 101
    assert absent[-1].message == "There are 4900 more of these."
    assert absent[-1].evidence == {"count": "4900"}
    assert {one.severity for one in absent} == {"error"}


def test_a_record_of_one_line_is_no_table(make_wheel: MakeWheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_LONGEST_LINE", 1000)
    report = audit_wheel(with_texts(make_wheel(), RECORD=b"," * 5000))
    assert [(one.id, "line" in one.message) for one in report.findings] == [("record-damaged", True)]


@pytest.mark.parametrize("text", ["METADATA", "WHEEL"])
def test_metadata_of_any_size_is_not_read(make_wheel: MakeWheel, text: str) -> None:
    report = audit_wheel(with_texts(make_wheel(), **{text: b"a: b\n" * (1 << 20)}))
    assert [one.id for one in report.errors] == ["record-hash-differs", "metadata-too-large"]
    assert text in report.errors[1].message
    assert text not in report.contents.texts


def test_requirements_without_end_are_looked_at_to_a_bound(make_wheel: MakeWheel) -> None:
    head = b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    wheel = with_texts(make_wheel(), METADATA=head + b"Requires-Dist: a\n" * 20_000)
    assert len(contents.requirements_of(audit_wheel(wheel).contents)) == 10_000


def test_a_directory_eight_times_that_of_torch_is_refused() -> None:
    """Each of its bytes takes some twenty in memory."""
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0, 0, (1 << 24) + 1, 0, 0)
    with pytest.raises(DamagedError, match="16777217 bytes"):
        directory.check_directory(io.BytesIO(end), len(end))


def without_sections(data: bytes) -> bytes:
    """Take the section headers away, as ``strip --strip-section-headers`` does."""
    return data[:40] + bytes(8) + data[48:58] + bytes(6) + data[64:]


def with_section_moved(data: bytes, kind: int) -> bytes:
    """Let the header of one kind of section point to a copy at the end of the file."""
    changed = bytearray(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    for at in range(table, table + size * count, size):
        if struct.unpack_from("<I", data, at + 4)[0] == kind:
            place, length = struct.unpack_from("<QQ", data, at + 24)
            struct.pack_into("<Q", changed, at + 24, len(changed))
            changed += data[place : place + length]
    assert len(changed) > len(data)
    return bytes(changed)


def test_an_object_that_loads_otherwise_than_its_sections_say(make_wheel: MakeWheel, real: bytes) -> None:
    """The loader reads the program headers only, so such an object could need anything."""
    read_object(OP, io.BytesIO(real))
    report = audit_wheel(make_wheel(files={OP: without_sections(real)}, tags=TAGS))
    assert [one.id for one in report.errors] == ["not-elf"]
    assert "dynamic section that the loader reads" in report.errors[0].message
    for kind, said in ((6, "dynamic section"), (11, "table of symbols"), (0x6FFFFFFE, "table of versions")):
        with pytest.raises(DamagedError, match=f"{said} that the loader reads"):
            read_object(OP, io.BytesIO(with_section_moved(real, kind)))
