"""A crash leaves either the old file or the new one."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from builders.files import TEMPORARY_PREFIX, atomic_path, sha256_of, write_atomic
from builders.index import Index

# Writes half, says so, and waits for what never comes.
WRITE_HALF = """
import pathlib, sys
from builders.files import atomic_path
with atomic_path(pathlib.Path(sys.argv[1])) as temporary, temporary.open("wb") as sink:
    sink.write(b"half")
    sink.flush()
    print("half", flush=True)
    sys.stdin.read()
"""


def test_the_new_content_takes_the_name_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "not" / "yet" / "there"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert temporary.parent == target.parent
        assert not target.exists()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o644
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_an_exception_leaves_the_old_file_alone(tmp_path: Path, kind: type[BaseException]) -> None:
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


def test_a_symbolic_link_stays_one(tmp_path: Path) -> None:
    real, link = tmp_path / "real", tmp_path / "link"
    real.write_text("old")
    link.symlink_to(real)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_a_kill_leaves_the_old_file_and_nothing_that_readers_see(tmp_path: Path) -> None:
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


def test_sha256_of_reads_the_whole_file(tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "data").write_bytes(data)
    assert sha256_of(tmp_path / "data") == hashlib.sha256(data).hexdigest()
