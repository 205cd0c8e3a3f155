"""The files of an image are read without starting it, in every form; bad input is a clear error."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from backports import zstd

from builders.containers import files
from builders.containers.files import files_of, how_read
from builders.installed.reading import read_installed
from matrix.cli import main
from resolver.errors import EnvironmentLacksError, UsageError
from tests.support.elf import shared_object
from tests.support.installed import Tree, gpu_code

DATA = 32768


def squashfs(root: Path, path: Path) -> Path:
    """Pack a directory as `apptainer build` does."""
    subprocess.run(["mksquashfs", root, path, "-quiet", "-no-progress", "-all-root", "-noappend"], check=True)
    return path


def sif(
    path: Path, system: bytes, *, kind: int = 1, part: int = 2, count: int = 1, start: int = DATA
) -> Path:
    """Write a SIF with one partition, byte by byte from sylabs/sif (pkg/sif/sif.go, descriptor.go)."""
    head = (
        b"#!/usr/bin/env run-singularity\n".ljust(32, b"\0") + b"SIF_MAGIC\0" + b"01\0" + b"02\0" + bytes(16)
    )
    head += struct.pack("<8q", 0, 0, 47, count, 4096, 585 * count, DATA, len(system))
    extra = struct.pack("<ii", kind, part) + b"02\0"
    row = struct.pack("<i?IIIqqqqqqq", 0x4004, True, 1, 1, 0, start, len(system), len(system), 0, 0, 0, 0)
    row += b"squashfs-1".ljust(128, b"\0") + extra.ljust(384, b"\0")
    path.write_bytes(head.ljust(4096, b"\0") + (row * min(count, 2)).ljust(DATA - 4096, b"\0") + system)
    return path


def layer(root: Path, *names: str, removed: tuple[str, ...] = ()) -> bytes:
    """Return a layer with some of the files below a directory, and whiteouts."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name in names:
            archive.add(root / name, name)
        for name in removed:
            archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


def docker_archive(path: Path, *layers: bytes, env: tuple[str, ...] = ()) -> Path:
    """Write an archive as `docker save` does (github.com/moby/moby image/spec/spec.md)."""
    config = json.dumps({"config": {"Env": list(env)}}).encode()
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    manifest = json.dumps([{"Config": "config.json", "Layers": names}]).encode()
    return packed(
        path, {"manifest.json": manifest, "config.json": config, **dict(zip(names, layers, strict=True))}
    )


def oci_archive(path: Path, *layers: bytes) -> Path:
    """Write an archive as `podman save --format oci-archive` does (opencontainers/image-spec)."""
    members: dict[str, bytes] = {}

    def blob(data: bytes) -> dict[str, str]:
        digest = hashlib.sha256(data).hexdigest()
        members[f"blobs/sha256/{digest}"] = data
        return {"digest": f"sha256:{digest}"}

    manifest = {"config": blob(b"{}"), "layers": [blob(data) for data in layers]}
    index = {"manifests": [blob(json.dumps(manifest).encode())]}
    return packed(path, {"oci-layout": b"{}", "index.json": json.dumps(index).encode(), **members})


def oci_directory(path: Path, *layers: bytes) -> Path:
    """Write a directory as `skopeo copy IMAGE oci:DIR` does: the members of the archive."""
    with tarfile.open(oci_archive(path.with_suffix(".packed"), *layers)) as archive:
        for info in archive:
            content = archive.extractfile(info)
            assert content is not None
            (path / info.name).parent.mkdir(parents=True, exist_ok=True)
            (path / info.name).write_bytes(content.read())
    return path


def packed(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def read(path: Path, tmp_path: Path, *, wanted: str = "wanted") -> dict[str, object]:
    """Return the files: their content if it is wanted, else their size; or the target of a link."""
    return {
        file.path: file.link or (file.at.read_bytes() if file.at else file.size)
        for file in files_of(path, lambda name: wanted in name, tmp_path / "log")
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write an unpacked image with names that need care."""
    root = tmp_path / "root"
    for name in ("usr/lib/wanted[1]*.so", "usr/lib/un wanted -> x", "usr/lib/other", "tmp/other", "etc/a"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(name.encode())
    (root / "usr/lib/link.so").symlink_to("other")
    (root / "opt").symlink_to("/usr/lib")
    os.mkfifo(root / "usr/lib/wanted-pipe")
    return root


EXPECTED = {
    "/usr/lib/wanted[1]*.so": b"usr/lib/wanted[1]*.so",
    "/usr/lib/un wanted -> x": b"usr/lib/un wanted -> x",
    "/usr/lib/other": 13,
    "/etc/a": 5,
    "/usr/lib/link.so": "other",
    "/opt": "/usr/lib",
}


@pytest.mark.parametrize(
    "form", ["directory", "squashfs", "sif", "docker", "oci", "unpacked", "gzip", "zstd"]
)
def test_every_form_has_the_same_files(form: str, root: Path, tmp_path: Path) -> None:
    whole = layer(root, "usr", "opt", "etc")
    made = {
        "directory": lambda: root,
        "squashfs": lambda: squashfs(root, tmp_path / "a.sqsh"),
        "sif": lambda: sif(tmp_path / "a.sif", squashfs(root, tmp_path / "x").read_bytes()),
        "docker": lambda: docker_archive(tmp_path / "a.tar", whole),
        "oci": lambda: oci_archive(tmp_path / "a.tar", whole),
        "unpacked": lambda: oci_directory(tmp_path / "oci", whole),
        "gzip": lambda: oci_archive(tmp_path / "a.tar", gzip.compress(whole)),
        "zstd": lambda: oci_archive(tmp_path / "a.tar", zstd.compress(whole)),
    }
    found = read(made[form](), tmp_path)
    found.pop(files.VARIABLES, None)
    found.pop("/tmp/other", None)
    assert found == EXPECTED


def test_later_layers_replace_and_remove(root: Path, tmp_path: Path) -> None:
    first = layer(root, "usr", "etc")
    (root / "usr/lib/other").write_bytes(b"new content")
    second = layer(root, "usr/lib/other", removed=("etc/.wh.a", "usr/lib/.wh.link.so"))
    found = read(docker_archive(tmp_path / "a.tar", first, second, env=("A=1",)), tmp_path)
    assert found["/usr/lib/other"] == len(b"new content")
    assert found.keys() & {"/etc/a", "/usr/lib/link.so"} == set()
    opaque = layer(root, removed=("usr/.wh..wh..opq",))
    found = read(docker_archive(tmp_path / "b.tar", first, opaque), tmp_path)
    assert found.keys() - {files.VARIABLES} == {"/etc/a"}


def test_large_files_are_unpacked_in_parts(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_BATCH", 1)
    assert (
        read(squashfs(root, tmp_path / "a.sqsh"), tmp_path)["/usr/lib/wanted[1]*.so"]
        == EXPECTED["/usr/lib/wanted[1]*.so"]
    )


def test_same_environment_in_every_form(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", "image").torch().rocm("6.4.4").extension("apex")
    one = read_installed(tree.root, tmp_path / "log")
    packed_ = squashfs(tree.root, tmp_path / "x")
    whole = layer(tree.root, "opt", "usr", "etc")
    forms = {
        sif(
            tmp_path / "a.sif", packed_.read_bytes()
        ): "its file system (unsquashfs) was read without starting it",
        docker_archive(tmp_path / "a.tar", whole): "its layers were read without starting it",
        oci_archive(tmp_path / "b.tar", whole): "its layers were read without starting it",
        oci_directory(tmp_path / "oci", whole): "its layers were read without starting it",
        tree.root: "its files were read",
    }
    for path, how in forms.items():
        assert how_read(path) == how
        other = read_installed(path, tmp_path / "log")
        assert other.versions == one.versions == {"torch": "2.9.1+rocm6.4", "apex": "1.0"}
        assert other.rocm == one.rocm
        assert other.objects == one.objects
        assert other.code == one.code


def test_tykky_environment_is_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root" / "miniforge" / "envs" / "env1", "conda").torch()
    (tmp_path / "tykky").mkdir()
    squashfs(tmp_path / "root", tmp_path / "tykky" / "img.sqfs")
    found = read_installed(tmp_path / "tykky", tmp_path / "log")
    assert found.versions == {"torch": "2.9.1+rocm6.4"}
    assert found.is_conda
    assert tree.python == found.python


def test_every_form_has_the_same_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = Tree(tmp_path / "root", "image").torch("2.5.1", cuda="12.4")
    whole = layer(tree.root, "opt", "usr", "etc")
    conda = tmp_path / "conda/miniforge/envs/env1"
    Tree(conda, "conda").torch("2.5.1", cuda="12.4")
    tykky = tmp_path / "tykky"
    tykky.mkdir()
    squashfs(tmp_path / "conda", tykky / "img.sqfs")
    packed_ = squashfs(tree.root, tmp_path / "a.sqsh")
    forms = [
        tree.root, conda, tykky, packed_, sif(tmp_path / "a.sif", packed_.read_bytes()),
        docker_archive(tmp_path / "docker.tar", whole), oci_archive(tmp_path / "oci.tar", whole),
        oci_directory(tmp_path / "oci", whole),
    ]  # fmt: skip
    for path in forms:
        assert main(["check", str(path), "--site", "lumi-g", "--date", "2026-11-20"]) == 1, path
        verdict = capsys.readouterr().out.replace("\n", " ")
        assert "cannot use the GPUs of lumi-g on 2026-11-20: torch 2.5.1 is for CUDA 12.4." in verdict, path


def bad(path: Path) -> dict[str, Path]:
    """Write images that cannot be read."""
    good = squashfs(path, path.parent / "good").read_bytes()
    whole = layer(path, "etc")
    lost, linked = oci_directory(path / "lost", whole), oci_directory(path / "linked", whole)
    for blob in lost.glob("blobs/*/*"):
        blob.unlink()
    for blob in linked.glob("blobs/*/*"):
        blob.rename(path / blob.name)
        blob.symlink_to(path / blob.name)
    return {
        "encrypted": sif(path / "encrypted.sif", b"\x01" * 4096, kind=5),
        "no system": sif(path / "data.sif", good, part=3),
        "ext3": sif(path / "ext3.sif", good, kind=2),
        "many descriptors": sif(path / "many.sif", good, count=1 << 20),
        "outside": sif(path / "outside.sif", good, start=1 << 50),
        "negative": sif(path / "negative.sif", good, start=-1),
        "damaged": sif(path / "damaged.sif", good[:96] + b"\xff" * (len(good) - 96)),
        "no squashfs": sif(path / "other.sif", b"x" * 4096),
        "cut archive": packed(path / "cut.tar", {"manifest.json": b'[{"Config": "c", "Layers": ["x"]}]'}),
        "no json": packed(path / "json.tar", {"manifest.json": b"[[["}),
        "no layers": packed(path / "layers.tar", {"manifest.json": b"{}"}),
        "bad layer": docker_archive(path / "layer.tar", gzip.compress(whole)[:40]),
        "bad zstd": docker_archive(path / "zstd.tar", zstd.compress(whole)[:20]),
        "empty index": packed(path / "index.tar", {"oci-layout": b"", "index.json": b'{"manifests": []}'}),
        "no blob": lost,
        "linked blob": linked,
    }


BAD = (
    "encrypted", "no system", "ext3", "many descriptors", "outside", "negative", "damaged", "no squashfs",
    "cut archive", "no json", "no layers", "bad layer", "bad zstd", "empty index",
    "no blob", "linked blob",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_image_is_a_clear_error(name: str, tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    path = bad(tmp_path / "root")[name]
    with pytest.raises((EnvironmentLacksError, UsageError), match=path.name):
        read(path, tmp_path)


def test_encrypted_image_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="is encrypted"):
        read(sif(tmp_path / "a.sif", b"\x01" * 4096, kind=5), tmp_path)


def test_bomb_is_not_unpacked(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_MOST_UNPACKED", 1 << 20)
    (root / "usr/lib/zeros").write_bytes(bytes(1 << 22))
    for compress in (gzip.compress, zstd.compress):
        path = oci_archive(tmp_path / "a.tar", compress(layer(root, "usr")))
        with pytest.raises(EnvironmentLacksError, match="larger than those of any real image"):
            read(path, tmp_path)


def test_names_do_not_leave_the_directory(tmp_path: Path) -> None:
    """Nothing is written under a name of an archive."""
    member = tarfile.TarInfo("../../wanted-outside")
    member.size = 3
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(member, io.BytesIO(b"abc"))
    before = set(tmp_path.parent.iterdir())
    assert read(docker_archive(tmp_path / "a.tar", out.getvalue()), tmp_path)["/wanted-outside"] == b"abc"
    assert set(tmp_path.parent.iterdir()) == before


MOST_MEMORY = 500_000  # kilobytes
_MEASURE = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["directory", "squashfs"])
@pytest.mark.parametrize(
    "count", [6, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="10 GB")]
)
def test_memory_does_not_grow_with_the_image(form: str, count: int, tmp_path: Path) -> None:
    """The largest of `matrix check` and the programs it starts; each file has 0.1 GB, nearly all zeros."""
    tree = Tree(tmp_path / "root", "image").torch()
    data = shared_object(needed=["libc10.so"], fatbin=gpu_code("gfx90a"))
    for number in range(count):
        tree.dist(f"big{number}", "1.0", {f"big{number}/a.so": data})
        os.truncate(tree.root / tree.site / f"big{number}/a.so", 100_000_000)  # sparse
    path = tree.root if form == "directory" else squashfs(tree.root, tmp_path / "big.sqsh")
    line = [sys.executable, "-m", "matrix", "check", str(path), "--site", "lumi-g", "--date", "2026-11-20"]
    measured = [sys.executable, "-c", _MEASURE, *line, "--format", "json", "-q"]
    done = subprocess.run(measured, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    document, _, memory = done.stdout.strip().rpartition("\n")
    (thing,) = json.loads(document)["things"]
    assert len(thing["distributions"]) == count + len(("torch",))
    assert int(memory) < MOST_MEMORY
