"""Tiny wheels and shared objects, all made here and none from the network."""

from __future__ import annotations

import stat
import subprocess
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from wheel.wheelfile import WheelFile


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep out of the user's cache and away from any proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("CXX", raising=False)


@pytest.fixture
def make_wheel(tmp_path: Path) -> Callable[..., Path]:
    """Make a valid wheel: name, version, members by path, and what its metadata says besides."""

    def make(
        name: str = "tiny",
        version: str = "1.0",
        files: Mapping[str, bytes] | None = None,
        *,
        requires_python: str = "",
        description: str = "",
        metadata: str | None = None,
        tags: str = "py3-none-any",
        executable: tuple[str, ...] = (),
        folder: str = "made",
    ) -> Path:
        wheel = tmp_path / folder / f"{name}-{version}-{tags}.whl"
        wheel.parent.mkdir(exist_ok=True)
        info = f"{name}-{version}.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if requires_python:
            head += f"Requires-Python: {requires_python}\n"
        python, abi, platform = tags.split("-")
        listed = [
            f"{p}-{a}-{o}" for p in python.split(".") for a in abi.split(".") for o in platform.split(".")
        ]
        lines = [
            "Wheel-Version: 1.0",
            "Generator: tests",
            f"Root-Is-Purelib: {str(platform == 'any').lower()}",
        ]
        members = {
            **(files or {f"{name}.py": b"ANSWER = 42\n"}),
            f"{info}/METADATA": (metadata if metadata is not None else f"{head}\n{description}").encode(),
            f"{info}/WHEEL": "\n".join([*lines, *(f"Tag: {tag}" for tag in listed), ""]).encode(),
        }
        with WheelFile(str(wheel), "w") as sink:
            for path, data in members.items():
                member = zipfile.ZipInfo(path, (2020, 2, 2, 2, 2, 2))
                member.external_attr = (stat.S_IFREG | (0o755 if path in executable else 0o644)) << 16
                sink.writestr(member, data)
        return wheel

    return make


@pytest.fixture(scope="session")
def compile_object(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compile C source to a shared object with gcc; further arguments go to gcc."""
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
    """Give every published file of an index with its bytes, to see that nothing changed."""

    def read(index: Path) -> dict[str, bytes]:
        return {
            str(path.relative_to(index)): path.read_bytes()
            for path in sorted(index.rglob("*"))
            if path.is_file() and path.relative_to(index).parts[0] != ".matrix"
        }

    return read
