"""Failures provoked with the real tools are diagnosed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from builders.building.watch import kernel_killed_since, kernel_kills
from builders.diagnosis import DiagnosisContext, read_log
from tests.support.built import Built
from tests.support.commands import pip_environment

pytestmark = pytest.mark.integration

BIG = '#include <regex>\n#include <iostream>\nint main() { std::regex r("a"); std::cout << r.flags(); }\n'
KILLS_COMPILER = """
import os, pathlib, signal, subprocess, sys, time
process = subprocess.Popen(sys.argv[1:])
children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
while not (pids := children.read_text().split()) or "cc1plus" not in os.readlink(f"/proc/{pids[0]}/exe"):
    time.sleep(0.01)
os.kill(int(pids[0]), signal.SIGKILL)
sys.exit(process.wait())
"""
"""Runs g++ and kills its compiler."""
Run = Callable[..., int]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def run(tmp_path: Path, log: Path) -> Run:
    """Run a program with its output in the log; return its exit code."""

    def start(*command: str, memory: int = 0, env: dict[str, str] | None = None) -> int:
        def limit() -> None:
            if memory:
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

        with log.open("wb") as sink:
            return subprocess.run(
                command, cwd=tmp_path, stdout=sink, stderr=sink, check=False, env=env, preexec_fn=limit
            ).returncode

    return start


def ids(log: Path, context: DiagnosisContext | None = None) -> list[str]:
    return [one.id for one in read_log(log, context).findings]


def isolated(requirement: str) -> list[str]:
    """Return the command that builds an sdist as pip does by default: isolated, and so without torch."""
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "--use-pep517", "--no-cache-dir"]
    return [*command, "-w", "out", requirement]


def test_flash_attn_in_isolation_lacks_torch(run: Run, log: Path) -> None:
    assert run(*isolated("flash_attn==2.8.3"), env=pip_environment()) != 0
    assert ids(log) == ["torch-missing"]


def test_deepspeed_in_isolation_builds_no_ops(run: Run, log: Path, tmp_path: Path) -> None:
    code = run(*isolated("deepspeed==0.19.8"), env=pip_environment())
    assert code == 0
    (wheel,) = (tmp_path / "out").iterdir()
    assert wheel.name.endswith("-none-any.whl")
    assert ids(log, DiagnosisContext(exit_code=code)) == ["deepspeed-torch-missing"]


def test_log_of_good_build_has_no_diagnosis(built: Built) -> None:
    assert built.log.stat().st_size > 10_000
    assert ids(built.log, DiagnosisContext(package="deepspeed", backend="cpu")) == []
    assert ids(built.log) == []


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("#include <Python.h>\n", "no-python-header"),
        ("#include <oneapi/ccl.hpp>\n", "deepspeed-cpu-accelerator"),
        ("#include <ck_tile/core.hpp>\n", "composable-kernel-missing"),
        ("#include <hipblas/hipblas.h>\n", "rocm-header-missing"),
        ("#include <cuda_runtime.h>\n", "cuda-header"),
        ("#include <no/such/header.h>\n", "header-missing"),
        ("int f() { return not_declared; }\n", "compile-error"),
        ("int f();\nint main() { return f(); }\n", "link-undefined"),
    ],
)
def test_compiler_error_is_diagnosed(run: Run, log: Path, tmp_path: Path, source: str, expected: str) -> None:
    (tmp_path / "x.cpp").write_text(source)
    assert run("g++", "-fno-diagnostics-color", "x.cpp", "-o", "x") != 0
    assert ids(log) == [expected]
    assert run("g++", "-fdiagnostics-color=always", "x.cpp", "-o", "x") != 0
    assert ids(log) == [expected]


def test_compiler_without_memory_is_diagnosed(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text(BIG)
    assert run("g++", "-O2", "-c", "x.cpp", memory=120 * 2**20) != 0
    assert ids(log) == ["out-of-memory"]


def test_killed_compiler_is_not_diagnosed_as_lack_of_memory(run: Run, log: Path, tmp_path: Path) -> None:
    (tmp_path / "x.cpp").write_text(BIG)
    (tmp_path / "stop.py").write_text(KILLS_COMPILER)
    before = kernel_kills()
    assert run(sys.executable, "stop.py", "g++", "-O2", "-c", "x.cpp") != 0
    assert ids(log, DiagnosisContext(kernel_kills=kernel_killed_since(before))) == ["killed"]
    assert ids(log) == ["out-of-memory"]  # a log alone does not show who killed it


def test_full_disk_is_diagnosed(run: Run, log: Path) -> None:
    assert run(sys.executable, "-c", "open('/dev/full', 'wb', 0).write(b'x')") != 0
    assert ids(log) == ["disk-full"]


def test_missing_library_is_diagnosed(run: Run, log: Path) -> None:
    assert run(sys.executable, "-c", "import ctypes; ctypes.CDLL('libof_nobody.so.1')") != 0
    assert ids(log) == ["library-missing"]
    assert run(sys.executable, "-c", "import ctypes; ctypes.CDLL('libamdhip64.so.99')") != 0
    assert ids(log) == ["rocm-library-missing"]


def test_undefined_torch_symbol_is_diagnosed(run: Run, log: Path, tmp_path: Path) -> None:
    name = "_ZN3c1012of_no_torchEv"
    (tmp_path / "x.c").write_text(f"int {name}(void);\nint g(void) {{ return {name}(); }}\n")
    assert run("gcc", "-shared", "-fPIC", "x.c", "-o", "x.so") == 0
    assert run(sys.executable, "-c", "import ctypes, os; ctypes.CDLL('./x.so', os.RTLD_NOW)") != 0
    assert ids(log) == ["undefined-torch-symbol"]


def test_network_use_in_build_is_diagnosed(run: Run, log: Path) -> None:
    asks = "import urllib.request; urllib.request.urlopen('http://wheels.example.org/x.whl')"
    direct = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    code = run("unshare", "--map-root-user", "--net", sys.executable, "-c", asks, env=direct)
    assert code == 1, log.read_text()
    assert "URLError" in log.read_text()
    assert ids(log, DiagnosisContext(network=False)) == ["network-in-build"]
    assert ids(log) == ["no-network"]
