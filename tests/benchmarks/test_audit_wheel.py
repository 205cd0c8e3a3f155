"""The wheel of the audit benchmark has no defects and compresses like GPU code."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from benchmarks.audit import TARGETS, made_up, write
from builders.audit.contents import Expected
from builders.audit.wheel_audit import audit_wheel


@pytest.mark.slow
@pytest.mark.parametrize("compressed", [False, True])
def test_benchmark_wheel_is_sound(tmp_path: Path, *, compressed: bool) -> None:
    wheel = write(tmp_path, made_up(compressed=compressed), 4)
    report = audit_wheel(wheel, Expected(TARGETS))
    assert report.errors == []
    assert report.contents.architectures == sorted(TARGETS)
    packing = {entry.compression for code in report.contents.code.values() for entry in code}
    assert packing == ({"zstd"} if compressed else {""})
    with zipfile.ZipFile(wheel) as archive:
        info = max(archive.infolist(), key=lambda member: member.file_size)
    ratio = info.file_size / info.compress_size
    assert 3 < ratio < 8 or compressed
    assert 3_000_000 < wheel.stat().st_size < 6_000_000 + 10_000_000 * compressed
