"""A recipe and a build -> what the build is run with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.recipes import standins
from builders.recipes.build import SOURCE_DATE_EPOCH, Application
from builders.recipes.compilers import choose_compilers
from resolver.errors import RecipeError
from resolver.facts.placeholders import fill, placeholders
from resolver.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builders.recipes.build import Build
    from builders.recipes.compilers import HostCompilers
    from resolver.facts.schema import Recipe


def apply_recipe(recipe: Recipe, build: Build) -> Application:
    """Give everything that a build is run with, explicitly, so that nothing is guessed from the machine.

    Parameters
    ----------
    recipe
        How the package is built.
    build
        What for, and what the place has.

    Returns
    -------
    Application
        Environment, options, commands and stand-ins.

    Raises
    ------
    RecipeError
        The recipe cannot give what is asked: several targets where it takes one, features where it
        takes none, an older C++ standard than torch's headers need.
    EnvironmentLacksError
        No compiler of the place knows the C++ standard.
    """
    _check(recipe, build)
    texts = _texts(build)

    def filled(text: str) -> str:
        return fill(text, lambda name, form: texts[name, form])

    chosen = None
    if build.compilers:
        standard = max(recipe.cxx_standard, build.cxx_standard, key=lambda text: int(text or 0))
        chosen = choose_compilers(build.compilers, cxx_standard=standard, preferred=build.preferred)
    environment = _common(build, chosen)
    if build.backend == "rocm":
        environment |= _rocm(build)
    environment |= {name: filled(text) for name, text in recipe.environment.items()}
    programs: dict[str, str] = {}
    covers: dict[str, str] = {}
    if build.backend == "rocm":
        programs |= standins.programs(build.gfx)
        covers |= standins.covers(build.rocm_path)
    if build.cpu and recipe.native_cpu and chosen:
        for one in (chosen.cxx, chosen.cc):
            if one is not None:
                programs[one.name] = standins.compiler(one, build.cpu)
    return Application(
        environment=environment,
        options=tuple(filled(text) for text in recipe.options),
        prepare=tuple(tuple(filled(word) for word in command) for command in recipe.prepare),
        programs=programs,
        covers=covers,
        only_at=tuple(
            path
            for path, releases in recipe.fixed_paths.items()
            if path in covers and satisfies(build.version, releases)
        ),
        notes=tuple(_notes(recipe, build, standing_in=chosen is not None)),
    )


def _check(recipe: Recipe, build: Build) -> None:
    """Refuse what would fail late, or come out as something else than was asked."""
    if build.backend == "rocm" and not build.gfx:
        msg = f"{build.title} is to be built for ROCm, but for which offload target was not said."
        raise RecipeError(msg, hint="Name it, such as --gfx90a.")
    listed = ", ".join(build.gfx)
    one = [name for name, text in recipe.environment.items() if ("gfx", "one") in placeholders(text)]
    if one and len(build.gfx) > 1:
        msg = (
            f"{build.title} is built for one offload target at a time ({one[0]} takes no list), not {listed}."
        )
        raise RecipeError(
            msg, hint=f"Build once for each, such as --{build.gfx[0]}; each wheel has its label."
        )
    featured = [target for target in build.gfx if ":" in target]
    if recipe.plain_targets and featured:
        msg = f"{build.title} knows its offload targets by name and takes no features: {', '.join(featured)}."
        raise RecipeError(
            msg, hint=f"Ask for {featured[0].partition(':')[0]}; its code runs with xnack or not."
        )
    sizes = {standins.wave_size(target) for target in build.gfx}
    if recipe.one_wave_size and len(sizes) > 1:
        msg = f"{build.title} compiles one wave size for all offload targets; those of {listed} differ."
        raise RecipeError(msg, hint="Build once for each wave size: 64 up to gfx9, 32 from gfx10 on.")
    if recipe.cxx_standard and build.cxx_standard and int(recipe.cxx_standard) < int(build.cxx_standard):
        msg = (
            f"{build.title} insists on C++{recipe.cxx_standard}, and the headers of torch {build.torch} "
            f"compile only from C++{build.cxx_standard} on."
        )
        raise RecipeError(msg, hint="Take an older torch, or a newer release of the package.")


def _texts(build: Build) -> dict[tuple[str, str], str]:
    """Give what each placeholder stands for, by name and form."""
    return {
        ("gfx", "one"): "".join(build.gfx[:1]),
        ("jobs", ""): str(build.jobs),
        ("rocm", ""): build.rocm_line,
        ("rocm", "digits"): build.rocm_line.replace(".", ""),
        ("rocm-path", ""): build.rocm_path,
        **{("gfx", form): (form or ";").join(build.gfx) for form in ("", ";", ",", " ")},
    }


def _common(build: Build, chosen: HostCompilers | None) -> dict[str, str]:
    """Set what holds for every build: jobs, no clock, no path of this machine, which compilers."""
    environment = {
        "MAX_JOBS": str(build.jobs),
        "CMAKE_BUILD_PARALLEL_LEVEL": str(build.jobs),
        "NVCC_THREADS": "1",
        "SOURCE_DATE_EPOCH": SOURCE_DATE_EPOCH,
    }
    if chosen:
        environment["CXX"] = chosen.cxx.name
        if chosen.cc:
            environment["CC"] = chosen.cc.name
    flags = _prefix_maps(build)
    if flags:
        environment |= {"CFLAGS": flags, "CXXFLAGS": flags}
    return environment


def _rocm(build: Build) -> dict[str, str]:
    """Set the variables by which sources and compilers find ROCm and learn the targets.

    Those that take a list in a way of their own, such as HIP_ARCHITECTURES, stand in the recipes.
    hipcc compiles for gfx906 where nothing says otherwise; HCC_AMDGPU_TARGET does.
    """
    targets = ";".join(build.gfx)
    environment = {
        "ROCM_PATH": build.rocm_path,
        "ROCM_HOME": build.rocm_path,
        "PYTORCH_ROCM_ARCH": targets,
        "GPU_ARCHS": targets,
        "AMDGPU_TARGETS": targets,
        "HCC_AMDGPU_TARGET": ",".join(build.gfx),
    }
    if len(build.gfx) == 1:
        environment["HIP_ARCHITECTURES"] = targets
    flags = _prefix_maps(build)
    return environment | ({"HIPCC_COMPILE_FLAGS_APPEND": flags} if flags else {})


def _prefix_maps(build: Build) -> str:
    """Give the flags that keep directories of this build out of what is compiled (``__FILE__``)."""
    listed = [f"-ffile-prefix-map={path}={name}" for path, name in build.moved.items()]
    return " ".join(flag for flag in listed if len(flag.split()) == 1)  # they are split at blanks


def _notes(recipe: Recipe, build: Build, *, standing_in: bool) -> Iterator[str]:
    if not recipe.must_contain:
        yield f"{build.title} compiles nothing: its wheel is pure Python and holds no GPU code."
    if recipe.native_cpu and build.cpu and standing_in:
        yield f"Host code is compiled for {build.cpu}; the source itself would take the CPU that builds."
    elif recipe.native_cpu:
        yield "Host code is compiled for the CPU that builds, and may not run on another model."
    for name, value in recipe.run_environment.items():
        yield f"When it runs, {name}={value} must be set."
