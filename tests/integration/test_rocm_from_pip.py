"""ROCm's own pip packages, installed by pip and uv from a local index.

The packages stand in for AMD's (`tests.support.therock`). The machine is one without a GPU, such as a login
node, so nothing is detected.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uv
from msgspec.structs import replace

from builders.diagnosis import diagnose
from matrix.consumers.shared.installation import Installation
from tests.support.locks import lock_of, locked_pick
from tests.support.therock import write_packages
from tests.support.tiny import tiny_wheel

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROCM = "10.1.0"
TORCH = "2.14.0+rocm10.1.0"
DEFAULT, OURS = FAMILIES = ("gfx942", "gfx90a")
Install = Callable[[str, dict[str, str]], subprocess.CompletedProcess[str]]


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


@pytest.fixture(params=["pip", "uv"])
def install(request: pytest.FixtureRequest, index: str, tmp_path: Path) -> Install:
    """Install into ``env`` with pip or uv, with variables.

    Both cache what they built of the sdist, which would be for the GPU that was named before.
    """
    python = sys.executable
    commands = {
        "pip": [python, "-m", "pip", "install", "--use-pep517", "--no-cache-dir", "--index-url", index],
        "uv": [uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", python],
    }
    commands["uv"] += ["--default-index", index]

    def run(requirement: str, variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
        own = ("PIP_", "UV_", "ROCM_")
        known = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        return subprocess.run(
            [*commands[request.param], "--no-build-isolation", "--target", "env", requirement],
            cwd=tmp_path,
            env={**known, "PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def _variables() -> dict[str, str]:
    """Return the variables that matrix writes into the files for a site with MI250X."""
    lock = lock_of(locked_pick("rocm-sdk-core", ROCM))
    target = replace(lock.target, backend="rocm", gfx=(OURS,))
    return Installation(replace(lock, target=target)).rocm_variables


def _installed(root: Path) -> set[str]:
    return {path.name.partition("-")[0].replace("_", "-") for path in (root / "env").glob("*.dist-info")}


@pytest.mark.parametrize("named", [True, False])
def test_device_code_is_for_the_named_gpu(install: Install, tmp_path: Path, *, named: bool) -> None:
    """Without its name, a machine without a GPU gets the code for another."""
    done = install("rocm[libraries,device]", _variables() if named else {})
    assert done.returncode == 0, done.stderr
    code = f"rocm-sdk-device-{OURS if named else DEFAULT}"
    assert _installed(tmp_path) == {"rocm", "rocm-sdk-core", "rocm-sdk-libraries", code}


@pytest.mark.parametrize("named", [True, False])
def test_extra_of_torch_decides_whatever_is_named(install: Install, tmp_path: Path, *, named: bool) -> None:
    done = install(f"torch[device-{OURS}]=={TORCH}", _variables() if named else {})
    assert done.returncode == 0, done.stderr
    assert _installed(tmp_path) == {
        "torch",
        f"amd-torch-device-{OURS}",
        "rocm",
        "rocm-sdk-core",
        "rocm-sdk-libraries",
        f"rocm-sdk-device-{OURS}",
    }


def test_unknown_gpu_is_an_error_that_is_explained(install: Install, tmp_path: Path) -> None:
    done = install("rocm[libraries,device]", {"ROCM_SDK_TARGET_FAMILY": "gfx90X-dcgpu"})
    assert done.returncode != 0
    log = tmp_path / "log"
    log.write_text(done.stdout + done.stderr)
    assert [finding.id for finding in diagnose(log)] == ["rocm-target-family"], log.read_text()
    assert _installed(tmp_path) == set()
