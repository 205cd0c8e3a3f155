"""One input of a build changes at a time: only a relevant input causes a rebuild, whose reason names it."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from builders.building.plan import BuildHost, Task
from builders.building.records import changes_since_last_build
from builders.index import Index
from builders.recipes import Program
from resolver.facts.schema import Git, Patch, Sdist
from resolver.model import Distribution, Edge
from tests.support.records import record_of
from tests.support.tasks import PYTHON, make_distribution, make_host, make_recipe, make_resolution

IDENTITY = {"runtime": "sha256:1", "python": "3.12.3 (cp312)", "glibc": "2.39", "cpu": "znver3"}
COMPILERS = (Program("g++", "7.5.0", "/usr/bin/g++"), Program("g++-12", "12.3.0", "/usr/bin/g++-12"))
SDIST = Sdist("tiny-1.0.tar.gz", "1" * 64)
PATCH = Patch("fix.patch", "2" * 64)
NUMPY = make_distribution("numpy", "2.1.0", origin="published")


def required(**environment: str) -> Task:
    """Return the task of a package that is needed to build the other package."""
    pick = make_distribution("base", sdist=Sdist("base-1.0.tar.gz", "3" * 64))
    recipe = make_recipe(package="base", environment=environment)
    return Task(pick, recipe, make_host(identity=IDENTITY), make_resolution(pick, gfx=("gfx90a",)))


def build_host(**changes: str) -> BuildHost:
    return make_host(identity=IDENTITY | changes, compilers=COMPILERS)


def make(
    *others: Distribution,
    pick: dict[str, Any] | None = None,
    recipe: dict[str, Any] | None = None,
    torch: str = "2.9.1+rocm6.4",
    gfx: tuple[str, ...] = ("gfx90a",),
    **task: Any,
) -> Task:
    """Return a task with every kind of input."""
    own = {"sdist": SDIST, "patches": (PATCH,), "wheel_version": "1.0+rocm6.4", **(pick or {})}
    tiny = make_distribution("tiny", **own)
    rows: dict[str, Any] = {
        "declared": ("setuptools>=77",),
        "undeclared": ("ninja",),
        "match_runtime": ("torch", "numpy"),
        "environment": {"CFLAGS": "-O2"},
        "options": ("--hip",),
        "prepare": (("sed", "-i", "s/a/b/", "setup.py"),),
        "must_contain": ("tiny/*.so",),
        "native_cpu": True,
        "cxx_standard": "17",
    }
    picks = [make_distribution("torch", torch, origin="published"), *(others or (NUMPY,)), tiny]
    fields = {"build_host": build_host(), "requires": (required(),), "cxx_standard": "17", **task}
    return Task(
        tiny, make_recipe(**(rows | (recipe or {}))), resolution=make_resolution(*picks, gfx=gfx), **fields
    )


def with_recipe(**changes: Any) -> Task:
    return make(recipe=changes)


MATTERS: dict[str, tuple[Task, str]] = {
    "source": (make(pick={"sdist": Sdist("tiny-1.0.tar.gz", "4" * 64)}), "source.sha256"),
    "version": (make(pick={"wheel_version": "1.1+rocm6.4"}), "version"),
    "patch": (make(pick={"patches": (Patch("fix.patch", "5" * 64),)}), "patches"),
    "no patch": (make(pick={"patches": ()}), "patches"),
    "environment": (with_recipe(environment={"CFLAGS": "-O3"}), "recipe.environment.CFLAGS"),
    "options": (with_recipe(options=("--hip", "--fast")), "recipe.options"),
    "commands before": (with_recipe(prepare=()), "recipe.prepare"),
    "promised objects": (with_recipe(must_contain=("tiny/a*.so",)), "recipe.must_contain"),
    "declared build requirement": (with_recipe(declared=("setuptools==80.9.0",)), "recipe.declared"),
    "undeclared build requirement": (with_recipe(undeclared=("ninja==1.13.0",)), "recipe.undeclared"),
    "build requirement of ours": (make(requires=(required(CFLAGS="-O3"),)), "requires.base"),
    "torch": (make(torch="2.9.1+rocm6.3"), "torch"),
    "version matched at run time": (make(make_distribution("numpy", "2.2.0")), "run_requires.numpy"),
    "image": (make(build_host=build_host(runtime="sha256:2")), "runtime"),
    "Python ABI": (make(build_host=build_host(python="3.13.1 (cp313)")), "python"),
    "glibc": (make(build_host=build_host(glibc="2.40")), "glibc"),
    "CPU": (make(build_host=build_host(cpu="znver4")), "cpu"),
    "architectures": (make(gfx=("gfx90a", "gfx942")), "gfx"),
    "C++ standard of the recipe": (with_recipe(cxx_standard="20"), "cxx_standard"),
    "C++ standard of torch": (make(cxx_standard="20"), "cxx_standard"),
}
IRRELEVANT: dict[str, Task] = {
    "nothing": make(),
    "note of the recipe": with_recipe(note="another"),
    "source of the recipe": with_recipe(source="elsewhere", status="documented"),
    "releases of the recipe": with_recipe(releases=">=1"),
    "imports to probe": with_recipe(imports=("tiny",)),
    "checks of the source": with_recipe(source_has=("setup.py",)),
    "memory and time": with_recipe(memory_per_job=9.0, core_hours=8.0),
    "name of a patch": make(pick={"patches": (Patch("other.patch", "2" * 64),)}),
    "support of the pick": make(pick={"support": "documented"}),
    "another package of the lock": make(NUMPY, make_distribution("pandas", origin="published")),
    "path of Python": make(build_host=replace(build_host(), python=replace(PYTHON, prefix=Path("/opt")))),
    "other recipes": make(other_recipes=(make_recipe(package="tiny"),)),
}


@pytest.fixture
def index(tmp_path: Path, make_wheel: Callable[..., Path]) -> Index:
    """Return an index with the wheel of the unchanged task."""
    index, task = Index(tmp_path / "index"), make()
    record = record_of(task.build_key)
    record["predicate"]["buildDefinition"]["internalParameters"]["inputs"] = task.inputs
    record["predicate"]["buildDefinition"]["externalParameters"]["version"] = task.pick.pinned
    index.publish(make_wheel(version=task.pick.pinned), record)
    return index


@pytest.mark.parametrize("name", MATTERS)
def test_changed_input_causes_a_rebuild_that_names_it(index: Index, name: str) -> None:
    task, path = MATTERS[name]
    assert index.find("tiny", task.build_key) is None
    last, changes = changes_since_last_build(task, index)
    assert last == "tiny 1.0+rocm6.4"
    assert [change.input for change in changes] == [path]


@pytest.mark.parametrize("name", IRRELEVANT)
def test_irrelevant_change_causes_no_rebuild(index: Index, name: str) -> None:
    assert index.find("tiny", IRRELEVANT[name].build_key) is not None


def test_day_and_driver_of_the_lock_cause_no_rebuild(index: Index) -> None:
    task = make()
    target = with_fields(task.resolution.target, date=datetime.date(2026, 9, 1), driver="6.8", site="lumi-g")
    later = replace(task, resolution=with_fields(task.resolution, target=target))
    assert index.find("tiny", later.build_key) is not None


def test_submodule_that_is_left_out_causes_a_rebuild() -> None:
    def key(*submodules: str) -> str:
        return make(pick={"sdist": None, "git": Git("https://host/tiny", "1" * 40, submodules)}).build_key

    assert key("third_party/ck") != key()


def test_version_of_triton_matters_to_those_that_require_it() -> None:
    def keys(*edges: Edge) -> set[str]:
        tasks = [make(NUMPY, make_distribution("triton", version)) for version in ("3.5.0", "3.6.0")]
        return {
            replace(task, resolution=with_fields(task.resolution, edges=edges)).build_key for task in tasks
        }

    assert len(keys()) == 1
    assert len(keys(Edge("tiny", "triton", "run", declared=True))) == 2
