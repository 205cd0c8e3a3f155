"""ROCm's own pip packages, installed by pip and uv from a local index.

The packages stand in for AMD's (`tests.support.therock`). The machine is one without a GPU, such as a login
node, so nothing is detected.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import uv
from msgspec.structs import replace

from builders.diagnosis import read_log
from matrix.api import write_lock
from matrix.cli import main
from matrix.consumers.shared.installation import Installation
from tests.support.locks import lock_of, locked_pick
from tests.support.therock import write_packages
from tests.support.tiny import tiny_wheel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROCM = "10.1.0"
TORCH = "2.14.0+rocm10.1.0"
DEFAULT, OURS = FAMILIES = ("gfx942", "gfx90a")
PIPS = ("22", "26")
Install = Callable[[str, str, dict[str, str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the URL of an index with ROCm's packages and AMD's torch for two GPUs."""
    root = tmp_path_factory.mktemp("index") / "simple"
    files = write_packages(root.parent / "files", ROCM, families=FAMILIES, default=DEFAULT)
    needs = [f'amd-torch-device-{gfx}=={TORCH}; extra == "device-{gfx}"' for gfx in FAMILIES]
    files.append(
        tiny_wheel(
            root.parent / "files",
            "torch",
            TORCH,
            requires=[f"rocm[libraries]=={ROCM}", *needs],
            extras=[f"device-{gfx}" for gfx in FAMILIES],
        )
    )
    for gfx in FAMILIES:
        device = [f"rocm-sdk-device-{gfx}=={ROCM}"]
        files.append(tiny_wheel(root.parent / "files", f"amd-torch-device-{gfx}", TORCH, requires=device))
    for path in files:
        page = root / path.name.partition("-")[0].replace("_", "-")
        page.mkdir(parents=True, exist_ok=True)
        _page(path.rename(page / path.name))
    return root.as_uri()


def _page(path: Path) -> None:
    link = f'<a href="{path.name.replace("+", "%2B")}">{path.name}</a>'
    (path.parent / "index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")


@pytest.fixture(scope="module")
def pips(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return directories with the newest release of the oldest and of the newest pip."""
    folder = tmp_path_factory.mktemp("pips")
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    for major in PIPS:
        wanted = ["-d", str(folder / major), f"pip=={major}.*"]
        done = subprocess.run([*command, *wanted], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (wheel,) = (folder / major).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / major)
    return {major: folder / major for major in PIPS}


@pytest.fixture
def install(index: str, tmp_path: Path, pips: dict[str, Path]) -> Install:
    """Return a function that installs into ``env`` with a pip or uv, and with a cache of the test."""

    def run(program: str, requirement: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        own = ("PIP_", "UV_", "ROCM_", "PYTHON")
        known = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        known |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1"}
        known |= {f"{name}_CACHE_DIR": str(tmp_path / "cache") for name in ("PIP", "UV")}
        if program == "uv":
            command = [
                uv.find_uv_bin(),
                "pip",
                "install",
                "--python",
                sys.executable,
                "--default-index",
                index,
            ]
        else:
            command = [sys.executable, "-m", "pip", "install", "--use-pep517", "--index-url", index]
            known["PYTHONPATH"] = str(pips[program])
        return subprocess.run(
            [*command, "--no-build-isolation", "--target", "env", requirement],
            cwd=tmp_path,
            env={**known, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def _installation() -> Installation:
    """Return an installation for a site with MI250X."""
    lock = lock_of(locked_pick("rocm-sdk-core", ROCM))
    return Installation(replace(lock, target=replace(lock.target, backend="rocm", gfx=(OURS,))))


def _installed(folder: Path) -> set[str]:
    return {path.name.partition("-")[0].replace("_", "-") for path in folder.glob("*.dist-info")}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("program", [*PIPS, "uv"])
def test_device_code_is_for_the_named_gpu(
    install: Install, tmp_path: Path, program: str, *, named: bool
) -> None:
    """Without its name, a machine without a GPU gets the code for another."""
    done = install(program, "rocm[libraries,device]", _installation().rocm_variables if named else {})
    assert done.returncode == 0, done.stderr
    code = f"rocm-sdk-device-{OURS if named else DEFAULT}"
    assert _installed(tmp_path / "env") == {"rocm", "rocm-sdk-core", "rocm-sdk-libraries", code}


@pytest.mark.parametrize("program", [*PIPS, "uv"])
def test_extra_of_torch_decides_whatever_is_named(install: Install, tmp_path: Path, program: str) -> None:
    done = install(program, f"torch[device-{OURS}]=={TORCH}", {})
    assert done.returncode == 0, done.stderr
    assert _installed(tmp_path / "env") == {
        "torch",
        f"amd-torch-device-{OURS}",
        "rocm",
        "rocm-sdk-core",
        "rocm-sdk-libraries",
        f"rocm-sdk-device-{OURS}",
    }


@pytest.mark.parametrize("program", [PIPS[-1], "uv"])
def test_unknown_gpu_is_an_error_that_is_explained(install: Install, tmp_path: Path, program: str) -> None:
    done = install(program, "rocm[libraries,device]", {"ROCM_SDK_TARGET_FAMILY": "gfx90X-dcgpu"})
    assert done.returncode != 0
    log = tmp_path / "log"
    log.write_text(done.stdout + done.stderr)
    assert [finding.id for finding in read_log(log).findings] == ["rocm-target-family"], log.read_text()
    assert _installed(tmp_path / "env") == set()


@pytest.mark.parametrize(("program", "ours"), [(PIPS[-1], True), (PIPS[-1], False), ("uv", False)])
def test_rocm_in_the_cache_is_for_the_gpu_that_was_named_before(
    install: Install, tmp_path: Path, program: str, *, ours: bool
) -> None:
    """The name of the GPU is not enough; the variables of our files also disable the cache of pip."""
    assert install(program, "rocm[libraries,device]", {}).returncode == 0
    shutil.rmtree(tmp_path / "env")
    found = _installation()
    done = install(
        program, "rocm[libraries,device]", found.rocm_variables if ours else found.rocm_build_variables
    )
    assert done.returncode == 0, done.stderr
    assert f"rocm-sdk-device-{OURS if ours else DEFAULT}" in _installed(tmp_path / "env")


def test_file_for_uv_does_not_take_the_rocm_of_another_gpu_from_the_cache(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first project stands for one that was installed without the name of the GPU."""
    monkeypatch.chdir(tmp_path)
    lock = _installation().lock
    write_lock(lock)
    assert main(["env", "--for", "uv", "-o", "pyproject.toml"]) == 0
    table = tomllib.loads(Path("pyproject.toml").read_text())["tool"]["uv"]["extra-build-variables"]
    project = f"""
[project]
name = "tried"
version = "0"
requires-python = "=={lock.target.python}.*"
dependencies = ["rocm[libraries,device]=={ROCM}"]
[tool.uv]
package = false
[[tool.uv.index]]
url = "{index}"
"""
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in table["rocm"].items()]
    named = "".join(["[tool.uv.extra-build-variables.rocm]\n", *lines])
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_PYTHON": sys.executable}
    for folder, more, gfx in (("before", "", DEFAULT), ("after", named, OURS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "pyproject.toml").write_text(project + more)
        command = [uv.find_uv_bin(), "sync", "-q"]
        done = subprocess.run(
            command, cwd=tmp_path / folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        (packages,) = (tmp_path / folder).glob(".venv/lib/python3*/site-packages")
        assert f"rocm-sdk-device-{gfx}" in _installed(packages)
