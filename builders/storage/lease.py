"""Locks for directories that several machines share, made of files alone, and what is made under them.

A lock is held by a *lease*: a file ``NAME.NUMBER`` that names its holder. Only one process can create the
file with the next number (``O_EXCL``, which Lustre supports, and NFS since version 3). While the process
holds the lock, a thread rewrites the file every few seconds. A lease expires

- at once if its holder was a process of this machine and has ended, also by ``kill -9``;
- on another machine when a waiting process has seen no change for `EXPIRY` seconds of its own clock. Clocks
  and times of files are not compared, and time in which the file system does not answer does not count.

The kernel's locks (`flock`) are not used, because a successful call does not show which processes it
excludes. Lustre may be mounted with ``localflock``, and NFS with ``local_lock``: then `flock` succeeds on two
machines at once. With ``noflock`` it fails. Sources: mount.lustre(8), nfs(5), flock(2).

A lease does not stop a process that was suspended on another machine for longer than `EXPIRY`. When that
process continues, another process may hold the lock. So every file that is written under a lock must still
appear by an atomic rename.

A directory of the cache that is built once is complete or absent: a marker file, written last, marks it as
complete, and what a killed process left is built again. Complete directories are read-only and need neither a
lock nor a writable cache, so a site can share its cache.
"""

from __future__ import annotations

import errno
import getpass
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
import time
import weakref
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from builders.storage.files import (
    TEMPORARY_PREFIX,
    cache_root,
    create_file,
    make_directories,
    make_read_only,
    remove_tree,
    write_atomic,
)
from builders.storage.io_errors import explain_cache_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BEAT = 10.0
"""Seconds between two changes of a lease."""
EXPIRY = 90.0
"""Seconds without a change after which a lease expires."""
_LOST = 10 * EXPIRY
"""Seconds without a change after which the machine of a holder must have broken down. Clocks of different
machines are compared here, so it is much longer than the lock needs."""
_SHORTEST_WAIT = 0.02  # seconds between two reads of a lease
_LONGEST_WAIT = 1.0
_COUNTED = 5.0  # seconds of an interval that count; the file system did not answer in the rest
_LARGEST = 1 << 12  # bytes
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EINVAL}

_MARKER = "matrix-complete.json"


class Holder(msgspec.Struct, frozen=True):
    """The process that holds a lock."""

    host: str
    pid: int
    user: str
    since: str
    """UTC, in the format of ISO 8601."""
    machine: str = ""
    """The running kernel and its PID namespace, in which `pid` is valid."""
    started: str = ""
    """When the process started, in the kernel's unit, because process ids are reused."""
    beat: int = 0

    def __str__(self) -> str:
        return f"{self.user}, process {self.pid} on {self.host}, since {self.since}"


class _Lease(msgspec.Struct, frozen=True):
    """The state and content of a lease file, which change with every beat."""

    inode: int
    changed: int
    content: bytes

    @property
    def holder(self) -> Holder | None:
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(self.content, type=Holder)
        return None


@contextmanager
def exclusive_lock(path: Path, *, on_wait: Callable[[], None] | None = None) -> Iterator[None]:
    """Hold a lock, whose leases are named after `path`; wait until it is free, and call `on_wait` before."""
    make_directories(path.parent)
    holder = _this_process()
    lease, file = _acquire(path, holder, on_wait)
    ended = threading.Event()
    try:
        thread = threading.Thread(target=_keep, args=(file, holder, ended), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # No more threads can be started: the limit that also prevents a fork, with the same error.
            raise OSError(errno.EAGAIN, str(error), str(path)) from None
        try:
            yield
        finally:
            ended.set()
            thread.join()
    finally:
        with suppress(OSError):
            # If this process was suspended for long, the lease expired, and another has its name by now.
            if os.path.samestat(os.fstat(file), lease.lstat()):
                lease.unlink()
        os.close(file)


def holder_of(path: Path) -> Holder | None:
    """Return the holder of a lock; None if it is free, or if its holder has not written its name yet."""
    leases = _leases(path)
    return leases[max(leases)].holder if leases else None


def is_abandoned(path: Path) -> bool:
    """Return whether the holder of a lock is a process of this machine that has ended."""
    leases = _leases(path)
    return bool(leases) and all(_has_ended(lease, otherwise=False) for lease in leases.values())


def is_held(path: Path) -> bool:
    """Return whether a process that has not ended holds a lock, as far as this machine can check."""
    leases = _leases(path)
    if not leases or leases[max(leases)].holder is None or is_abandoned(path):
        return False
    return time.time() - leases[max(leases)].changed / 1e9 < _LOST


def _acquire(path: Path, holder: Holder, on_wait: Callable[[], None] | None) -> tuple[Path, int]:
    unchanged: dict[int, tuple[_Lease, float]] = {}
    wait, last = _SHORTEST_WAIT, time.monotonic()
    while True:
        now = time.monotonic()
        # While the file system does not answer, no holder can change its lease: such time must not expire it.
        counted, last = min(now - last, _COUNTED), now
        leases = _leases(path)
        before = unchanged
        unchanged = {
            number: (lease, before[number][1] + counted)
            if number in before and before[number][0] == lease
            else (lease, 0.0)
            for number, lease in leases.items()
        }
        expired = {
            number: lease
            for number, (lease, seconds) in unchanged.items()
            if _has_ended(lease, otherwise=seconds >= EXPIRY)
        }
        # A lease with a lower number counts as well: two processes that both create one see each other's.
        if len(expired) == len(leases):
            taken = _take(path, holder, expired)
            if taken is not None:
                return taken
        elif on_wait is not None:
            on_wait()
            on_wait = None
        time.sleep(wait * (1 + os.urandom(1)[0] / 255) / 2)  # so that two processes do not stay in step
        wait = min(wait * 2, _LONGEST_WAIT)


def _take(path: Path, holder: Holder, expired: dict[int, _Lease]) -> tuple[Path, int] | None:
    """Create the next lease; return None if another process was faster."""
    number = max(expired, default=0) + 1
    lease = _lease_path(path, number)
    try:
        file = create_file(lease)
    except FileExistsError:
        return None
    try:
        os.pwrite(file, msgspec.json.encode(holder), 0)
        # Another process may have released and acquired the lock since `expired` was read, with the numbers
        # that it used before. Both read the leases again after they created one, so at least one of them
        # finds the lease of the other.
        others = _leases(path)
        others.pop(number, None)
        # A lease that was not there before, or that changed since, has a living holder: this one withdraws.
        if all(expired.get(other) == content for other, content in others.items()):
            for other in others:
                with suppress(OSError):
                    _lease_path(path, other).unlink()
            return lease, file
    except BaseException:
        # After an interrupt as well: a lease that nobody renews would keep others waiting until it expires.
        lease.unlink(missing_ok=True)
        os.close(file)
        raise
    lease.unlink(missing_ok=True)
    os.close(file)
    return None


def _keep(file: int, holder: Holder, ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        holder = msgspec.structs.replace(holder, beat=holder.beat + 1)
        with suppress(OSError):
            # The number of beats only grows, so the text never becomes shorter and covers the one before.
            os.pwrite(file, msgspec.json.encode(holder), 0)
            os.fsync(file)  # other machines read the file from the server


def _lease_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _leases(path: Path) -> dict[int, _Lease]:
    start = f"{path.name}."
    try:
        names = os.listdir(path.parent)  # noqa: PTH208  the directory may be large
    except FileNotFoundError:
        return {}
    numbers = [name.removeprefix(start) for name in names if name.startswith(start)]
    leases = {}
    for number in map(int, filter(str.isdecimal, numbers)):
        lease = _read(_lease_path(path, number))
        if lease is not None:
            leases[number] = lease
    return leases


def _read(path: Path) -> _Lease | None:
    """Return a lease; None if it does not exist.

    A directory, link or device counts as a lease without a holder that never changes. Of a file that cannot
    be read, only the time changes.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    content = b""
    if stat.S_ISREG(status.st_mode):
        with suppress(OSError):
            # Since lstat, it may have become a link, or a pipe, which would wait for a writer.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                content = os.read(file, _LARGEST)
            finally:
                os.close(file)
    return _Lease(status.st_ino, status.st_mtime_ns, content)


def _this_process() -> Holder:
    pid = os.getpid()
    return Holder(
        host=os.uname().nodename,
        pid=pid,
        user=_user(),
        since=datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        machine=_machine(),
        started=_state_of(pid)[1],
    )


@cache
def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in containers
        return str(os.getuid())


@cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _has_ended(lease: _Lease, *, otherwise: bool) -> bool:
    """Return whether the holder of a lease has ended, or `otherwise` if only its machine can check that."""
    holder = lease.holder
    if holder is None or not holder.machine or holder.machine != _machine():
        return otherwise
    try:
        os.kill(holder.pid, 0)  # /proc may hide the processes of other users
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):  # it exists, for another user; or the number is damaged
        pass
    state, started = _state_of(holder.pid)
    if not state:
        return otherwise
    # A zombie holds nothing. A process with another start has got the number of the holder, which has ended.
    return state in {"Z", "X"} or started != holder.started


def _state_of(pid: int) -> tuple[str, str]:
    """Return the state and the start of a process; empty if they cannot be read."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", ""
    words = fields.rpartition(")")[2].split()  # the name of the program may contain spaces and brackets
    return words[0], words[19]


def link_exclusively(temporary: Path, target: Path) -> bool:
    """Rename a finished file to its final name; return False if the name exists already."""
    try:
        # This fails if the name exists, even if another machine creates it at the same moment.
        os.link(temporary, target)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        # A rename would replace what another process puts there after the check for the name.
        with exclusive_lock(target.with_name(f"{TEMPORARY_PREFIX}{target.name}.lock")):
            if os.path.lexists(target):
                return False
            temporary.replace(target)
    return True


class TemporaryDirectory:
    """A new directory in the cache, which is removed at the end of its block.

    A lock next to it is held while its owner runs. If that is killed, the next run on this machine removes
    it.
    """

    def __init__(self) -> None:
        parent = cache_root() / "tmp"
        owned = ExitStack()
        try:
            make_directories(parent)
            _remove_abandoned(parent)
            self.root = parent / os.urandom(8).hex()
            # Another run may remove a directory without a lock, so the lock comes first.
            owned.enter_context(exclusive_lock(_lock(self.root)))
            self.root.mkdir(mode=0o700)
        except OSError:  # the cache cannot be written
            owned.close()
            self.root = Path(tempfile.mkdtemp(prefix="matrix-"))
        owned.callback(shutil.rmtree, self.root, ignore_errors=True)
        self._remove = weakref.finalize(self, owned.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()


def _remove_abandoned(parent: Path) -> None:
    """Remove the directories whose owners were killed on this machine."""
    for lease in parent.glob("*.lock.*"):
        lock = lease.with_suffix("")
        if is_abandoned(lock):
            with suppress(OSError):  # it may belong to another user
                # The lease goes last, so that an interrupted removal is done again.
                if (root := lock.with_suffix("")).is_dir():
                    shutil.rmtree(root)
                lease.unlink(missing_ok=True)


def _lock(root: Path) -> Path:
    return root.with_suffix(".lock")


def digest(*parts: Any) -> str:  # noqa: ANN401  any JSON value
    """Return a name for a cached directory or file, derived from everything that determines its content."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:20]


def is_complete(root: Path) -> bool:
    """Return whether a cached directory exists and is complete."""
    return (root / _MARKER).exists()


def ensure_cached(root: Path, build: Callable[[], None]) -> None:
    """Build a directory of the cache in place, unless it is complete; environments contain their path."""
    if is_complete(root):
        return
    with explain_cache_errors(), exclusive_lock(root.parent / f"{root.name}.lock"):
        # Another process may have built it while this one waited for the lock.
        if is_complete(root):
            return
        remove_tree(root)
        make_directories(root)
        try:
            build()
            for directory, _, files in os.walk(root, topdown=False):
                for name in files:
                    make_read_only(os.path.join(directory, name))  # noqa: PTH118  many thousand files
                if directory != str(root):
                    make_read_only(directory)
            # The marker comes last, except for the directory itself, which must be writable for it.
            write_atomic(root / _MARKER, "{}\n")
            make_read_only(str(root))
        except BaseException:
            remove_tree(root)
            raise
