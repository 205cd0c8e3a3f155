"""The directory of a build, in which the next attempt continues an interrupted build.

ninja records each output in its log (``.ninja_log``) when the command for it has succeeded. It therefore
rebuilds a file that a killed compiler left half-written, and a build that uses ninja continues where it
stopped. setuptools compares only modification times, so the files that it copies and links (``build/lib*``)
are removed first. Without a log of ninja, the build starts again with nothing.

The state that the next attempt needs is in a file next to the part that the build sees, so a build cannot
change it. Only the user who started a build continues it.

Source: ninja's manual ("The Ninja log").
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from builders.storage.files import open_regular, remove_tree, replace_file
from builders.storage.lease import exclusive_lock, is_held

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from builders.index import Index

_KEPT = "attempt.json"
_EARLIER_LOG = "earlier.log"
_NINJA_LOG = ".ninja_log"
_LARGEST_LOG = 1 << 26  # bytes
_OUTPUT_FIELD, _COMMAND_FIELD = 3, 4
"""Index of the output and of its command's hash in a line of ninja's log, whose fields tabs separate."""
_LONGEST = 30 * 24 * 3600.0
"""Seconds after which the directory of an abandoned build is removed."""
_LARGEST = 50 * 2**30
"""Limit in bytes for the directories of all builds that are not running."""


class _Attempt(msgspec.Struct, kw_only=True):
    """The state of a build that the next attempt needs."""

    inputs: str
    """Digest of everything that determines the content of the directory, besides the build key."""
    tree: str
    """Name of the top directory of the source."""
    prepared: int = 0
    started: float
    seconds: float = 0.0
    """Those that earlier attempts took."""
    number: int = 1
    schema: int = 1


class Abandoned(msgspec.Struct, frozen=True):
    """The directory of a build that is not running."""

    path: Path
    """Its name is the first digits of its build key."""
    used: float
    """When it was last modified, in seconds since the epoch."""
    size: int
    """Total of its files in bytes."""


def path_of(index: Index, build_key: str) -> Path:
    """Return the directory of a build."""
    return index.state / "builds" / build_key[:20]


def lock_of(index: Index, build_key: str) -> Path:
    """Return the path of the lock of a build key."""
    return index.state / "locks" / f"{build_key[:20]}.lock"


class BuildDirectory:
    """The directory of one attempt, used under the lock of its build key. An earlier log is renamed."""

    def __init__(self, root: Path, log: Path) -> None:
        self.root = root
        self.log = log
        self._attempt = _read(root)
        if self._attempt is None:
            remove_tree(root)
            root.mkdir()
            log.unlink(missing_ok=True)
            return
        # A killed process could not record when it stopped; its log was written until then.
        wrote = log.stat().st_mtime if log.exists() else self._attempt.started
        self._attempt.seconds += max(0.0, wrote - self._attempt.started)
        self._attempt.started = time.time()
        self._attempt.number += 1
        with suppress(FileNotFoundError), log.open("rb") as source:
            with (root / _EARLIER_LOG).open("ab") as sink:
                shutil.copyfileobj(source, sink)
            log.unlink()
        self._write()

    @property
    def sandbox(self) -> Path:
        """The part that the build sees and may write to."""
        return self.root / "build"

    @property
    def source(self) -> Path:
        """The directory with the unpacked source."""
        return self.sandbox / "source"

    @property
    def environment(self) -> Path:
        """The environment of the build."""
        return self.sandbox / "env"

    @property
    def seconds_before(self) -> float:
        """The seconds that earlier attempts took."""
        return self._attempt.seconds if self._attempt else 0.0

    @property
    def number(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.number if self._attempt else 1

    def resume(self, inputs: str) -> Path | None:
        """Return the source tree if the build of these inputs can continue there; else remove everything."""
        attempt = self._attempt
        if attempt is not None and attempt.inputs == inputs:
            tree = self.source / attempt.tree
            paths = (self.sandbox, self.source, self.environment, tree)
            if all(_is_directory(path) for path in paths) and finished_commands(self.root):
                _clear(self.root, keep={self.sandbox.name, _KEPT, _EARLIER_LOG})
                _clear(self.sandbox, keep={self.source.name, self.environment.name})
                _remove_untracked(self.source)
                return tree
        self._attempt = None
        (self.root / _KEPT).unlink(missing_ok=True)
        _clear(self.root, keep=set())
        self.sandbox.mkdir()
        return None

    def begin(self, inputs: str, tree: Path) -> None:
        """Record that the source has been unpacked and patched: from now on, the build can be continued."""
        self._attempt = _Attempt(inputs=inputs, tree=tree.name, started=time.time())
        self._write()

    @property
    def prepared(self) -> int:
        """How many commands of the recipe have succeeded."""
        return self._attempt.prepared if self._attempt else 0

    def command_succeeded(self) -> None:
        """Record that one more command of the recipe has succeeded."""
        if self._attempt is not None:
            self._attempt.prepared += 1
            self._write()

    def start_anew_next_time(self) -> None:
        """Record that the build itself failed; the files are kept for inspection until the next attempt."""
        (self.root / _KEPT).unlink(missing_ok=True)

    def join_logs(self) -> None:
        """Insert the logs of earlier attempts at the start of the log, so that it shows every compilation."""
        earlier = self.root / _EARLIER_LOG
        if earlier.exists():
            with earlier.open("ab") as sink, self.log.open("rb") as source:
                shutil.copyfileobj(source, sink)
            shutil.move(earlier, self.log)

    def _write(self) -> None:
        # The source itself is not flushed either.
        replace_file(self.root / _KEPT, msgspec.json.encode(self._attempt), flushed=False)


def finished_commands(root: Path) -> int:
    """Return how many commands ninja has finished; all outputs of a command have its hash."""
    commands = {
        (directory, fields[_OUTPUT_FIELD]): (directory, fields[_COMMAND_FIELD].rstrip())
        for directory, names in _walk(root / "build" / "source")
        if _NINJA_LOG in names
        for line in _lines(os.path.join(directory, _NINJA_LOG))  # noqa: PTH118  many thousand directories
        if len(fields := line.split(b"\t")) > _COMMAND_FIELD
    }
    return len(set(commands.values()))


def abandoned(index: Index) -> list[Abandoned]:
    """Return the directories of builds that were interrupted or failed, the last used first."""
    rows = []
    with suppress(FileNotFoundError):
        for path in (index.state / "builds").iterdir():
            with suppress(FileNotFoundError):
                if not is_held(lock_of(index, path.name)):
                    rows.append(Abandoned(path, path.lstat().st_mtime, _size(path)))
    return sorted(rows, key=lambda row: -row.used)


def prune(
    index: Index,
    *,
    longest: float = _LONGEST,
    largest: float = _LARGEST,
    keep: Collection[str] = (),
    dry_run: bool = False,
) -> list[Abandoned]:
    """Remove the directories of builds that are not running, the least recently used first; return them.

    `longest` is in seconds since the last modification, `largest` the total size in bytes of those that stay,
    and `keep` has build keys.
    """
    kept = {key[:20] for key in keep}
    removed, total = [], 0
    for row in abandoned(index):
        total += row.size
        if row.path.name in kept or (time.time() - row.used <= longest and total <= largest):
            continue
        if dry_run or _remove_unless_used(row, index):
            removed.append(row)
            total -= row.size
    return removed


def _remove_unless_used(row: Abandoned, index: Index) -> bool:
    lock = lock_of(index, row.path.name)

    def waiting() -> None:  # for a lease whose holder has broken down; pruning does not wait for a build
        if is_held(lock):
            raise BlockingIOError

    try:
        with exclusive_lock(lock, on_wait=waiting):
            remove_tree(row.path)
    except OSError:  # another process uses it, or it belongs to another user
        return False
    return True


def _read(root: Path) -> _Attempt | None:
    """Return the record of the last attempt; None if there is nothing that this user can continue."""
    try:
        status = root.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return None
        with os.fdopen(open_regular(root / _KEPT), "rb") as source:
            return msgspec.json.decode(source.read(), type=_Attempt)
    except (OSError, msgspec.MsgspecError):
        return None


def _is_directory(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _clear(directory: Path, *, keep: Collection[str]) -> None:
    """Remove the content of a directory without following links that a build made there."""
    for path in directory.iterdir():
        if path.name not in keep:
            _remove(path)


def _remove(path: Path) -> None:
    if _is_directory(path):
        remove_tree(path)
    else:
        path.unlink()


def _remove_untracked(source: Path) -> None:
    """Remove the files that setuptools copies, links and packs: it trusts any copy newer than its source."""
    for directory, _ in list(_walk(source)):
        if os.path.basename(directory) == "build":  # noqa: PTH119
            for name in os.listdir(directory):  # noqa: PTH208
                if name == "lib" or name.startswith(("lib.", "bdist.")):
                    _remove(source / directory / name)


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    return ((directory, names) for directory, _, names in os.walk(root)) if _is_directory(root) else iter(())


def _lines(path: str) -> list[bytes]:
    try:
        with os.fdopen(open_regular(path), "rb") as source:
            return source.read(_LARGEST_LOG).splitlines()
    except OSError:
        return []


def _size(path: Path) -> int:
    size = 0
    for directory, names in _walk(path):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118
    return size
