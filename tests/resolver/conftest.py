"""Fixtures of the resolver tests."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

from resolver.answers import suggest


@pytest.fixture
def overlay(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that writes a catalog file with rows below the schema line."""

    def write(rows: str) -> Path:
        path = tmp_path / "overlay.toml"
        path.write_text(f"schema = 1\n{rows}", encoding="utf-8")
        return path

    return write


@cache
def _reads_suggestions(file: str) -> bool:
    return "suggest" in Path(file).read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _suggestions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for suggestions only in modules that read them; that takes longer than to find the conflict."""
    if not _reads_suggestions(request.module.__file__):
        monkeypatch.setattr(suggest, "suggest", lambda *_, **__: ((), False))


@pytest.fixture
def _no_hang() -> Iterator[None]:
    """Fail a test that does not end within 5 seconds."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        pytest.fail("the test did not end within 5 seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(5)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
