"""What a build is refused: room, an index to write to, an image that can compile, a file to answer for."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from builders import task as builds
from builders.build_host import BuildHost, local_build_host
from builders.compilation import build_view
from builders.containers.image import Image
from builders.containers.inspection import ImageFacts
from builders.containers.runtime import HostRuntime, View
from builders.environments.layers import BuildEnvironment
from builders.files import exclusive_lock
from builders.index import Index
from builders.io_errors import explain_index_errors
from builders.plan import Task
from builders.recipes import Build, Compiler, apply_recipe
from builders.task import Limits, build_wheel
from resolver.errors import BuildError, EnvironmentLacksError, MatrixError
from resolver.facts.catalog import recipe_for
from resolver.facts.loading import load
from resolver.facts.schema import Recipe, Sdist
from tests.support.locks import built_pick
from tests.support.recorder import Recorder

RICH = ImageFacts(
    name="rich",
    path="/rich.sif",
    digest="sha256:0",
    architecture="x86_64",
    glibc="2.39",
    rocm="6.4.1",
    hipcc="6.4",
    compilers=(Compiler("g++", "13.2", "/usr/bin/g++"), Compiler("gcc", "13.2", "/usr/bin/gcc")),
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Give a build directory with something in it."""
    folder = tmp_path / "index" / ".matrix" / "builds" / "one"
    folder.mkdir(parents=True)
    (folder / "half").touch()
    return folder


class TestIndexRefusals:
    @pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
    def test_no_room_gives_back_what_was_half_built(self, tmp_path: Path, work: Path, number: int) -> None:
        refusing = explain_index_errors(tmp_path / "index", work)
        with pytest.raises(EnvironmentLacksError, match="No space left") as caught, refusing:
            raise OSError(number, os.strerror(number))
        assert os.strerror(number) in caught.value.message
        assert not work.exists()

    def test_a_program_that_met_no_room(self, tmp_path: Path, work: Path) -> None:
        failure = BuildError("The compiler failed.")
        failure.details = {"diagnosis": [{"id": "disk-full"}]}
        refusing = explain_index_errors(tmp_path / "index", work)
        with pytest.raises(EnvironmentLacksError, match="The compiler failed") as caught, refusing:
            raise failure
        assert caught.value.details == failure.details
        assert not work.exists()

    @pytest.mark.parametrize("found", [[], [{"id": "compile-error"}, {"id": "disk-full"}]])
    def test_other_failures_stay_what_they_are(
        self, tmp_path: Path, work: Path, found: list[dict[str, str]]
    ) -> None:
        failure = BuildError("The compiler failed.")
        failure.details = {"diagnosis": found}
        with pytest.raises(BuildError), explain_index_errors(tmp_path / "index", work):
            raise failure
        assert (work / "half").exists()

    def test_what_may_not_be_written_is_named(self, tmp_path: Path, work: Path) -> None:
        file = tmp_path / "index" / "simple"
        refusing = explain_index_errors(tmp_path / "index", work)
        with pytest.raises(EnvironmentLacksError, match="Cannot write to the index") as caught, refusing:
            raise PermissionError(errno.EACCES, "denied", str(file))
        assert str(file) in caught.value.message
        assert "--index" in caught.value.hint

    def test_what_is_refused_elsewhere_is_not_the_indexs_fault(self, tmp_path: Path, work: Path) -> None:
        with pytest.raises(PermissionError), explain_index_errors(tmp_path / "index", work):
            raise PermissionError(errno.EACCES, "denied", str(tmp_path / "cache"))


def test_who_has_to_wait_is_told(tmp_path: Path) -> None:
    told, entered = threading.Event(), threading.Event()

    def second() -> None:
        with exclusive_lock(tmp_path / "lock", on_wait=told.set):
            entered.set()

    with exclusive_lock(tmp_path / "lock", on_wait=lambda: pytest.fail("nobody else is at it")):
        thread = threading.Thread(target=second)
        thread.start()
        assert told.wait(30)
        assert not entered.is_set()
    thread.join(30)
    assert entered.is_set()


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose source is nowhere: nothing of it can be built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pick = built_pick(
        "tiny",
        wheel_version="1.0+rocm6.4",
        sdist=Sdist("tiny-1.0.tar.gz", hashlib.sha256(b"").hexdigest()),
    )
    recipe = Recipe(package="tiny", backend="rocm", must_contain=("t*.so",), status="observed", source="test")
    build_host = BuildHost(HostRuntime(), local_build_host("3.11").python, {}, image=RICH)
    return Task(pick, recipe, build_host, None, {"of": "tiny"})


def building(task: Task, index: Index) -> MatrixError:
    with pytest.raises(MatrixError) as caught:
        build_wheel(task, index, Limits(offline=True), Recorder())
    return caught.value


class TestImageThatCannotCompile:
    LACKS: ClassVar[Mapping[str, str]] = {
        "hipcc": "no hipcc",
        "compilers": "no C++ compiler",
        "glibc": "no glibc",
    }

    @pytest.mark.parametrize("lack", LACKS)
    def test_it_is_refused_before_anything_is_fetched(self, task: Task, tmp_path: Path, lack: str) -> None:
        facts = {name: getattr(RICH, name) for name in RICH.__struct_fields__}
        poor = ImageFacts(**(facts | {lack: () if lack == "compilers" else ""}))
        refusal = building(
            replace(task, build_host=replace(task.build_host, image=poor)), Index(tmp_path / "index")
        )
        assert isinstance(refusal, EnvironmentLacksError)
        assert self.LACKS[lack] in refusal.message
        assert "tiny 1.0+rocm6.4 cannot be compiled" in refusal.message
        assert "doctor" in refusal.hint

    def test_one_that_can_goes_on_to_the_source(self, task: Task, tmp_path: Path) -> None:
        assert "tiny-1.0.tar.gz is not in the cache" in building(task, Index(tmp_path / "index")).message

    def test_what_compiles_nothing_needs_no_compiler(self, task: Task, tmp_path: Path) -> None:
        pure = Recipe(package="tiny", backend="rocm", status="observed", source="test")
        bare = ImageFacts(name="bare", path="/bare.sif", digest="sha256:0")
        able = replace(task, recipe=pure, build_host=replace(task.build_host, image=bare))
        assert "tiny-1.0.tar.gz is not in the cache" in building(able, Index(tmp_path / "index")).message

    def test_a_build_for_the_cpu_needs_no_rocm(self) -> None:
        plain = ImageFacts(
            **{name: getattr(RICH, name) for name in RICH.__struct_fields__} | {"hipcc": "", "rocm": ""}
        )
        assert plain.missing_tools(rocm=False) == []
        assert plain.missing_tools() != []


def test_a_wheel_that_another_run_published_meanwhile_is_taken(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_wheel: Callable[..., Path]
) -> None:
    index = Index(tmp_path / "index")
    published = index.publish(make_wheel("tiny", "1.0+rocm6.4"), {"build_key": task.build_key})
    monkeypatch.setattr(builds, "obtain", lambda *_, **__: pytest.fail("it is built again"))
    log = index.state / "logs" / f"tiny-{task.build_key[:12]}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("of the run that built it")
    recorder = Recorder()
    assert build_wheel(task, index, Limits(offline=True), recorder) == published
    assert recorder.messages == ["another run has built it meanwhile"]
    assert log.read_text() == "of the run that built it"


class Container(HostRuntime):
    """A stand-in for a container in an image without /opt/rocm/bin/rocminfo; it can bind it there, or not."""

    kind = "stand-in"
    binds_anew = True

    def command(self, command, view):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
        targets = [str(bind.inside) for bind in view.binds if bind.target]
        if command[0] in targets:
            return ["/bin/sh", "-c", "echo 'Wavefront Size: 64'" if self.binds_anew else "exit 127"], {}
        return super().command(["true"], View())


@pytest.mark.parametrize(
    ("version", "binds", "refused"),
    [("0.14.4", False, True), ("0.14.4", True, False), ("0.19.8", False, False)],
)
def test_what_a_source_looks_for_in_one_place_only_must_be_there(
    tmp_path: Path, version: str, binds: bool, refused: bool
) -> None:
    """Or DeepSpeed 0.14.4 is built for 32 lanes a wave without a word."""
    catalog = load()
    release = catalog.release["deepspeed", version, ""]
    recipe = recipe_for(catalog, release, "rocm")
    assert recipe is not None
    application = apply_recipe(recipe, Build("deepspeed", version, "rocm", gfx=("gfx90a",)))
    runtime = Container(Image("base", tmp_path, "0" * 64))
    monkey = pytest.MonkeyPatch()
    monkey.setattr(Container, "binds_anew", binds)
    environment = BuildEnvironment(tmp_path / "env", (), (), {}, {})
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
        bound = [str(bind.inside) for bind in view().binds if bind.target]
        assert bound == (["/opt/rocm/bin/rocminfo"] if version == "0.14.4" else [])
    monkey.undo()
