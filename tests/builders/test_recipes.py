"""A recipe applied to a task: variables, errors, and all shipped recipes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.building.apply_recipe import AppliedRecipe, apply_recipe
from builders.recipes import (
    Program,
    check_source,
    choose_compilers,
    recipe_as_built,
    with_ops,
)
from resolver.errors import EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Op, Recipe
from tests.support.errors import has_id
from tests.support.tasks import make_recipe, make_task

TWO = ("gfx90a", "gfx942")
LUMI = (
    Program("gcc", "7.5.0", "/usr/bin/gcc"),
    Program("g++", "7.5.0", "/usr/bin/g++"),
    Program("gcc-12", "12.3.0", "/usr/bin/gcc-12"),
    Program("g++-12", "12.3.0", "/usr/bin/g++-12"),
)
"""Compilers of LUMI's SUSE images."""


CATALOG = load()


def apply(made: Recipe, *gfx: str, jobs: int = 1, **fields: Any) -> AppliedRecipe:
    return apply_recipe(make_task(made, *gfx, **fields), jobs=jobs)


def test_placeholders_write_each_form_of_targets() -> None:
    texts = {"A": "{gfx}", "B": "{gfx:,}", "C": "{gfx: }", "D": "-j{jobs}", "E": "{rocm}/{rocm:digits}"}
    made = apply(
        make_recipe(environment=texts | {"F": "{rocm-path}/bin"}),
        *TWO,
        torch="2.9.1+rocm6.4",
        rocm="6.4.4",
        rocm_path="/opt/rocm-6.4.4",
        jobs=3,
    ).environment
    assert made["A"] == "gfx90a;gfx942"
    assert made["B"] == "gfx90a,gfx942"
    assert made["C"] == "gfx90a gfx942"
    assert made["D"] == "-j3"
    assert made["E"] == "6.4/64"
    assert made["F"] == "/opt/rocm-6.4.4/bin"


def test_rocm_placeholder_is_that_of_torch() -> None:
    made = apply(make_recipe(environment={"A": "{rocm:digits}"}), "gfx90a", torch="2.15.0+rocm7.14")
    assert made.environment["A"] == "714"
    other = apply(make_recipe(environment={"A": "{rocm}"}), "gfx90a", torch="2.9.1", rocm="7.0.2")
    assert other.environment["A"] == "7.0"


def test_placeholders_in_options_and_commands() -> None:
    made = apply(
        make_recipe(
            options=("--arch={gfx}",), prepare=(("cmake", "-DARCH={gfx}", "-B", "b"), ("make", "-j{jobs}"))
        ),
        *TWO,
        jobs=2,
    )
    assert made.options == ("--arch=gfx90a;gfx942",)
    assert made.prepare == (("cmake", "-DARCH=gfx90a;gfx942", "-B", "b"), ("make", "-j2"))


def test_environment_names_target_in_all_variables() -> None:
    made = apply(make_recipe(), "gfx90a", jobs=5).environment
    for name in (
        "PYTORCH_ROCM_ARCH",
        "GPU_ARCHS",
        "AMDGPU_TARGETS",
        "HCC_AMDGPU_TARGET",
        "HIP_ARCHITECTURES",
    ):
        assert made[name] == "gfx90a"
    assert made["ROCM_PATH"] == made["ROCM_HOME"] == "/opt/rocm"
    assert made["MAX_JOBS"] == made["CMAKE_BUILD_PARALLEL_LEVEL"] == "5"
    assert made["SOURCE_DATE_EPOCH"] == "315532800"


def test_rocm_of_pip_is_found_by_every_tool() -> None:
    """The tree for development may lack device libraries, so they are those of the runtime package."""
    root = "/layer/site-packages/_rocm_sdk_devel"
    made = apply(make_recipe(), "gfx90a", pip_rocm="10.1.0", rocm_path=root).environment
    assert {made[name] for name in ("ROCM_PATH", "ROCM_HOME", "HIP_PATH")} == {root}
    assert made["CMAKE_PREFIX_PATH"] == f"{root}:{root}/lib/llvm"
    assert made["HIP_DEVICE_LIB_PATH"] == "/layer/site-packages/_rocm_sdk_core/lib/llvm/amdgcn/bitcode"
    assert "HIP_DEVICE_LIB_PATH" not in apply(make_recipe(), "gfx90a").environment


def test_several_targets_leave_hip_architectures_unset() -> None:
    made = apply(make_recipe(), *TWO).environment
    assert made["HCC_AMDGPU_TARGET"] == "gfx90a,gfx942"
    assert made["PYTORCH_ROCM_ARCH"] == "gfx90a;gfx942"
    assert "HIP_ARCHITECTURES" not in made


def test_cpu_build_has_no_rocm_variables() -> None:
    made = apply(make_recipe("cpu", environment={"A": "1"}))
    assert made.environment["A"] == "1"
    assert not [name for name in made.environment if "ROCM" in name or "GPU" in name]
    assert not made.shims
    assert not made.overlay_mounts


def test_recipe_overrides_environment() -> None:
    made = apply(
        make_recipe(environment={"CXX": "hipcc", "MAX_JOBS": "1", "CC": ""}), "gfx90a", compilers=LUMI, jobs=4
    )
    assert made.environment["CXX"] == "hipcc"
    assert made.environment["MAX_JOBS"] == "1"
    assert "CC" not in made.environment


def test_build_directories_are_mapped_for_every_compiler() -> None:
    task = make_task(make_recipe(environment={"CXXFLAGS": "-O3"}), "gfx90a")
    made = apply_recipe(task, prefix_map={"/cache/x": "/src", "/with blank": "/y"}).environment
    flag = "-ffile-prefix-map=/cache/x=/src"
    assert made["CFLAGS"] == made["HIPFLAGS"] == made["HIPCC_COMPILE_FLAGS_APPEND"] == flag
    assert made["CXXFLAGS"] == f"{flag} -O3"
    cpu = apply_recipe(make_task(make_recipe("cpu")), prefix_map={"/cache/x": "/src"}).environment
    assert "HIPFLAGS" not in cpu


def error_of(recipe: Recipe, *gfx: str, **fields: Any) -> MatrixError:
    with pytest.raises(MatrixError, check=has_id("recipe")) as caught:
        apply(recipe, *gfx, **fields)
    assert caught.value.exit_code == 1
    assert caught.value.hint
    return caught.value


def test_single_target_recipe_rejects_two_targets() -> None:
    single = make_recipe(environment={"HIP_ARCHITECTURES": "{gfx:one}"})
    assert apply(single, "gfx942").environment["HIP_ARCHITECTURES"] == "gfx942"
    output = error_of(single, *TWO).message
    assert "tiny 1.0" in output
    assert "HIP_ARCHITECTURES" in output
    assert "gfx90a, gfx942" in output


def test_rocm_without_target_is_rejected() -> None:
    assert "needs a GPU architecture" in error_of(make_recipe()).message


def test_plain_targets_reject_features() -> None:
    plain = make_recipe(plain_targets=True)
    assert "gfx90a:xnack+" in error_of(plain, "gfx90a:xnack+").message
    free = apply(make_recipe(), "gfx90a:xnack+")
    assert free.environment["PYTORCH_ROCM_ARCH"] == "gfx90a:xnack+"


def test_mixed_wave_sizes_are_rejected() -> None:
    single = make_recipe(one_wave_size=True)
    assert apply(single, *TWO).shims
    assert "wave size" in error_of(single, "gfx90a", "gfx1100").message
    assert apply(make_recipe(), "gfx90a", "gfx1100").shims


def test_older_cxx_standard_than_torch_is_rejected() -> None:
    pinned = make_recipe(cxx_standard="17")
    assert apply(pinned, "gfx90a", cxx_standard="17").environment
    output = error_of(pinned, "gfx90a", cxx_standard="20", torch="2.14.0+rocm7.2").message
    assert "C++17" in output
    assert "C++20" in output
    assert apply(make_recipe(cxx_standard="20"), "gfx90a", cxx_standard="17").environment


def test_compilers_are_those_of_image() -> None:
    made = apply(make_recipe(), "gfx90a", compilers=LUMI, cxx_standard="17").environment
    assert (made["CC"], made["CXX"]) == ("gcc-12", "g++-12")
    assert apply(make_recipe(), "gfx90a", compilers=LUMI).environment["CXX"] == "g++"


@pytest.mark.parametrize(
    ("names", "standard", "cxx", "cc"),
    [
        ("g++ 13.2.0, gcc 13.2.0, g++-14 14.1.0, gcc-14 14.1.0", "17", "g++", "gcc"),
        ("g++ 9.4.0, gcc 9.4.0, g++-10 10.1.0, g++-11 11.1.0, gcc-11 11.1.0", "20", "g++-11", "gcc-11"),
        ("g++ 9.4.0, clang++ 17.0.0, clang 17.0.0", "20", "clang++", "clang"),
        ("c++ 11.4.0", "", "c++", None),
        ("g++ 7.5.0, g++-12 12.3.0", "17", "g++-12", None),
    ],
)
def test_choose_compilers_by_standard_and_name(names: str, standard: str, cxx: str, cc: str | None) -> None:
    pairs = [pair.split() for pair in names.split(", ")]
    compilers = [Program(name, version, f"/usr/bin/{name}") for name, version in pairs]
    chosen = cxx_, cc_ = choose_compilers(compilers, standard)
    assert cxx_.name == cxx
    assert (cc_.name if cc_ else None) == cc
    assert choose_compilers(compilers[::-1], standard) == chosen


def test_missing_compiler_for_standard_is_an_error() -> None:
    with pytest.raises(EnvironmentLacksError) as caught:
        choose_compilers(LUMI[:2], cxx_standard="17")
    assert "C++17" in caught.value.message
    assert "g++ 7.5.0" in caught.value.message


def test_pure_wheel_is_noted(catalog: Catalog) -> None:
    release = catalog.release["flash-attn", "2.8.3", "triton"]
    recipe = catalog.recipe_for(release, "rocm")
    assert recipe is not None
    made = apply(recipe, "gfx90a", version="2.8.3")
    assert made.environment["FLASH_ATTENTION_TRITON_AMD_ENABLE"] == "TRUE"
    assert made.environment["FLASH_ATTENTION_FORCE_BUILD"] == "TRUE"
    assert any("pure Python" in note for note in made.notes)
    assert any("Set FLASH_ATTENTION_TRITON_AMD_ENABLE=TRUE" in note for note in made.notes)


# --- ops ---------------------------------------------------------------------------------------------


def with_choice() -> Recipe:
    ops = (Op("a", "T_A", "t/a*.so"), Op("b", "T_B", "t/b*.so"), Op("c", "T_C", "t/c*.so", releases=">=2"))
    return make_recipe(
        ops=ops,
        all_ops=("T_ALL",),
        environment={"T_A": "1", "T_ALL": "1", "OTHER": "x"},
        must_contain=("t/core*.so", "t/a*.so"),
    )


def test_chosen_ops_replace_those_of_recipe() -> None:
    chosen = with_ops(with_choice(), ["b", "b"], "1.0")
    assert chosen.environment == {"OTHER": "x", "T_B": "1"}
    assert chosen.must_contain == ("t/core*.so", "t/b*.so")
    assert with_ops(with_choice(), ["c"], "2.0").environment["T_C"] == "1"


def test_wheel_is_compared_with_the_ops_it_records() -> None:
    assert recipe_as_built(with_choice(), ["b"]) == with_ops(with_choice(), ["b"], "1.0")
    assert recipe_as_built(with_choice(), []) == with_choice()
    assert recipe_as_built(with_choice(), ["of another catalog"]) == with_choice()


def test_unknown_or_unbuildable_op_is_rejected() -> None:
    with pytest.raises(UsageError, match="no op named 'd'"):
        with_ops(with_choice(), ["d"], "1.0")
    with pytest.raises(UsageError) as caught:
        with_ops(with_choice(), ["c"], "1.0")
    assert ">=2" in caught.value.hint
    with pytest.raises(MatrixError, check=has_id("recipe")):
        with_ops(make_recipe(), ["a"], "1.0")


def test_ops_without_gpu_code_alone_are_rejected(catalog: Catalog) -> None:
    """Otherwise they would be compiled for minutes, and then rejected because they have no GPU code."""
    release = catalog.release["deepspeed", "0.19.8", ""]
    rocm, cpu = (catalog.recipe_for(release, backend) for backend in ("rocm", "cpu"))
    assert rocm is not None
    assert cpu is not None
    with pytest.raises(UsageError, match="cpu_adam, dc") as caught:
        with_ops(rocm, ["cpu_adam", "dc"], "0.19.8")
    assert "fused_adam" in caught.value.hint
    assert with_ops(rocm, ["cpu_adam", "fused_lion"], "0.19.8").environment["DS_BUILD_CPU_ADAM"] == "1"
    assert with_ops(cpu, ["cpu_adam"], "0.19.8").environment["DS_BUILD_CPU_ADAM"] == "1"


def test_ops_of_deepspeed(catalog: Catalog) -> None:
    release = catalog.release["deepspeed", "0.19.8", ""]
    shipped = catalog.recipe_for(release, "rocm")
    assert shipped is not None
    chosen = with_ops(shipped, ["fused_adam"], "0.19.8")
    built = {name for name, value in chosen.environment.items() if name.startswith("DS_BUILD_")}
    assert built == {"DS_BUILD_FUSED_ADAM"}
    assert chosen.environment["DS_ACCELERATOR"] == "cuda"
    assert chosen.must_contain == ("deepspeed/ops/adam/fused_adam_op*.so",)
    with pytest.raises(UsageError):  # broken on ROCm in these releases
        with_ops(shipped, ["async_io"], "0.15.4")


# --- flags that the source reads ----------------------------------------------------------------------


def apex(folder: Path, *, style: str) -> Path:
    """Write the part of a setup.py that distinguishes ROCm/apex's two styles of build flags."""
    texts = {
        "argv": 'if "--cuda_ext" in sys.argv:\n    build()\n',
        "op_builder": 'BUILD = os.environ.get("APEX_BUILD_CUDA_OPS")\nsys.argv.remove("--cuda_ext")\n',
    }
    folder.mkdir()
    (folder / "setup.py").write_text(texts[style])
    return folder


def apex_recipe(catalog: Catalog, version: str, variant: str = "") -> Recipe:
    recipe = catalog.recipe_for(catalog.release["apex", version, variant], "rocm")
    assert recipe is not None
    return recipe


@pytest.mark.parametrize(
    ("version", "variant", "style"),
    [("1.3.0", "", "argv"), ("1.9.0", "e37ed12", "argv"), ("1.9.0a0", "4b03581", "argv"),
     ("1.9.0", "", "op_builder"), ("1.10.0", "73423b4", "op_builder"), ("1.13.0", "", "op_builder")],
)  # fmt: skip
def test_apex_flags_must_fit_commit(
    catalog: Catalog, tmp_path: Path, version: str, variant: str, style: str
) -> None:
    other = {"argv": "op_builder", "op_builder": "argv"}[style]
    recipe = apex_recipe(catalog, version, variant)
    check_source(recipe, apex(tmp_path / "right", style=style), "apex")
    wrong = apex(tmp_path / "wrong", style=other)
    all_of_them = [row for row in catalog.recipe if row.package == "apex"]
    with pytest.raises(MatrixError, check=has_id("recipe")) as caught:
        check_source(recipe, wrong, f"apex {version}", all_of_them)
    assert f"apex {version}" in caught.value.message
    assert "setup.py" in caught.value.message
    assert "nothing was compiled" in caught.value.message
    assert "fits the recipe for apex" in caught.value.hint


def test_apex_recipes_use_both_flag_styles(catalog: Catalog) -> None:
    old, new = apex_recipe(catalog, "1.9.0", "e37ed12"), apex_recipe(catalog, "1.9.0")
    assert old.options == ("--cpp_ext", "--cuda_ext")
    assert not [name for name in old.environment if name.startswith("APEX_BUILD")]
    assert new.options == ()
    assert new.environment["APEX_BUILD_CUDA_OPS"] == "1"


def test_source_without_kernels_is_rejected(tmp_path: Path) -> None:
    wants = make_recipe(source_has=("csrc/ck/*.hpp",))
    (tmp_path / "csrc" / "ck").mkdir(parents=True)
    with pytest.raises(MatrixError, match=re.escape("csrc/ck/*.hpp is missing"), check=has_id("recipe")):
        check_source(wants, tmp_path, "tiny 1.0")
    (tmp_path / "csrc" / "ck" / "core.hpp").touch()
    check_source(wants, tmp_path, "tiny 1.0")


def test_source_without_stated_file_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"setup\.py does not mention GPU_ARCHS", check=has_id("recipe")):
        check_source(make_recipe(source_contains={"setup.py": "GPU_ARCHS"}), tmp_path, "tiny 1.0")
    check_source(make_recipe(source_lacks={"setup.py": "GPU_ARCHS"}), tmp_path, "tiny 1.0")


# --- the shipped recipes ------------------------------------------------------------------------------

READ_BY_SOURCES = (
    "PYTORCH_ROCM_ARCH", "GPU_ARCHS", "AMDGPU_TARGETS", "HCC_AMDGPU_TARGET", "HIP_ARCHITECTURES",
    "BNB_ROCM_ARCH", "NVTE_ROCM_ARCH",
)  # fmt: skip
SEPARATOR = {"HCC_AMDGPU_TARGET": ",", "HIP_ARCHITECTURES": " "}


def shipped(backend: str) -> list[tuple[Recipe, str]]:
    """Return every recipe that builds a release of the shipped catalog, with such a release."""
    recipes: dict[int, tuple[Recipe, str]] = {}
    for release in CATALOG.release.values():
        recipe = CATALOG.recipe_for(release, backend)
        if recipe is not None and backend in release.backend:
            recipes[id(recipe)] = (recipe, release.version)
    return list(recipes.values())


def named(value: object) -> str:
    return (
        f"{value.package}{value.releases}{value.variant or ''}" if isinstance(value, Recipe) else str(value)
    )


@pytest.mark.parametrize(("recipe", "version"), shipped("rocm"), ids=named)
def test_shipped_recipe_names_target_everywhere(recipe: Recipe, version: str) -> None:
    made = apply(recipe, "gfx90a", version=version, torch="2.9.1+rocm6.4", jobs=2)
    for name in READ_BY_SOURCES[:5]:
        assert made.environment[name] == "gfx90a"
    for name in set(recipe.environment) & set(READ_BY_SOURCES):
        assert made.environment[name] == "gfx90a"
    written = [*made.environment.values(), *made.options, *(word for line in made.prepare for word in line)]
    assert not [text for text in written if re.search(r"[{}]", text)]


@pytest.mark.parametrize(("recipe", "version"), shipped("rocm"), ids=named)
def test_shipped_recipe_takes_two_targets_or_rejects(recipe: Recipe, version: str) -> None:
    fields: dict[str, Any] = {"version": version, "torch": "2.9.1+rocm6.4"}
    if any("{gfx:one}" in text for text in recipe.environment.values()):
        with pytest.raises(MatrixError, match="one GPU architecture at a time", check=has_id("recipe")):
            apply(recipe, *TWO, **fields)
        return
    made = apply(recipe, *TWO, **fields).environment
    for name in {"PYTORCH_ROCM_ARCH", "HCC_AMDGPU_TARGET"} | (set(recipe.environment) & set(READ_BY_SOURCES)):
        assert made[name].split(SEPARATOR.get(name, ";")) == list(TWO)


def test_shipped_recipes_for_single_target(catalog: Catalog) -> None:
    single = {recipe.package for recipe in catalog.recipe if "{gfx:one}" in recipe.environment.values()}
    assert single == {"causal-conv1d", "mamba-ssm", "xformers"}


@pytest.mark.parametrize(("recipe", "version"), shipped("cpu"), ids=named)
def test_shipped_cpu_recipe_applies(recipe: Recipe, version: str) -> None:
    made = apply(recipe, version=version, torch="2.13.0+cpu", jobs=2)
    expected = {name: value.replace("{jobs}", "2") for name, value in recipe.environment.items()}
    assert made.environment.items() >= expected.items()


def test_recipe_promises_ops_that_it_builds() -> None:
    wrong = []
    for recipe in CATALOG.recipe:
        promised = {op.object for op in recipe.ops} & {*recipe.must_contain}
        built = {op.object for op in recipe.ops if recipe.environment.get(op.variable) == "1"}
        named_ops = {op.object for op in recipe.ops if op.variable in recipe.environment}
        if not built <= promised or (not recipe.all_ops and promised != named_ops):
            wrong.append((named(recipe), promised, built, named_ops))
    assert wrong == []


@pytest.mark.parametrize(
    ("version", "accelerator", "wave"),
    [("0.14.0", None, False), ("0.14.2", "cuda", True), ("0.19.8", "cuda", True)],
)
def test_deepspeed_recipe_sets_accelerator(
    catalog: Catalog, version: str, accelerator: str | None, wave: bool
) -> None:
    recipe = catalog.recipe_for(catalog.release["deepspeed", version, ""], "rocm")
    assert recipe is not None
    assert recipe.environment.get("DS_ACCELERATOR") == accelerator
    assert recipe.one_wave_size is wave


def test_bitsandbytes_library_is_named_for_torch(catalog: Catalog) -> None:
    release = msgspec.structs.replace(catalog.release["bitsandbytes", "0.50.2", ""], version="0.50.1")
    recipe = catalog.recipe_for(release, "rocm")
    assert recipe is not None
    made = apply(recipe, *TWO, version="0.50.1", torch="2.9.1+rocm7.0", rocm="7.0.2")
    configure, compile_ = made.prepare
    assert "-DCOMPUTE_BACKEND=hip" in configure
    assert "-DBNB_ROCM_ARCH=gfx90a;gfx942" in configure
    assert "-DROCM_VERSION=70" in configure
    assert compile_[:2] == ("cmake", "--build")
    assert made.environment["BNB_SKIP_CMAKE"] == "1"
