"""Base images: their names and digests, and the detection of changed images."""

from __future__ import annotations

import os
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.containers import image as images
from builders.containers.image import (
    LocalImage,
    cached_digest,
    check_digest,
    find_image,
    form_of,
    locked_image,
    tree_digest,
)
from builders.storage.files import sha256_of
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.model import BaseImage
from tests.support.errors import has_id


def sif(path: Path, data: bytes = b"data", *, missing: int = 0) -> Path:
    """Write a file with the header of a SIF (sylabs/sif pkg/sif/sif.go) and some bytes as its data."""
    head = struct.pack(
        "<32s10s3s3s16s8q", b"#!/usr/bin/env run-singularity\n", b"SIF_MAGIC\0", b"01\0", b"02\0", b"i" * 16,
        0, 0, 0, 0, 128, 0, 128, len(data),
    )  # fmt: skip
    path.write_bytes((head + data)[: len(head + data) - missing])
    return path


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    root = tmp_path / "unpacked"
    for name in ("usr/bin", "etc", "opt/rocm-6.2/.info", "proc"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "os-release").write_text("ID=one\n")
    (root / "opt" / "rocm-6.2" / ".info" / "version").write_text("6.2.4\n")
    (root / "usr" / "bin" / "tool").write_text("abc")
    (root / "usr" / "bin" / "link").symlink_to("tool")
    return root


def test_find_image_follows_symbolic_link(tmp_path: Path) -> None:
    real = sif(tmp_path / "lumi-6.2.4.sif")
    (tmp_path / "latest.sif").symlink_to(real)
    image = find_image(tmp_path / "latest.sif")
    assert image == LocalImage("latest", real, sha256_of(real))
    assert find_image(real, "named").name == "named"


def test_digest_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sif(tmp_path / "a.sif")
    assert cached_digest(path) == ""
    first = find_image(path)
    assert cached_digest(path) == first.digest
    monkeypatch.setattr(images, "sha256_of", lambda _: pytest.fail("read again"))
    assert find_image(path) == first


@pytest.mark.parametrize("change", ["content", "replaced"])
def test_changed_file_is_read_again(tmp_path: Path, change: str) -> None:
    path = sif(tmp_path / "a.sif", b"old!")
    first, stamp = find_image(path), path.stat()
    if change == "content":
        sif(path, b"new!")
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    else:  # the same size and time, but another file
        sif(tmp_path / "b.sif", b"new!").replace(path)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert cached_digest(path) == ""
    assert find_image(path).sha256 == sha256_of(path) != first.sha256


def test_damaged_cache_entry_is_ignored(tmp_path: Path) -> None:
    path = sif(tmp_path / "a.sif")
    first = find_image(path)
    (entry,) = (tmp_path / "cache" / "matrix" / "images").iterdir()
    entry.write_text('{"path": "')
    assert find_image(path) == first


def test_unwritable_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    path = sif(tmp_path / "a.sif")
    assert find_image(path).sha256 == sha256_of(path)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda path: path, EnvironmentLacksError, "does not exist"),
        (lambda path: path.symlink_to(path.parent / "gone"), EnvironmentLacksError, "points to"),
        (lambda path: path.symlink_to(path), EnvironmentLacksError, "Cannot read"),
        (lambda path: path.write_text("#!/bin/sh\n"), UsageError, "is not an image"),
        (lambda path: path.write_bytes(b""), UsageError, "is not an image"),
        (lambda path: path.mkdir(), UsageError, "neither usr nor bin"),
        (os.mkfifo, UsageError, "neither a file nor a directory"),
        (lambda path: sif(path, missing=1), UsageError, "is truncated"),
    ],
    ids=["missing", "dangling", "cycle", "script", "empty", "directory", "pipe", "truncated"],
)
def test_invalid_image_is_rejected(
    tmp_path: Path, make: Callable[[Path], object], kind: type[MatrixError], message: str
) -> None:
    make(tmp_path / "image.sif")
    with pytest.raises(kind, match=message):
        find_image(tmp_path / "image.sif")


def test_address_gets_pull_command() -> None:
    with pytest.raises(EnvironmentLacksError, match=r"docker://rocm/dev:6\.2 is an address") as caught:
        find_image(Path("docker://rocm/dev:6.2"))
    assert caught.value.hint == "Pull it first with `apptainer pull image.sif docker://rocm/dev:6.2`."


def test_form_of_each_kind(tmp_path: Path, unpacked: Path) -> None:
    squashed = tmp_path / "a.sqfs"
    squashed.write_bytes(b"hsqs" + bytes(600))
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(unpacked / "etc")
    forms = [form_of(path) for path in (sif(tmp_path / "a.sif"), squashed, tmp_path / "a.tar", unpacked)]
    assert forms == ["sif", "squashfs", "archive", "directory"]


class TestTreeDigest:
    def test_digest_ignores_times_and_kernel_directories(self, unpacked: Path) -> None:
        before = tree_digest(unpacked)
        os.utime(unpacked / "usr" / "bin" / "tool", (1, 1))
        (unpacked / "proc" / "1").mkdir()
        assert tree_digest(unpacked) == before
        assert find_image(unpacked).sha256 == before

    @pytest.mark.parametrize(
        "change",
        [
            lambda root: (root / "usr" / "bin" / "tool").write_text("abcd"),
            lambda root: (root / "usr" / "bin" / "tool").chmod(0o755),
            lambda root: (root / "usr" / "bin" / "tool").rename(root / "usr" / "bin" / "loot"),
            lambda root: (root / "usr" / "bin" / "new").mkdir(),
            lambda root: (root / "etc" / "os-release").write_text("ID=two\n"),
            lambda root: (root / "opt" / "rocm-6.2" / ".info" / "version").write_text("6.2.2\n"),
            lambda root: [(root / "usr/bin/link").unlink(), (root / "usr/bin/link").symlink_to("tool2")],
        ],
        ids=["size", "mode", "name", "entry", "release", "rocm", "link"],
    )
    def test_digest_changes_with_entry(self, unpacked: Path, change: Callable[[Path], object]) -> None:
        before = tree_digest(unpacked)
        change(unpacked)
        assert tree_digest(unpacked) != before

    def test_file_of_any_size_is_read_to_a_limit(
        self, unpacked: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.truncate(unpacked / "etc" / "os-release", 2**40)
        monkeypatch.setattr(images, "_LARGEST_DIGESTED", 100)
        before = tree_digest(unpacked)
        os.truncate(unpacked / "etc" / "os-release", 2**40 + 1)
        assert tree_digest(unpacked) != before


class TestLocked:
    def test_changed_image_reports_names_and_digests(self, tmp_path: Path) -> None:
        image = find_image(sif(tmp_path / "new.sif"))
        with pytest.raises(MatrixError, check=has_id("image-changed")) as caught:
            check_digest(image, "sha256:" + "0" * 64, "old")
        for text in ("old", "sha256:" + "0" * 64, "new", image.digest):
            assert text in caught.value.message
        assert caught.value.exit_code == 1

    def test_moved_image_is_the_same(self, tmp_path: Path) -> None:
        there, here = sif(tmp_path / "there.sif"), sif(tmp_path / "here.sif")
        locked = BaseImage(name="base", path=str(there), digest=find_image(there).digest)
        there.unlink()
        assert locked_image(locked, here) == LocalImage("base", here, sha256_of(here))
        with pytest.raises(EnvironmentLacksError, match="does not exist"):
            locked_image(locked)

    def test_lock_without_digest_accepts_any_image(self, tmp_path: Path) -> None:
        path = sif(tmp_path / "a.sif")
        assert locked_image(BaseImage(name="base", path=str(path))).name == "base"

    def test_lock_without_path_is_an_error(self) -> None:
        with pytest.raises(EnvironmentLacksError, match="has no path"):
            locked_image(BaseImage(name="base"))
