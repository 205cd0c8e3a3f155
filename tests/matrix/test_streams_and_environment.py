"""Every command with unusable streams, directories or homes, or without processes.

The exit code is 3 if something is missing on the machine, never that of another answer; there is no
traceback. A command without a line here is called without arguments.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from builders.index import Index
from matrix.cli import commands, main
from tests.support.tiny import tiny_wheel

WHEEL = "deepspeed-1.0-py3-none-any.whl"
LINES = {
    "build-one": ["farm", "build-one", "0123456789abcdef"],
    "build-wheels": ["build-wheels", "--dry-run"],
    "catalog": ["catalog", "list"],
    "check": ["check", "requirements.txt"],
    "diff": ["diff", "matrix.lock", "matrix.lock"],
    "env": ["env", "--for", "pip"],
    "explain": ["explain", "torch"],
    "builds": ["farm", "builds"],
    "fetch": ["farm", "fetch", "--offline"],
    "graph": ["explain", "--graph", "deepspeed"],
    "index": ["index", "check"],
    "plan": ["farm", "plan"],
    "draft": ["catalog", "draft", "project"],
    "resolve": ["resolve", "torch==2.13.0", "--backend", "cpu"],
    "site": ["catalog", "site", "-o", "here.toml"],
    "table": ["table", "deepspeed==0.19.8", "--backend", "cpu"],
}
NAMES = sorted({*commands(), *LINES} - {"farm"})
JSON = [
    ["resolve", "torch==2.13.0", "--backend", "cpu", "--format", "json"],
    ["index", "list", "--format=json"],
]


class Answer(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str


def fill(folder: Path) -> Path:
    """Write the files that the commands read."""
    folder.mkdir(exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    wheel = tiny_wheel(folder, "deepspeed", "1.0")
    assert wheel.name == WHEEL
    Index(folder / "index").publish(wheel, {"build_key": "x"})
    shutil.copy(Index(folder / "index").wheels("deepspeed")[0], folder / WHEEL)
    try:
        assert main(["resolve", "deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
        main(["check", WHEEL])  # learns a row, on which the answers of tests would otherwise depend
    finally:
        os.chdir(before)
    (folder / "requirements.txt").write_text("ninja==1.13.0\n")
    (folder / "project").mkdir()
    (folder / "project" / "setup.py").write_text("from setuptools import setup\nsetup(name='x')\n")
    return folder


@pytest.fixture(scope="module")
def _without_tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the machine's programs, which take time to start, and the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(tmp_path_factory.mktemp("bin")))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def filled(_without_tools: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with contextlib.redirect_stdout(io.StringIO()):
        return fill(tmp_path_factory.mktemp("filled") / "work")


@pytest.fixture
def work(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    shutil.copytree(filled, folder)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(scope="module")
def usual(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Sequence[str]], Answer]:
    """Return a function that returns the answer of a command in a normal environment."""
    answers: dict[tuple[str, ...], Answer] = {}

    def answer(line: Sequence[str]) -> Answer:
        key = tuple(line)
        if key not in answers:
            folder = tmp_path_factory.mktemp("usual") / "work"
            shutil.copytree(filled, folder)
            with contextlib.chdir(folder):
                answers[key] = run(line)
        return answers[key]

    return answer


def run(line: Sequence[str]) -> Answer:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(line)
    return Answer(code, comparable(out), comparable(err))


def comparable(text: io.StringIO) -> str:
    """Return the text without the parts that differ between two runs."""
    with contextlib.suppress(FileNotFoundError):
        text = io.StringIO(text.getvalue().replace(str(Path.cwd()), ""))
    return re.sub(r"\d+ GiB|\b\d+\.\d+ s\b|(?<=127.0.0.1:)\d+", "", text.getvalue())


Usual = Callable[[Sequence[str]], Answer]
lines = pytest.mark.parametrize("line", [LINES.get(name, [name]) for name in NAMES], ids=NAMES)
printing = pytest.mark.parametrize(
    ("unusable", "line"),
    [
        pytest.param(kind, line, marks=[pytest.mark.slow] * ((row + column) % 2))
        for row, kind in enumerate(["closed", "full"])
        for column, line in enumerate([*(LINES.get(name, [name]) for name in NAMES), *JSON])
    ],
    indirect=["unusable"],
)


@pytest.mark.slow
def test_usual_answers_have_neither_fault_nor_lack(usual: Usual) -> None:
    answers = {name: usual(LINES.get(name, [name])) for name in NAMES}
    assert {name: answer for name, answer in answers.items() if answer.code not in {0, 1, 2, 3, 4}} == {}
    assert sum(answer.code == 0 for answer in answers.values()) >= 12


def full() -> io.TextIOWrapper:
    return open("/dev/full", "w", encoding="utf-8")  # noqa: PTH123


@pytest.fixture
def unusable(request: pytest.FixtureRequest) -> Iterator[io.TextIOWrapper | None]:
    """Yield a stream as Python has it if the file descriptor is closed, or its device is full."""
    if request.param == "closed":
        yield None
        return
    stream = full()
    yield stream
    with contextlib.suppress(OSError):
        stream.close()


@pytest.mark.usefixtures("work")
@printing
def test_unusable_stdout_is_exit_3(
    line: list[str],
    usual: Usual,
    unusable: io.TextIOWrapper | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setattr(sys, "stdout", unusable)
    expected = usual(line)
    code = main(line)
    assert code == (3 if expected.out else expected.code)
    if expected.out:
        assert "error: Cannot write to stdout: " in err.getvalue()
    assert "Traceback" not in err.getvalue()


@pytest.mark.usefixtures("work")
@printing
def test_unusable_stderr_changes_nothing_else(
    line: list[str],
    usual: Usual,
    unusable: io.TextIOWrapper | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected, out = usual(line), io.StringIO()
    monkeypatch.setattr(sys, "stderr", unusable)
    monkeypatch.setattr(sys, "stdout", out)
    assert main(line) == expected.code
    assert comparable(out).splitlines() == expected.out.splitlines()


@lines
def test_directory_that_is_not_utf8(line: list[str], filled: Path, usual: Usual, tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(filled, folder)
    with contextlib.chdir(folder):
        answer = run(line)
    assert (answer.code, answer.err) == (usual(line).code, usual(line).err)


@lines
def test_absolute_paths_that_are_not_utf8(
    line: list[str], filled: Path, usual: Usual, tmp_path: Path
) -> None:
    """Name the index, the lock and other files by such paths, from an ordinary directory."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    shutil.copytree(filled, folder)
    (tmp_path / "other").mkdir()
    arguments = [str(folder / word) if (folder / word).exists() else word for word in line]
    if line[0] in {"build-wheels", "env", "report"}:
        arguments += ["--lock", str(folder / "matrix.lock"), "--index", str(folder / "index")]
    with contextlib.chdir(tmp_path / "other"):
        answer = run(arguments)
    assert answer.code in {usual(line).code, 2, 3}
    assert "Traceback" not in answer.err


@lines
def test_deleted_directory_is_exit_3(line: list[str], tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    with contextlib.chdir(gone):
        gone.rmdir()
        answer = run(line)
    assert answer.code == 3
    assert answer.err == "error: The working directory was deleted.\n  hint: Change to another directory.\n"


@pytest.mark.usefixtures("work")
@lines
def test_no_home_is_the_usual_answer_or_exit_3(
    line: list[str], usual: Usual, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(_: int) -> NoReturn:
        raise KeyError

    expected = usual(line).code
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    answer = run(line)
    assert answer.code in {expected, 3}
    if answer.code != expected:
        assert "error: This user has no home directory." in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.usefixtures("work")
@lines
def test_no_thread_is_the_usual_answer_or_exit_3(
    line: list[str], usual: Usual, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    expected = usual(line).code
    monkeypatch.setattr(threading, "_start_new_thread", refuse)
    answer = run(line)
    assert answer.code in {expected, 3}
    if answer.code != expected:
        assert "error: No more processes or threads can be started." in answer.err
    assert "Traceback" not in answer.err


@pytest.mark.usefixtures("work", "no_shortcuts")
@lines
def test_no_process_is_the_usual_answer_or_exit_3(
    line: list[str], usual: Usual, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> NoReturn:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    expected = usual(line).code
    monkeypatch.setattr(subprocess, "_fork_exec", refuse)
    answer = run(line)
    assert answer.code in {expected, 3}
    if answer.code != expected:
        assert "Resource temporarily unavailable" in answer.err or "No more processes" in answer.err
    assert "Traceback" not in answer.err


PROGRAM = [sys.executable, "-m", "matrix"]
ROOT = Path(__file__).parents[2]


STREAMS = [
    (">&-", "--version", 3),
    (">/dev/full", "--version", 3),
    (">/dev/full", "resolve --help", 3),
    (">/dev/full", "catalog list", 3),
    ("2>/dev/full", "resolve apx", 2),
    ("<&- >&- 2>&-", "catalog list", 3),
    (">&- 2>/dev/full", "check -", 3),
    ("<&- >/dev/full 2>/dev/full", "index list --format json", 3),
    ("<&- 2>&-", "check -", 4),
]


@pytest.mark.parametrize(
    ("unbuffered", "redirected", "line", "code"),
    [
        pytest.param(unbuffered, *case, marks=[] if (number + len(unbuffered)) % 2 == 0 else pytest.mark.slow)
        for unbuffered in ("", "1")
        for number, case in enumerate(STREAMS)
    ],
)
def test_exit_code_with_unusable_streams(
    unbuffered: str, redirected: str, line: str, code: int, filled: Path
) -> None:
    """Run in a process, because an interpreter flushes its streams when it exits."""
    command = ["/bin/sh", "-c", f'exec "$@" {redirected}', "sh", *PROGRAM, *line.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(
        command, cwd=filled, env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if ">&-" in redirected and "2>" not in redirected:
        assert done.stderr == "error: Cannot write to stdout: it is closed.\n"


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit (util-linux) is not installed")
def test_process_limit_of_the_kernel_is_exit_3(filled: Path) -> None:
    """Run as an ordinary user, because the limit does not apply to root."""
    ordinary = ["/usr/bin/prlimit", "--nproc=1"]
    if os.geteuid() == 0:
        sets = [f"--{name}=-all,+dac_override" for name in ("inh-caps", "ambient-caps", "bounding-set")]
        ordinary = ["/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *sets, *ordinary]
    if subprocess.run([*ordinary, "/bin/true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not allow to change the user")
    done = subprocess.run(
        [*ordinary, *PROGRAM, *LINES["check"]],
        cwd=filled,
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3, done.stderr
    assert "No more processes" in done.stderr or "Resource temporarily unavailable" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("interrupts", [1, 3])
@pytest.mark.parametrize("pause", [0.0, 0.002, 0.01, 0.03, 0.1])
def test_interrupts_end_the_program_without_traceback(tmp_path: Path, pause: float, interrupts: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        request = ["resolve", "a-stranger", "--backend", "cpu", "--index-url", url, "--no-lock"]
        with _started(["-m", "matrix", *request], tmp_path) as process:
            silent.settimeout(60)
            connection, _ = silent.accept()  # the command waits for an answer
            with connection:
                for _ in range(interrupts):
                    process.send_signal(signal.SIGINT)
                    time.sleep(pause)
                _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


def test_interrupted_program_does_not_wait_for_a_lock_at_exit(tmp_path: Path) -> None:
    """An interruption can leave a lock held that urllib3 wants at exit."""
    program = (
        "import atexit, sys, threading\n"
        "lock = threading.Lock(); lock.acquire(); atexit.register(lock.acquire)\n"
        "import matrix.cli; from matrix.__main__ import main\n"
        "def interrupted(): raise KeyboardInterrupt\n"
        "matrix.cli.main = interrupted; sys.exit(main())"
    )
    with _started(["-c", program, "check"], tmp_path) as process:
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")


@contextlib.contextmanager
def _started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()
