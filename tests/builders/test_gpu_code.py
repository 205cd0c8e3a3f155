"""Offload bundles and code objects are read; damage is reported."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.audit import gpu_code
from builders.audit.gpu_code import CodeObject, read_code_objects
from builders.findings import Finding
from tests.builders.bundles import HOST, PREFIX, code_object, packed, padded, plain

DATA = Path(__file__).parent / "data"
GFX90A = (f"{PREFIX}gfx90a", code_object())
GFX942 = (f"{PREFIX}gfx942", code_object("gfx942", size=900))
XNACK = (f"{PREFIX}gfx90a:xnack-", code_object(xnack="xnack-"))


def read(section: bytes, before: int = 0) -> tuple[list[CodeObject], list[Finding]]:
    data = b"\xff" * before + section + b"__CLANG_OFFLOAD_BUNDLE__"
    return read_code_objects("x.so", data, before, len(section))


def names(section: bytes) -> list[str]:
    objects, problems = read(section)
    assert problems == []
    return [code.name for code in objects]


def problems_of(section: bytes) -> list[str]:
    return [finding.id for finding in read(section)[1]]


def test_plain_bundles_have_offsets() -> None:
    section = padded(plain([HOST, GFX90A]), plain([HOST, GFX942, XNACK]))
    objects, problems = read(section, before=12345)
    assert problems == []
    second = len(padded(plain([HOST, GFX90A])))
    assert objects == [
        CodeObject("gfx90a", (), 0, 600),
        CodeObject("gfx942", (), second, 900),
        CodeObject("gfx90a", ("xnack-",), second, 600),
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("align", [1, 8, 4096])
def test_compressed_bundles_in_sequence(version: int, align: int) -> None:
    first, second = packed(plain([HOST, GFX90A]), version), packed(plain([HOST, GFX942]), version)
    section = padded(first, second, plain([HOST, XNACK]), align=align)
    objects, problems = read(section)
    assert problems == []
    assert [(code.name, code.compression) for code in objects] == [
        ("gfx90a", "zlib"),
        ("gfx942", "zlib"),
        ("gfx90a:xnack-", ""),
    ]


@pytest.mark.parametrize(("name", "packing"), [("plain", ""), ("zstd2", "zstd"), ("zstd3", "zstd")])
def test_bundles_of_clang_are_read(name: str, packing: str) -> None:
    """The bundles are made by clang 22 (data/README.md); llvm-objdump extracts objects of these sizes."""
    objects, problems = read((DATA / f"{name}.fatbin").read_bytes())
    assert problems == []
    assert [(code.architecture, code.features, code.size, code.compression) for code in objects] == [
        ("gfx1030", (), 3528, packing),
        ("gfx90a", ("xnack-",), 4488, packing),
        ("gfx942", (), 4488, packing),
    ]


@pytest.mark.slow
def test_highly_compressed_bundle_is_read() -> None:
    """The decompressor may return no data several times before it returns some."""
    big = plain([HOST, (GFX90A[0], code_object(size=30_000_000)), GFX942])
    assert names(packed(big, 3) + packed(big, 2)) == ["gfx90a", "gfx942"] * 2


@pytest.mark.parametrize(
    "entry",
    [
        "hip-amdgcn-amd-amdhsa--gfx90a",
        "hipv4-amdgcn-amd-amdhsa-unknown-gfx90a",
        "hipv4-amdgcn-amd-amdhsa--gfx90a",
    ],
)
def test_entry_id_spellings(entry: str) -> None:
    assert names(plain([HOST, (entry, code_object())])) == ["gfx90a"]


@pytest.mark.parametrize(
    ("entry", "content", "message"),
    [
        ("gfx942", code_object("gfx90a", noted="gfx942"), "contains code for gfx90a"),
        ("gfx90a", code_object("gfx90a", xnack="xnack+"), "contains code for gfx90a:xnack+"),
        ("gfx90a:xnack-", code_object("gfx90a"), "contains code for gfx90a"),
        ("gfx90a", code_object("gfx90a", noted="gfx942"), "a note for gfx942"),
        ("gfx90a", b"BC\xc0\xde" + bytes(100), "bitcode"),
        ("gfx90a", b"\x7fELF", "does not contain an AMDGPU code object"),
    ],
)
def test_entry_with_wrong_name_is_reported(entry: str, content: bytes, message: str) -> None:
    (problem,) = read(plain([HOST, (PREFIX + entry, content)]))[1]
    assert problem.id == "object-disagrees"
    assert message in problem.message


def test_empty_entry_and_unknown_architecture() -> None:
    assert problems_of(plain([HOST, (GFX90A[0], b"")])) == ["empty-object"]
    assert problems_of(plain([HOST, ("hip-strange", b"x")])) == ["unknown-target"]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b"noise" * 100, "not an offload bundle"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", 2**63), "entries"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 0, 0, 2**62), "entry name"),
        (b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<QQQQ", 1, 2**63, 2**63, 3) + b"abc", "extends beyond"),
        (b"CCOB" + struct.pack("<HHQQ", 3, 0, 2**62, 10), "left in its section"),
        (b"CCOB" + struct.pack("<HHQQ", 3, 0, 5, 10) + bytes(30), "left in its section"),
        (packed(plain([GFX90A]), 3, payload=b"no zlib"), "cannot be decompressed"),
        (packed(plain([GFX90A]), 3, method=1, payload=b"no zstd"), "cannot be decompressed"),
        (packed(b"shorter", 3, payload=b""), "cut short"),
        (packed(b"anything else that is long enough", 3), "not an offload bundle"),
    ],
)
def test_reading_continues_after_damage(damaged: bytes, message: str) -> None:
    objects, problems = read(padded(damaged, plain([HOST, GFX90A])))
    assert [code.name for code in objects] == ["gfx90a"]
    assert message in problems[0].message
    assert {finding.id for finding in problems} == {"fatbin-damaged"}


def test_truncated_table_is_damage() -> None:
    (problem,) = read(plain([HOST, GFX90A])[:60])[1]
    place = {"member": "x.so", "section": ".hip_fatbin", "offset": "0"}
    text = "In the GPU code of x.so, a bundle is cut short."
    assert problem == Finding("fatbin-damaged", "error", text, "Build the wheel again.", place)


def test_names_only_beyond_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = (f"{PREFIX}gfx90a", code_object("gfx942"))
    section = padded(*[packed(plain([HOST, entry]), 3) for entry in (GFX942, wrong)])
    assert problems_of(section) == ["object-disagrees"]
    monkeypatch.setattr(gpu_code, "_MOST_COMPARED", 1000)
    assert problems_of(section) == ["names-only"]
    assert [code.name for code in read(section)[0]] == ["gfx942", "gfx90a"]


@pytest.mark.parametrize("version", [2, 3])
def test_huge_bundle_is_not_unpacked(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its promised size is checked before more than its table is unpacked; the next bundle is compared."""
    wrong = (f"{PREFIX}gfx90a", code_object("gfx942"))
    large = packed(plain([HOST, (f"{PREFIX}gfx942", code_object("gfx942", size=1 << 24))]), version)
    section = padded(large, packed(plain([HOST, wrong]), 3))
    monkeypatch.setattr(gpu_code, "_MOST_COMPARED", 1 << 20)
    unpacked: list[int] = []
    decompressed = gpu_code._Section._decompressed

    @contextmanager
    def measured(*arguments: Any) -> Iterator[tuple[Any, int]]:
        with decompressed(*arguments) as (data, end):
            unpacked.append(len(data))
            yield data, end

    monkeypatch.setattr(gpu_code._Section, "_decompressed", measured)
    objects, problems = read(section)
    assert [code.name for code in objects] == ["gfx942", "gfx90a"]
    assert [finding.id for finding in problems] == ["object-disagrees", "names-only"]
    assert max(unpacked) <= 1 << 22


def test_huge_bundle_without_length_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    section = padded(packed(plain([HOST, GFX90A]), 1), packed(plain([HOST, GFX942]), 3))
    assert problems_of(section) == []
    monkeypatch.setattr(gpu_code, "_MOST_COMPARED", 1000)
    objects, problems = read(section)
    assert [finding.id for finding in problems] == ["bundle-not-read", "names-only"]
    assert "does not state its length" in problems[0].message
    assert [code.name for code in objects] == ["gfx942"]


def test_payload_larger_than_its_size_is_damage() -> None:
    bundle = plain([HOST, GFX90A, GFX942])
    lying = bytearray(packed(bundle, 3))
    lying[16:24] = struct.pack("<Q", 4096 + 600)
    assert "fatbin-damaged" in problems_of(bytes(lying))


def test_unknown_compression_is_not_read() -> None:
    section = padded(packed(plain([GFX90A]), 3, method=7), plain([GFX942]))
    objects, problems = read(section)
    assert [finding.id for finding in problems] == ["bundle-not-read"]
    assert [code.name for code in objects] == ["gfx942"]


@given(cut=st.integers(0, 20_000))
def test_truncated_section_adds_no_objects(cut: int) -> None:
    section = padded(plain([HOST, GFX90A]), packed(plain([HOST, GFX942]), 3))
    objects, _ = read(section[:cut])
    whole, _ = read(section)
    assert all(code in whole for code in objects)


@given(data=st.binary(max_size=300), at=st.integers(0, 9000), packing=st.sampled_from([0, 1, 2, 3]))
def test_object_with_any_bytes_is_read(data: bytes, at: int, packing: int) -> None:
    bundle = plain([HOST, GFX90A, GFX942], align=64)
    section = bytearray(padded(packed(bundle, packing) if packing else bundle, plain([XNACK])))
    section[at : at + len(data)] = data
    objects, problems = read(bytes(section))
    assert len(problems) <= 20
    assert len(objects) <= 4


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from([GFX90A, GFX942, XNACK]), min_size=1, max_size=4),
            st.sampled_from([0, 1, 2, 3]),
        ),
        max_size=5,
    ),
    st.sampled_from([1, 8, 4096]),
)
def test_written_bundles_are_read(written: list[tuple[list[tuple[str, bytes]], int]], align: int) -> None:
    bundles = [packed(plain(entries), how) if how else plain(entries) for entries, how in written]
    expected = [name.removeprefix(PREFIX) for entries, _ in written for name, _ in entries]
    assert names(padded(*bundles, align=align)) == expected
