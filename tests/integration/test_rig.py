"""The properties of the rig that the other tests rely on."""

from __future__ import annotations

import json

import pytest

from tests.rig.rig import Rig

pytestmark = pytest.mark.integration
ASK = """
import bz2, ctypes, json, lzma, os, sqlite3, ssl, sys, sysconfig, zlib
include, site = map(sysconfig.get_path, ("include", "purelib"))
print(json.dumps({"version": sys.version_info[:2], "prefix": sys.prefix, "include": include,
"header": os.path.exists(include + "/Python.h"), "site": site}))
"""


def inside(rig: Rig, *command: str) -> str:
    done = rig.run_as_user(
        ["apptainer", "--silent", "exec", "--cleanenv", "--containall", str(rig.image), *command]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_its_python_has_one_prefix_headers_and_environments(rig: Rig) -> None:
    reply = json.loads(inside(rig, "python3.11", "-c", ASK))
    assert reply == {
        "version": [3, 11],
        "prefix": "/opt/python3.11",
        "include": "/opt/python3.11/include/python3.11",
        "header": True,
        "site": "/opt/python3.11/lib/python3.11/site-packages",
    }
    made = inside(
        rig, "sh", "-c", "python3 -m venv /tmp/v && /tmp/v/bin/python -m pip --version && echo /tmp/v/lib/*"
    )
    assert "/tmp/v/lib/python3.11/site-packages/pip" in made


def test_its_compiler_makes_code_for_a_gpu(rig: Rig) -> None:
    source = "#include <hip/hip_runtime.h>\\n__global__ void k(float *x) { x[threadIdx.x] = expf(x[0]); }\\n"
    script = (
        f"cd /tmp && printf '{source}' > k.hip && hipcc --offload-arch=gfx90a -shared -fPIC k.hip -o k.so"
        " && /opt/rocm/llvm/bin/llvm-objdump --offloading k.so"
    )
    assert "amdgcn-amd-amdhsa--gfx90a" in inside(rig, "sh", "-c", script)


def test_its_torch_says_that_it_is_for_rocm(rig: Rig) -> None:
    assert rig.torch.name == "torch-2.13.0+rocm7.2-cp311-cp311-manylinux_2_28_x86_64.whl"


def test_the_program_runs_as_its_user(rig: Rig) -> None:
    work = rig.work()
    done = rig.matrix("--version", cwd=work)
    assert (done.returncode, done.stdout[:7]) == (0, "matrix "), done.stderr
