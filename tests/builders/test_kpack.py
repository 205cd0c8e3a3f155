"""GPU code in .kpack archives is read; missing device packages and stray archives are reported.

The archives stand in for AMD's, of which none was at hand. They are written from AMD's description.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.audit.contents import Expected
from builders.audit.elf import Budget
from builders.audit.gpu_code import CodeObject, read_archive
from builders.audit.wheel_audit import WheelAudit, audit_wheel
from builders.findings import Finding
from builders.wheels.wheel import DamagedError
from tests.builders.bundles import code_object

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

MakeWheel = Callable[..., Path]
LIBRARY = "torch/lib/libtorch_hip.so"
CODE = {"gfx90a": code_object(), "gfx942": code_object("gfx942", size=900)}
SOURCE = (
    '__asm__(".section .rocm_kpack_ref,\\"\\",@progbits\\n.byte 0x80\\n.text");\nint f(void) { return 1; }\n'
)


def archive(code: Mapping[str, bytes], scheme: str = "zstd-per-kernel", **changes: object) -> bytes:
    """Return an archive with the code of one library, by architecture."""
    toc = {
        LIBRARY: {
            name: {"type": "hsaco", "ordinal": number, "original_size": len(data)}
            for number, (name, data) in enumerate(code.items())
        }
    }
    table: dict[str, object] = {
        "format_version": 1, "group_name": "torch", "gfx_arch_family": "gfx90a", "gfx_arches": [*code],
        "compression_scheme": scheme, "toc": toc,
    }  # fmt: skip
    body = b""
    if scheme == "none":
        table["blobs"] = []
        for data in code.values():
            table["blobs"] += [{"offset": 64 + len(body), "size": len(data)}]  # type: ignore[operator]
            body += data
    else:
        frames = [zstd.compress(data) for data in code.values()]
        body = struct.pack("<I", len(frames)) + b"".join(struct.pack("<I", len(one)) + one for one in frames)
        table |= {"zstd_offset": 64, "zstd_size": len(body)}
    table |= changes
    header = struct.pack("<4sIQ", b"KPAK", 1, 64 + len(body)).ljust(64, b"\0")
    return header + body + msgspec.msgpack.encode(table)


def read(data: bytes) -> tuple[list[CodeObject], list[Finding]]:
    return read_archive("x.kpack", data, Budget(len(data)))


def ids(report: WheelAudit, severity: str = "error") -> list[str]:
    return [finding.id for finding in report.findings if finding.severity == severity]


@pytest.mark.parametrize(("scheme", "compression"), [("none", ""), ("zstd-per-kernel", "zstd")])
def test_entries_are_code_objects(scheme: str, compression: str) -> None:
    objects, problems = read(archive(CODE, scheme))
    assert problems == []
    assert [(one.name, one.size, one.compression) for one in objects] == [
        ("gfx90a", 600, compression),
        ("gfx942", 900, compression),
    ]


@pytest.mark.parametrize("scheme", ["none", "zstd-per-kernel"])
def test_code_for_another_architecture_is_reported(scheme: str) -> None:
    wrong = {"gfx90a": CODE["gfx942"], "gfx942": b"no code" * 20}
    _, problems = read(archive(wrong, scheme))
    assert [problem.message.partition(" for ")[2] for problem in problems] == [
        "gfx90a is for gfx942.",
        "gfx942 is not an AMDGPU code object.",
    ]


def test_unknown_compression_leaves_the_names() -> None:
    objects, problems = read(archive(CODE, compression_scheme="zstd-with-dictionary"))
    assert [one.name for one in objects] == ["gfx90a", "gfx942"]
    assert [problem.id for problem in problems] == ["names-only"]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "does not begin"),
        (b"KPAC" + archive(CODE)[4:], "does not begin"),
        (b"KPAK" + struct.pack("<I", 2) + archive(CODE)[8:], "unknown version 2"),
        (b"KPAK" + struct.pack("<IQ", 1, 1 << 60) + archive(CODE)[16:], "not in the file"),
        (archive(CODE)[:-5], "cannot be read"),
        (archive(CODE, toc=[]), "cannot be read"),
    ],
)
def test_damage_is_an_error(data: bytes, text: str) -> None:
    with pytest.raises(DamagedError, match=text):
        read(data)


@given(st.data())
def test_changed_bytes_never_crash(data: st.DataObject) -> None:
    whole = bytearray(archive(CODE, data.draw(st.sampled_from(["none", "zstd-per-kernel"]))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        objects, _ = read(bytes(whole[: data.draw(st.integers(0, len(whole)))]))
    except DamagedError:
        return
    assert len(objects) <= 4


def test_device_wheel_has_the_code_of_its_archives(make_wheel: MakeWheel) -> None:
    wheel = make_wheel(files={"torch/.kpack/torch_gfx90a.kpack": archive({"gfx90a": CODE["gfx90a"]})})
    report = audit_wheel(wheel, Expected(("gfx90a",)))
    assert report.report().code_objects == {"torch/.kpack/torch_gfx90a.kpack": ["gfx90a"]}
    assert not {"no-gpu-code", "target-missing"} & {finding.id for finding in report.findings}
    assert "target-missing" in ids(audit_wheel(wheel, Expected(("gfx942",))))


def test_damaged_archive_is_reported(make_wheel: MakeWheel) -> None:
    wheel = make_wheel(files={"torch/.kpack/torch_gfx90a.kpack": archive(CODE)[:-5]})
    assert "kpack-damaged" in ids(audit_wheel(wheel))


def test_stray_archive_is_reported(make_wheel: MakeWheel) -> None:
    """It made every kernel fail in torch 2.12 with ROCm 7.14 (TheRock issue 7081)."""
    data = archive({"gfx90a": CODE["gfx90a"]})
    plain, stray = "torch/.kpack/torch_gfx90a.kpack", "torch/.kpack/torch_gfx90a:xnack+.kpack"
    assert "stray-kpack" in ids(audit_wheel(make_wheel(files={plain: data, stray: data})))
    assert "stray-kpack" not in ids(audit_wheel(make_wheel(files={plain: data})))
    alone = archive({"gfx90a:xnack+": code_object(xnack="xnack+")})
    assert "stray-kpack" not in ids(audit_wheel(make_wheel(files={stray: alone})))


def test_code_in_other_distributions_is_not_missing(
    make_wheel: MakeWheel, compile_object: Callable[..., Path]
) -> None:
    host = compile_object("op.so", SOURCE).read_bytes()
    lines = ["Metadata-Version: 2.1", "Name: tiny", "Version: 1.0", "Provides-Extra: device-gfx90a", "", ""]
    wheel = make_wheel(tags="cp311-cp311-linux_x86_64", files={"tiny/op.so": host}, metadata="\n".join(lines))
    report = audit_wheel(wheel, Expected(("gfx90a",)))
    found = {finding.id: finding for finding in report.findings}
    assert "no-gpu-code" not in found
    assert "tiny[device-gfx90a]" in found["device-package-needed"].fix
    assert "device-package-missing" in ids(audit_wheel(wheel, Expected(("gfx942",))))
