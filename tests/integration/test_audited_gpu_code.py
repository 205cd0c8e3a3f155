"""GPU code that hipcc really compiled in the rig's image, read by the audit and by llvm-objdump."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from wheel.wheelfile import WheelFile

from builders.audit.contents import Expected
from builders.audit.elf import read_object
from builders.audit.gpu_code import read_code_objects
from builders.audit.wheel_audit import WheelAudit, audit_wheel
from tests.rig.rig import Rig

pytestmark = pytest.mark.integration

SOURCE = """
#include <hip/hip_runtime.h>
__global__ void scale(float *a, float f) { a[blockIdx.x * blockDim.x + threadIdx.x] *= f; }
extern "C" int launch(float *a) { scale<<<1, 64>>>(a, 2.f); return 0; }
"""
VARIANTS = {
    "one": "--offload-arch=gfx90a",
    "three": "--offload-arch=gfx90a --offload-arch=gfx942 --offload-arch=gfx1030",
    "xnack": "--offload-arch=gfx90a:xnack+ --offload-arch=gfx90a:xnack-",
    "both": "--offload-arch=gfx90a:sramecc+:xnack-",
    "generic": "--offload-arch=gfx9-4-generic",
    "packed": "--offload-arch=gfx90a --offload-arch=gfx942 --offload-compress",
    "rdc": "--offload-arch=gfx90a -fgpu-rdc --hip-link",
    "old": "--offload-arch=gfx90a --no-offload-new-driver",
    "two-units": "--offload-arch=gfx90a other.hip",
}
OBJDUMP = "$(ls /opt/rocm/llvm/bin/llvm-objdump /usr/bin/llvm-objdump* 2>/dev/null | head -1)"
TAGS = "cp311-cp311-linux_x86_64"


@pytest.fixture(scope="session")
def compiled(rig: Rig) -> Path:
    """Compile all variants in the image, and list the GPU code in each with llvm-objdump."""
    work = rig.work()
    (work / "k.hip").write_text(SOURCE)
    (work / "other.hip").write_text(SOURCE.replace("scale", "other").replace("launch", "launch_other"))
    lines = ["set -e"]
    for name, flags in VARIANTS.items():
        lines.append(f"hipcc -O1 -shared -fPIC k.hip {flags} -o {name}.so")
        lines.append(f"{OBJDUMP} --offloading {name}.so > {name}.txt 2>&1")
    (work / "script").write_text("\n".join([*lines, ""]))
    bind = ["--bind", f"{work}:/mnt", "--pwd", "/mnt"]
    done = rig.run_as_user(["apptainer", "exec", *bind, str(rig.image), "sh", "script"], cwd=work)
    assert done.returncode == 0, done.stderr
    return work


def architectures_in(text: str) -> list[str]:
    """Return the GPU architectures that llvm-objdump lists, sorted."""
    return sorted(re.findall(r"(?:amdgcn-amd-amdhsa-[a-z]*-)((?:gfx)[0-9a-z:+-]+)", text))


@pytest.mark.parametrize("name", VARIANTS)
def test_code_objects_agree_with_llvm_objdump(name: str, compiled: Path) -> None:
    theirs = architectures_in((compiled / f"{name}.txt").read_text())
    data = (compiled / f"{name}.so").read_bytes()
    section = read_object(name, data).gpu_section
    assert section is not None
    objects, problems = read_code_objects("x.so", data, *section)
    assert problems == []
    assert theirs
    assert sorted(each.name for each in objects) == theirs


@pytest.fixture
def judged(compiled: Path, tmp_path: Path) -> Callable[..., WheelAudit]:
    """Audit a wheel with one of the variants."""

    def judge(name: str, *targets: str) -> WheelAudit:
        path = tmp_path / f"tiny-1.0-{TAGS}.whl"
        with WheelFile(str(path), "w") as sink:
            sink.write(str(compiled / f"{name}.so"), "tiny/op.so")
            sink.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
            sink.writestr("tiny-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {TAGS}\n")
        return audit_wheel(path, Expected(targets, no_others=True))

    return judge


def test_real_gpu_code_is_compared_with_request(judged: Callable[..., WheelAudit]) -> None:
    assert judged("one", "gfx90a").errors == []
    assert judged("three", "gfx90a", "gfx942", "gfx1030").errors == []
    assert judged("packed", "gfx90a", "gfx942").errors == []
    assert {error.id for error in judged("one", "gfx942").errors} == {"target-missing", "target-not-asked"}
    assert {error.id for error in judged("packed", "gfx90a").errors} == {"target-not-asked"}
    xnack = judged("xnack", "gfx90a")
    assert xnack.errors == []
    assert [finding.id for finding in xnack.findings].count("target-features") == 2
