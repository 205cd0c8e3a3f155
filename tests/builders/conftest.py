"""Fixtures for small shared objects and indexes, made here and not downloaded."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use an own cache, and no proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture(scope="session")
def compile_object(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that compiles C source to a shared object; more arguments go to gcc."""
    made: dict[tuple[str, ...], Path] = {}

    def compile_source(name: str, source: str, *flags: str) -> Path:
        if (name, source, *flags) not in made:
            folder = tmp_path_factory.mktemp("object")
            (folder / "source.c").write_text(source)
            command = ["gcc", "-shared", "-fPIC", "-o", name, "source.c", *flags]
            subprocess.run(command, cwd=folder, check=True)
            made[name, source, *flags] = folder / name
        return made[name, source, *flags]

    return compile_source


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Return a function that reads every published file of an index."""

    def read(index: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(index)): path.read_bytes()
            for path in sorted(index.rglob("*"))
            if path.is_file() and path.relative_to(index).parts[0] != ".matrix"
        }

    return read
