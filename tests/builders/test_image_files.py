"""The files of an image are read without starting it, in every form; bad input is a clear error."""

from __future__ import annotations

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from backports import zstd

from builders.containers import files
from builders.containers.files import files_of, how_read
from builders.installed import reading
from builders.installed.reading import read_installed
from matrix.api import write_lock
from matrix.cli import main
from resolver.errors import EnvironmentLacksError, UsageError
from tests.support.elf import shared_object
from tests.support.images import (
    archive_of,
    docker_archive,
    layer,
    oci_archive,
    oci_directory,
    sif,
    squashfs,
)
from tests.support.installed import Tree, gpu_code
from tests.support.locks import local_file, lock_of, locked_pick
from tests.support.tiny import tiny_wheel

Packed = Callable[[str], Path]


def read(path: Path, *, wanted: str = "wanted") -> dict[str, object]:
    """Return the files: their content if it is wanted, else their size; or the target of a link."""
    return {
        file.path: file.link or (file.at.read_bytes() if file.at else file.size)
        for file in files_of(path, lambda name: wanted in name)
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


@pytest.fixture
def packed(root: Path, tmp_path: Path) -> Packed:
    """Return a function that packs the image as a squashfs or as layers."""

    def pack(form: str) -> Path:
        if form == "squashfs":
            return squashfs(root, tmp_path / "a.sqsh")
        return docker_archive(tmp_path / "a.tar", layer(root, "usr", "opt", "etc"))

    return pack


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
    found = read(made[form]())
    found.pop(files.VARIABLES, None)
    found.pop("/tmp/other", None)
    assert found == EXPECTED


def test_later_layers_replace_and_remove(root: Path, tmp_path: Path) -> None:
    first = layer(root, "usr", "etc")
    (root / "usr/lib/other").write_bytes(b"new content")
    second = layer(root, "usr/lib/other", removed=("etc/.wh.a", "usr/lib/.wh.link.so"))
    found = read(docker_archive(tmp_path / "a.tar", first, second, env=("A=1",)))
    assert found["/usr/lib/other"] == len(b"new content")
    assert found.keys() & {"/etc/a", "/usr/lib/link.so"} == set()
    opaque = layer(root, removed=("usr/.wh..wh..opq",))
    found = read(docker_archive(tmp_path / "b.tar", first, opaque))
    assert found.keys() - {files.VARIABLES} == {"/etc/a"}


@pytest.mark.parametrize("options", ["", "-comp zstd -no-fragments", "-comp xz -b 4096", "-noI -noD -noF"])
def test_content_of_a_squashfs_is_that_of_its_files(options: str, root: Path, tmp_path: Path) -> None:
    """Blocks, sparse blocks and fragments, and a directory whose names fill several blocks of metadata."""
    random = Random(1)
    for number in range(600):
        (root / f"etc/wanted-{number:0100}").write_bytes(b"%d" % number)
    for size in (0, 1, 4095, 4096, 131_072, 131_073, 700_000):
        (root / f"etc/wanted{size}").write_bytes(random.randbytes(size))
    with (root / "etc/wanted-sparse").open("wb") as file:
        file.seek(300_000)
        file.write(b"end")
    (root / "etc/new\nline").write_bytes(b"")
    path = tmp_path / "a.sqsh"
    subprocess.run(["mksquashfs", root, path, "-quiet", "-no-progress", *options.split()], check=True)
    expected = {
        f"/{file.relative_to(root)}": file.read_bytes() if "wanted" in file.name else file.stat().st_size
        for file in root.rglob("*")
        if file.is_file() and not file.is_symlink()
    }
    found = read(path)
    assert {path: value for path, value in found.items() if not isinstance(value, str)} == expected


@pytest.mark.parametrize("method", ["lz4", "lzo"])
def test_image_with_other_compression_can_be_unpacked(method: str, root: Path, tmp_path: Path) -> None:
    path, unpacked = tmp_path / "a.sqsh", tmp_path / "unpacked"
    subprocess.run(["mksquashfs", root, path, "-quiet", "-no-progress", "-comp", method], check=True)
    with pytest.raises(EnvironmentLacksError, match=f"compressed with {method}, and only gzip") as caught:
        read(path)
    assert "`unsquashfs -d DIR IMAGE`" in caught.value.hint
    subprocess.run(["unsquashfs", "-q", "-n", "-d", unpacked, path], check=True, stdout=subprocess.DEVNULL)
    assert read(unpacked) == read(root)


@pytest.mark.parametrize(
    ("form", "name", "reason"),
    [
        ("squashfs", "files._MOST_FILES", "more files than any real image"),
        ("layers", "files._MOST_FILES", "more files than any real image"),
        ("squashfs", "files._MOST_UNPACKED", "unpacks to more than any real image"),
        ("layers", "files._MOST_UNPACKED", "unpacks to more than any real image"),
        ("squashfs", "squashfs._MOST_METADATA", "tables are larger than those of any real image"),
    ],
)
def test_image_beyond_a_limit_is_not_read(
    form: str, name: str, reason: str, packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = packed(form)
    assert read(path)
    monkeypatch.setattr(f"builders.containers.{name}", 3)
    with pytest.raises(EnvironmentLacksError, match=reason):
        read(path)


def test_metadata_of_an_image_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(tmp_path / "root", "image").torch()
    read_installed(tree.root)
    monkeypatch.setattr(reading, "_MOST_TEXT", 100)
    with pytest.raises(UsageError, match="more metadata than any real environment"):
        read_installed(tree.root)


LISTED = "-rw-r--r-- 0/0 52 2020-01-01 00:00 squashfs-root"


@pytest.mark.parametrize("target", ["x\n{line}", "{line}", "{outside}", "../../../../../../..{outside}"])
@pytest.mark.parametrize("form", ["squashfs", "sif", "docker", "directory"])
def test_links_and_names_lead_to_no_file_of_this_machine(target: str, form: str, tmp_path: Path) -> None:
    """The target of a link may have the form of a line that `unsquashfs` prints for a file."""
    outside = tmp_path / "secret" / "wanted"
    outside.parent.mkdir()
    outside.write_text("secret")
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    line = f"{LISTED}{'/..' * 20}{outside}"
    (root / "usr/wanted-link").symlink_to(target.format(line=line, outside=outside))
    made = {
        "squashfs": lambda: squashfs(root, tmp_path / "a.sqsh"),
        "sif": lambda: sif(tmp_path / "a.sif", squashfs(root, tmp_path / "x").read_bytes()),
        "docker": lambda: docker_archive(tmp_path / "a.tar", layer(root, "usr")),
        "directory": lambda: root,
    }
    found = read(made[form]())
    found.pop(files.VARIABLES, None)
    assert found == {"/usr/wanted-link": str((root / "usr/wanted-link").readlink())}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"abcdefgh", b"../wante"),
        (b"abcdefgh", b"a/b/c/de"),
        (b"abcdefgh", b"/etc/abc"),
        (b"abcdefgh", b"a\0bcdefg"),
    ],
)
def test_names_in_a_squashfs_are_one_part_of_a_path(old: bytes, new: bytes, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "usr").mkdir(parents=True)
    (root / "usr" / os.fsdecode(old)).write_bytes(b"wanted")
    path = tmp_path / "a.sqsh"
    subprocess.run(["mksquashfs", root, path, "-quiet", "-no-progress", "-noI"], check=True)
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))
    with pytest.raises(EnvironmentLacksError, match="is not a name"):
        read(path)


def test_directory_that_contains_itself_is_damage(tmp_path: Path) -> None:
    """The entry of a directory gets the reference of its parent."""
    (tmp_path / "root/usr/lib").mkdir(parents=True)
    path = tmp_path / "a.sqsh"
    subprocess.run(["mksquashfs", tmp_path / "root", path, "-quiet", "-no-progress", "-noI"], check=True)
    data = bytearray(path.read_bytes())
    root = struct.unpack_from("<Q", data, 32)[0]
    at = data.index(b"usr", 96) - 8
    struct.pack_into("<H", data, at, root & 0xFFFF)
    path.write_bytes(data)
    with pytest.raises(EnvironmentLacksError, match="a directory of it is in itself"):
        read(path)


def test_same_environment_in_every_form(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root", "image").torch().rocm("6.4.4").extension("apex")
    one = read_installed(tree.root)
    packed_ = squashfs(tree.root, tmp_path / "x")
    whole = layer(tree.root, "opt", "usr", "etc")
    forms = {
        sif(tmp_path / "a.sif", packed_.read_bytes()): "its file system was read without starting it",
        docker_archive(tmp_path / "a.tar", whole): "its layers were read without starting it",
        oci_archive(tmp_path / "b.tar", whole): "its layers were read without starting it",
        oci_directory(tmp_path / "oci", whole): "its layers were read without starting it",
        tree.root: "its files were read",
    }
    for path, how in forms.items():
        assert how_read(path) == how
        other = read_installed(path)
        assert other.versions == one.versions == {"torch": "2.9.1+rocm6.4", "apex": "1.0"}
        assert other.rocm == one.rocm
        assert other.objects == one.objects
        assert other.code == one.code


def test_tykky_environment_is_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path / "root" / "miniforge" / "envs" / "env1", "conda").torch()
    (tmp_path / "tykky").mkdir()
    squashfs(tmp_path / "root", tmp_path / "tykky" / "img.sqfs")
    found = read_installed(tmp_path / "tykky")
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
        "cut archive": archive_of(path / "cut.tar", {"manifest.json": b'[{"Config": "c", "Layers": ["x"]}]'}),
        "no json": archive_of(path / "json.tar", {"manifest.json": b"[[["}),
        "no layers": archive_of(path / "layers.tar", {"manifest.json": b"{}"}),
        "bad layer": docker_archive(path / "layer.tar", gzip.compress(whole)[:40]),
        "bad zstd": docker_archive(path / "zstd.tar", zstd.compress(whole)[:20]),
        "empty index": archive_of(
            path / "index.tar", {"oci-layout": b"", "index.json": b'{"manifests": []}'}
        ),
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
        read(path)


def test_encrypted_image_is_named_so(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="is encrypted"):
        read(sif(tmp_path / "a.sif", b"\x01" * 4096, kind=5))


def bombs(root: Path, path: Path) -> dict[str, tuple[Path, str]]:
    """Write images that claim or unpack to far more than they have, each with the reason of its rejection."""
    (root / "usr/lib/zeros").write_bytes(bytes(1 << 22))
    zeros = layer(root, "usr")
    path.mkdir()
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 6 << 30
    name = tarfile.TarInfo("x")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 6 << 30
    target = tarfile.TarInfo("x")
    target.type, target.size = tarfile.GNUTYPE_LONGLINK, 6 << 30
    sparse = tarfile.TarInfo("usr/wanted")
    sparse.size = 1 << 40
    link = tarfile.TarInfo("usr/link")
    link.type, link.linkname = tarfile.SYMTYPE, "a/" * 100_000

    def indexes(*digests: str) -> Path:
        """Write an image of which each index names the next; the first is `index.json`."""
        texts = [json.dumps({"manifests": [{"digest": f"sha256:{digest}"}]}).encode() for digest in digests]
        blobs = {f"blobs/sha256/{digest}": text for digest, text in zip(digests, texts[1:], strict=False)}
        members = {"oci-layout": b"{}", "index.json": texts[0], **blobs}
        return archive_of(path / f"{len(digests)}.tar", members)

    larger, wide = "it unpacks to more than any real image", "a header of it has 6,442,450,944 bytes"
    return {
        "zeros, gzip": (oci_archive(path / "gz.tar", gzip.compress(zeros)), larger),
        "zeros, zstd": (oci_archive(path / "zstd.tar", zstd.compress(zeros)), larger),
        "size": (docker_archive(path / "size.tar", sparse.tobuf(tarfile.GNU_FORMAT)), larger),
        "pax": (docker_archive(path / "pax.tar", header.tobuf(tarfile.PAX_FORMAT)), wide),
        "name": (docker_archive(path / "name.tar", name.tobuf(tarfile.GNU_FORMAT)), wide),
        "link": (
            docker_archive(path / "link.tar", link.tobuf(tarfile.PAX_FORMAT)),
            "a path in it has 200,000",
        ),
        "target": (docker_archive(path / "target.tar", target.tobuf(tarfile.GNU_FORMAT)), wide),
        "itself": (indexes("a", "a"), "its index leads to no manifest"),
        "each other": (indexes("a", "b", "a"), "its index leads to no manifest"),
        "deep": (indexes(*map(str, range(1000))), "its index leads to no manifest"),
    }


BOMBS = (
    "zeros, gzip", "zeros, zstd", "size", "pax", "name", "link", "target", "itself", "each other", "deep",
)  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_not_unpacked(name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SMALL_UNPACKED", 1 << 20)
    path, reason = bombs(root, tmp_path / "bombs")[name]
    with pytest.raises(EnvironmentLacksError, match=reason):
        read(path)


@pytest.mark.parametrize("chain", ["each", "loop", "same"])
def test_many_hard_links_take_little_time(chain: str, tmp_path: Path) -> None:
    """Each is a link to the next, or all are one loop or lead to one file."""
    out, count = io.BytesIO(), 4_000
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(f"opt/libamdhip64.so.{count}"))
        for number in reversed(range(count)):
            info = tarfile.TarInfo(f"opt/libamdhip64.so.{number}")
            to = {"each": number + 1, "loop": (number + 1) % 30, "same": count}[chain]
            info.type, info.linkname = tarfile.LNKTYPE, f"opt/libamdhip64.so.{to}"
            archive.addfile(info)
    path = docker_archive(tmp_path / "a.tar", out.getvalue())
    start = time.process_time()
    found = read(path)
    assert time.process_time() - start < 1.2
    assert {name for name in found if "hip" in name} == {f"/opt/libamdhip64.so.{n}" for n in range(count + 1)}


PROGRAMS = ("apptainer", "singularity", "podman", "docker", "unsquashfs", "python", "python3", "conda")


@pytest.mark.parametrize("form", ["sif", "docker", "directory", "tykky"])
def test_nothing_is_started_beside_a_lock(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a runtime on PATH nor a program of the image."""
    monkeypatch.chdir(tmp_path)
    tree = Tree(tmp_path / "root", "image").torch("2.5.1")
    for folder in (tmp_path / "path", tree.root / "usr/bin", tree.root / "bin", tmp_path / "tykky/bin"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in PROGRAMS:
            (folder / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nexec /bin/false\n")
            (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/path{os.pathsep}{os.environ['PATH']}")
    packed = squashfs(tree.root, tmp_path / "tykky/img.sqfs")
    forms = {
        "sif": lambda: sif(tmp_path / "a.sif", packed.read_bytes()),
        "docker": lambda: docker_archive(
            tmp_path / "a.tar", layer(tree.root, *(path.name for path in tree.root.iterdir()))
        ),
        "directory": lambda: tree.root,
        "tykky": lambda: tmp_path / "tykky",
    }
    path = forms[form]()
    wheel = tiny_wheel(tmp_path / "files", "good", "1.0")
    write_lock(lock_of(locked_pick("good", "1.0", local_file(wheel))))
    for options in ([], ["--lock", "matrix.lock"]):
        main(["check", str(path), "--site", "lumi-g", "--offline", *options])
        assert "torch 2.5.1" in capsys.readouterr().out
    assert not (tmp_path / "started").exists()


def test_names_do_not_leave_the_directory(tmp_path: Path) -> None:
    """Nothing is written under a name of an archive."""
    member = tarfile.TarInfo("../../wanted-outside")
    member.size = 3
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(member, io.BytesIO(b"abc"))
    before = set(tmp_path.parent.iterdir())
    assert read(docker_archive(tmp_path / "a.tar", out.getvalue()))["/wanted-outside"] == b"abc"
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
