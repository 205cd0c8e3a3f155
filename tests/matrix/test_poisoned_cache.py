"""What an index of others says about a file changes no later answer about the same file of another index."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from builders.index_client import IndexClient
from matrix.cli import main
from resolver.indexes import Metadata
from tests.support.range_server import serving
from tests.support.tiny import tiny_wheel, wheel_of

CUDA = {"victim/ops.cpython-312-x86_64-linux-gnu.so": b"\x7fELF" + bytes(200) + b"libcudart.so.12"}


def page(folder: Path, claimed: Path, metadata: str | None) -> None:
    """Write a page that states the hash of a file, and, with `metadata`, of a metadata file."""
    digest = hashlib.sha256(claimed.read_bytes()).hexdigest()
    attribute = "" if metadata is None else f' data-core-metadata="{metadata}"'
    link = f'<a href="{claimed.name}#sha256={digest}"{attribute}>{claimed.name}</a>'
    (folder / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")


def own_hash(path: Path) -> str:
    return f"sha256={hashlib.sha256(path.read_bytes()).hexdigest()}"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[Path, Path, str]]:
    """Serve a genuine and an evil index of the project `victim`; return their directories and the server."""
    genuine, evil = tmp_path / "www" / "genuine" / "victim", tmp_path / "www" / "evil" / "victim"
    wheel = tiny_wheel(genuine, "victim", "1.0", requires=["good"])
    for name in ("good", "evilpkg"):
        for index in (genuine.parent, evil.parent):
            other = tiny_wheel(index / name, name, "1.0")
            page(index / name, other, None)
    tiny_wheel(evil, "victim", "1.0", requires=["evilpkg"])
    page(genuine, wheel, None)
    with serving(tmp_path / "www") as server:
        yield genuine, evil, server.url


def metadata_of(server: str, index: str, cache: Path) -> Metadata | None:
    client = IndexClient([f"{server}/{index}"], cache=cache)
    project = client.project("victim")
    assert project
    return client.metadata(project.releases[0].files)


def write_metadata(wheel: Path, requires: str) -> Path:
    path = wheel.with_name(f"{wheel.name}.metadata")
    path.write_text(f"Metadata-Version: 2.1\nName: victim\nVersion: 1.0\nRequires-Dist: {requires}\n")
    return path


@pytest.mark.parametrize("genuine_has", ["nothing", "a metadata file", "a metadata file with a hash"])
@pytest.mark.parametrize("attack", ["metadata file", "its hash", "hash of the genuine one", "wheel"])
def test_metadata_of_one_index_are_not_those_of_another(
    servers: tuple[Path, Path, str], tmp_path: Path, attack: str, genuine_has: str
) -> None:
    genuine, evil, server = servers
    (wheel,) = genuine.glob("*.whl")
    real = write_metadata(wheel, "good")
    if genuine_has != "nothing":
        page(genuine, wheel, own_hash(real) if "hash" in genuine_has else "true")
    if attack == "hash of the genuine one":  # the server lacks the file, so the wheel is read
        page(evil, wheel, own_hash(real))
    else:
        forged = write_metadata(evil / wheel.name, "evilpkg")
        page(evil, wheel, {"metadata file": "true", "its hash": own_hash(forged), "wheel": None}[attack])
    said = metadata_of(server, "evil", tmp_path / "cache")
    assert said is not None
    assert said.requires == ("evilpkg",)
    expected = metadata_of(server, "genuine", tmp_path / "empty")
    assert expected == metadata_of(server, "genuine", tmp_path / "cache")
    assert expected is not None
    assert expected.requires == ("good",)


def test_verified_metadata_are_shared(servers: tuple[Path, Path, str], tmp_path: Path) -> None:
    genuine, evil, server = servers
    (wheel,) = genuine.glob("*.whl")
    real = write_metadata(wheel, "good")
    for folder in (genuine, evil):
        page(folder, wheel, own_hash(real))
    assert metadata_of(server, "genuine", tmp_path / "cache") == metadata_of(
        server, "evil", tmp_path / "cache"
    )


def test_content_of_one_index_is_not_that_of_another(tmp_path: Path) -> None:
    tag = "cp312-cp312-manylinux_2_28_x86_64"
    genuine, evil = tmp_path / "www" / "genuine" / "victim", tmp_path / "www" / "evil" / "victim"
    real = wheel_of(genuine, "victim", "1.0", {"victim/a.so": b""}, tag=tag)
    wheel_of(
        evil,
        "victim",
        "1.0",
        CUDA | {"victim/libcudart.so.12": b""},
        requires=["nvidia-cuda-runtime-cu12"],
        tag=tag,
    )
    for folder in (genuine, evil):
        page(folder, real, None)
    with serving(tmp_path / "www") as server:
        found = []
        for index, cache in (("evil", "cache"), ("genuine", "cache"), ("genuine", "empty")):
            client = IndexClient([f"{server.url}/{index}"], cache=tmp_path / cache)
            project = client.project("victim")
            assert project
            files = project.releases[0].files
            found.append(client.content(files[0], client.metadata(files)))
    assert found[0] != found[1] == found[2]


@pytest.mark.usefixtures("own_cache")
def test_lock_after_an_evil_index_is_that_of_an_empty_cache(
    servers: tuple[Path, Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    genuine, evil, server = servers
    (wheel,) = genuine.glob("*.whl")
    page(evil, wheel, own_hash(write_metadata(evil / wheel.name, "evilpkg")))
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    resolve = ["resolve", "victim", "--backend", "cpu", "--site", "lumi-c", "-q"]
    assert main([*resolve, "--index-url", f"{server}/evil", "-o", "evil.lock"]) == 0
    assert "evilpkg" in Path("evil.lock").read_text()
    assert main([*resolve, "--index-url", f"{server}/genuine", "-o", "after.lock"]) == 0
    shutil.rmtree(tmp_path / "cache")
    assert main([*resolve, "--index-url", f"{server}/genuine", "-o", "clean.lock"]) == 0
    assert Path("after.lock").read_bytes() == Path("clean.lock").read_bytes()
