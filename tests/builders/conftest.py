"""Fixtures for small shared objects and indexes, which are created and not downloaded."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

# Stands in for a file system without file locks or without hard links, such as Lustre with `noflock`.
_WITHOUT = {
    "flock": "int flock(int file, int operation) { errno = ENOSYS; return -1; }",
    "hard links": """
int link(const char *a, const char *b) { errno = EPERM; return -1; }
int linkat(int a, const char *b, int c, const char *d, int e) { errno = EPERM; return -1; }
""",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a separate cache, and no proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return one cache for all builds of a module, so that their layers are created once."""
    return tmp_path_factory.mktemp("cache")


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


@pytest.fixture
def preload(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which a function of the C library fails."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    source, library = tmp_path / "without.c", tmp_path / "without.so"
    source.write_text(f"#include <errno.h>\n{_WITHOUT[request.param]}\n")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return os.environ | {"LD_PRELOAD": str(library)}
