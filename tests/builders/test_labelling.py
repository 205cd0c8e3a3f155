"""Labels are written wherever tools read them; other content stays, and the bytes are reproducible."""

from __future__ import annotations

import base64
import errno
import hashlib
import platform
import random
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename
from wheel.wheelfile import WheelError, WheelFile

from builders.audit.wheel_audit import audit_wheel
from builders.wheels.labelling import Labelled, Labels, label_wheel, runtime_pins
from builders.wheels.wheel import check_written
from resolver.errors import MatrixError
from tests.support.errors import has_id

MakeWheel = Callable[..., Path]

LABELLED = "1.0+cpu.torch2.13.0"
INFO = f"tiny-{LABELLED}.dist-info"
FILES = {
    "tiny/__init__.py": b"ANSWER = 42\n",
    "tiny/data.bin": bytes(range(256)) * 50,
    "tiny-1.0.data/scripts/tiny-run": b"#!python\nimport tiny\nprint(tiny.ANSWER)\n",
    "tiny-1.0.dist-info/licenses/LICENSE": b"Version: 1.0\n",
}
DESCRIPTION = "A tiny one.\n\nVersion: 9.9 is not out yet.\nVersion: 1.0\n"


@pytest.fixture
def source(make_wheel: MakeWheel) -> Path:
    return make_wheel(
        files=FILES,
        description=DESCRIPTION,
        executable=("tiny-1.0.data/scripts/tiny-run",),
        requires_python=">=3.9",
    )


def label(raw: Path, directory: Path, platform: str = "any", **labels: Any) -> Labelled:
    return label_wheel(raw, Labels(**{"version": LABELLED, "platform": platform, **labels}), directory)


def read_all(path: Path) -> dict[str, bytes]:
    """Read every member through WheelFile, which checks each against the record."""
    with WheelFile(str(path)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def repacked(
    wheel: Path,
    changes: Mapping[str, bytes | None],
    *,
    folder: str = "repacked",
    order: Callable[[list[str]], list[str]] = list,
    mode: int | None = None,
    when: tuple[int, int, int, int, int, int] = (2021, 3, 3, 3, 3, 4),
    level: int = 6,
) -> Path:
    """Pack a wheel's members again, with changes; RECORD stays as it is unless it is changed too."""
    made = wheel.parent.parent / folder / wheel.name
    made.parent.mkdir()
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(made, "w", compresslevel=level) as after:
        content: dict[str, bytes | None] = {name: before.read(name) for name in before.namelist()}
        for name in order([*dict.fromkeys([*content, *changes])]):
            data = {**content, **changes}[name]
            if data is None:
                continue
            info = zipfile.ZipInfo(name, when)
            executable = name in content and before.getinfo(name).external_attr >> 16 & 0o111
            permissions = mode if mode is not None else 0o644
            info.external_attr = (stat.S_IFREG | permissions | (0o111 if executable else 0)) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            after.writestr(info, data)
    return made


def left_in(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.exists() else []


# Names and tags


def test_label_is_in_name_directories_and_metadata(source: Path, tmp_path: Path) -> None:
    made = label(source, tmp_path / "out", "manylinux_2_34_x86_64")
    assert made.path == tmp_path / "out" / f"tiny-{LABELLED}-py3-none-manylinux_2_34_x86_64.whl"
    assert (made.dropped_local, made.requirements, made.notes) == ("", (), ())
    name, version, build, _ = parse_wheel_filename(made.path.name)
    assert (name, str(version), build) == ("tiny", LABELLED, ())
    members = read_all(made.path)
    assert set(members) == {
        "tiny/__init__.py",
        "tiny/data.bin",
        f"tiny-{LABELLED}.data/scripts/tiny-run",
        f"{INFO}/licenses/LICENSE",
        f"{INFO}/METADATA",
        f"{INFO}/WHEEL",
        f"{INFO}/RECORD",
    }
    metadata = message_from_bytes(members[f"{INFO}/METADATA"])
    assert metadata.get_all("Version") == [LABELLED]
    assert metadata["Requires-Python"] == ">=3.9"
    assert metadata.get_payload() == DESCRIPTION
    about = message_from_bytes(members[f"{INFO}/WHEEL"])
    assert about.get_all("Tag") == ["py3-none-manylinux_2_34_x86_64"]
    assert about["Build"] is None
    assert about["Root-Is-Purelib"] == "true"
    assert left_in(made.path.parent) == [made.path]


def test_local_version_of_source_is_replaced_and_reported(make_wheel: MakeWheel, tmp_path: Path) -> None:
    made = label(make_wheel(version="1.0+git.e37ed12"), tmp_path / "out")
    assert made.dropped_local == "git.e37ed12"
    assert made.path.name == f"tiny-{LABELLED}-py3-none-any.whl"
    assert message_from_bytes(read_all(made.path)[f"{INFO}/METADATA"]).get_all("Version") == [LABELLED]
    assert not any("git" in name for name in read_all(made.path))


def test_other_version_of_source_is_noted(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """The version of Apex was 0.1 for years, whatever the tag of the commit."""
    made = label(make_wheel(version="0.1"), tmp_path / "out")
    assert made.notes == (f"The source has version 0.1; the wheel gets version {LABELLED}.",)


def test_names_are_normalized(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """Some backends normalize only the file name, others only the directories."""
    files = {"My.Pkg-1.0.data/data/share/x": b"1"}
    source = make_wheel(name="My.Pkg", files=files)
    source = source.rename(source.with_name("my_pkg-1.0-py3-none-any.whl"))
    made = label(source, tmp_path / "out")
    members = read_all(made.path)
    assert made.path.name == f"my_pkg-{LABELLED}-py3-none-any.whl"
    assert {name.split("/")[0] for name in members} == {
        f"my_pkg-{LABELLED}.dist-info",
        f"my_pkg-{LABELLED}.data",
    }
    metadata = message_from_bytes(members[f"my_pkg-{LABELLED}.dist-info/METADATA"])
    assert metadata["Name"] == "My.Pkg"


def test_record_lists_members_once_and_itself_last(source: Path, tmp_path: Path) -> None:
    members = read_all(label(source, tmp_path / "out").path)
    listed = [line.split(",") for line in members[f"{INFO}/RECORD"].decode().splitlines()]
    assert [row[0] for row in listed] == list(members)
    assert listed[-1] == [f"{INFO}/RECORD", "", ""]
    assert {row[0]: int(row[2]) for row in listed[:-1]} == {
        name: len(data) for name, data in members.items() if not name.endswith("RECORD")
    }


def test_content_and_modes_stay_and_metadata_is_last(source: Path, tmp_path: Path) -> None:
    made = label(source, tmp_path / "out").path
    members = read_all(made)
    for path, data in FILES.items():
        assert members[path.replace("tiny-1.0.", f"tiny-{LABELLED}.")] == data
    with zipfile.ZipFile(made) as after:
        modes = {info.filename: oct(info.external_attr >> 16) for info in after.infolist()}
        assert modes[f"tiny-{LABELLED}.data/scripts/tiny-run"] == "0o100755"
        assert {mode for name, mode in modes.items() if "scripts" not in name} == {"0o100644"}
        assert {info.create_system for info in after.infolist()} == {3}
        assert after.namelist() == [
            f"tiny-{LABELLED}.data/scripts/tiny-run",
            "tiny/__init__.py",
            "tiny/data.bin",
            f"{INFO}/METADATA",
            f"{INFO}/WHEEL",
            f"{INFO}/licenses/LICENSE",
            f"{INFO}/RECORD",
        ]


def test_rebuild_has_build_number(source: Path, tmp_path: Path) -> None:
    made = label(source, tmp_path / "out", build_number=3).path
    assert made.name == f"tiny-{LABELLED}-3-py3-none-any.whl"
    assert message_from_bytes(read_all(made)[f"{INFO}/WHEEL"]).get_all("Build") == ["3"]
    again = label(made, tmp_path / "again").path
    assert message_from_bytes(read_all(again)[f"{INFO}/WHEEL"]).get_all("Build") is None


def test_compressed_tag_sets_are_expanded(make_wheel: MakeWheel, tmp_path: Path) -> None:
    both = "manylinux_2_17_x86_64.manylinux2014_x86_64"
    made = label(make_wheel(tags="py2.py3-none-any"), tmp_path / "out", both).path
    assert made.name == f"tiny-{LABELLED}-py2.py3-none-{both}.whl"
    about = message_from_bytes(read_all(made)[f"{INFO}/WHEEL"])
    assert about.get_all("Tag") == sorted(
        f"{python}-none-{tag}" for python in ("py2", "py3") for tag in both.split(".")
    )


def test_platform_wheel_without_objects_is_installable(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """With the tag cp311-cp311-any, pip would not accept a platform wheel without compiled code."""
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    source = make_wheel(tags=f"{python}-{python}-linux_{platform.machine()}")
    made = label(source, tmp_path / "out").path
    _, _, _, tags = parse_wheel_filename(made.name)
    assert tags & set(sys_tags())
    about = message_from_bytes(read_all(made)[f"{INFO}/WHEEL"])
    assert about.get_all("Tag") == [str(tag) for tag in tags]


# The same bytes


def test_same_content_gives_same_bytes(source: Path, tmp_path: Path) -> None:
    """The time, the order of members and the umask of the packing do not matter."""
    source = repacked(source, {}, folder="packed")
    first = label(source, tmp_path / "first").path.read_bytes()
    shuffled = repacked(
        source,
        {},
        order=lambda names: random.Random(1).sample(names, len(names)),
        mode=0o664,
        when=(2031, 1, 1, 1, 1, 2),
    )
    assert shuffled.read_bytes() != source.read_bytes()
    assert label(shuffled, tmp_path / "second").path.read_bytes() == first


@pytest.mark.parametrize("level", [1, 9])
def test_members_are_copied_as_they_are_compressed(make_wheel: MakeWheel, tmp_path: Path, level: int) -> None:
    large = random.Random(0).randbytes(1 << 16) * 40 + b"end"  # several chunks
    packed = repacked(make_wheel(files={"tiny/data.bin": large, "tiny/empty": b""}), {}, level=level)
    made = label(packed, tmp_path / "out").path
    for name in ("tiny/data.bin", "tiny/empty"):
        assert compressed_data(made, name) == compressed_data(packed, name)
    with zipfile.ZipFile(made) as archive:
        assert archive.getinfo("tiny/data.bin").compress_type == zipfile.ZIP_DEFLATED
        assert archive.getinfo(f"{INFO}/METADATA").compress_type == zipfile.ZIP_STORED
        assert archive.read("tiny/data.bin") == large
        assert archive.testzip() is None


def test_stored_member_stays_stored(source: Path, tmp_path: Path) -> None:
    made = label(with_method(source, zipfile.ZIP_STORED), tmp_path / "out").path
    with zipfile.ZipFile(made) as archive:
        assert archive.getinfo("tiny/data.bin").compress_type == zipfile.ZIP_STORED
        assert archive.getinfo("tiny/__init__.py").compress_type == zipfile.ZIP_DEFLATED
        assert archive.testzip() is None


def compressed_data(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo(name)
    data = wheel.read_bytes()
    names = sum(struct.unpack_from("<HH", data, info.header_offset + 26))
    start = info.header_offset + 30 + names
    return data[start : start + info.compress_size]


def test_member_dates_follow_source_date_epoch(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch, date in (("", (1980, 1, 1, 0, 0, 0)), ("0", (1980, 1, 1, 0, 0, 0)), ("1700000000", None)):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        with zipfile.ZipFile(label(source, tmp_path / f"out{epoch}").path) as archive:
            assert {info.date_time for info in archive.infolist()} == {date or (2023, 11, 14, 22, 13, 20)}


def test_bitsandbytes_metadata_gets_the_exact_torch(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """The recipe does not pin torch at run time, but the metadata of the wheel requires torch."""
    head = "Metadata-Version: 2.4\nName: tiny\nVersion: 1.0\n"
    requires = "Requires-Dist: torch<3,>=2.3\nRequires-Dist: numpy>=1.17\n"
    pins = runtime_pins("2.9.1+rocm6.4", add_torch=False)
    made = label(make_wheel(metadata=head + requires), tmp_path / "out", pins=pins)
    metadata = message_from_bytes(read_all(made.path)[f"{INFO}/METADATA"])
    assert metadata.get_all("Requires-Dist") == ["torch==2.9.1+rocm6.4", "numpy>=1.17"]


def test_labelling_twice_gives_same_bytes(source: Path, tmp_path: Path) -> None:
    pins = runtime_pins("2.13.0+cpu")
    sboms = {"rocm-matrix.cdx.json": b"{}"}
    first = label(source, tmp_path / "first", pins=pins, sboms=sboms)
    again = label(first.path, tmp_path / "again", pins=pins, sboms=sboms)
    assert again.path.read_bytes() == first.path.read_bytes()
    assert again.requirements == ()


# Requirements and documents


def test_metadata_has_pinned_requirements(make_wheel: MakeWheel, tmp_path: Path) -> None:
    head = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    requires = "Requires-Dist: torch>=2\nRequires-Dist: nvidia-ml-py\nRequires-Dist:  numpy ( >1 )\n"
    made = label(
        make_wheel(metadata=f"{head}{requires}Author: Jörg\n\nDescription\n"),
        tmp_path / "out",
        pins=runtime_pins("2.9.1+rocm6.4"),
    )
    metadata = read_all(made.path)[f"{INFO}/METADATA"].decode()
    assert metadata == (
        f"Metadata-Version: 2.1\nName: tiny\nVersion: {LABELLED}\n"
        "Requires-Dist: torch==2.9.1+rocm6.4\nRequires-Dist: numpy ( >1 )\nAuthor: Jörg\n\nDescription\n"
    )
    assert [(change.before, change.after) for change in made.requirements] == [
        ("torch>=2", "torch==2.9.1+rocm6.4"),
        ("nvidia-ml-py", ""),
    ]


def test_wheel_without_requirements_gets_torch(make_wheel: MakeWheel, tmp_path: Path) -> None:
    """Apex compiles against torch, but does not declare it."""
    source = make_wheel(metadata="Metadata-Version: 1.0\nName: tiny\nVersion: 1.0")
    made = label(source, tmp_path / "out", pins=runtime_pins("2.9.1+rocm6.4"))
    metadata = message_from_bytes(read_all(made.path)[f"{INFO}/METADATA"])
    assert metadata.get_all("Requires-Dist") == ["torch==2.9.1+rocm6.4"]
    assert metadata["Metadata-Version"] == "1.2"  # the first with Requires-Dist


def test_sbom_is_added_and_recorded(source: Path, tmp_path: Path) -> None:
    made = label(source, tmp_path / "out", sboms={"rocm-matrix.cdx.json": b'{"bomFormat": "CycloneDX"}'})
    members = read_all(made.path)
    assert members[f"{INFO}/sboms/rocm-matrix.cdx.json"] == b'{"bomFormat": "CycloneDX"}'


def test_old_sbom_is_replaced_and_others_stay(make_wheel: MakeWheel, tmp_path: Path) -> None:
    files = {f"tiny-1.0.dist-info/sboms/{name}.cdx.json": b"old" for name in ("auditwheel", "rocm-matrix")}
    made = label(make_wheel(files=files), tmp_path / "out", sboms={"rocm-matrix.cdx.json": b"new"})
    members = read_all(made.path)
    assert members[f"{INFO}/sboms/auditwheel.cdx.json"] == b"old"
    assert members[f"{INFO}/sboms/rocm-matrix.cdx.json"] == b"new"
    assert made.notes == ("sboms/rocm-matrix.cdx.json of the source was replaced.",)


@pytest.mark.parametrize("name", ["RECORD.jws", "RECORD.p7s"])
def test_signature_is_removed_with_a_note(source: Path, tmp_path: Path, name: str) -> None:
    signed = repacked(source, {f"tiny-1.0.dist-info/{name}": b"signature"})
    made = label(signed, tmp_path / "out")
    assert f"{INFO}/{name}" not in read_all(made.path)
    assert made.notes == (f"The signature {name} was removed: it is not valid for the new wheel.",)


# Invalid wheels; what the audit finds is rejected before

METADATA = "tiny-1.0.dist-info/METADATA"
RECORD = "tiny-1.0.dist-info/RECORD"


def recorded(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(data)}\n"


def with_record(source: Path, changes: Mapping[str, bytes | None], *, folder: str = "repacked") -> Path:
    """Change members, and update RECORD to match."""
    with zipfile.ZipFile(source) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    content |= {name: data for name, data in changes.items() if data is not None}
    rows = [recorded(name, data) for name, data in content.items() if name != RECORD]
    return repacked(source, {**changes, RECORD: "".join([*rows, f"{RECORD},,\n"]).encode()}, folder=folder)


def test_members_that_would_get_one_name_are_rejected(source: Path, tmp_path: Path) -> None:
    both = with_record(source, {"tiny-1.0.data/x": b"", "Tiny-1.0.data/x": b""})
    with pytest.raises(MatrixError, match="would both be renamed", check=has_id("bad-wheel")):
        label(both, tmp_path / "out")
    assert left_in(tmp_path / "out") == []


def with_method(source: Path, method: int) -> Path:
    """Pack a wheel again, with one member compressed by that method."""
    made = source.parent.parent / source.name
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(made, "w") as after:
        for info in before.infolist():
            own = method if info.filename == "tiny/data.bin" else zipfile.ZIP_DEFLATED
            after.writestr(info.filename, before.read(info), compress_type=own)
    return made


def test_bzip2_member_is_rejected(source: Path, tmp_path: Path) -> None:
    made = with_method(source, zipfile.ZIP_BZIP2)
    with pytest.raises(MatrixError, match="is compressed by method 12", check=has_id("bad-wheel")):
        label(made, tmp_path / "out")


@pytest.mark.slow
def test_bomb_is_rejected_before_unpacking(source: Path, tmp_path: Path) -> None:
    with (
        zipfile.ZipFile(source, "a", compression=zipfile.ZIP_DEFLATED) as archive,
        archive.open("tiny/bomb", "w") as sink,
    ):
        for _ in range(270):
            sink.write(bytes(1 << 20))
    with pytest.raises(MatrixError, match="its members would unpack to 283", check=has_id("bad-wheel")):
        label(source, tmp_path / "out")
    assert left_in(tmp_path / "out") == []


def with_field(source: Path, offset: int, value: int) -> Path:
    """Change four bytes of a member's entry in the zip directory; the member does not change."""
    data = bytearray(source.read_bytes())
    start = data.rindex(b"tiny/data.bin", 0, data.rindex(b"PK\x05\x06")) - 46
    assert data[start : start + 4] == b"PK\x01\x02"
    data[start + offset : start + offset + 4] = value.to_bytes(4, "little")
    source.write_bytes(data)
    return source


CRC, SIZE = 16, 24


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (SIZE, 100, "does not have the 100 bytes"),
        (SIZE, 20_000, "does not have the 20000 bytes"),
        (CRC, 1, "does not match its checksum"),
    ],
)
def test_false_size_or_checksum_is_rejected(
    source: Path, tmp_path: Path, offset: int, value: int, message: str
) -> None:
    """Tools that read the stated size and tools that read to the end would unpack different files."""
    with pytest.raises(MatrixError, match=message, check=has_id("bad-wheel")):
        label(with_field(source, offset, value), tmp_path / "out")
    assert left_in(tmp_path / "out") == []


def packed_by_hand(source: Path, compressed: Callable[[bytes], bytes]) -> Path:
    """Pack a wheel again, with one member compressed by a function."""
    made = source.parent.parent / "by-hand" / source.name
    made.parent.mkdir()
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(made, "w") as sink:
        for info in before.infolist():
            data = before.read(info)
            if info.filename != "tiny/data.bin":
                sink.writestr(info.filename, data)
                continue
            sink.writestr(info.filename, compressed(data))
            new = sink.getinfo(info.filename)
            new.compress_type, new.file_size, new.CRC = zipfile.ZIP_DEFLATED, len(data), zlib.crc32(data)
    return made


def deflated(data: bytes, *, end: int = zlib.Z_FINISH) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush(end)


def test_handmade_member_is_accepted(source: Path, tmp_path: Path) -> None:
    made = label(packed_by_hand(source, deflated), tmp_path / "out")
    assert read_all(made.path)["tiny/data.bin"] == FILES["tiny/data.bin"]


@pytest.mark.parametrize(
    "compressed",
    [lambda data: deflated(data) + b"junk", lambda data: deflated(data, end=zlib.Z_SYNC_FLUSH)],
    ids=["something behind the data", "no end of the data"],
)
def test_data_after_the_compressed_member_is_rejected(
    source: Path, tmp_path: Path, compressed: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(
        MatrixError, match="ends too early or is followed by other data", check=has_id("bad-wheel")
    ):
        label(packed_by_hand(source, compressed), tmp_path / "out")


def test_member_with_two_names_is_rejected(source: Path, tmp_path: Path) -> None:
    """Some tools use the local header, others the header in the directory."""
    data = source.read_bytes().replace(b"tiny/data.bin", b"tiny/DATA.bin", 1)
    source.write_bytes(data)
    with pytest.raises(
        MatrixError,
        match=r"cannot be unpacked \(File name in directory",
        check=has_id("bad-wheel"),
    ):
        label(source, tmp_path / "out")


def test_other_file_is_rejected(tmp_path: Path) -> None:
    other = tmp_path / "tiny-1.0-py3-none-any.whl"
    other.write_bytes(b"not a zip file")
    with pytest.raises(
        MatrixError, match="is not a valid wheel: File is not a zip file", check=has_id("bad-wheel")
    ) as caught:
        label(other, tmp_path / "out")
    assert str(other) in caught.value.hint
    archive = other.rename(tmp_path / "tiny.zip")
    with pytest.raises(MatrixError, match="its name is not of the form", check=has_id("bad-wheel")):
        label(archive, tmp_path / "out")


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_wheel_is_rejected_or_unchanged(source: Path, tmp_path: Path, data: st.DataObject) -> None:
    """A truncated or changed wheel that the audit accepts causes no traceback, other content or leftovers."""
    sound = source.read_bytes()
    broken = bytearray(sound[: data.draw(st.integers(1, len(sound)))])
    for _ in range(data.draw(st.integers(0, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "broken" / source.name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(broken)
    out = tmp_path / "broken-out"
    try:
        if audit_wheel(path).errors:
            return
        made = label(path, out)
    except MatrixError:
        assert left_in(out) == []
        return
    members = read_all(made.path)
    for name, content in FILES.items():
        renamed = name.replace("tiny-1.0.", f"tiny-{LABELLED}.")
        assert members.get(renamed, content) == content
    made.path.unlink()


def test_full_disk_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("builders.wheels.wheel._write_member", full)
    with pytest.raises(OSError, match="No space left"):
        label(source, tmp_path / "out")
    assert left_in(tmp_path / "out") == []


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("tiny/not_recorded.py", b"", "No hash found for file 'tiny/not_recorded.py'"),
        (METADATA, b"Metadata-Version: 2.1\nName: tiny\nVersion: 2.0\n", "Hash mismatch for file"),
    ],
)
def test_written_wheel_that_disagrees_with_its_record_is_noticed(
    source: Path, name: str, data: bytes, message: str
) -> None:
    check_written(source)
    with pytest.raises(WheelError, match=message):
        check_written(repacked(source, {name: data}))
