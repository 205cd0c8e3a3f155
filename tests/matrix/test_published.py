"""Wheels on an index are selected by Python and platform."""

from __future__ import annotations

import pytest

from matrix.consumers.pylock import published_wheels
from tests.support.indexes import FakeIndexes, FakeRelease


@pytest.mark.parametrize(
    ("tags", "fits"),
    [
        ("cp312-cp312-manylinux_2_28_x86_64", True),
        ("cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64", True),
        ("cp312-cp312-linux_x86_64", True),
        ("cp312-none-any", True),
        ("cp39-abi3-manylinux_2_28_x86_64", True),
        ("py3-none-manylinux_2_28_x86_64", True),
        ("py2.py3-none-any", True),
        ("cp311-cp311-manylinux_2_28_x86_64", False),
        ("cp313-abi3-manylinux_2_28_x86_64", False),
        ("cp312-cp312t-manylinux_2_28_x86_64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("cp312-cp312-manylinux_2_28_aarch64", False),
        ("py3-none-win_amd64", False),
    ],
)
def test_wheel_fits_python_and_platform(tags: str, *, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    release = FakeRelease(wheels=[tags], sdist=True)
    indexes = FakeIndexes({"torch": {"2.0": release, "2.1": release}})
    monkeypatch.setattr("matrix.consumers.pylock.IndexClient", lambda _: indexes)
    names = [file.name for file in published_wheels("torch", "2.0.0", "https://index", python="3.12.3")]
    assert names == ([f"torch-2.0-{tags}.whl"] if fits else [])
