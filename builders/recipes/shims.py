"""Write shims: scripts that replace programs that inspect the machine, and report the target instead.

A build node has no GPU, or a different GPU than the wheel is built for. These programs inspect the node:

- The op_builder of DeepSpeed and ROCm/apex calls ``/opt/rocm/bin/rocminfo`` if it exists, else
  ``rocminfo``. The first text that starts with ``gfx`` becomes PYTORCH_ROCM_ARCH. The first
  ``Wavefront Size`` is compiled in, or 32 without a reply (op_builder/builder.py of deepspeed 0.14.3 to
  0.19.8).
- clang calls ``offload-arch --only=amdgpu`` or ``amdgpu-arch`` next to itself for ``--offload-arch=native``.
- CMake and older hipcc call ``rocm_agent_enumerator`` and look for ``rocminfo`` next to it.
- Sources that compile host code with ``-march=native`` inspect the CPU through the compiler.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.recipes.compilers import Program

LAUNCHER = "ROCM_MATRIX_LAUNCHER"
"""Variable with the program through which compilers are called, such as a compiler cache."""

_WIDE = 64
_NARROW = 32
_GCN = 9  # up to gfx9 a wave has 64 lanes; from gfx10 on compilers use 32 (LLVM AMDGPUUsage)

_AVX512 = (
    "x86-64-v4", "znver4", "znver5", "knl", "knm", "skylake-avx512", "cascadelake", "cooperlake",
    "cannonlake", "icelake-client", "icelake-server", "tigerlake", "rocketlake", "sapphirerapids",
    "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids",
)  # fmt: skip
_NO_AVX2 = (
    "x86-64", "x86-64-v2", "nocona", "core2", "nehalem", "westmere", "sandybridge", "ivybridge", "k8",
    "k8-sse3", "amdfam10", "barcelona", "bdver1", "bdver2", "bdver3", "btver1", "btver2",
)  # fmt: skip


def wave_size(target: str) -> int:
    """Return the number of lanes in a wave of a GPU architecture.

    Examples
    --------
    >>> wave_size("gfx90a:xnack+"), wave_size("gfx1100"), wave_size("gfx11-generic")
    (64, 32, 32)
    """
    name = target.partition(":")[0].removeprefix("gfx")
    # gfx90a: family 9, then minor version and stepping; gfx11-generic: the family alone.
    family = name.partition("-")[0] if name.endswith("-generic") else name[:-2]
    return _WIDE if family.isdigit() and int(family) <= _GCN else _NARROW


def gpu_shims(targets: Sequence[str]) -> dict[str, str]:
    """Return the shims for all programs that list the GPUs of a machine."""
    listed = "\n".join(targets)
    return {
        "rocminfo": _script("rocminfo", _print(_rocminfo(targets))),
        "amdgpu-arch": _script("amdgpu-arch", _print(listed)),
        "offload-arch": _script("offload-arch", _print(listed)),
        "rocm_agent_enumerator": _script("rocm_agent_enumerator", _enumerator(targets)),
    }


def overlay_mounts(rocm_path: str) -> dict[str, str]:
    """Return the programs of an image that sources call by path, each with the shim to mount over it.

    Only those that exist in the image need a mount, except the `fixed_paths` of a recipe: DeepSpeed 0.14.3
    and 0.14.4 call only ``/opt/rocm/bin/rocminfo``.
    """
    mounts = {}
    for root in dict.fromkeys(["/opt/rocm", rocm_path.rstrip("/")]):
        mounts[f"{root}/bin/rocminfo"] = "rocminfo"
        mounts[f"{root}/bin/rocm_agent_enumerator"] = "rocm_agent_enumerator"
        for llvm in ("llvm", "lib/llvm"):  # ROCm from pip packages has only the second
            mounts[f"{root}/{llvm}/bin/amdgpu-arch"] = "amdgpu-arch"
            mounts[f"{root}/{llvm}/bin/offload-arch"] = "offload-arch"
    return mounts


def compiler_shim(compiler: Program, cpu: str) -> str:
    """Return a shim for a host compiler that replaces ``-march=native`` with a chosen CPU.

    DeepSpeed always compiles host ops with ``-march=native`` and with the vector width of the build machine;
    the shim changes both. `cpu` is the value for ``-march``, such as ``znver3``.
    """
    width = "__AVX512__" if cpu in _AVX512 else "__SCALAR__" if cpu in _NO_AVX2 else "__AVX256__"
    wide = "" if width == "__AVX512__" else f"    -D__AVX512__) word=-D{width} ;;\n"
    if width == "__SCALAR__":
        wide += f"    -D__AVX256__) word=-D{width} ;;\n"
    body = (
        "for word do\n"
        "  shift\n"
        "  case $word in\n"
        f"    -march=native|-mcpu=native) word={shlex.quote(f'-march={cpu}')} ;;\n"
        f"    -mtune=native) word={shlex.quote(f'-mtune={cpu}')} ;;\n"
        f"{wide}"
        "  esac\n"
        '  set -- "$@" "$word"\n'
        "done\n"
        f"{_call(compiler)}"
    )
    return _script(f"{compiler.name}: compile for {cpu} instead of native", body)


def launched(compiler: Program) -> str:
    """Return a shim that calls a compiler through the program that `LAUNCHER` names."""
    return _script(compiler.name, _call(compiler))


def _call(compiler: Program) -> str:
    return f'exec ${{{LAUNCHER}:-}} {shlex.quote(compiler.path)} "$@"\n'


def _script(program: str, body: str) -> str:
    return f"#!/bin/sh\n# rocm-matrix shim for {program}\n{body}"


def _print(text: str) -> str:
    return f"cat <<'END'\n{text.rstrip()}\nEND\n"


def _rocminfo(targets: Sequence[str]) -> str:
    """Return the parts of rocminfo's output that sources read: an agent for the CPU and one for each target.

    op_builder takes the first string that starts with ``gfx`` as the whole list of targets, so the first
    agent names all of them, joined as in PYTORCH_ROCM_ARCH.
    """
    lines = ["HSA Agents", "Agent 1", "  Name:                    CPU", "  Device Type:             CPU"]
    names = [";".join(targets), *targets[1:]]
    for number, (name, target) in enumerate(zip(names, targets, strict=True), 2):
        lanes = wave_size(target)
        lines += [
            f"Agent {number}",
            f"  Name:                    {name}",
            "  Device Type:             GPU",
            f"  Wavefront Size:          {lanes}(0x{lanes:x})",
            "  ISA Info:",
            f"      Name:                    amdgcn-amd-amdhsa--{target}",
        ]
    return "\n".join([*lines, "*** Done ***"])


def _enumerator(targets: Sequence[str]) -> str:
    """Return shell code that prints plain targets, or with ``-name`` targets with features."""
    full = "\n".join(targets)
    plain = "\n".join(dict.fromkeys(target.partition(":")[0] for target in targets))
    return f'case " $* " in\n*" -name "*)\n{_print(full)};;\n*)\n{_print(plain)};;\nesac\n'
