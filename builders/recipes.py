"""What a recipe means for a build: ops, whether it fits, compilers, shims. No program is run.

Ops are parts of a package that can be compiled or left out. Another choice of ops is another recipe, so the
build key and the contents of the wheel follow from the recipe alone.

Shims are scripts that replace programs that inspect the machine, and report the target instead. A build node
has no GPU, or a different GPU than the wheel is built for. These programs inspect the node:

- The op_builder of DeepSpeed and ROCm/apex calls ``/opt/rocm/bin/rocminfo`` if it exists, else
  ``rocminfo``. The first text that starts with ``gfx`` becomes PYTORCH_ROCM_ARCH. The first
  ``Wavefront Size`` is compiled in, or 32 without a reply (op_builder/builder.py of deepspeed 0.14.3 to
  0.19.8).
- clang calls ``offload-arch --only=amdgpu`` or ``amdgpu-arch`` next to itself for ``--offload-arch=native``.
- CMake and older hipcc call ``rocm_agent_enumerator`` and look for ``rocminfo`` next to it.
- Sources that compile host code with ``-march=native`` inspect the CPU through the compiler.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.storage.files import sha256_of
from resolver.errors import EnvironmentLacksError, MatrixError, SourceError, UsageError, did_you_mean
from resolver.facts.schema import Op, Recipe
from resolver.versions import satisfies

if TYPE_CHECKING:
    from resolver.facts.catalog import Catalog
    from resolver.model import Distribution

_OLDEST = {"g++": {"14": 5, "17": 8, "20": 10}, "clang++": {"14": 4, "17": 5, "20": 10}}
"""First major release that accepts the final name of ``-std=c++NN`` (gcc.gnu.org/projects/cxx-status.html,
clang.llvm.org/cxx_status.html)."""

_CXX = re.compile(r"^(?P<family>g\+\+|clang\+\+|c\+\+)(?P<suffix>-\d+)?$")
_C = {"g++": "gcc", "clang++": "clang", "c++": "cc"}

LAUNCHER = "ROCM_MATRIX_LAUNCHER"
"""Variable with the program through which compilers are called, such as a compiler cache."""

_WIDE = 64
_NARROW = 32
_GCN = 9  # up to gfx9 a wave has 64 lanes; from gfx10 on compilers use 32 (LLVM AMDGPUUsage)

WITH_AVX512 = {
    "cannonlake", "cascadelake", "cooperlake", "diamondrapids", "emeraldrapids", "graniterapids",
    "graniterapids-d", "icelake-client", "icelake-server", "knl", "knm", "rocketlake", "sapphirerapids",
    "skylake-avx512", "tigerlake", "x86-64-v4", "znver4", "znver5",
}  # fmt: skip
"""CPUs with AVX-512. Source: https://gcc.gnu.org/onlinedocs/gcc/x86-Options.html (-march)."""
_NO_AVX2 = (
    "x86-64", "x86-64-v2", "nocona", "core2", "nehalem", "westmere", "sandybridge", "ivybridge", "k8",
    "k8-sse3", "amdfam10", "barcelona", "bdver1", "bdver2", "bdver3", "btver1", "btver2",
)  # fmt: skip


class Program(msgspec.Struct, frozen=True):
    """A program of a runtime that builds use, such as a host compiler."""

    name: str
    """Such as ``g++-12``."""
    version: str
    path: str
    """Inside the runtime."""


def choose_compilers(compilers: Sequence[Program], cxx_standard: str) -> tuple[Program, Program | None]:
    """Choose the C++ compiler of a build, and the C compiler of the same name and suffix, if there is one.

    Of the compilers that support the C++ standard, if one is required, choose the first of: ``g++``, the
    newest ``g++-N``, ``c++``, ``clang++``. LUMI's SUSE images have ``g++`` 7 and ``g++-12``.
    """
    suitable = [
        compiler for compiler in compilers if _CXX.match(compiler.name) and _supports(compiler, cxx_standard)
    ]
    if not suitable:
        listed = ", ".join(f"{compiler.name} {compiler.version}" for compiler in compilers) or "none"
        standard = f" that supports C++{cxx_standard}" if cxx_standard else ""
        msg = f"There is no C++ compiler{standard}. Host compilers: {listed}."
        raise EnvironmentLacksError(msg, hint="Use a base image with a newer compiler.")
    cxx = min(suitable, key=_rank)
    match = _CXX.match(cxx.name)
    cc_name = _C[match["family"]] + (match["suffix"] or "") if match else ""
    return cxx, next((compiler for compiler in compilers if compiler.name == cc_name), None)


def _supports(compiler: Program, cxx_standard: str) -> bool:
    family = "clang++" if compiler.name.startswith("clang") else "g++"
    return _major(compiler) >= _OLDEST[family].get(cxx_standard, 0)


def _rank(compiler: Program) -> tuple[int, int]:
    order = ["g++", "g++-", "c++", "clang++", "clang++-"]
    family = re.sub(r"\d+$", "", compiler.name)
    return order.index(family) if family in order else len(order), -_major(compiler)


def _major(compiler: Program) -> int:
    digits = re.match(r"\d+", compiler.version)
    return int(digits[0]) if digits else 0


def with_ops(recipe: Recipe, names: Sequence[str], version: str) -> Recipe:
    """Return the recipe that compiles these ops, at least one, and no others."""
    if not recipe.ops:
        msg = f"{recipe.package} {version} has no ops to choose from."
        raise MatrixError(msg, hint="Build it without --ops.", id="recipe")
    known = {op.name: op for op in recipe.ops}
    buildable = {op.name: op for op in recipe.ops if not op.releases or satisfies(version, op.releases)}
    for name in names:
        if name not in known:
            msg = f"{recipe.package} has no op named {name!r}."
            raise UsageError(msg, hint=did_you_mean(name, buildable))
        if name not in buildable:
            msg = f"{recipe.package} {version} cannot build {name} for {recipe.backend}."
            raise UsageError(msg, hint=f"{recipe.package} {known[name].releases} can build {name}.")
    chosen = [buildable[name] for name in dict.fromkeys(names)]
    if recipe.backend == "rocm" and all(op.host for op in chosen):
        listed = ", ".join(op.name for op in chosen)
        msg = f"None of these ops has GPU code, which a wheel for ROCm must contain: {listed}."
        gpu_op = next((op.name for op in buildable.values() if not op.host), "")
        raise UsageError(msg, hint=gpu_op and f"Add an op with GPU code, such as {gpu_op}.")
    return _compiling(recipe, chosen)


def recipe_as_built(recipe: Recipe, ops: Sequence[str]) -> Recipe:
    """Return the recipe that a wheel was built with, from the ops that it records; none means all."""
    chosen = [op for op in recipe.ops if op.name in ops]
    return _compiling(recipe, chosen) if chosen else recipe


def _compiling(recipe: Recipe, chosen: Sequence[Op]) -> Recipe:
    op_variables = {op.variable for op in recipe.ops} | set(recipe.all_ops)
    others = {name: value for name, value in recipe.environment.items() if name not in op_variables}
    usual = sum(recipe.environment.get(op.variable) == "1" for op in recipe.ops) or len(recipe.ops)
    return msgspec.structs.replace(
        recipe,
        core_hours=recipe.core_hours * len(chosen) / usual,  # that of a single op is not known
        environment=others | {op.variable: "1" for op in chosen},
        must_contain=(
            *(glob for glob in recipe.must_contain if glob not in {op.object for op in recipe.ops}),
            *(op.object for op in chosen),
        ),
    )


# Flags belong to a commit, not to a package. ROCm/apex replaced ``--cpp_ext --cuda_ext`` with
# ``APEX_BUILD_*`` and now ignores the old flags silently, so the wheel has no kernels (https://github.com/ROCm/apex/pull/291).
# An sdist may also lack files that it compiles: flash-attn up to 2.7.3 has no composable_kernel
# (https://github.com/Dao-AILab/flash-attention/issues/1105).


def check_source(recipe: Recipe, source: Path, title: str, others: Iterable[Recipe] = ()) -> None:
    """Check that a source supports the flags of its recipe and has its files; else name one of `others`."""
    problems = list(_mismatches(recipe, source))
    if not problems:
        return
    listed = "".join(f"\n  - {problem}" for problem in problems)
    msg = f"The recipe does not fit this source of {title}; nothing was compiled.{listed}"
    stating = (other for other in others if other.source_contains or other.source_lacks)
    fitting = [other for other in stating if other != recipe and not any(_mismatches(other, source))]
    hint = (
        "The recipe was not written for this commit or file. Choose another version, or correct the recipe."
    )
    if fitting:
        titles = sorted({_recipe_title(other) for other in fitting})
        hint = (
            f"The source fits the recipe for {' or '.join(titles)}. Check its commit or file in the catalog."
        )
    raise MatrixError(msg, hint=hint, id="recipe")


def _mismatches(recipe: Recipe, source: Path) -> Iterator[str]:
    for glob in recipe.source_has:
        if next(source.glob(glob), None) is None:
            yield f"{glob} is missing. It may belong to a git submodule."
    for name, text in recipe.source_contains.items():
        if text not in _read(source / name):
            yield f"{name} does not mention {text}: it would ignore the recipe's flags and compile nothing."
    for name, text in recipe.source_lacks.items():
        if text in _read(source / name):
            yield f"{name} mentions {text}: it needs other flags and would ignore the recipe's."


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _recipe_title(recipe: Recipe) -> str:
    variant = f" ({recipe.variant})" if recipe.variant else ""
    return f"{recipe.package} {recipe.releases}{variant}".rstrip()


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

    Only existing ones need a mount, except the `fixed_paths` of a recipe: DeepSpeed 0.14.3 and 0.14.4 call
    only ``/opt/rocm/bin/rocminfo``.
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
    """Return a shim for a host compiler that replaces ``-march=native`` with a CPU, such as ``znver3``.

    DeepSpeed always compiles host ops for the CPU and the vector width of the build machine.
    """
    width = "__AVX512__" if cpu in WITH_AVX512 else "__SCALAR__" if cpu in _NO_AVX2 else "__AVX256__"
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
    """Return what sources read of rocminfo's output: an agent for the CPU and one for each target.

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


def patches_of(pick: Distribution, catalog: Catalog) -> tuple[Path, ...]:
    """Return the patch files of a distribution, which are next to the catalog file that lists them.

    Raise `SourceError` if a file is missing; `MatrixError` if a file differs from the lock.
    """
    release = catalog.release.get((pick.name, pick.version, pick.variant))
    folder = Path(release.from_file).parent if release else Path()
    paths = []
    for patch in pick.patches:
        path = folder / patch.file
        if release is None or not path.is_file():
            msg = f"The lock builds {pick.name} {pick.version} with {patch.file}, but {path} does not exist."
            raise SourceError(msg, hint="Name the catalog that the lock was resolved with: --catalog DIR.")
        actual = sha256_of(path)
        if actual != patch.sha256:
            msg = (
                f"{path} differs from the patch in the lock; nothing was built.\n"
                f"  expected SHA-256 {patch.sha256}\n  actual   SHA-256 {actual}"
            )
            hint = "If you changed the patch on purpose, correct its hash in the catalog and resolve again."
            raise MatrixError(msg, hint=hint, id="hash-mismatch")
        paths.append(path)
    return tuple(paths)
