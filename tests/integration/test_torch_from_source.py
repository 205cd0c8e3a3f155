"""torch from source, a companion that requires another torch, and an extension: built, installed, verified.

The three sources are stand-ins that compile one shared object each. Like the real torch, this one requires
distributions that only its build backend knows. Like torchvision, the companion requires exactly the torch
that is published with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from uv import find_uv_bin

from builders.index_client.metadata import from_wheel
from resolver.lock import read_lock
from tests.builders.gitrepos import commit
from tests.support.built import matrix
from tests.support.projects import GIT_ROWS
from tests.support.tiny import tiny_wheel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

VERSION, LABEL = "2.13.0a0+git0123abc", "cpu.torch2.13.0a0"
TARGET = ("--backend", "cpu", "--catalog", "mine.toml")
MODULE = """
#include <Python.h>
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", 0, -1, 0}};
PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
"""
TORCH = """
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

class Library(build_ext):
    def get_ext_filename(self, name):
        return name.replace(".", "/") + ".so"

setup(
    name="torch", version="2.13.0a0", packages=["torch"], install_requires=["filelock"],
    ext_modules=[Extension("torch.lib.libtorch_cpu", ["module.c"])], cmdclass={"build_ext": Library},
)
"""
TORCH_INIT = """
import filelock
__version__ = "2.13.0a0"
class version: hip = cuda = None
class cuda: device_count = staticmethod(lambda: 0)
"""
COMPANION = """
import torch
from setuptools import Extension, setup
setup(
    name="{name}", version="{version}", packages=["{package}"], install_requires={requires},
    ext_modules=[Extension("{package}.{module}", ["module.c"])],
)
"""
HEAD = """
schema = 1
[[package]]
name = "torch"
title = "PyTorch, compiled from source"
import-name = "torch"
pypi = "same"
status = "observed"
source = "tests"
[[requires]]
package = "torchvision"
releases = "==9.0"
on = "torch"
versions = ["==2.13.0a0"]
kind = "build"
status = "observed"
source = "tests"
"""


def row(folder: Path, name: str, version: str, fields: str, files: dict[str, str]) -> str:
    """Commit a source, and return the rows of the catalog for it."""
    made = commit(folder / name, files)
    return GIT_ROWS.format(
        name=name, version=version, url=(folder / name).as_uri(), commit=made, fields=fields
    )


def companion(folder: Path, name: str, version: str, module: str, *requires: str) -> str:
    package = name.replace("-", "_")
    setup = COMPANION.format(
        name=name, version=version, package=package, module=module, requires=list(requires)
    )
    files = {
        "setup.py": setup,
        "module.c": MODULE.format(name=module),
        f"{package}/__init__.py": f"import torch\nfrom {package} import {module}\n",
    }
    fields = f'releases = "=={version}"\nundeclared = ["torch", "setuptools", "wheel"]\n'
    fields += f'must-contain = ["{package}/{module}*.so"]\nimports = ["{package}"]'
    return row(folder, name, version, fields, files)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Resolve and build all three, with which the lock gets what they require."""
    work = tmp_path_factory.mktemp("source")
    torch = {"setup.py": TORCH, "module.c": MODULE.format(name="unused"), "torch/__init__.py": TORCH_INIT}
    fields = 'declared = ["setuptools", "wheel", "filelock"]\nmatch-runtime = []\nimports = ["torch"]\n'
    fields += 'must-contain = ["torch/lib/libtorch_cpu.so"]'
    rows = [
        row(work / "sources", "torch", VERSION, fields, torch),
        companion(work / "sources", "torchvision", "9.0", "_C", "torch==2.13.0"),
        companion(work / "sources", "torch-scatter", "9.0", "_scatter"),
    ]
    (work / "mine.toml").write_text(HEAD + "".join(rows))
    request = ("resolve", f"torch=={VERSION}", "torchvision", "torch-scatter", *TARGET)
    run_matrix(work, *request)
    run_matrix(work, "build-wheels", "--catalog", "mine.toml")
    lock = read_lock(work / "matrix.lock")
    assert (lock.incomplete, bool(lock.version_of("filelock"))) == ((), True)
    assert "The lock leaves to pip" not in run_matrix(work, "env", "--for", "pip")
    assert "Nothing to build" in run_matrix(work, "build-wheels", "--catalog", "mine.toml")
    return work


def run_matrix(work: Path, *arguments: str) -> str:
    """Run `matrix` with a cache of its own, because builds store the requirements of their wheels there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(work / "cache"))
        patch.setenv("COLUMNS", "1000")
        done = matrix(work, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def verify(work: Path, python: Path) -> tuple[int, list[str]]:
    """Return the exit code of `matrix check --run`, and its findings that are not info."""
    done = matrix(work, "check", str(python), "--run", "--format", "json")
    findings = json.loads(done.stdout)["things"][0]["findings"]
    return done.returncode, [row["message"] for row in findings if row["severity"] != "info"]


def test_pip_installs_companions_beside_torch_from_source(work: Path) -> None:
    run_matrix(work, "env", "--for", "pip", "-o", "requirements.txt")
    command = "python -m pip install --no-deps -r requirements.txt -c constraints.txt"
    assert f"# Install with `{command}`.\n" in (work / "requirements.txt").read_text()
    subprocess.run([sys.executable, "-m", "venv", work / "env"], check=True)
    python = work / "env" / "bin" / "python"
    subprocess.run([python, *command.split()[1:], "-q"], cwd=work, check=True)
    code, findings = verify(work, python)
    assert (code, findings) == (0, [])

    # Published companions require the published torch. With constraints pip refuses to replace ours, and
    # with --no-deps it keeps ours, beside which torchmetrics fits.
    exact = ("torch==2.13.0",)
    companions = {"torchaudio": exact, "torchtext": exact, "torchmetrics": ("torch>=2.0.0",)}
    for name, requires in ({"torch": ()} | companions).items():
        tiny_wheel(work / "public", name, "2.13.0", requires=requires)
    pip = [str(python), "-m", "pip", "install", "--no-index", "--find-links", "public", *companions]
    refused = subprocess.run(
        [*pip, "-c", "constraints.txt"], cwd=work, check=False, capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "ResolutionImpossible" in refused.stderr
    subprocess.run([*pip, "-q", "--no-deps"], cwd=work, check=True)
    code, findings = verify(work, python)
    assert code == 0
    replaced = [text.split()[0] for text in findings if "torch==2.13.0, but you have torch 2.13.0a0" in text]
    assert sorted(replaced) == ["torchaudio", "torchtext"]


def test_uv_installs_companions_beside_torch_from_source(work: Path) -> None:
    (work / "project").mkdir()
    run_matrix(work, "env", "--for", "uv", "-o", "project/pyproject.toml")
    command = [find_uv_bin(), "sync", "-q", "--project", "project", "--python", sys.executable]
    env = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    subprocess.run(command, cwd=work, check=True, env=env)
    code, findings = verify(work, work / "project" / ".venv" / "bin" / "python")
    assert (code, findings) == (0, [])


def test_companions_require_torch_from_source(work: Path) -> None:
    for name in ("torchvision", "torch-scatter"):
        (wheel,) = (work / "index" / "simple" / name).glob(f"*-9.0+{LABEL}-*.whl")
        assert f"torch==2.13.0a0+{LABEL}" in from_wheel(wheel).requires
