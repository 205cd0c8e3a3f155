"""Shims reply to the commands that sources run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from builders.building.apply_recipe import apply_recipe
from builders.recipes import Program, compiler_shim, gpu_shims, wave_size
from resolver.facts.catalog import load
from tests.support.tasks import make_recipe, make_task

NATIVE = make_recipe(native_cpu=True)


def put(folder: Path, programs: dict[str, str]) -> dict[str, str]:
    """Write programs into a directory; return an environment in which they come first."""
    folder.mkdir(exist_ok=True)
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def answer(command: str, env: dict[str, str]) -> str:
    """Run a line of shell, as sources do."""
    return subprocess.run(
        ["/bin/sh", "-c", command], env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.parametrize(
    ("targets", "arch", "wave"),
    [(["gfx90a"], "gfx90a", "64"), (["gfx90a", "gfx942"], "gfx90a;gfx942", "64"),
     (["gfx90a:xnack+"], "gfx90a:xnack+", "64"), (["gfx1100"], "gfx1100", "32")],
)  # fmt: skip
def test_op_builder_reads_targets_and_wave_size(
    tmp_path: Path, targets: list[str], arch: str, wave: str
) -> None:
    env = put(tmp_path / "bin", gpu_shims(targets))
    # The pipes of deepspeed 0.14.3 to 0.18 and of ROCm/apex (op_builder/builder.py).
    assert answer("rocminfo | grep -o -m 1 'gfx.*'", env) == arch
    command = "rocminfo | grep -Eo -m1 'Wavefront Size:[[:space:]]+[0-9]+' | grep -Eo '[0-9]+'"
    assert answer(command, env) == wave
    # deepspeed 0.19.8 searches the text itself.
    output = answer("rocminfo", env)
    first = re.search(r"gfx\S+", output)
    assert first is not None
    assert first[0] == arch
    lanes = re.search(r"Wavefront Size:\s+(\d+)", output)
    assert lanes is not None
    assert lanes[1] == wave


def test_rocminfo_lists_each_target_as_agent(tmp_path: Path) -> None:
    output = answer("rocminfo", put(tmp_path / "bin", gpu_shims(["gfx90a", "gfx942"])))
    # How rocm_agent_enumerator reads it.
    plain = [
        re.search(r"gfx[0-9a-f]+", line)
        for line in output.splitlines()
        if re.match(r"\s+Name:\s+gfx\d+", line)
    ]
    assert [match[0] for match in plain if match] == ["gfx90a", "gfx942"]
    isa = re.findall(r"^\s+Name:\s+amdgcn-amd-amdhsa--(gfx\w+)$", output, re.MULTILINE)
    assert isa == ["gfx90a", "gfx942"]


def test_target_programs_print_one_per_line(tmp_path: Path) -> None:
    env = put(tmp_path / "bin", gpu_shims(["gfx90a:xnack+", "gfx942"]))
    for command in ("amdgpu-arch", "offload-arch --only=amdgpu", "rocm_agent_enumerator -name"):
        assert answer(command, env).splitlines() == ["gfx90a:xnack+", "gfx942"]
    assert answer("rocm_agent_enumerator -t GPU", env).splitlines() == ["gfx90a", "gfx942"]


@pytest.mark.parametrize("row", load().gfx.values(), ids=lambda row: row.target)
def test_wave_size_of_each_known_target(row: object) -> None:
    target = row.target  # type: ignore[attr-defined]
    assert wave_size(target) == (64 if re.match(r"gfx[6-9](\d|-|..$)", target) else 32)


def test_programs_called_by_path_get_overlay_mounts() -> None:
    made = apply_recipe(make_task(NATIVE, "gfx90a", rocm_path="/opt/rocm-6.2.4/"))
    assert made.overlay_mounts["/opt/rocm/bin/rocminfo"] == "rocminfo"
    assert made.overlay_mounts["/opt/rocm-6.2.4/bin/rocminfo"] == "rocminfo"
    assert made.overlay_mounts["/opt/rocm-6.2.4/lib/llvm/bin/offload-arch"] == "offload-arch"
    assert set(made.overlay_mounts.values()) <= set(made.shims)


# --- the compiler --------------------------------------------------------------------------------------


def recording(folder: Path) -> Program:
    """Return a compiler that only prints its arguments, one per line."""
    path = folder / "g++"
    path.write_text('#!/bin/sh\nfor word do printf "%s\\n" "$word"; done\n')
    path.chmod(0o755)
    return Program("g++", "12.3.0", str(path))


@pytest.mark.parametrize(
    ("cpu", "arguments", "passed"),
    [
        ("znver3", ["-march=native", "-D__AVX512__"], ["-march=znver3", "-D__AVX256__"]),
        ("znver3", ["-mtune=native", "-mcpu=native"], ["-mtune=znver3", "-march=znver3"]),
        ("znver4", ["-march=native", "-D__AVX512__"], ["-march=znver4", "-D__AVX512__"]),
        ("x86-64-v2", ["-D__AVX512__", "-D__AVX256__"], ["-D__SCALAR__", "-D__SCALAR__"]),
        ("znver3", ["-D__AVX256__", "-O2", "-march=k8"], ["-D__AVX256__", "-O2", "-march=k8"]),
        ("znver3", ['-DNAME="a b"', "$HOME", "*", ""], ['-DNAME="a b"', "$HOME", "*", ""]),
    ],
)
def test_compiler_shim_replaces_native_only(
    tmp_path: Path, cpu: str, arguments: list[str], passed: list[str]
) -> None:
    program = tmp_path / "stand-in"
    program.write_text(compiler_shim(recording(tmp_path), cpu))
    program.chmod(0o755)
    done = subprocess.run([program, *arguments], check=True, capture_output=True, text=True)
    assert done.stdout.split("\n")[:-1] == passed


def test_real_compiler_compiles_for_chosen_cpu(tmp_path: Path) -> None:
    gcc = subprocess.run(["which", "gcc"], check=True, capture_output=True, text=True).stdout.strip()
    env = put(tmp_path / "bin", {"gcc": compiler_shim(Program("gcc", "12", gcc), "x86-64-v2")})
    command = "gcc -march=native -dM -E - </dev/null"
    assert "#define __SSE4_2__ 1" in answer(command, env)
    assert "__AVX2__" not in answer(command, env)
    assert "__AVX2__" in answer(f"{gcc} -march=x86-64-v3 -dM -E - </dev/null", env)


def test_compiler_shim_needs_chosen_cpu(tmp_path: Path) -> None:
    there = (recording(tmp_path),)
    chosen = apply_recipe(make_task(NATIVE, "gfx90a", compilers=there, cpu="znver3"))
    assert "-march=znver3" in chosen.shims["g++"]
    assert any("znver3" in note for note in chosen.notes)
    own = apply_recipe(make_task(NATIVE, "gfx90a", compilers=there))
    assert "g++" not in own.shims
    assert any("may not run on other models" in note for note in own.notes)
