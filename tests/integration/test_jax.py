"""The real JAX with its plugin for ROCm, in the base image with the real HIP runtime and without a GPU.

AMD's libraries that the image lacks are STAND-INS, made from what the real wheels need
(``tests/rig/standin_libraries.py``).
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builders.probe import child
from tests.rig.rig import Rig

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
REQUEST = ("jax", "rocm==7.2.*", "--site", "frontier", "--index-strategy", "unsafe-best-match")
PJRT = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
EXTENSION = "jax_rocm7_plugin/rocm_plugin_extension.so"
SPARSE = "jax_rocm7_plugin/_sparse.so"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
TEST_ON_CPU = """
import sys, jax
sys.path.insert(0, sys.argv[1])
import child
print(child.test_gpu_of_jax(jax, jax.devices("cpu")[0]))
"""
LOAD_PJRT = """
import sys, jax
from jax._src import xla_bridge
xla_bridge.discover_pjrt_plugins = lambda: xla_bridge.register_plugin("rocm", library_path=sys.argv[1])
jax.devices("rocm")
"""
"""JAX loads its plugin even if there is no GPU; the plugin's own Python code would not."""


@dataclass(frozen=True)
class Jax:
    """An environment with JAX beside the base image."""

    rig: Rig
    work: Path

    def python(self, *binds: str, libraries: str = "libraries") -> list[str]:
        """Return the command that starts its Python in the base image, with these stand-ins."""
        binding = [word for one in (str(self.work), *binds) for word in ("--bind", one)]
        search = f"LD_LIBRARY_PATH={self.work / libraries}"
        command = ["apptainer", "--silent", "exec", *binding, "--env", search, str(self.rig.image)]
        return [*command, str(self.work / "env" / "bin" / "python")]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.rig.run_as_user([*self.python(), *arguments], cwd=self.work)

    def without(self, library: str) -> str:
        """Return the name of a directory with the stand-ins except for one."""
        folder = self.work / f"without-{library}"
        if not folder.exists():
            shutil.copytree(self.work / "libraries", folder)
            (folder / library).unlink()
        return folder.name

    def verify(self, python: Sequence[str], *, lock: bool = True) -> tuple[int, list[dict[str, Any]]]:
        """Verify the environment, with its lock or without; return the exit code and the findings."""
        folder = self.work if lock else self.rig.work()
        done = self.rig.matrix("check", " ".join(python), "--run", "--format", "json", cwd=folder)
        return done.returncode, json.loads(done.stdout)["things"][0]["findings"]


@pytest.fixture(scope="module")
def jax(rig: Rig) -> Jax:
    """Resolve JAX, and install the files of the lock with pip in the base image."""
    made = Jax(rig, rig.work())

    def good(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    text = good(rig.matrix("-v", "resolve", *REQUEST, "--base-image", str(rig.image), cwd=made.work))
    assert "\n  jax-rocm7-pjrt " in text
    assert "\n  jax-rocm7-plugin " in text
    good(rig.matrix("farm", "fetch", "--wheelhouse", "wheels", cwd=made.work))
    python = "/opt/python3.11/bin/python3"
    inside = ["apptainer", "--silent", "exec", "--bind", str(made.work), str(rig.image), "sh", "-ec"]
    install = "env/bin/python -m pip install -q --no-compile --no-index --no-deps wheels/*.whl"
    good(rig.run_as_user([*inside, f"{python} -m venv env; {install}"], cwd=made.work))
    shutil.rmtree(made.work / "wheels")
    rig.make_libraries(made.work / "libraries", sorted(made.work.glob("env/lib/python3*/*/jax_*/**/*.so")))
    return made


def errors(findings: Sequence[dict[str, Any]]) -> list[str]:
    return [finding["message"] for finding in findings if finding["severity"] == "error"]


def test_plugin_loads_beside_rocm_and_finds_no_gpu(jax: Jax) -> None:
    code, findings = jax.verify(jax.python())
    assert (code, errors(findings)) == (4, [])  # without a GPU, kernels are not judged
    messages = [finding["message"] for finding in findings]
    for name in ("jax", "jax_plugins.xla_rocm7", "jax_rocm7_plugin"):
        assert f"import {name}: loads" in messages
    for name in (PJRT, EXTENSION, SPARSE):
        assert f"{name}: loads" in messages
    (reason,) = [text for text in messages if text.startswith("GPU kernels")]
    assert reason.startswith("GPU kernels of jax are not judged: it finds no GPU here: ")
    assert "No AMD GPUs were found" in reason


def test_pjrt_asks_the_real_hip_for_gpus(jax: Jax) -> None:
    (plugin,) = jax.work.glob(f"env/lib/python3*/site-packages/{PJRT}")
    done = jax.run("-c", LOAD_PJRT, str(plugin))
    assert done.returncode == 1
    assert "hipInit: HIP_ERROR_NoDevice" in done.stderr
    assert "No visible GPU devices" in done.stderr


def test_product_of_the_real_jax_is_that_of_numpy(jax: Jax) -> None:
    """The device is a CPU; the code is that for GPUs."""
    shutil.copy(child.__file__, jax.work)
    done = jax.run("-c", TEST_ON_CPU, str(jax.work))
    assert done.stdout == "{'name': 'cpu', 'arch': '', 'error': ''}\n", done.stderr


@pytest.mark.parametrize(
    ("missing", "broken", "lock"),
    [
        pytest.param("librocprofiler-register.so.0", {PJRT, EXTENSION}, False, marks=pytest.mark.long),
        ("libhipsparse.so.4", {SPARSE}, True),
    ],
)
def test_plugin_without_a_library_is_an_error(
    jax: Jax, missing: str, broken: set[str], *, lock: bool
) -> None:
    """JAX itself would use the CPU in silence. The image has the last library, but here it is damaged."""
    binds = [f"/dev/null:{LIBRARIES}/{missing}"] if broken == {SPARSE} else []
    code, findings = jax.verify(jax.python(*binds, libraries=jax.without(missing)), lock=lock)
    assert code == 1
    about = [text for text in errors(findings) if missing in text]
    assert about
    assert {name for name in (PJRT, EXTENSION, SPARSE) if any(name in text for text in about)} == broken
