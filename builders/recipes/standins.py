"""Stand-ins for programs that look at the machine which builds, answering for the one that will run.

A node that builds has no GPU, or not the one that is built for; what asks it must be told. Who asks:

- DeepSpeed's and ROCm/apex's op_builder: ``/opt/rocm/bin/rocminfo`` by that path if it is there, else
  ``rocminfo``; the first text from ``gfx`` on becomes PYTORCH_ROCM_ARCH, the first ``Wavefront Size``
  is compiled in, and is 32 where nothing answers (op_builder/builder.py of deepspeed 0.14.3 to 0.19.8);
- clang for ``--offload-arch=native``: ``offload-arch --only=amdgpu`` or ``amdgpu-arch`` beside it;
- CMake and older hipcc: ``rocm_agent_enumerator``, beside which it looks for ``rocminfo``;
- sources that compile host code with ``-march=native``: the compiler.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from builders.recipes.build import Compiler

_WIDE = 64
_NARROW = 32
_GCN = 9  # up to gfx9 a wave has 64 lanes; from gfx10 on compilers take 32 (LLVM AMDGPUUsage)

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
    """Give the lanes of a wave on an offload target.

    Examples
    --------
    >>> wave_size("gfx90a:xnack+"), wave_size("gfx1100"), wave_size("gfx11-generic")
    (64, 32, 32)
    """
    name = target.partition(":")[0].removeprefix("gfx")
    # gfx90a: family 9, then minor version and stepping; gfx11-generic: the family alone.
    family = name.partition("-")[0] if name.endswith("-generic") else name[:-2]
    return _WIDE if family.isdigit() and int(family) <= _GCN else _NARROW


def programs(targets: Sequence[str]) -> dict[str, str]:
    """Give the stand-ins for all programs that name the GPUs of a machine."""
    listed = "\n".join(targets)
    return {
        "rocminfo": _script("rocminfo", _print(_rocminfo(targets))),
        "amdgpu-arch": _script("amdgpu-arch", _print(listed)),
        "offload-arch": _script("offload-arch", _print(listed)),
        "rocm_agent_enumerator": _script("rocm_agent_enumerator", _enumerator(targets)),
    }


def covers(rocm_path: str) -> dict[str, str]:
    """Give the files of an image that are called by their path, and the stand-in for each.

    Only those that an image has need covering, but for what a source looks for there and nowhere else
    (`fixed_paths` of its recipe): DeepSpeed 0.14.3 and 0.14.4 call ``/opt/rocm/bin/rocminfo``.
    """
    found = {}
    for root in dict.fromkeys(["/opt/rocm", rocm_path.rstrip("/")]):
        found[f"{root}/bin/rocminfo"] = "rocminfo"
        found[f"{root}/bin/rocm_agent_enumerator"] = "rocm_agent_enumerator"
        found[f"{root}/llvm/bin/amdgpu-arch"] = "amdgpu-arch"
        found[f"{root}/llvm/bin/offload-arch"] = "offload-arch"
    return found


def compiler(real: Compiler, cpu: str) -> str:
    """Give a stand-in for a host compiler that compiles for a chosen CPU where told ``native``.

    DeepSpeed adds ``-march=native`` to host ops always, and with it the vector width of the CPU that
    builds; both are changed to the chosen one's.

    Parameters
    ----------
    real
        The compiler that does the work.
    cpu
        What ``-march`` is set to, such as ``znver3``.
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
        f'exec {shlex.quote(real.path)} "$@"\n'
    )
    return _script(f"{real.name}, compiling for {cpu} where a source says native", body)


def _script(what: str, body: str) -> str:
    return f"#!/bin/sh\n# Stand-in of rocm-matrix for {what}.\n{body}"


def _print(text: str) -> str:
    return f"cat <<'END'\n{text.rstrip()}\nEND\n"


def _rocminfo(targets: Sequence[str]) -> str:
    """Write what rocminfo says, as far as it is read: one agent for the CPU and one for each target.

    op_builder takes the first text from ``gfx`` on for the whole list of targets, so with several the
    first line that names one names all, joined as PYTORCH_ROCM_ARCH wants them.
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
    """Answer with plain targets, or with their features for ``-name``, as rocm_agent_enumerator does."""
    full = "\n".join(targets)
    plain = "\n".join(dict.fromkeys(target.partition(":")[0] for target in targets))
    return f'case " $* " in\n*" -name "*)\n{_print(full)};;\n*)\n{_print(plain)};;\nesac\n'
