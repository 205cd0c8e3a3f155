"""Fixtures of the resolver tests."""

from __future__ import annotations

import ast
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
def _readers_of_suggestions(file: str) -> list[str]:
    """Return the functions of a module that read suggestions; if one is no test, all tests may use it."""
    text = Path(file).read_text(encoding="utf-8")
    functions = (one for one in ast.walk(ast.parse(text)) if isinstance(one, ast.FunctionDef))
    return [one.name for one in functions if "suggest" in ast.unparse(one)] if "suggest" in text else []


@pytest.fixture(autouse=True)
def _suggestions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Search for suggestions only in tests that read them; that takes longer than to find the conflict."""
    readers = _readers_of_suggestions(request.module.__file__)
    if request.function.__name__ not in readers and all(name.startswith("test_") for name in readers):
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
