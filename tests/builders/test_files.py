"""Atomic writes: a crash leaves either the old or the new file."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from builders.index import Index
from builders.storage.files import TEMPORARY_PREFIX, atomic_path, sha256_of, write_atomic
from builders.storage.lease import exclusive_lock, link_exclusively

# Writes half of the content, reports that, and then waits until it is killed.
WRITE_HALF = """
import pathlib, sys
from builders.storage.files import atomic_path
with atomic_path(pathlib.Path(sys.argv[1])) as temporary, temporary.open("wb") as sink:
    sink.write(b"half")
    sink.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_atomic_path_renames_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "not" / "yet" / "there"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert not target.exists()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_atomic_path_keeps_old_file_after_exception(tmp_path: Path, kind: type[BaseException]) -> None:
    target = tmp_path / "page.html"
    target.write_text("old")

    def write_half() -> None:
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise kind

    with pytest.raises(kind):
        write_half()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_killed_command_left_is_removed(tmp_path: Path) -> None:
    """A temporary file has the ending of its target, such as matrix.lock, beside which users see it."""
    left, fresh = (tmp_path / f".tmp-{digit * 16}.lock" for digit in "ab")
    others = [tmp_path / name for name in (".tmp-notes.lock", f".tmp-{'c' * 16}.txt", "old.lock")]
    for path in (left, fresh, *others):
        path.write_text("half")
    for path in (left, *others):
        os.utime(path, (0, 0))
    write_atomic(tmp_path / "matrix.lock", "new")
    assert {path.name for path in tmp_path.iterdir()} == {
        "matrix.lock",
        fresh.name,
        *(path.name for path in others),
    }


def test_write_atomic_keeps_symbolic_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_kill_during_write_leaves_old_file(tmp_path: Path) -> None:
    index = Index(tmp_path)
    target = index.simple / "tiny" / "tiny-1.0-py3-none-any.whl"
    target.parent.mkdir(parents=True)
    target.write_bytes(b"old")
    with subprocess.Popen(
        [sys.executable, "-c", WRITE_HALF, str(target)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        writer.kill()
    assert writer.returncode == -signal.SIGKILL
    (left,) = [path for path in target.parent.iterdir() if path != target]
    assert left.name.startswith(TEMPORARY_PREFIX)
    assert left.read_bytes() == b"half"
    assert target.read_bytes() == b"old"
    assert index.wheels("tiny") == [target]


def _no_hard_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize("hard_links", [True, False])
def test_link_exclusively_never_overwrites(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    """Some file systems of clusters have no hard links."""
    if not hard_links:
        monkeypatch.setattr(os, "link", _no_hard_links)
    temporary, target = tmp_path / "temporary", tmp_path / "target"
    temporary.write_text("first")
    assert link_exclusively(temporary, target)
    temporary.unlink(missing_ok=True)  # with hard links it is the same file
    temporary.write_text("second")
    assert not link_exclusively(temporary, target)
    assert target.read_text() == "first"
    assert temporary.exists()


@pytest.mark.parametrize("hard_links", [True, False])
def test_link_exclusively_keeps_dangling_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    if not hard_links:
        monkeypatch.setattr(os, "link", _no_hard_links)
    temporary, target = tmp_path / "temporary", tmp_path / "target"
    temporary.touch()
    target.symlink_to("nowhere")
    assert not link_exclusively(temporary, target)
    assert target.is_symlink()


def test_exclusive_lock_reports_waiting(tmp_path: Path) -> None:
    waiting, entered = threading.Event(), threading.Event()

    def second() -> None:
        with exclusive_lock(tmp_path / "lock", on_wait=waiting.set):
            entered.set()

    with exclusive_lock(tmp_path / "lock", on_wait=lambda: pytest.fail("the lock is free")):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(30)
        assert not entered.is_set()
    thread.join(30)
    assert entered.is_set()


def test_sha256_of_reads_the_whole_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "data").write_bytes(data)
    assert sha256_of(tmp_path / "data") == hashlib.sha256(data).hexdigest()


def test_error_names_the_target() -> None:
    target = Path("/proc/there")  # even root cannot create files there
    with pytest.raises(OSError, match="'/proc/there'"):
        write_atomic(target, "text")
