"""Programs in a real base image, run by the real Apptainer as an ordinary user."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rig.rig import Rig
from tests.support.web_server import web_server

pytestmark = pytest.mark.integration

# Run by the user's Python: a runtime for the image of argv[1], and a view given as JSON.
RUN = """
import json, sys
from pathlib import Path
from builders.containers.engines import choose_runtime
from builders.containers.image import LocalImage
from builders.containers.runtime import Bind, View, run_in
image, given = LocalImage("base", Path(sys.argv[1]), "0" * 64), json.loads(sys.argv[2])
binds = [Bind(Path(path), writable) for path, writable in given.get("binds", {}).items()]
cwd = Path(given["cwd"]) if "cwd" in given else None
paths = list(map(Path, given.get("path", [])))
flags = given.get("network", False), given.get("untrusted", False)
view = View(given.get("env", {}), paths, cwd, binds, *flags)
runtime = choose_runtime(given.get("kind"), None if given.get("kind") == "host" else image)
run_in(runtime, given["command"], view, what="Trying", log=Path(given["log"]))
print(runtime.isolates_network)
"""


class Ran:
    """The output of a program in the image, and of the script that ran it."""

    def __init__(self, done: subprocess.CompletedProcess[str], log: Path) -> None:
        self.code, self.errors, self.output = done.returncode, done.stderr, done.stdout.strip()
        lines = log.read_text().splitlines()
        at = next(number for number, line in reversed(list(enumerate(lines))) if line.startswith("$ "))
        self.printed = lines[at:]

    def text(self) -> str:
        assert self.code == 0, self.errors
        return "\n".join(self.printed)


def run(rig: Rig, command: list[str], *, env: dict[str, str] | None = None, **view: Any) -> Ran:
    work = rig.work()
    answer = {"command": command, "log": str(work / "log"), **view}
    done = rig.run_python("-c", RUN, str(rig.image), json.dumps(answer), cwd=work, env=env)
    return Ran(done, work / "log")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[int]:
    """Start a web server on this machine; yield its port."""
    (tmp_path / "page").write_text("reached")
    with web_server(tmp_path) as url:
        yield int(url.rpartition(":")[2])


def test_callers_environment_stays_outside(rig: Rig) -> None:
    leaks = {
        "SECRET": "leaked", "APPTAINERENV_CFLAGS": "leaked", "SINGULARITYENV_CFLAGS": "leaked",
        "PYTHONPATH_OF_MINE": "leaked", "APPTAINER_BIND": "/usr/share/leaked",
    }  # fmt: skip
    ran = run(rig, ["sh", "-c", "env; ls -d /home/* /root/* 2>/dev/null; echo end"], env=leaks)
    text = ran.text().partition("exec ")[2]
    assert "leaked" not in text
    assert "end" in text
    assert "ROCM_PATH=/opt/rocm" in ran.printed
    assert "HOME=/tmp/home" in ran.printed
    assert ran.printed[-1] == "end"


def test_binds_keep_their_paths(rig: Rig) -> None:
    work, beside = rig.work(), rig.work()
    script = "pwd; echo $PATH; touch made; touch $1/no; touch /tmp/mine && ls /tmp"
    ran = run(
        rig,
        ["sh", "-c", script, "sh", str(beside)],
        env={},
        cwd=str(work),
        binds={str(work): True, str(beside): False},
        path=["/first"],
    )
    text = ran.text()
    assert str(work) in ran.printed
    assert any(line.startswith("/first:/opt/python3.11/bin:") for line in ran.printed)
    assert "Read-only file system" in text
    assert (work / "made").exists()
    assert not list(beside.iterdir())
    assert not Path("/tmp/mine").exists()
    owner = (work / "made").stat()
    assert (owner.st_uid, owner.st_gid) == (work.stat().st_uid, work.stat().st_gid)


def test_view_overrides_image_variables(rig: Rig) -> None:
    work = rig.work()
    answer = {
        "command": ["sh", "-c", 'echo "$ODD|$ROCM_PATH"'],
        "log": str(work / "log"),
        "env": {"ODD": "a, b: 'c'", "ROCM_PATH": "/else"},
    }
    done = rig.run_python("-c", RUN, str(rig.image), json.dumps(answer), cwd=work)
    assert Ran(done, work / "log").printed[-1] == "a, b: 'c'|/else"


@pytest.mark.parametrize("kind", ["apptainer", "host"])
def test_network_is_off_unless_requested(rig: Rig, server: int, kind: str) -> None:
    python = "python3" if kind == "apptainer" else rig.python
    code = (
        "import urllib.request as u; opener = u.build_opener(u.ProxyHandler({}));"
        f"print(opener.open('http://127.0.0.1:{server}/page', timeout=10).read().decode())"
    )
    on = run(rig, [python, "-c", code], kind=kind, network=True)
    assert on.text().endswith("reached")
    off = run(rig, [python, "-c", code], kind=kind)
    assert off.code != 0
    assert "Errno" in "\n".join(off.printed)
    quiet = run(rig, ["true"], kind=kind)
    assert quiet.output == "True"


def test_failure_shows_programs_error(rig: Rig) -> None:
    ran = run(rig, ["sh", "-c", "echo 'error: of the compiler'; exit 9"])
    assert ran.code != 0
    assert "Trying failed with exit code 9" in ran.errors
    assert "error: of the compiler" in ran.errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_killed_program_leaves_nothing(rig: Rig, number: signal.Signals) -> None:
    work = rig.work()
    mark = f"{90000 + os.getpid()}.{int(number)}"
    answer = {"command": ["sh", "-c", f"sleep {mark} & sleep {mark}"], "log": str(work / "log")}
    runuser = shutil.which("runuser")
    line = [rig.python, "-c", RUN, str(rig.image), json.dumps(answer)]
    if os.geteuid() == 0:
        assert runuser
        line = [runuser, "-u", "hpc", "--", *line]
    cache = {"XDG_CACHE_HOME": str(work / "cache")}
    env = {**rig.user_environment(), **cache, "PYTHONPATH": str(rig.root / "site")}
    temporary, own = Path(env["TMPDIR"]), work / "cache" / "matrix" / "tmp"
    before = set(temporary.iterdir())
    program = subprocess.Popen(line, cwd=work, env=env, stderr=subprocess.DEVNULL)
    assert _until(lambda: len(_sleeping(mark)) == 2), (work / "log").read_text()
    os.kill(_python_of(program.pid, RUN), number)
    program.wait(timeout=60)
    assert _until(lambda: not _sleeping(mark)), "the program in the container still runs"
    assert set(temporary.iterdir()) == before
    assert run(rig, ["true"], env=cache).code == 0  # the next run removes files that SIGKILL left
    assert list(own.iterdir()) == []


def _until(true: Any) -> bool:
    for _ in range(300):
        if true():
            return True
        time.sleep(0.1)
    return False


def _processes() -> Iterator[tuple[int, list[str]]]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_text(errors="replace").split("\0")[:-1]
        except OSError:
            continue
        yield int(path.parent.name), words


def _sleeping(mark: str) -> list[int]:
    return [pid for pid, words in _processes() if words == ["sleep", mark]]


def _python_of(pid: int, script: str) -> int:
    """Return the interpreter that runs a script: a process, or its child if runuser started it."""
    for one, words in _processes():
        if words[1:2] == ["-c"] and words[2:3] == [script]:
            status = Path(f"/proc/{one}/status").read_text()
            parent = int(next(line for line in status.splitlines() if line.startswith("PPid")).split()[1])
            if pid in {one, parent}:
                return one
    pytest.fail("the program does not run")


def doctor(rig: Rig, image: Path, work: Path) -> tuple[int, Any, str]:
    done = rig.matrix("check", "--base-image", str(image), "--format", "json", cwd=work)
    return done.returncode, json.loads(done.stdout)["things"][0], done.stderr


def test_doctor_reports_content_of_image(rig: Rig) -> None:
    code, answer, errors = doctor(rig, rig.image, rig.work())
    assert code == 0, errors
    image = answer["image"]
    assert (image["rocm"], image["rocm_path"]) == ("7.2.4", "/opt/rocm")
    assert image["can_build"] is True
    assert image["missing"] == []
    assert image["clang"]
    assert float(image["glibc"]) >= 2.4
    assert image["glibcxx"].startswith("3.4.")
    assert {"gcc", "g++"} <= {compiler["name"] for compiler in image["compilers"]}
    assert {"cmake", "ninja", "git"} <= set(image["tools"])
    assert {"rocminfo", "amdgpu-arch"} <= set(image["gpu_tools"])
    python = next(python for python in image["pythons"] if python["prefix"] == "/opt/python3.11")
    assert (python["version"][:4], python["headers"], python["venv"]) == ("3.11", True, True)
    assert {"libamdhip64.so.7", "libc.so.6", "libstdc++.so.6"} <= set(image["libraries"])
    assert image["labels"]["rocm.version"] == "7.2.4"
    assert {finding["id"] for finding in answer["findings"]} >= {
        "kernel-driver",
        "gpus",
        "container-runtimes",
        "network-torch",
    }


def test_doctor_reports_what_image_lacks(rig: Rig) -> None:
    """The image is an unpacked directory that contains only a shell."""
    root = rig.work() / "tiny"
    for name in ("bin", "etc", "usr", "proc", "sys", "dev", "tmp", "var/tmp"):
        (root / name).mkdir(parents=True)
    shell = Path(os.path.realpath("/bin/sh"))
    listed = subprocess.run(["ldd", str(shell)], capture_output=True, text=True, check=True).stdout.split()
    for library in [shell, *(Path(word) for word in listed if word.startswith("/"))]:
        target = root / str(library).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, target)
    if not (root / "bin" / "sh").exists():
        shutil.copy(shell, root / "bin" / "sh")
    code, answer, errors = doctor(rig, root, rig.work())
    assert code == 3, errors
    assert answer["image"]["can_build"] is False
    missing = " ".join(answer["image"]["missing"])
    assert "no ROCm" in missing
    assert "no C++ compiler" in missing


def test_lock_for_image_file_has_path_and_digest(rig: Rig) -> None:
    work = rig.work()
    (work / "latest.sif").symlink_to(rig.image)
    request = ("torch==2.13.0", "deepspeed", "--python", "3.11", "--gfx90a", "--driver", "30.30")
    done = rig.matrix("resolve", *request, "--base-image", "latest.sif", "--format", "json", cwd=work)
    assert done.returncode == 0, done.stderr
    picks = {pick["name"]: pick for pick in json.loads(done.stdout)["picks"]}
    assert (picks["base-image"]["version"], picks["base-image"]["support"]) == ("latest", "observed")
    assert picks["rocm"]["version"] == "7.2.4"
    lock = (work / "matrix.lock").read_text()
    assert f'path = "{rig.image}"' in lock
    assert 'digest = "sha256:' in lock
    explained = rig.matrix("explain", "rocm", cwd=work)
    assert "latest contains ROCm 7.2.4" in explained.stdout
    assert explained.returncode == 0


def test_missing_runtime_names_the_module(rig: Rig) -> None:
    work = rig.work()
    env = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(work / "cache")}  # so that no inspection is cached
    done = rig.matrix("resolve", "torch", "--base-image", str(rig.image), cwd=work, env=env)
    assert done.returncode == 3
    assert "apptainer or singularity is needed" in done.stderr
    assert not (work / "matrix.lock").exists()


HOSTILE = Path(__file__).resolve().parent.parent / "packages" / "hostile"


@pytest.mark.parametrize("kind", ["apptainer", "host"])
def test_hostile_backend_changes_and_sees_nothing_outside(rig: Rig, server: int, kind: str) -> None:
    """The actions of the hostile project fail; `test_hostile_builds.py` shows that its wheel is safe."""
    work, home, layer = rig.work(), rig.work(), rig.work()
    (home / ".netrc").write_text("word-of-the-user")
    (layer / "packaging.py").write_text("")
    shutil.copytree(HOSTILE, work / "source")
    for path in (work, home, layer):
        subprocess.run(["chown", "-R", "--reference", str(path), str(path)], check=True)
    beacon = work / "beacon"
    deeds = [
        f"linger|{beacon}", f"write|{home}/written|{layer}/written|/tmp/written-{work.name}", f"read|{home}",
        f"connect|{server}|/run/none", "layer", f"secrets|{'word-of-the-user'[::-1]}", f"kill|{os.getpid()}",
    ]  # fmt: skip
    leaks = {"https_proxy": "http://me:word-of-the-user@127.0.0.1:9", "HOME": str(home)}
    python = "python3" if kind == "apptainer" else rig.python
    code = "import sys; sys.path.insert(0, sys.argv[2]); import backend; backend.build_wheel(sys.argv[1])"
    answer = {
        "command": [python, "-c", code, str(work), str(layer)],
        "log": str(rig.work() / "log"),
        "kind": kind,
        "untrusted": True,
        "cwd": str(work / "source"),
        "env": {"HOSTILE": ";".join(deeds)},
        "binds": {str(work): True, str(layer): False},
    }
    done = rig.run_python("-c", RUN, str(rig.image), json.dumps(answer), cwd=rig.work(), env=leaks)
    ran = Ran(done, Path(str(answer["log"])))
    ran.text()
    lines = [line.split(" ", 2) for line in ran.printed if line.startswith("@ ")]
    outcome = {name: ast.literal_eval(text) for _, name, text in lines}
    before = beacon.read_text()
    assert ".netrc" not in str(outcome["read"])
    assert all(str(text).startswith("failed: ") for text in outcome["connect"])
    assert "Read-only file system" in outcome["layer"]
    assert outcome["secrets"] == [0]
    assert outcome["kill"] < 10
    assert [path.name for path in (*home.iterdir(), *layer.iterdir())] == [".netrc", "packaging.py"]
    assert not Path(f"/tmp/written-{work.name}").exists()
    time.sleep(0.2)
    assert beacon.read_text() == before, "the daemon is still running"
