"""Checks before a build: an image that can compile, a wheel that exists already, fixed paths."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import pytest
from msgspec.structs import replace

from builders.building import task as builds
from builders.building.apply_recipe import apply_recipe
from builders.building.check import with_switches
from builders.building.compilation import build_view
from builders.building.inputs import Limits
from builders.building.plan import BuildHost, Task, local_build_host
from builders.building.task import build_wheel
from builders.containers.image import LocalImage
from builders.containers.inspection import ImageFacts
from builders.containers.runtime import HostRuntime, View
from builders.containers.sandbox import BUILD
from builders.environments.layers import BuildEnvironment
from builders.findings import Finding
from builders.index import Index
from builders.recipes import Program
from builders.storage.lease import exclusive_lock
from resolver.errors import EnvironmentLacksError, MatrixError
from resolver.facts.catalog import load
from resolver.facts.schema import Recipe, Sdist
from tests.support.locks import built_pick
from tests.support.recorder import Recorder
from tests.support.records import record_of
from tests.support.tasks import make_resolution, make_task

RICH = ImageFacts(
    name="rich",
    path="/rich.sif",
    digest="sha256:0",
    architecture="x86_64",
    glibc="2.39",
    rocm="6.4.1",
    hipcc="6.4",
    compilers=(Program("g++", "13.2", "/usr/bin/g++"), Program("gcc", "13.2", "/usr/bin/gcc")),
)


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """Return a task whose source does not exist, so it cannot be built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pick = built_pick(
        "tiny",
        wheel_version="1.0+rocm6.4",
        sdist=Sdist("tiny-1.0.tar.gz", hashlib.sha256(b"").hexdigest()),
    )
    recipe = Recipe(package="tiny", backend="rocm", compiles=True, status="observed", source="test")
    build_host = BuildHost(HostRuntime(), local_build_host("3.11").python, {}, image=RICH)
    return Task(pick, recipe, build_host, make_resolution(pick, gfx=("gfx90a",)))


def building(task: Task, index: Index) -> MatrixError:
    with pytest.raises(MatrixError) as caught:
        build_wheel(task, index, Limits(offline=True), Recorder())
    return caught.value


class TestImage:
    LACKS: ClassVar[Mapping[str, str]] = {
        "hipcc": "no hipcc",
        "compilers": "no C++ compiler",
        "glibc": "no glibc",
    }

    @pytest.mark.parametrize("lack", LACKS)
    def test_poor_image_is_rejected_before_fetching(self, task: Task, tmp_path: Path, lack: str) -> None:
        facts = {name: getattr(RICH, name) for name in RICH.__struct_fields__}
        poor = ImageFacts(**(facts | {lack: () if lack == "compilers" else ""}))
        refusal = building(
            replace(task, build_host=replace(task.build_host, image=poor)), Index(tmp_path / "index")
        )
        assert isinstance(refusal, EnvironmentLacksError)
        assert self.LACKS[lack] in refusal.message
        assert "tiny 1.0+rocm6.4 cannot be compiled" in refusal.message
        assert "check" in refusal.hint

    def test_complete_image_is_accepted(self, task: Task, tmp_path: Path) -> None:
        assert "tiny-1.0.tar.gz is not in the cache" in building(task, Index(tmp_path / "index")).message

    def test_pure_wheel_needs_no_compiler(self, task: Task, tmp_path: Path) -> None:
        pure = Recipe(package="tiny", backend="rocm", status="observed", source="test")
        bare = ImageFacts(name="bare", path="/bare.sif", digest="sha256:0")
        able = replace(task, recipe=pure, build_host=replace(task.build_host, image=bare))
        assert "tiny-1.0.tar.gz is not in the cache" in building(able, Index(tmp_path / "index")).message

    def test_cpu_build_needs_no_rocm(self) -> None:
        plain = ImageFacts(
            **{name: getattr(RICH, name) for name in RICH.__struct_fields__} | {"hipcc": "", "rocm": ""}
        )
        assert plain.missing_tools(rocm=False) == []
        assert plain.missing_tools() != []


def test_wheel_of_another_process_is_used(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_wheel: Callable[..., Path]
) -> None:
    index = Index(tmp_path / "index")
    published = index.publish(make_wheel("tiny", "1.0+rocm6.4"), record_of(task.build_key))
    monkeypatch.setattr(builds, "obtain", lambda *_, **__: pytest.fail("the wheel is built again"))
    log = index.state / "logs" / f"tiny-{task.build_key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("of the run that built it")
    recorder = Recorder()
    assert build_wheel(task, index, Limits(offline=True), recorder) == published
    assert recorder.messages == ["another process has built this wheel"]
    assert log.read_text() == "of the run that built it"


def test_waiting_build_names_the_holder_and_returns_its_turn(
    task: Task, tmp_path: Path, make_wheel: Callable[..., Path]
) -> None:
    index = Index(tmp_path / "index")
    events: list[str] = []

    def wait() -> None:
        events.append("wait")
        index.publish(make_wheel("tiny", "1.0+rocm6.4"), record_of(task.build_key))
        others.close()

    def take() -> None:
        events.append("take")

    with ExitStack() as others:
        others.enter_context(exclusive_lock(index.state / "locks" / f"{task.build_key[:20]}.lock"))
        recorder = Recorder()
        wheel = build_wheel(task, index, Limits(offline=True), recorder, on_wait=wait, start=take)
    assert wheel in index.wheels("tiny")
    assert events == ["wait"]
    assert f"process {os.getpid()} on " in recorder.messages[0]
    assert recorder.messages[1:] == ["another process has built this wheel"]


class Container(HostRuntime, frozen=True):
    """A fake container without /opt/rocm/bin/rocminfo, which may or may not be able to bind it."""

    kind = "stand-in"
    can_bind = True

    def command(self, command, view, scratch):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        targets = [str(bind.inside) for bind in view.binds if bind.target]
        if command[0] in targets:
            return ["/bin/sh", "-c", "echo 'Wavefront Size: 64'" if self.can_bind else "exit 127"], {}
        return super().command(["true"], View(), scratch)


@pytest.mark.parametrize(
    ("version", "binds", "refused"),
    [("0.14.4", False, True), ("0.14.4", True, False), ("0.19.8", False, False)],
)
def test_shim_at_fixed_path_must_run(tmp_path: Path, version: str, binds: bool, refused: bool) -> None:
    """Without the shim, DeepSpeed 0.14.4 would be built for 32 lanes per wave, without a warning."""
    catalog = load()
    release = catalog.release["deepspeed", version, ""]
    recipe = catalog.recipe_for(release, "rocm")
    assert recipe is not None
    application = apply_recipe(make_task(recipe, "gfx90a", version=version))
    runtime = Container(LocalImage("base", tmp_path, "0" * 64))
    monkey = pytest.MonkeyPatch()
    monkey.setattr(Container, "can_bind", binds)
    environment = BuildEnvironment(tmp_path / "env", (), ())
    (tmp_path / "work").mkdir()

    def view() -> View:
        return build_view(
            runtime, environment, application, work=tmp_path / "work", source=tmp_path, variables={}
        )

    if refused:
        with pytest.raises(EnvironmentLacksError, match="/opt/rocm/bin/rocminfo") as caught:
            view()
        assert "wave size" in caught.value.message
    else:
        bound = [str(bind.inside) for bind in view().binds if bind.target not in {None, BUILD}]
        assert bound == (["/opt/rocm/bin/rocminfo"] if version == "0.14.4" else [])
    monkey.undo()


@pytest.mark.parametrize("missing", ["object-missing", "no-gpu-code"])
def test_missing_code_is_reported_with_the_condition_of_the_script(missing: str, tmp_path: Path) -> None:
    (tmp_path / "setup.py").write_text(
        "from setuptools import setup\n"
        "from torch.utils.cpp_extension import CUDA_HOME, CUDAExtension\n"
        "more = []\n"
        "if CUDA_HOME:\n"
        "    more = [CUDAExtension('p.kernels', ['p.cu'])]\n"
        "setup(name='p', ext_modules=more)\n"
    )
    recipe = Recipe(package="p", backend="rocm", status="inferred", source="test")
    found = with_switches(Finding(missing, "error", "Missing.", "See the log."), recipe, tmp_path)
    assert found.fix.startswith("The script compiles extensions only if `CUDA_HOME` (setup.py:5)")
    other = Finding("other", "error", "Another.", "See the log.")
    assert with_switches(other, recipe, tmp_path) == other
