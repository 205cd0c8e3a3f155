"""Start programs: their log, the lines that explain a failure, their environment and their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from builders.machine.process import clean_environment, output_in_container, output_of, run
from resolver.errors import CommandError, MatrixError, TooSlowError

pytestmark = pytest.mark.usefixtures("no_shortcuts")

FATAL = "foo.cpp:3:10: fatal error: x.h: No such file or directory"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def is_alive(process: str) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_log_has_command_and_output(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "one.log"
    run(python("import sys; print('to stdout'); print('to stderr', file=sys.stderr)"), what="One", log=log)
    run(python("import os; print(os.getcwd())"), what="Two", log=log, cwd=tmp_path)
    lines = log.read_text().splitlines()
    assert lines[0].startswith(f"$ {sys.executable} -c ")
    assert sorted(lines[1:3]) == ["to stderr", "to stdout"]
    assert lines[-1] == str(tmp_path)


@pytest.mark.slow
def test_run_past_timeout_ends_program_and_its_children(tmp_path: Path) -> None:
    log, child = tmp_path / "one.log", tmp_path / "child"
    start = "import subprocess, time; p = subprocess.Popen(['sleep', '600'])"
    code = f"{start}; open({str(child)!r}, 'w').write(str(p.pid))"
    with pytest.raises(TooSlowError) as caught:
        run(python(f"{code}; time.sleep(600)"), what="One", log=log, timeout=2)
    assert caught.value.code == -signal.SIGTERM
    until = time.monotonic() + 30
    while is_alive(child.read_text()):
        assert time.monotonic() < until
        time.sleep(0.05)


def test_failure_reports_exit_code_log_and_error_line(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    code = f"print('[1/9] g++ -c foo.cpp')\nprint({FATAL!r})\nfor i in range(200): print('noise', i)\nexit(7)"
    with pytest.raises(CommandError) as caught:
        run(python(code), what="Building tiny 1.0", log=log)
    error = caught.value
    assert error.code == 7
    assert error.log == log
    assert error.lines == (FATAL,)
    assert error.message.startswith("Building tiny 1.0 failed with exit code 7.")
    assert FATAL in error.message
    assert str(log) in error.message
    assert "noise 199" in log.read_text()


def test_failure_ignores_output_of_earlier_commands(tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    run(python("print('error: of an earlier step')"), what="Before", log=log)
    with pytest.raises(CommandError) as caught:
        run(python("print('plain words'); exit(1)"), what="Now", log=log)
    assert caught.value.lines == ("plain words",)


def test_killed_program_reports_its_signal(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="was killed by signal 9") as caught:
        run(python("import os; os.kill(os.getpid(), 9)"), what="One", log=tmp_path / "log")
    assert caught.value.code == -9


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (["sh", "-c", "echo answer; echo remark >&2"], "answer\n"),
        (["sh", "-c", "echo answer; exit 1"], ""),
        (["no-such-program"], ""),
    ],
)
def test_output_in_container_is_empty_after_failure(command: list[str], output: str) -> None:
    assert output_in_container(command) == output


def test_missing_program_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="no-such-program"):
        run([str(tmp_path / "no-such-program")], what="One", log=tmp_path / "log")
    assert output_of([str(tmp_path / "no-such-program")]) == ""


def test_missing_working_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"{tmp_path / 'gone'}: No such file or directory"):
        run(["true"], what="One", log=tmp_path / "log", cwd=tmp_path / "gone")


def test_clean_environment_keeps_only_recipe_and_known_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "CFLAGS", "LD_PRELOAD_X", "PIP_TARGET", "ROCM_HOME"):
        monkeypatch.setenv(name, "/of/the/caller")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    log = tmp_path / "log"
    env = clean_environment({"DS_BUILD_CPU_ADAM": "1", "CFLAGS": "-O1"})
    run(python("import os\nfor i in sorted(os.environ.items()): print(*i)"), what="One", log=log, env=env)
    seen = dict(line.split(" ", 1) for line in log.read_text().splitlines()[2:])
    assert "/of/the/caller" not in seen.values()
    assert seen["DS_BUILD_CPU_ADAM"] == "1"
    assert seen["CFLAGS"] == "-O1"
    assert seen["PATH"] == os.environ["PATH"]
    assert "https_proxy" not in seen
    assert seen["PYTHONNOUSERSITE"] == "1"
    assert clean_environment(network=True)["https_proxy"] == "http://127.0.0.1:9"


def test_log_has_no_passwords(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run(["true", "--index-url=https://me:word@127.0.0.1/simple"], what="One", log=log)
    assert log.read_text() == "$ true --index-url=https://127.0.0.1/simple\n"


# Runs a program that starts two others, one in its own process group as ninja does. The program writes all
# three process ids into a file.
PARENT = """
import pathlib, sys
from builders.machine.process import output_in_container, run
code = (
    "import os, subprocess, sys, time\\n"
    "child = subprocess.Popen(['sleep', '60'])\\n"
    "other = subprocess.Popen(['sleep', '60'], process_group=0)\\n"
    "open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid} {other.pid}\\\\n')\\n"
    "time.sleep(60)\\n"
    "open(sys.argv[1], 'a').write('was left alone')\\n"
)
command = [sys.executable, "-c", code, sys.argv[1]]
"""
RUN = 'run(command, what="Sleeping", log=pathlib.Path(sys.argv[2]))'
QUERY = "output_in_container(command)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("start", [RUN, QUERY], ids=["run", "query"])
def test_killed_parent_leaves_no_processes(tmp_path: Path, start: str, number: signal.Signals) -> None:
    pids = tmp_path / "pids"
    command = [*python(PARENT + start), str(pids), str(tmp_path / "log")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as parent:
        while not (pids.exists() and pids.read_text().endswith("\n")):
            assert parent.poll() is None
            time.sleep(0.01)
        parent.send_signal(number)
        _, errors = parent.communicate()
    assert parent.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert "was left alone" not in pids.read_text()
    for pid in map(int, pids.read_text().split()):
        assert gone(pid)


def gone(pid: int) -> bool:
    """Wait up to ten seconds until a process has ended."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    return False
