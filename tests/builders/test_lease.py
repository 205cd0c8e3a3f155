"""A lock has one holder at a time, also on several machines; a killed holder does not keep it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from builders.storage import lease
from builders.storage.lease import exclusive_lock, holder_of

# Holds the lock named on the command line until its input ends.
HOLD = """
import pathlib, sys
from builders.storage.lease import exclusive_lock
with exclusive_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

# Increments the number in a file, many times, each time under the lock.
COUNT = """
import os, pathlib, sys, time
from builders.storage.lease import exclusive_lock
lock, counter = map(pathlib.Path, sys.argv[1:])
for _ in range(20):
    with exclusive_lock(lock):
        number = int(counter.read_text())
        time.sleep(0.002)
        written = counter.with_name(f"{counter.name}-{os.getpid()}")
        written.write_text(str(number + 1))
        written.replace(counter)
"""


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    return tmp_path / "locks" / "key.lock"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT", 0.05)
    monkeypatch.setattr(lease, "EXPIRY", 1.0)
    monkeypatch.setattr(lease, "_LONGEST_WAIT", 0.1)


@pytest.fixture
def start_holder(lock: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Return a function that starts a process that holds the lock."""
    started = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", HOLD, str(lock)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def write_lease(path: Path, number: int = 1, **changes: object) -> Path:
    """Write the lease of a process on another machine."""
    document = {"host": "nid001", "pid": 1, "user": "ada", "since": "2026-01-01T00:00:00Z", "machine": "m"}
    path.parent.mkdir(exist_ok=True)
    made = path.with_name(f"{path.name}.{number}")
    made.write_bytes(msgspec.json.encode(document | changes))
    return made


def test_lock_leaves_no_file(lock: Path) -> None:
    with exclusive_lock(lock):
        assert len(list(lock.parent.iterdir())) == 1
    assert list(lock.parent.iterdir()) == []
    assert holder_of(lock) is None


def test_lock_tells_who_holds_it(lock: Path) -> None:
    with exclusive_lock(lock):
        holder = holder_of(lock)
        assert holder is not None
        assert (holder.pid, holder.host) == (os.getpid(), os.uname().nodename)
        assert f"process {os.getpid()} on {os.uname().nodename}, since 20" in str(holder)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_lock_of_killed_process_is_free_at_once(
    lock: Path, start_holder: Callable[[], subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    process = start_holder()
    os.kill(process.pid, number)
    process.wait()
    begun = time.monotonic()
    with exclusive_lock(lock, on_wait=lambda: pytest.fail("its holder has ended")):
        assert time.monotonic() - begun < 5
        assert len(list(lock.parent.iterdir())) == 1


def test_lock_of_unreaped_process_is_free(
    lock: Path, start_holder: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = start_holder()
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    with exclusive_lock(lock):
        pass


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_lock_of_stopped_process_is_held(
    lock: Path, start_holder: Callable[[], subprocess.Popen[bytes]]
) -> None:
    process = start_holder()
    entered = threading.Event()

    def second() -> None:
        with exclusive_lock(lock):
            entered.set()

    thread = threading.Thread(target=second)
    os.kill(process.pid, signal.SIGSTOP)
    thread.start()
    assert not entered.wait(2)
    process.kill()
    thread.join(30)
    assert entered.is_set()


@pytest.mark.usefixtures("impatient")
def test_lease_of_lost_machine_expires(lock: Path) -> None:
    write_lease(lock)
    waited = threading.Event()
    begun = time.monotonic()
    with exclusive_lock(lock, on_wait=waited.set):
        assert 0.9 < time.monotonic() - begun < 20
        holder = holder_of(lock)
        assert holder is not None
        assert holder.pid == os.getpid()
    assert waited.is_set()
    assert list(lock.parent.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_lease_that_changes_does_not_expire(lock: Path) -> None:
    """A process of another machine rewrites its lease while it runs."""
    entered = threading.Event()
    made = write_lease(lock)

    def second() -> None:
        with exclusive_lock(lock):
            entered.set()

    thread = threading.Thread(target=second)
    thread.start()
    for beat in range(25):
        write_lease(lock, beat=beat)
        assert not entered.wait(0.1)
    made.unlink()
    thread.join(30)
    assert entered.is_set()


@pytest.mark.usefixtures("impatient")
def test_lease_is_renewed_while_lock_is_held(lock: Path) -> None:
    with exclusive_lock(lock):
        before = holder_of(lock)
        time.sleep(0.5)
        after = holder_of(lock)
    assert before is not None
    assert after is not None
    assert after.beat > before.beat


def test_time_without_answer_does_not_count(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system did not respond for an hour; the holder may still run."""
    made = write_lease(lock)
    clock = iter([0.0, 1.0, 3600.0, 7200.0])
    looks = []

    def look() -> float:
        looks.append(time)
        now = next(clock, None)
        if now is None:
            made.unlink()
            return 7201.0 + len(looks)
        return now

    monkeypatch.setattr("builders.storage.lease.time.monotonic", look)
    with exclusive_lock(lock):
        assert len(looks) > 4


def test_process_id_used_again_is_another_process(lock: Path) -> None:
    with exclusive_lock(lock):
        holder = holder_of(lock)
    assert holder is not None
    (made,) = [write_lease(lock, **{**msgspec.to_builtins(holder), "started": "1"})]
    assert lease.is_abandoned(lock)
    with exclusive_lock(lock, on_wait=lambda: pytest.fail("its holder has ended")):
        assert not made.exists()


def test_released_lock_of_another_is_not_taken_away(lock: Path) -> None:
    """A process that was suspended while another process acquired the lock keeps the other's lease."""
    with exclusive_lock(lock):
        lock.with_name("key.lock.1").unlink()
        other = write_lease(lock)
    assert other.exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
@pytest.mark.usefixtures("impatient")
def test_lock_does_not_follow_or_open_strange_files(lock: Path, tmp_path: Path, kind: str) -> None:
    lock.parent.mkdir()
    strange, precious = lock.with_name("key.lock.1"), tmp_path / "precious"
    precious.write_text("text")
    if kind == "link":
        strange.symlink_to(precious)
        lock.symlink_to(precious)
    elif kind == "fifo":
        os.mkfifo(strange)
        os.mkfifo(lock)
    else:
        strange.mkdir()
    with exclusive_lock(lock):
        assert precious.read_text() == "text"
    assert precious.read_text() == "text"


@pytest.mark.slow
@pytest.mark.parametrize("preload", ["flock", "hard links"], indirect=True)
def test_lock_excludes_on_any_file_system(lock: Path, tmp_path: Path, preload: dict[str, str]) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(lock), str(counter)]
    processes = [subprocess.Popen(command, env=preload) for _ in range(4)]
    assert [process.wait(120) for process in processes] == [0] * 4
    assert counter.read_text() == "80"
    assert list(lock.parent.iterdir()) == []


@pytest.mark.slow
def test_lock_survives_killed_holders(lock: Path, tmp_path: Path) -> None:
    """Counting processes are killed at any moment; the others lose no count."""
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(lock), str(counter)]
    victims = [subprocess.Popen(command) for _ in range(3)]
    survivors = [subprocess.Popen(command) for _ in range(2)]
    time.sleep(0.4)
    for victim in victims:
        victim.kill()
        victim.wait()
    assert [process.wait(120) for process in survivors] == [0, 0]
    with exclusive_lock(lock, on_wait=lambda: pytest.fail("all have ended")):
        pass


def test_lock_without_threads_is_released(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match="can't start new thread"), exclusive_lock(lock):
        pass
    assert list(lock.parent.iterdir()) == []
