"""Cached directories: complete or missing, read-only, and explained errors of the cache."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.storage.files import cache_root, remove_tree
from builders.storage.lease import digest, ensure_cached, exclusive_lock, is_complete
from resolver.errors import CommandError, EnvironmentLacksError

WHAT = "Installing"
KILLED_MIDWAY = """
import os, pathlib, signal, sys
from builders.storage.lease import ensure_cached
root = pathlib.Path(sys.argv[1])
def make():
    (root / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
ensure_cached(root, make)
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "one"


def filling(root: Path, calls: list[str]) -> Callable[[], None]:
    def make() -> None:
        calls.append("made")
        assert list(root.iterdir()) == []
        (root / "deep").mkdir()
        (root / "deep" / "file").write_text("content")
        (root / "link").symlink_to("deep")

    return make


def test_directory_is_built_once_and_is_read_only(root: Path) -> None:
    calls: list[str] = []
    ensure_cached(root, filling(root, calls))
    ensure_cached(root, filling(root, calls))
    assert calls == ["made"]
    assert (root / "link" / "file").read_text() == "content"
    for path in (root, root / "deep", root / "deep" / "file"):
        assert not path.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH), path


def test_complete_directory_needs_no_lock(root: Path) -> None:
    """A shared cache may be read-only."""
    ensure_cached(root, filling(root, []))
    with exclusive_lock(root.parent / "one.lock"):
        ensure_cached(root, filling(root, []))


def test_incomplete_directory_is_built_again(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED_MIDWAY, str(root)], check=False, cwd=Path.cwd())
    assert done.returncode == -signal.SIGKILL
    assert (root / "half").exists()
    assert not is_complete(root)
    ensure_cached(root, filling(root, []))
    assert not (root / "half").exists()
    assert is_complete(root)


def test_failed_directory_is_removed(root: Path) -> None:
    def fail() -> None:
        (root / "half").touch()
        (root / "half").chmod(0o400)
        root.chmod(0o500)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ensure_cached(root, fail)
    assert not root.exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "No space left"),
        (errno.EDQUOT, "No space left"),
        (errno.EFBIG, "No space left"),
        (errno.EROFS, "Cannot write to the cache"),
        (errno.EACCES, "Cannot write to the cache"),
    ],
)
def test_full_or_read_only_cache_is_explained(root: Path, number: int, words: str) -> None:
    def refuse() -> None:
        raise OSError(number, os.strerror(number), "some/file")

    with pytest.raises(EnvironmentLacksError, match=words) as caught:
        ensure_cached(root, refuse)
    assert "some/file" in caught.value.message
    assert "XDG_CACHE_HOME" in caught.value.hint


def test_full_cache_met_by_program_is_explained(root: Path, tmp_path: Path) -> None:
    lines = ["ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"]

    def refuse() -> None:
        raise CommandError(WHAT, code=1, log=tmp_path / "pip.log", lines=lines)

    with pytest.raises(EnvironmentLacksError, match="No space left") as caught:
        ensure_cached(root, refuse)
    assert "pip.log" in caught.value.message


def test_other_errors_pass_unchanged(root: Path, tmp_path: Path) -> None:
    def fail() -> None:
        raise CommandError(WHAT, code=1, log=tmp_path / "log", lines=["ERROR: bad wheel"])

    with pytest.raises(CommandError, match="bad wheel"):
        ensure_cached(root, fail)
    with pytest.raises(FileNotFoundError):
        ensure_cached(root, (root / "not" / "there").touch)


def test_digest_distinguishes_all_parts() -> None:
    assert digest("a", ["b"]) == digest("a", ["b"])
    assert len({digest("a", "b"), digest("ab"), digest("a", ["b"]), digest("b", "a")}) == 4


def test_remove_tree_of_missing_directory(tmp_path: Path) -> None:
    remove_tree(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("base", ["", "not/absolute"])
def test_cache_is_below_home_without_xdg(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", base)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "matrix"
