"""The directory of an interrupted build: files for the next attempt, and files that are removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from builders.building.directory import (
    BuildDirectory,
    abandoned,
    finished_commands,
    lock_of,
    path_of,
    prune,
)
from builders.index import Index
from builders.storage.lease import exclusive_lock

KEY = "0123456789abcdef01234567"
NINJA_LOG = "# ninja log v7\n0\t5\t1\ta.o\tff\n5\t9\t1\tb.o\tee\n9\t12\t1\ta.o\tff\n"


@pytest.fixture
def index(tmp_path: Path) -> Index:
    made = Index(tmp_path / "index")
    for name in ("builds", "locks", "logs"):
        made.state_directory(name)
    return made


@pytest.fixture
def log(index: Index) -> Path:
    return index.state / "logs" / "tiny.log"


def attempt(index: Index, log: Path, *, key: str = KEY, ninja: bool = True) -> BuildDirectory:
    """Create the files of an attempt that is killed while it compiles."""
    directory = BuildDirectory(path_of(index, key), log)
    assert directory.resume("inputs") is None
    tree = directory.source / "tiny-1.0"
    compiled = tree / "build" / "temp.linux"
    for path in (compiled, tree / "build" / "lib.linux", tree / "build" / "bdist.linux", tree / "tiny"):
        path.mkdir(parents=True)
        (path / "file").write_text("some")
    for name in ("env", "shims", "tmp", "raw"):
        (directory.sandbox / name).mkdir()
    (directory.root / "wheel").mkdir()
    if ninja:
        (compiled / ".ninja_log").write_text(NINJA_LOG)
    directory.begin("inputs", tree)
    log.write_text(f"attempt {directory.number}\n")
    return directory


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_command_with_several_outputs_counts_once(index: Index, log: Path) -> None:
    directory = attempt(index, log)
    (ninja_log,) = directory.root.rglob(".ninja_log")
    ninja_log.write_text("".join(f"0\t5\t1\tgenerated/{name}.cpp\tff\n" for name in range(1000)))
    assert finished_commands(directory.root) == 1


def test_interrupted_build_is_continued(index: Index, log: Path) -> None:
    root = attempt(index, log).root
    assert finished_commands(root) == 2
    directory = BuildDirectory(root, log)
    tree = directory.resume("inputs")
    assert tree == directory.source / "tiny-1.0"
    assert directory.number == 2
    assert names(directory.sandbox) == {"env", "source"}
    assert names(tree / "build") == {"temp.linux"}  # setuptools trusts the others by their times
    assert (tree / "tiny" / "file").exists()
    assert "wheel" not in names(root)


def test_other_inputs_start_anew(index: Index, log: Path) -> None:
    root = attempt(index, log).root
    directory = BuildDirectory(root, log)
    assert directory.resume("other inputs") is None
    assert directory.number == 1
    assert names(root) == {"build"}
    assert names(directory.sandbox) == set()


def test_build_without_ninja_starts_anew(index: Index, log: Path) -> None:
    root = attempt(index, log, ninja=False).root
    assert BuildDirectory(root, log).resume("inputs") is None


def test_failed_build_starts_anew_but_keeps_files_until_then(index: Index, log: Path) -> None:
    failed = attempt(index, log)
    failed.start_anew_next_time()
    assert (failed.source / "tiny-1.0" / "tiny" / "file").exists()
    directory = BuildDirectory(failed.root, log)
    assert directory.resume("inputs") is None
    assert names(directory.sandbox) == set()


def test_commands_that_succeeded_are_not_repeated(index: Index, log: Path) -> None:
    killed = attempt(index, log)
    killed.command_succeeded()
    directory = BuildDirectory(killed.root, log)
    assert directory.resume("inputs")
    assert directory.prepared == 1


def test_log_shows_all_attempts(index: Index, log: Path) -> None:
    root = attempt(index, log).root
    for number in (2, 3):
        directory = BuildDirectory(root, log)
        assert directory.resume("inputs")
        assert not log.exists()  # a failure is diagnosed from the log of its own attempt
        log.write_text(f"attempt {number}\n")
    directory.join_logs()
    assert log.read_text() == "attempt 1\nattempt 2\nattempt 3\n"


def test_time_of_earlier_attempts_counts(index: Index, log: Path) -> None:
    root = attempt(index, log).root
    os.utime(log, (time.time() + 100,) * 2)
    assert 99 < BuildDirectory(root, log).seconds_before < 110


@pytest.mark.parametrize("place", ["build/shims", "build/source/tiny-1.0/build/lib.linux", "build/source"])
def test_links_of_a_build_are_not_followed(index: Index, log: Path, tmp_path: Path, place: str) -> None:
    root = attempt(index, log).root
    outside = tmp_path / "outside"
    (outside / "tiny-1.0" / "build" / "lib").mkdir(parents=True)
    (outside / "tiny-1.0" / "build" / ".ninja_log").write_text(NINJA_LOG)
    (root / place).rename(root / "moved")
    (root / place).symlink_to(outside)
    before = sorted(outside.rglob("*"))
    tree = BuildDirectory(root, log).resume("inputs")
    assert (tree is None) == (place == "build/source")
    assert sorted(outside.rglob("*")) == before
    assert not (root / place).is_symlink()


def test_directory_of_another_user_is_not_continued(
    index: Index, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = attempt(index, log).root
    monkeypatch.setattr("os.getuid", lambda: root.stat().st_uid + 1)
    assert BuildDirectory(root, log).resume("inputs") is None


def aged(index: Index, log: Path, key: str, days: float) -> Path:
    root = attempt(index, log, key=key).root
    os.utime(root, (time.time() - days * 86400,) * 2)
    return root


def test_old_directories_are_removed(index: Index, log: Path) -> None:
    old, new = aged(index, log, "a" * 64, 31), aged(index, log, "b" * 64, 29)
    assert [row.path for row in prune(index, dry_run=True)] == [old]
    assert old.exists()
    (removed,) = prune(index)
    assert (removed.path, removed.size) == (old, removed.size)
    assert removed.size > len(NINJA_LOG)
    assert [row.path for row in abandoned(index)] == [new]


def test_least_recently_used_directories_are_removed_when_large(index: Index, log: Path) -> None:
    older, newer = aged(index, log, "a" * 64, 2), aged(index, log, "b" * 64, 1)
    size = abandoned(index)[0].size
    assert [row.path for row in prune(index, largest=1.5 * size)] == [older]
    assert newer.exists()
    assert prune(index, largest=0.5 * size, keep=["b" * 64]) == []


def test_running_builds_are_not_removed(index: Index, log: Path) -> None:
    root = aged(index, log, KEY, 100)
    with exclusive_lock(lock_of(index, KEY)):
        assert prune(index) == []
        assert root.exists()
    assert [row.path for row in prune(index)] == [root]
