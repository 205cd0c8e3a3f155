"""``matrix check --run`` accepts an environment that pip created from a lock, and finds each seeded defect.

torch is a stand-in, because its CPU build has no librccl: a module whose libraries, compiled here, load a
librccl and libstdc++ like those of a ROCm wheel. DeepSpeed is a stand-in with one compiled op.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from uv import find_uv_bin

from builders.index import Index
from matrix.api import read_lock, write_lock
from matrix.cli import main
from tests.support.locks import built_pick, local_file, lock_of, locked_pick
from tests.support.tiny import tiny_wheel, wheel_of

pytestmark = pytest.mark.integration
Capture = pytest.CaptureFixture[str]
TORCH, DEEPSPEED = "2.13.0+cpu", "0.19.8+cpu.torch2.13.0"
OP = f"deepspeed/ops/adam/cpu_adam_op{sysconfig.get_config_var('EXT_SUFFIX')}"
STANDIN = """
import ctypes, pathlib
__version__ = {version!r}
class version: hip = cuda = None
class cuda: device_count = staticmethod(lambda: 0)
ctypes.CDLL(pathlib.Path(__file__).parent / "lib" / "libtorch_hip.so")
"""
TABLE = """
installed_ops = {ops}
accelerator_name = "cpu"
torch_info = {{"version": "2.13"}}
"""
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "cpu_adam_op", 0, -1, 0};
PyMODINIT_FUNC PyInit_cpu_adam_op(void) { return PyModule_Create(&module); }
"""


def compiled(folder: Path, name: str, code: str, *options: str) -> bytes:
    """Compile a shared object that needs libstdc++."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "source.cpp").write_text(code)
    path = folder / name
    options = (f"-I{sysconfig.get_path('include')}", f"-Wl,-soname,{name}", "-Wl,--no-as-needed", *options)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", path, folder / "source.cpp", *options], check=True)
    return path.read_bytes()


def standin_torch(folder: Path, version: str) -> Path:
    libraries = folder / "libraries"
    rccl = compiled(libraries, "librccl.so", 'extern "C" int ncclGetVersion() { return 22707; }')
    by_name = (f"-L{libraries}", "-lrccl", "-Wl,--enable-new-dtags,-rpath,$ORIGIN")
    hip = compiled(libraries, "libtorch_hip.so", "", *by_name)
    members = {
        "torch/__init__.py": STANDIN.format(version=version).encode(),
        "torch/lib/librccl.so": rccl,
        "torch/lib/libtorch_hip.so": hip,
    }
    return wheel_of(folder, "torch", version, members)


def standin_deepspeed(folder: Path, version: str = DEEPSPEED, *, op: bool = True, note: str = "") -> Path:
    members = {f"deepspeed/{name}__init__.py": note.encode() for name in ("", "ops/", "ops/adam/")}
    members["deepspeed/git_version_info_installed.py"] = TABLE.format(ops={"cpu_adam": op}).encode()
    if op:
        members[OP] = compiled(folder / "op", "cpu_adam_op.so", MODULE)
    return wheel_of(folder, "deepspeed", version, members, requires=["torch"])


@dataclass(frozen=True)
class Site:
    """A directory with a lock, an index, and an environment that was created from them."""

    work: Path
    environment: Path
    capsys: Capture
    patch: pytest.MonkeyPatch

    @property
    def packages(self) -> Path:
        (folder,) = self.environment.glob("lib/python3*/site-packages")
        return folder

    def install(self, *arguments: str | Path) -> None:
        python = self.environment / "bin" / "python"
        command = [find_uv_bin(), "pip", "install", "-q", "--no-cache", "--no-index", "--python"]
        subprocess.run([*command, python, *arguments], check=True)

    def replace(self, wheel: Path) -> None:
        self.install("--no-deps", "--reinstall", wheel)

    def verify(self, *options: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        """Return exit code and findings that are not info, by id."""
        python = str(self.environment / "bin" / "python")
        self.capsys.readouterr()
        code = main(["check", python, "--run", "--format", "json", *options])
        findings: dict[str, list[dict[str, Any]]] = {}
        for finding in json.loads(self.capsys.readouterr().out)["things"][0]["findings"]:
            if finding["severity"] != "info":
                findings.setdefault(finding["id"], []).append(finding)
        return code, findings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Publish the wheels, and install the file of ``matrix env`` with pip."""
    work = tmp_path_factory.mktemp("verified")
    torch = standin_torch(work / "torch-index" / "simple" / "torch", TORCH)
    page = torch.parent / "index.html"
    page.write_text(
        f'<!DOCTYPE html><html><body><a href="{torch.name.replace("+", "%2B")}">torch</a></body></html>'
    )
    Index(work / "index").publish(standin_deepspeed(work / "made"), {"build_key": "x"})
    index = (work / "torch-index" / "simple").as_uri()
    built = replace(built_pick("deepspeed"), version="0.19.8", wheel_version=DEEPSPEED)
    lock = lock_of(locked_pick("torch", TORCH, local_file(torch, index=index), index=index), built)
    write_lock(lock, work / "matrix.lock")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        assert main(["env", "--for", "pip", "-q", "-o", "requirements.txt"]) == 0
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", work / "env"], check=True)
    command = [sys.executable, "-m", "pip", "--python", "env", "install", "-q", "--index-url", index]
    command += ["--no-deps", "-r", "requirements.txt", "-c", "constraints.txt"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    subprocess.run(command, check=True, cwd=work, env={**env, "PIP_CONFIG_FILE": os.devnull})
    return work


@pytest.fixture
def site(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Site:
    """Return a copy of the environment, for one defect."""
    shutil.copytree(made / "env", tmp_path / "env", symlinks=True)
    monkeypatch.chdir(made)
    monkeypatch.setenv("PYTHONUSERBASE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_lock(read_lock(made / "matrix.lock"), made / "matrix.lock")  # it is the user's, for this cache, too
    for name in ("LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONNOUSERSITE"):
        monkeypatch.delenv(name, raising=False)
    return Site(tmp_path, tmp_path / "env", capsys, monkeypatch)


def test_environment_from_lock_is_accepted(site: Site) -> None:
    code, findings = site.verify()
    assert code == 0
    assert not findings


def test_uv_project_from_lock_is_accepted(site: Site) -> None:
    project = site.work / "project"
    project.mkdir()
    assert main(["env", "--for", "uv", "-q", "-o", str(project)]) == 0
    command = [
        find_uv_bin(),
        "sync",
        "-q",
        "--no-cache",
        "--project",
        str(project),
        "--python",
        sys.executable,
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    subprocess.run(command, check=True, env={**env, "UV_DEFAULT_INDEX": (site.work / "none").as_uri()})
    code, findings = Site(site.work, project / ".venv", site.capsys, site.patch).verify()
    assert code == 0
    assert not findings


def other_wheel_of_same_version(site: Site) -> None:
    site.replace(standin_deepspeed(site.work / "other", note="BUILD = 2"))


def wheel_of_another_index(site: Site) -> None:
    site.replace(standin_deepspeed(site.work / "other", "0.19.8"))


def other_torch_of_same_version(site: Site) -> None:
    site.replace(standin_torch(site.work / "other", TORCH))
    metadata = next(site.packages.glob("torch-*.dist-info/METADATA"))
    metadata.write_text(metadata.read_text() + "Summary: changed\n")


def newer_torch(site: Site) -> None:
    site.replace(standin_torch(site.work / "newer", "2.14.0"))


def package_for_cuda(site: Site) -> None:
    site.install(tiny_wheel(site.work / "cuda", "nvidia-cublas-cu12", "12.8"))


def stray_archive_of_gpu_code(site: Site) -> None:
    files = {f"torch/.kpack/torch_gfx90a{xnack}.kpack": b"" for xnack in ("", ":xnack+")}
    site.install(wheel_of(site.work / "device", "amd-torch-device-gfx90a", "2.12.0", files))


def missing_op(site: Site) -> None:
    (site.packages / OP).unlink()


def wheel_without_op(site: Site) -> None:
    site.replace(standin_deepspeed(site.work / "pure", op=False))


def libstdcxx_of_a_module(site: Site) -> None:
    (system,) = (
        path
        for path in map(Path, ("/usr/lib64/libstdc++.so.6", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"))
        if path.exists()
    )
    folder = site.work / "gcc" / "lib64"
    folder.mkdir(parents=True)
    shutil.copyfile(system, folder / "libstdc++.so.6")
    site.patch.setenv("LD_LIBRARY_PATH", str(folder))


def librccl_of_a_module(site: Site) -> None:
    compiled(site.work / "rocm", "librccl.so", 'extern "C" int ncclGetVersion() { return 1; }')
    site.patch.setenv("LD_LIBRARY_PATH", str(site.work / "rocm"))


def replaced_librccl(site: Site) -> None:
    (site.packages / "torch" / "lib" / "librccl.so").unlink()
    compiled(site.packages / "torch" / "lib", "librccl.so", 'extern "C" int ncclGetVersion() { return 1; }')


DEFECTS: dict[Callable[[Site], None], set[str]] = {
    other_wheel_of_same_version: {"verify-files-differ"},
    wheel_of_another_index: {"verify-pin-differs"},
    other_torch_of_same_version: {"verify-files-differ"},
    newer_torch: {"verify-pin-differs"},
    package_for_cuda: {"verify-nvidia"},
    stray_archive_of_gpu_code: {"verify-stray-kpack"},
    missing_op: {"verify-files-differ", "probe-import-failed", "probe-object-missing"},
    wheel_without_op: {"verify-files-differ", "probe-import-failed", "probe-object-missing"},
    libstdcxx_of_a_module: {"verify-libstdcxx-other"},
    librccl_of_a_module: {"verify-library-other"},
    replaced_librccl: {"verify-files-differ"},
}  # fmt: skip


@pytest.mark.parametrize("seed", DEFECTS, ids=lambda seed: seed.__name__)
def test_seeded_defect_is_found(site: Site, seed: Callable[[Site], None]) -> None:
    seed(site)
    code, findings = site.verify()
    assert findings.keys() == DEFECTS[seed]
    assert code == (0 if seed is libstdcxx_of_a_module else 1)
    for finding in (row for name in DEFECTS[seed] for row in findings[name]):
        assert finding["fix"]
        assert "log" not in finding["fix"]
        assert "container" not in finding["fix"]
