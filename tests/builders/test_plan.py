"""A lock becomes tasks, and wheels in the index are found."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from msgspec.structs import replace

from builders.building.plan import BuildHost, Task, find_build_host, local_build_host, plan
from builders.index import Index
from builders.machine import host
from resolver.answers.resolve import resolve
from resolver.errors import EnvironmentLacksError, LockError, UsageError
from resolver.facts import catalog as facts
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Sdist
from resolver.indexes import SourceClass
from resolver.model import Request, Requirement, Resolution, Target
from resolver.versions import parse_specifier
from tests.support.locks import built_pick, lock_of
from tests.support.records import record_of
from tests.support.tasks import make_distribution, make_host, make_recipe, make_resolution, make_task


@pytest.fixture(scope="module")
def lock(catalog: Catalog) -> Resolution:
    """Resolve for this machine: deepspeed is built against the CPU build of torch."""
    return locked(
        catalog,
        Target(
            backend="cpu",
            gfx=(),
            site="local",
            date=datetime.date(2026, 11, 21),
            python=host.running_python(),
            glibc=host.glibc_version(),
        ),
        deepspeed="==0.19.8",
        torch="==2.13.0",
    )


def locked(catalog: Catalog, target: Target, **requested: str) -> Resolution:
    requirements = tuple(
        Requirement(name, parse_specifier(versions) if versions else None, f"{name}{versions}")
        for name, versions in requested.items()
    )
    answer = resolve(catalog, Request(target, requirements))
    assert isinstance(answer, Resolution)
    return answer


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index")


def here() -> BuildHost:
    return local_build_host(host.running_python())


@pytest.mark.parametrize(
    ("torch", "locked_rocm", "expected"),
    [
        ("2.12.0+rocm7.14.1", "", "7.14.1"),
        ("2.14.1+rocm7.14", "", "7.14.*"),
        ("2.14.1+rocm7.14", "7.14.0", "7.14.0"),
        ("2.13.0+rocm7.2", "", ""),
    ],
)
def test_wheel_is_compiled_against_the_rocm_packages_of_torch(
    catalog: Catalog, index: Index, torch: str, locked_rocm: str, expected: str
) -> None:
    """It is the ROCm of the lock if an index has it; torch installs the same."""
    picks = [make_distribution("deepspeed", "0.19.8"), make_distribution("torch", torch, origin="published")]
    if locked_rocm:
        picks.append(make_distribution("rocm", locked_rocm, origin="published"))
    lock = make_resolution(*picks, gfx=("gfx90a",))
    (task,) = plan(lock, catalog, index, make_host(rocm="7.2.4"))
    assert task.pip_rocm == expected
    assert task.needs_rocm_in_image == (not expected)
    assert task.rocm == (expected.removesuffix(".*") or "7.2.4")
    other = replace(task, pip_rocm="9.9")
    assert other.build_key != task.build_key


def deepspeed(lock: Resolution, catalog: Catalog, index: Index) -> Task:
    (task,) = plan(lock, catalog, index, here())
    return task


def with_pick(lock: Resolution, name: str, **changes: Any) -> Resolution:
    picks = [msgspec.structs.replace(pick, **changes) if pick.name == name else pick for pick in lock.picks]
    return msgspec.structs.replace(lock, picks=tuple(picks))


def with_recipe(catalog: Catalog, **changes: Any) -> Catalog:
    rows = [
        msgspec.structs.replace(row, **changes) if (row.package, row.backend) == ("deepspeed", "cpu") else row
        for row in catalog.recipe
    ]
    return msgspec.structs.replace(catalog, recipe=rows)


def test_plan_of_lock_has_one_task(lock: Resolution, catalog: Catalog, index: Index) -> None:
    task = deepspeed(lock, catalog, index)
    assert task.title == "deepspeed 0.19.8+cpu.torch2.13.0"
    assert task.wheel is None
    assert task.torch is not None
    assert task.torch.version.startswith("2.13.0")
    assert task.recipe.must_contain == ("deepspeed/ops/adam/cpu_adam_op*.so",)
    assert task.build_host.python.path == host.find_python(host.running_python())
    assert not index.root.exists()


def test_plan_without_index_for_torch_is_rejected(lock: Resolution, catalog: Catalog, index: Index) -> None:
    preinstalled = with_pick(lock, "torch", version="2.13.0+ours", origin="preinstalled", index="")
    with pytest.raises(EnvironmentLacksError, match=r"torch 2\.13\.0\+ours is installed in the base image"):
        plan(preinstalled, catalog, index, here())


def test_build_key_is_stable(lock: Resolution, catalog: Catalog, index: Index) -> None:
    first = deepspeed(lock, catalog, index)
    again = deepspeed(msgspec.structs.replace(lock), facts.load(), index)
    assert first.build_key == again.build_key
    assert len(first.build_key) == 64


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("torch", {"version": "2.13.1+cpu"}),
        ("deepspeed", {"sdist": Sdist("deepspeed-0.19.8.tar.gz", "0" * 64)}),
        ("deepspeed", {"wheel_version": "0.19.8+cpu.torch2.13.1"}),
    ],
)
def test_build_key_changes_with_lock(
    lock: Resolution, catalog: Catalog, index: Index, name: str, changes: dict[str, Any]
) -> None:
    before = deepspeed(lock, catalog, index).build_key
    assert deepspeed(with_pick(lock, name, **changes), catalog, index).build_key != before


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"DS_BUILD_CPU_ADAM": "0"}},
        {"declared": ("setuptools",)},
        {"undeclared": ("torch",)},
        {"match_runtime": ()},
        {"options": ("--plain",)},
        {"must_contain": ()},
        {"native_cpu": False},
    ],
)
def test_build_key_changes_with_recipe(
    lock: Resolution, catalog: Catalog, index: Index, changes: dict[str, Any]
) -> None:
    before = deepspeed(lock, catalog, index).build_key
    assert deepspeed(lock, with_recipe(catalog, **changes), index).build_key != before


@pytest.mark.parametrize("changes", [{"note": "another"}, {"source": "elsewhere"}, {"status": "inferred"}])
def test_build_key_ignores_notes_and_sources(
    lock: Resolution, catalog: Catalog, index: Index, changes: dict[str, Any]
) -> None:
    before = deepspeed(lock, catalog, index).build_key
    assert deepspeed(lock, with_recipe(catalog, **changes), index).build_key == before


@pytest.mark.parametrize("what", ["compiler_identity", "glibc_version", "cpu_identity"])
def test_build_key_changes_with_machine(
    lock: Resolution, catalog: Catalog, index: Index, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    before = deepspeed(lock, catalog, index).build_key
    monkeypatch.setattr(host, what, lambda: "another")
    assert deepspeed(lock, catalog, index).build_key != before


def test_build_key_ignores_cpu_without_native_code(
    lock: Resolution, catalog: Catalog, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    portable = with_recipe(catalog, native_cpu=False)
    before = deepspeed(lock, portable, index).build_key
    monkeypatch.setattr(host, "cpu_identity", lambda: "another")
    assert deepspeed(lock, portable, index).build_key == before


@pytest.mark.parametrize("mpi", [False, True])
def test_build_key_changes_with_mpi_if_it_is_used(
    lock: Resolution, catalog: Catalog, index: Index, monkeypatch: pytest.MonkeyPatch, mpi: bool
) -> None:
    changed = with_recipe(catalog, mpi=mpi)
    before = deepspeed(lock, changed, index).build_key
    monkeypatch.setattr(host, "mpi_identity", lambda: "another")
    assert (deepspeed(lock, changed, index).build_key != before) == mpi


def test_task_built_without_torch_still_needs_it(catalog: Catalog, index: Index) -> None:
    target = Target(backend="rocm", gfx=("gfx90a",), site="lumi-g", date=datetime.date(2026, 3, 1))
    requested = {"bitsandbytes": "==0.48.2", "torch": "", "mpi4py": ""}
    tasks = plan(locked(catalog, target, **requested), catalog, index, here())
    assert {task.pick.name: task.needs_torch for task in tasks} == {"bitsandbytes": True, "mpi4py": False}
    assert all("torch" not in task.recipe.undeclared for task in tasks)


def test_plan_finds_wheel_with_same_build_key(
    lock: Resolution, catalog: Catalog, index: Index, make_wheel: Callable[..., Path]
) -> None:
    task = deepspeed(lock, catalog, index)
    version = task.pick.pinned
    index.publish(make_wheel(name="deepspeed", version=version), {"build_key": "of other inputs"})
    assert deepspeed(lock, catalog, index).wheel is None
    number = f"deepspeed-{version}-1-py3-none-any.whl"
    rebuilt = make_wheel(name="deepspeed", version=version)
    wheel = index.publish(rebuilt.rename(rebuilt.with_name(number)), record_of(task.build_key))
    assert deepspeed(lock, catalog, index) == replace(task, wheel=wheel)


def test_plan_of_unknown_name_is_rejected(lock: Resolution, catalog: Catalog, index: Index) -> None:
    assert [task.pick.name for task in plan(lock, catalog, index, here(), ["deepspeed"])] == ["deepspeed"]
    with pytest.raises(UsageError, match="does not build 'depspeed'") as caught:
        plan(lock, catalog, index, here(), ["depspeed"])
    assert caught.value.hint == "Did you mean deepspeed?"
    with pytest.raises(UsageError, match="does not build 'torch'"):
        plan(lock, catalog, index, here(), ["torch"])


def test_plan_of_published_lock_is_empty(lock: Resolution, catalog: Catalog, index: Index) -> None:
    published = with_pick(lock, "deepspeed", origin="published")
    assert plan(published, catalog, index, here()) == []
    with pytest.raises(UsageError) as caught:
        plan(published, catalog, index, here(), ["deepspeed"])
    assert caught.value.hint == "The lock does not build any distribution."


def test_plan_without_recipe_is_rejected(lock: Resolution, catalog: Catalog, index: Index) -> None:
    with pytest.raises(LockError, match=r"deepspeed 9\.9, but the catalog has no recipe") as caught:
        plan(with_pick(lock, "deepspeed", version="9.9"), catalog, index, here())
    assert "--catalog" in caught.value.hint


def test_task_with_core_hours_warns(lock: Resolution, catalog: Catalog, index: Index) -> None:
    (task,) = plan(lock, with_recipe(catalog, core_hours=6.0), index, here())
    assert "at least 6 core hours" in task.warnings[0]
    assert deepspeed(lock, catalog, index).warnings == ()


def test_flash_attn_warns_for_ck_and_not_for_triton(catalog: Catalog) -> None:
    recipes = [row for row in catalog.recipe if row.package == "flash-attn" and row.backend == "rocm"]
    assert {row.core_hours >= 3 for row in recipes if row.must_contain} == {True}
    assert {row.core_hours < 0.01 for row in recipes if not row.must_contain} == {True}


def test_each_input_is_read_once_however_deep_the_requirements_are(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    inputs = Task.inputs.fget  # type: ignore[attr-defined]

    def counted(task: Task) -> Any:
        read.append(task.pick.name)
        return inputs(task)

    monkeypatch.setattr(Task, "inputs", property(counted))
    ladder: list[Task] = []
    for number in range(16):  # each requires the two before it, so the paths grow as the Fibonacci numbers
        task = make_task(make_recipe(), pick=make_distribution(f"rung{number}"))
        ladder.append(replace(task, requires=tuple(ladder[-2:])))
    keys = [task.build_key for task in ladder] + [task.build_key for task in ladder]
    assert len(set(keys)) == 16
    assert sorted(read) == sorted({task.pick.name for task in ladder})


@pytest.mark.parametrize(("kind", "runs_here"), [("pure", True), ("compiled", False)])
def test_only_pure_sources_are_built_on_the_host_for_rocm(
    kind: Literal["pure", "compiled"], runs_here: bool
) -> None:
    lock = lock_of(built_pick("any", source=SourceClass(kind, "setup.py")))
    lock = replace(lock, target=replace(lock.target, backend="rocm", gfx=("gfx90a",)))
    if runs_here:
        assert find_build_host(lock, kind=None).runtime.image is None
    else:
        with pytest.raises(EnvironmentLacksError, match="compiled in a base image"):
            find_build_host(lock, kind="host")
