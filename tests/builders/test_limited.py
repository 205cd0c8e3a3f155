"""Readers of strangers' files run in a child, whose memory and time are limited."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.installed import reading
from builders.machine import limited as module
from builders.machine.limited import limited
from matrix.reading import recognise
from resolver.errors import EnvironmentLacksError, UsageError


def test_result_and_errors_are_those_of_the_function() -> None:
    assert limited(lambda: {"child": os.getpid()}, "x", 9)["child"] != os.getpid()

    def wrong() -> None:
        msg = "It is wrong."
        raise UsageError(msg, hint="Correct it.")

    with pytest.raises(UsageError, match="It is wrong") as caught:
        limited(wrong, "x", 9)
    assert caught.value.hint == "Correct it."

    def broken() -> None:
        raise KeyError(1)

    with pytest.raises(KeyError) as bug:
        limited(broken, "x", 9)
    assert "in broken" in bug.value.__notes__[0]


@pytest.mark.usefixtures("no_shortcuts")
def test_files_of_strangers_are_read_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def in_process(*_: object) -> int:
        return os.getpid()

    (tmp_path / "requirements.txt").write_text("torch\n")
    monkeypatch.setattr(reading, "installed", in_process)
    monkeypatch.setattr(recognise, "read_described", in_process)
    readers: list[Callable[[Path], object]] = [reading.read_installed, recognise.read]
    for read in readers:
        assert read(tmp_path / "requirements.txt") != os.getpid()


@pytest.mark.parametrize(
    ("read", "reason"),
    [
        (lambda: bytes(1 << 28), "it takes more memory than any"),
        (lambda: [bytearray(1000) for _ in range(1 << 18)], "it takes more memory than any"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "its reader ended with SIGKILL"),
    ],
)
def test_limits_hold(read: object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY", 1 << 27)
    start = time.monotonic()
    with pytest.raises(EnvironmentLacksError, match=f"Cannot read a.sif: {reason}"):
        limited(read, "a.sif", 1)  # type: ignore[arg-type]
    assert time.monotonic() - start < 30


def test_files_of_the_child_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LARGEST_FILE", 1 << 12)
    with pytest.raises(OSError, match="File too large"):
        limited(lambda: (tmp_path / "a").write_bytes(bytes(1 << 13)), "x", 9)
    assert (tmp_path / "a").stat().st_size <= 1 << 12
