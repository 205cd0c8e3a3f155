"""The real torch 1.13.1 for ARCHER2's CPU nodes, compiled in part, in two Slurm jobs that end too early.

It is configured by the shipped recipe with the site's modules; then its MPI backend is compiled before all
other objects. A build of all objects takes hours. STAND-INS replace Cray's modules and compilers (`cc` is the
mpicc of MPICH), MKL (OpenBLAS) and the submodules that Debian's source lacks (Debian's libraries, or none).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.builders.gitrepos import commit
from tests.rig.slurm import PARTITION, one_node
from tests.support.cray import write_modules
from tests.support.projects import GIT_ROWS
from tests.support.waiting import wait_until

HERE = Path(__file__).parent
HEADERS = {
    "libsleef-dev": "x86_64-linux-gnu/sleef.h", "libgloo-dev": "gloo", "libfp16-dev": "fp16.h",
    "libcpuinfo-dev": "cpuinfo.h", "libonnx-dev": "onnx", "libopenblas-dev": "x86_64-linux-gnu/cblas.h",
    "libeigen3-dev": "eigen3", "libprotobuf-dev": "google/protobuf", "protobuf-compiler": "../bin/protoc",
    "libpsimd-dev": "psimd.h",
    "libpthreadpool-dev": "pthreadpool.h", "libfxdiv-dev": "fxdiv.h", "pybind11-dev": "pybind11",
    "libxnnpack-dev": "xnnpack.h", "libfmt-dev": "fmt", "libflatbuffers-dev": "flatbuffers",
}  # fmt: skip
MISSING = [name for name, path in HEADERS.items() if not Path("/usr/include", path).exists()]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(bool(MISSING), reason=f"apt-get install {' '.join(MISSING)}"),
    pytest.mark.skipif(not shutil.which("python3.9"), reason="torch 1.13 requires python3.9 on PATH"),
]
VERSION = "1.13.0a0+git49444c3"
MINUTES = 8
"""Of each job: enough to configure torch on two cores that other work uses."""
OFF = "FBGEMM ITT KINETO MKLDNN NNPACK PYTORCH_QNNPACK QNNPACK TENSORPIPE XNNPACK"
SYSTEM = {"BLAS": "OpenBLAS", "USE_SYSTEM_LIBS": "1", "BUILD_CUSTOM_PROTOBUF": "0", "BUILD_TEST": "0"}
MPI_BACKEND = "caffe2/CMakeFiles/torch_cpu.dir/__/torch/csrc/distributed/c10d/ProcessGroupMPI.cpp.o"
FIRST = f"""
        self.run(["--build", ".", "--target", "{MPI_BACKEND}"], my_env)
        self.run(build_args, my_env)
"""


def write_source(folder: Path) -> str:
    """Fetch Debian's source of torch 1.13.1 and commit it; return the commit."""
    mirror = subprocess.run(
        [HERE.parent / "rig" / "mirror.sh"], check=True, capture_output=True, text=True
    ).stdout.strip()
    url = f"{mirror}/pool/main/p/pytorch/pytorch_1.13.1+dfsg.orig.tar.xz"
    folder.mkdir()
    packed, _ = urllib.request.urlretrieve(url, folder.with_suffix(".tar.xz"))
    subprocess.run(["tar", "xf", packed, "--no-same-owner", "-C", folder], check=True)
    (source,) = folder.iterdir()
    (source / ".gitignore").unlink()
    for path, old, new in (
        ("cmake/Dependencies.cmake", "(AT_POCKETFFT_ENABLED 1)", "(AT_POCKETFFT_ENABLED 0)"),
        ("tools/setup_helpers/cmake.py", "        self.run(build_args, my_env)", FIRST),
    ):
        text = (source / path).read_text()
        assert text.count(old) == 1
        (source / path).write_text(text.replace(old, new))
    left_out = {
        "fmt/CMakeLists.txt": "find_package(fmt REQUIRED GLOBAL)\nadd_library(fmt-header-only INTERFACE)\n",
        "foxi/CMakeLists.txt": "add_library(foxi_loader INTERFACE)\n",
        "pocketfft/README": "",
    }
    return commit(source, {f"third_party/{path}": text for path, text in left_out.items()})


def rows(source: Path, made: str) -> str:
    """Return the shipped recipe for that source, with the system's libraries."""
    facts = tomllib.loads((HERE.parents[1] / "resolver" / "facts" / "packages" / "torch.toml").read_text())
    (recipe,) = (row for row in facts["recipe"] if row.get("releases") == "<2.3")
    off = dict.fromkeys((f"USE_{name}" for name in OFF.split()), "0")
    variables = (recipe.pop("environment") | SYSTEM | off).items()
    kept = {key: value for key, value in recipe.items() if key not in {"backend", "status", "source"}}
    fields = "".join(f"{key} = {json.dumps(value)}\n" for key, value in kept.items())
    fields += f"environment = {{ {', '.join(f'{key} = {json.dumps(value)}' for key, value in variables)} }}"
    return "schema = 1\n" + GIT_ROWS.format(
        name="torch", version=VERSION, url=source.as_uri(), commit=made, fields=fields
    )


def text_of(paths: Iterable[Path]) -> str:
    return "".join(path.read_text() for path in paths)


def test_job_that_ends_too_early_is_continued_by_another(tmp_path: Path) -> None:
    made = write_source(tmp_path / "debian")
    (source,) = (tmp_path / "debian").iterdir()
    (tmp_path / "mine.toml").write_text(rows(source, made))
    write_modules(tmp_path, {"cc": "mpicc.mpich", "CC": "mpicxx.mpich", "ftn": "gfortran"})
    (tmp_path / "slurm").mkdir()
    state = tmp_path / "index" / ".matrix"

    def log() -> str:
        return text_of(state.glob("logs/torch-*.log"))

    with one_node(tmp_path / "slurm") as slurm:
        env = {**os.environ, **slurm.env, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        program = [sys.executable, "-m", "matrix"]
        resolve = ["resolve", f"torch=={VERSION}", "--site", "archer2-cpu", "--catalog", "mine.toml"]
        subprocess.run([*program, *resolve], cwd=tmp_path, env=env, check=True)
        build = ["build-wheels", "--executor", "slurm", "--catalog", "mine.toml"]
        options = ["--partition", PARTITION, "--jobs", "2", "--time", str(MINUTES)]
        with subprocess.Popen([*program, *build, *options], cwd=tmp_path, env=env, text=True) as process:
            wait_until(lambda: "-- MPI support found" in log(), process, patience=1800)
            assert re.search(r"Found MPI_CXX: \S+/CC ", log())
            job = slurm.job("1")
            assert (job["TimeLimit"], job["MinMemoryNode"]) == (f"00:{MINUTES:02}:00", "6G")
            continued = "continue an interrupted build: "
            jobs = state / "logs" / "slurm-2-torch.log"
            wait_until(lambda: jobs.exists() and continued in jobs.read_text(), process, patience=1800)
            assert "Stopped at the time limit." in text_of(state.glob("logs/slurm-1-*.log"))
            pattern = f"builds/*/build/source/source/build/{MPI_BACKEND}"
            wait_until(lambda: list(state.glob(pattern)), process, patience=1800)
            assert "-- MPI support found" not in log()  # CMake ran in the first job
            subprocess.run([*program, *build, "--cancel"], cwd=tmp_path, env=env, check=True)
    (compiled,) = state.glob(pattern)
    assert b"MPI_Allreduce" in compiled.read_bytes()
