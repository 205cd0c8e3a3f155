"""Apply a recipe to one build: its environment, flags, commands and shims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from builders.constants import SOURCE_DATE_EPOCH
from builders.recipes import (
    Program,
    choose_compilers,
    compiler_shim,
    gpu_shims,
    overlay_mounts,
    wave_size,
)
from resolver.errors import MatrixError
from resolver.facts.placeholders import fill, placeholders
from resolver.facts.schema import Recipe
from resolver.versions import satisfies

if TYPE_CHECKING:
    from builders.building.plan import Task


_FLAG_VARIABLES = ("CFLAGS", "CXXFLAGS")
_HIP_FLAG_VARIABLES = ("HIPFLAGS", "HIPCC_COMPILE_FLAGS_APPEND")
"""For HIP, CMake reads ``HIPFLAGS``, not ``CXXFLAGS``; hipcc reads ``HIPCC_COMPILE_FLAGS_APPEND``."""


class AppliedRecipe(msgspec.Struct, frozen=True):
    """All settings of one build."""

    environment: Mapping[str, str]
    """In addition to the clean environment of the runtime."""
    options: tuple[str, ...] = ()
    """Build options for setuptools (``--build-option``)."""
    prepare: tuple[tuple[str, ...], ...] = ()
    """Commands to run in the source tree before the backend is called."""
    shims: Mapping[str, str] = {}
    """Shell scripts by the name of the program that they replace. Their directory comes first on PATH."""
    overlay_mounts: Mapping[str, str] = {}
    """The shim to mount over a program in the image, by the program's path."""
    fixed_paths: tuple[str, ...] = ()
    """Paths in `overlay_mounts` that the source calls without searching PATH."""
    writable: tuple[Path, ...] = ()
    """Directories besides its own that the build may write to."""
    notes: tuple[str, ...] = ()


def apply_recipe(task: Task, *, jobs: int = 1, prefix_map: Mapping[str, str] | None = None) -> AppliedRecipe:
    """Return all settings of a build; `prefix_map` maps its directories to names for compiled files."""
    recipe, host = task.recipe, task.build_host
    _check_request(task)
    values = _placeholder_values(task, jobs)

    def filled(text: str) -> str:
        return fill(text, lambda name, form: values[name, form])

    cxx = cc = None
    if host.compilers:
        cxx, cc = choose_compilers(host.compilers, task.least_standard)
    variables = _environment(task, jobs, cxx, cc) | {
        name: filled(text) for name, text in recipe.environment.items()
    }
    environment = {name: text for name, text in variables.items() if text}
    for name, flags in _prefix_map_flags(recipe, prefix_map or {}).items():
        environment[name] = f"{flags} {environment.get(name, '')}".rstrip()
    programs: dict[str, str] = {}
    mounts: dict[str, str] = {}
    if recipe.backend == "rocm":
        programs = gpu_shims(task.gfx)
        mounts = overlay_mounts(host.rocm_path)
    if host.cpu and recipe.native_cpu and cxx:
        for compiler in filter(None, (cxx, cc)):
            programs[compiler.name] = compiler_shim(compiler, host.cpu)
    return AppliedRecipe(
        environment=environment,
        options=tuple(filled(text) for text in recipe.options),
        prepare=tuple(tuple(filled(word) for word in command) for command in recipe.prepare),
        shims=programs,
        overlay_mounts=mounts,
        fixed_paths=tuple(
            path
            for path, releases in recipe.fixed_paths.items()
            if path in mounts and satisfies(task.pick.version, releases)
        ),
        notes=tuple(_notes(task, chose_compilers=cxx is not None)),
    )


def _check_request(task: Task) -> None:
    recipe = task.recipe
    if recipe.backend == "rocm" and not task.gfx:
        msg = f"{task.title} needs a GPU architecture to build for ROCm."
        raise MatrixError(msg, hint="Name an architecture, such as --gfx90a.", id="recipe")
    listed = ", ".join(task.gfx)
    single = [name for name, text in recipe.environment.items() if ("gfx", "one") in placeholders(text)]
    if single and len(task.gfx) > 1:
        msg = (
            f"{task.title} can be built for one GPU architecture at a time, not for {listed}: "
            f"its variable {single[0]} does not accept a list."
        )
        hint = f"Build once for each, such as --{task.gfx[0]}. The label of a wheel names its architecture."
        raise MatrixError(msg, hint=hint, id="recipe")
    featured = [target for target in task.gfx if ":" in target]
    if recipe.plain_targets and featured:
        msg = f"{task.title} accepts only GPU architectures without features, not {', '.join(featured)}."
        plain = featured[0].partition(":")[0]
        raise MatrixError(msg, hint=f"Request {plain}; its code runs with xnack on or off.", id="recipe")
    if recipe.one_wave_size and len({wave_size(target) for target in task.gfx}) > 1:
        msg = f"{task.title} compiles for one wave size, but {listed} need different wave sizes."
        raise MatrixError(
            msg, hint="Build once for each wave size: 64 up to gfx9, 32 from gfx10 on.", id="recipe"
        )
    if recipe.cxx_standard and task.cxx_standard and int(recipe.cxx_standard) < int(task.cxx_standard):
        torch = task.torch.version if task.torch else ""
        msg = (
            f"{task.title} compiles with C++{recipe.cxx_standard}, but the headers of torch {torch} "
            f"need at least C++{task.cxx_standard}."
        )
        raise MatrixError(msg, hint="Choose an older torch or a newer release of the package.", id="recipe")


def _placeholder_values(task: Task, jobs: int) -> dict[tuple[str, str], str]:
    return {
        ("gfx", "one"): "".join(task.gfx[:1]),
        ("jobs", ""): str(jobs),
        ("rocm", ""): task.rocm_series,
        ("rocm", "digits"): task.rocm_series.replace(".", ""),
        ("rocm-path", ""): task.build_host.rocm_path,
        **{("gfx", form): (form or ";").join(task.gfx) for form in ("", ";", ",", " ")},
    }


def _environment(task: Task, jobs: int, cxx: Program | None, cc: Program | None) -> dict[str, str]:
    """Return the variables of every build. hipcc compiles for gfx906 unless HCC_AMDGPU_TARGET names others.

    Variables whose list separator differs between projects, such as HIP_ARCHITECTURES, belong to the recipes.
    Source of TORCH_NO_COMPILER_WRAPPER: torch 2.13.0, torch/utils/cpp_extension.py (``_wrap_compiler``).
    """
    environment = {
        "MAX_JOBS": str(jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(jobs),
        "NVCC_THREADS": "1",
        "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
        "TORCH_NO_COMPILER_WRAPPER": "1",  # else torch calls the ccache on PATH, even if none was requested
    }
    if cxx:
        environment["CXX"] = cxx.name
    if cc:
        environment["CC"] = cc.name
    if task.recipe.backend == "rocm":
        targets = ";".join(task.gfx)
        environment |= {
            "ROCM_PATH": task.build_host.rocm_path,
            "ROCM_HOME": task.build_host.rocm_path,
            "PYTORCH_ROCM_ARCH": targets,
            "GPU_ARCHS": targets,
            "AMDGPU_TARGETS": targets,
            "HCC_AMDGPU_TARGET": ",".join(task.gfx),
        }
        if len(task.gfx) == 1:
            environment["HIP_ARCHITECTURES"] = targets
    return environment | (_pip_rocm(task.build_host.rocm_path) if task.pip_rocm else {})


def _pip_rocm(root: str) -> dict[str, str]:
    """Return the variables with which builds find all of a ROCm that is not where they look by default.

    The tree for development may lack device libraries, so they are those of the runtime package beside it.
    ROCM_HOME is set anyway: some torch would take that of the runtime package, without headers. CMake looks
    for packages below a prefix, and hipconfig may name the runtime package. Source:
    https://github.com/ROCm/TheRock/issues/5448, https://github.com/ROCm/llvm-project/pull/739,
    https://github.com/pytorch/pytorch/pull/196503, https://github.com/ROCm/TheRock/issues/1880.
    """
    core = "_rocm_sdk_core".join(root.rsplit("_rocm_sdk_devel", 1))
    return {
        "HIP_PATH": root,
        "HIP_DEVICE_LIB_PATH": f"{core}/lib/llvm/amdgcn/bitcode",
        "CMAKE_PREFIX_PATH": f"{root}:{root}/lib/llvm",
    }


def _prefix_map_flags(recipe: Recipe, prefix_map: Mapping[str, str]) -> dict[str, str]:
    """Return the flags that keep the directories of this build out of the compiled files (``__FILE__``).

    Programs split these variables at spaces, so a directory with a space in its name cannot be mapped.
    """
    flags = " ".join(
        f"-ffile-prefix-map={path}={name}" for path, name in prefix_map.items() if len(path.split()) == 1
    )
    names = _FLAG_VARIABLES + (_HIP_FLAG_VARIABLES if recipe.backend == "rocm" else ())
    return dict.fromkeys(names, flags) if flags else {}


def _notes(task: Task, *, chose_compilers: bool) -> Iterator[str]:
    recipe, cpu = task.recipe, task.build_host.cpu
    if recipe.compiles is False:
        yield f"{task.title} compiles nothing: its wheel is pure Python and contains no GPU code."
    if recipe.native_cpu and cpu and chose_compilers:
        default = "by default the source compiles for the CPU of the build machine"
        yield f"Host code is compiled for {cpu}; {default}."
    elif recipe.native_cpu:
        yield "Host code is compiled for the CPU of the build machine and may not run on other models."
    for name, value in recipe.run_environment.items():
        yield f"Set {name}={value} when you run {task.pick.name}."
