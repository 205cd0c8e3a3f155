"""Builds fetch torch and its dependencies as the lock lists them, without pip."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.building.inputs import Limits, fetching_of, requirements_of
from builders.containers.runtime import HostRuntime
from builders.environments.layers import fetch_build_wheels
from builders.environments.wheelhouse import FetchedWheel, FetchOptions
from resolver.errors import EnvironmentLacksError
from resolver.model import Edge, Resolution
from tests.support.locks import built_pick, local_file, lock_of, locked_pick
from tests.support.recorder import Recorder
from tests.support.tasks import PYTHON, make_recipe, make_task
from tests.support.tiny import tiny_wheel


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Resolution:
    """Return a lock with torch, its requirements, and a distribution that torch does not require."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    versions = {"torch": "2.13.0+cpu", "sympy": "1.14.0", "mpmath": "1.3.0", "rich": "15.0"}
    requires = {
        "torch": ["sympy", "jinja2; sys_platform == 'win32'"],
        "sympy": ["mpmath"],
        "mpmath": ["sympy"],
    }

    def wheel_of(name: str, version: str) -> Path:
        return tiny_wheel(tmp_path / "files", name, version, requires=requires.get(name, ()))

    return lock_of(
        built_pick("tiny"),
        *(
            locked_pick(name, version, local_file(wheel_of(name, version)))
            for name, version in versions.items()
        ),
        edges=(Edge("tiny", "torch", "run", declared=True), Edge("torch", "sympy", "run", declared=True)),
    )


def fetched(lock: Resolution, *, offline: bool = False) -> tuple[FetchedWheel, ...]:
    task = make_task(make_recipe("cpu", undeclared=("torch",)))
    task = task.__class__(task.pick, task.recipe, task.build_host, lock)
    limits = Limits(offline=offline)
    return fetching_of(task, limits, log=Path("log"), reporter=Recorder()).torch


def names(lock: Resolution) -> list[str]:
    return [wheel.name for wheel in fetched(lock)]


def changed(lock: Resolution, name: str, **fields: object) -> Resolution:
    picks = tuple(replace(pick, **fields) if pick.name == name else pick for pick in lock.picks)
    return replace(lock, picks=picks)


def test_torch_comes_with_all_it_requires(lock: Resolution) -> None:
    assert names(lock) == ["mpmath", "sympy", "torch"]


def test_pip_resolves_torch_unless_lock_has_all_wheels(lock: Resolution) -> None:
    pick = lock.pick("mpmath")
    assert pick is not None
    file = pick.files[0]
    assert names(changed(lock, "mpmath", files=())) == []
    assert names(changed(lock, "mpmath", files=(replace(file, sha256=""),))) == []
    assert names(changed(lock, "mpmath", files=(replace(file, name="mpmath-1.3.0.tar.gz"),))) == []
    assert names(changed(lock, "torch", origin="preinstalled")) == []
    assert names(replace(lock, left_open=("the requirements of torch",))) == []


def test_files_of_lock_are_used_without_pip(lock: Resolution, tmp_path: Path) -> None:
    options = FetchOptions(tmp_path / "log", Recorder(), torch=fetched(lock))
    house, _ = fetch_build_wheels(
        HostRuntime(), PYTHON, torch="torch==2.13.0+cpu", requirements=[], options=options
    )
    assert house is not None
    wheels = house.wheels
    assert [wheel.name for wheel in wheels] == ["mpmath", "sympy", "torch"]
    assert all(wheel.path.is_file() for wheel in wheels)
    assert fetched(lock, offline=True) == wheels
    wheels[0].path.unlink()
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        fetched(lock, offline=True)


def test_torch_that_we_build_comes_from_its_wheel(tmp_path: Path) -> None:
    torch = replace(built_pick("torch"), version="2.13.0a0+git0123abc", wheel_version="2.13.0a0+cpu")
    picks = (built_pick("tiny"), torch, locked_pick("sympy", "1.14.0"))
    lock = lock_of(*picks, edges=(Edge("tiny", "torch", "run", declared=True),))
    task = make_task(make_recipe("cpu", undeclared=("torch", "ninja")))
    of_torch = task.__class__(torch, make_recipe("cpu"), task.build_host, lock)
    task = task.__class__(picks[0], task.recipe, task.build_host, lock, requires=(of_torch,))
    wheel = tiny_wheel(
        tmp_path, "torch", "2.13.0a0+cpu", requires=["sympy", "filelock>=3", "idle; sys_platform == 'win32'"]
    )
    assert requirements_of(task) == (None, ["build", "ninja"])
    assert requirements_of(task, [wheel]) == (None, ["build", "filelock>=3", "ninja", "sympy==1.14.0"])
    assert task.runtime_versions == {"torch": "2.13.0a0+cpu"}
