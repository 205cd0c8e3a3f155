"""One build from source to index: real tiny projects, and a real compiler."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from msgspec.structs import replace

from builders.audit.contents import Expected
from builders.audit.wheel_audit import WheelAudit, audit_wheel
from builders.building.directory import BuildDirectory
from builders.building.inputs import Limits, fetching_of, requirements_of
from builders.building.plan import Task, local_build_host
from builders.building.rebuild import differences, rebuild_wheel
from builders.building.task import build_wheel
from builders.environments.layers import BuildEnvironment, Layers
from builders.environments.wheelhouse import FetchOptions
from builders.findings import Finding
from builders.index import Index
from builders.machine import host
from builders.storage.files import cache_root
from resolver.errors import BuildError, CommandError, EnvironmentLacksError
from resolver.facts.schema import Recipe, Sdist
from resolver.model import Distribution, Edge
from resolver.reporter import SILENT
from tests.support.locks import built_pick
from tests.support.recorder import Recorder
from tests.support.records import inputs_of, materials_of, results_of
from tests.support.tasks import make_distribution, make_resolution

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
LABELLED = "1.0+cpu.torch2.13.0"
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
PLATFORM = rf"manylinux_2_\d+_{platform.machine()}"

MakeTask = Callable[..., Task]
Contents = Callable[[Path], dict[str, bytes]]
Compile = Callable[..., Path]


@pytest.fixture
def task_for(shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTask:
    """Return a function that packs a project as an sdist into the cache, and returns its task."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))

    def make(project: str, environment: dict[str, str] | None = None, source: Path | None = None) -> Task:
        packed = tmp_path / f"{project}-1.0.tar.gz"
        with tarfile.open(packed, "w:gz") as archive:
            archive.add(source or PACKAGES / project, arcname=f"{project}-1.0")
        digest = hashlib.sha256(packed.read_bytes()).hexdigest()
        target = cache_root() / "sources" / digest[:16] / packed.name
        target.parent.mkdir(parents=True, exist_ok=True)
        packed.rename(target)
        pick = built_pick(
            project,
            wheel_version=LABELLED,
            sdist=Sdist(packed.name, digest),
        )
        recipe = Recipe(
            package=project,
            backend="cpu",
            undeclared=("setuptools", "wheel", "packaging"),
            match_runtime=(),
            environment=environment or {},
            must_contain=(f"{project}/_native*.so",),
            status="observed",
            source="test",
        )
        build_host = local_build_host(host.running_python())
        return Task(pick, recipe, build_host, make_resolution(pick, backend="cpu"))

    return make


@pytest.fixture
def index(tmp_path: Path, make_wheel: Callable[..., Path]) -> Index:
    """Return an index that already has a wheel, which no failure may change."""
    filled = Index(tmp_path / "index")
    filled.publish(make_wheel(), {"build_key": "of tiny"})
    return filled


def build(task: Task, index: Index) -> Path:
    return build_wheel(task, index, Limits(jobs=1), SILENT)


def answer_of(wheel: Path, package: str, into: Path) -> str:
    """Return the answer of the wheel's extension, which is loaded in a fresh interpreter."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(into)
    code = f"import sys; sys.path.insert(0, sys.argv[1]); import {package}._native as n; print(n.answer())"
    command = [sys.executable, "-I", "-c", code, str(into)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.integration
@pytest.mark.parametrize("module", ["ext_modules=[Extension('tiny._native', ['native.c'])]", ""])
def test_recipe_without_promised_objects_looks_at_source(
    task_for: MakeTask, index: Index, tmp_path: Path, module: str
) -> None:
    source = tmp_path / "tiny"
    (source / "tiny").mkdir(parents=True)
    (source / "tiny" / "__init__.py").touch()
    native = (PACKAGES / "sound" / "sound" / "native.c").read_text()
    (source / "native.c").write_text(native.replace("sound", "tiny"))
    setup = f"setup(name='tiny', version='1.0', packages=['tiny'], {module})"
    (source / "setup.py").write_text(f"from setuptools import Extension, setup\n{setup}\n")
    task = task_for("tiny", source=source)
    recorder = Recorder()
    task = replace(task, recipe=replace(task.recipe, must_contain=()))
    wheel = build_wheel(task, index, Limits(jobs=2), recorder)
    assert ("none-any" in wheel.name) is (not module)
    assert any("compiles nothing" in message for message in recorder.messages) is (not module)


@pytest.mark.integration
def test_sound_project_is_built_and_published(
    task_for: MakeTask, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CFLAGS", "-DTINY_ANSWER=1")  # the caller's flags are not used
    task = task_for("sound")
    recorder = Recorder()
    wheel = build_wheel(task, index, Limits(jobs=1), recorder)

    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert re.fullmatch(rf"sound-{re.escape(LABELLED)}-{python}-{python}-{PLATFORM}\.whl", wheel.name)
    assert wheel.parent == index.simple / "sound"
    assert index.wheels("sound") == [wheel]
    assert wheel.name.replace("+", "%2B") in (wheel.parent / "index.html").read_text()
    assert answer_of(wheel, "sound", tmp_path / "loaded") == "42"

    entry = index.find("sound", task.build_key)
    assert entry is not None
    assert entry.path == wheel
    record = dict(entry.provenance)
    assert inputs_of(record) == json.loads(json.dumps(task.inputs))
    assert {"setuptools", "wheel", "packaging"} <= {material["name"] for material in materials_of(record)}
    assert [row["path"] for row in results_of(record)["objects"]] == [f"sound/_native{SUFFIX}"]
    findings = {finding["id"]: finding["severity"] for finding in results_of(record)["findings"]}
    assert findings["object-found"] == "info"
    assert "error" not in findings.values()

    words = list(dict.fromkeys(step.split()[0] for step in recorder.messages))
    main_steps = ["fetch", "prepare", "unpack", "compile", "check", "publish"]
    assert [word for word in words if word in main_steps] == main_steps
    (log,) = (index.state / "logs").glob("*.log")
    assert "native.c" in log.read_text()
    assert list((index.state / "builds").iterdir()) == []


@pytest.mark.integration
def test_rebuild_from_other_inputs_gets_build_tag(task_for: MakeTask, index: Index, tmp_path: Path) -> None:
    first = build(task_for("sound"), index)
    second = build(task_for("sound", {"CFLAGS": "-DTINY_ANSWER=43"}), index)
    assert f"-{LABELLED}-1-cp" in second.name
    assert index.wheels("sound") == sorted([first, second])
    assert answer_of(second, "sound", tmp_path / "loaded") == "43"


@pytest.mark.integration
def test_compile_error_names_cause_and_changes_nothing(
    task_for: MakeTask, index: Index, contents: Contents
) -> None:
    before = contents(index.root)
    with pytest.raises(BuildError) as caught:
        build(task_for("does_not_compile"), index)
    lines = [line.strip() for line in caught.value.message.splitlines()]
    assert f"does_not_compile {LABELLED}" in lines[0]
    assert any(re.search(r"native\.c:2:10: fatal error: hip/not_there\.h", line) for line in lines[1:])
    (log,) = (index.state / "logs").glob("*.log")
    assert f"Log: {log}" in lines
    assert caught.value.message.count(str(log)) == 1
    assert "What happened: A ROCm header is missing: hip/not_there.h." in lines
    (finding,) = caught.value.findings
    assert finding.id == "rocm-header-missing"
    assert "hip/not_there.h" in finding.evidence["text"][0]["text"]
    assert caught.value.details["diagnosis"] == [msgspec.to_builtins(finding)]
    assert "No wheel was added to the index for it." in caught.value.hint
    assert contents(index.root) == before


@pytest.mark.integration
def test_source_without_python_project_fails(
    task_for: MakeTask, index: Index, contents: Contents, tmp_path: Path
) -> None:
    before = contents(index.root)
    source = tmp_path / "bare"
    source.mkdir()
    (source / "README").write_text("Nothing here.\n")
    with pytest.raises(BuildError, match="bare"):
        build(task_for("bare", source=source), index)
    (source / "pyproject.toml").write_text("[build-system\n")
    with pytest.raises(BuildError, match="bare"):
        build(task_for("bare", source=source), index)
    assert contents(index.root) == before


def test_failure_before_compilation_names_cause(
    task_for: MakeTask, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, options: FetchOptions, **__: object) -> NoReturn:
        line, what = "x.c:1:10: fatal error: Python.h: No such file or directory", "Creating a layer"
        options.log.write_text(f"{line}\n")
        raise CommandError(what, code=1, log=options.log, lines=[line])

    monkeypatch.setattr("builders.building.task.make_layers", fail)
    with pytest.raises(CommandError) as caught:
        build(task_for("sound"), index)
    assert "What happened: " in caught.value.message
    assert [finding["id"] for finding in caught.value.details["diagnosis"]] == ["no-python-header"]


@pytest.mark.integration
def test_two_wheels_of_backend_are_an_error(task_for: MakeTask, index: Index, contents: Contents) -> None:
    before = contents(index.root)
    with pytest.raises(BuildError, match=r"produced 2: two_wheels-1\.0.*\.whl, two_wheels-2\.0"):
        build(task_for("two_wheels"), index)
    assert contents(index.root) == before


@pytest.mark.integration
def test_wheel_does_not_depend_on_build_directory(task_for: MakeTask, tmp_path: Path) -> None:
    task = task_for("names_its_file")
    wheels = [build(task, Index(tmp_path / name)) for name in ("one", "another/index")]
    assert wheels[0].read_bytes() == wheels[1].read_bytes()
    answer = answer_of(wheels[0], "names_its_file", tmp_path / "loaded")
    assert answer == "/matrix/source/names_its_file-1.0/names_its_file/native.c"


STAMPED = """
import getpass, platform, time
from pathlib import Path
from setuptools import Extension, setup
stamp = {stamp}
Path("stamped/built.py").write_text("# Written by the build\\nTIME = '" + stamp + "'\\n")
native = Extension("stamped._native", ["stamped/native.c"], extra_compile_args=["-DBUILT=" + stamp])
setup(name="stamped", version="1.0", packages=["stamped"], ext_modules=[native])
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("stamp", "reasons"),
    [
        ("'unknown'", []),
        ("time.strftime('%d_%H:%M:%S')", ["Both look like a time"]),
        (
            "'_'.join([getpass.getuser(), platform.node(), str(Path.home())]).ljust(99, '_')",
            ["the name of its user, ", "the path of its HOME, ", "the name of its machine, "],
        ),
    ],
    ids=["nothing", "time", "user"],
)
def test_rebuild_is_compared(
    stamp: str,
    reasons: list[str],
    task_for: MakeTask,
    index: Index,
    tmp_path: Path,
    *,
    contents: Contents,
) -> None:
    stamps = bool(reasons)
    source = tmp_path / "stamped"
    shutil.copytree(PACKAGES / "names_its_file" / "names_its_file", source / "stamped")
    native = source / "stamped" / "native.c"
    text = native.read_text().replace("__FILE__", "TEXT(BUILT)")
    native.write_text(f"#define TEXT_OF(x) #x\n#define TEXT(x) TEXT_OF(x)\n{text}")
    (source / "setup.py").write_text(STAMPED.format(stamp=stamp))
    task = task_for("stamped", source=source)
    published = build(task, index)
    before = contents(index.root)
    time.sleep(1.1)

    found = rebuild_wheel(task, published, index, Limits(jobs=1), SILENT)

    assert contents(index.root) == before
    differing = {finding.evidence["member"]: finding.evidence["where"] for finding in found}
    expected = {f"stamped/_native{SUFFIX}": "section .rodata", "stamped/built.py": "line 2"}
    assert differing == (expected if stamps else {})
    assert all(reason in finding.message for finding in found for reason in reasons)
    assert len(list(index.builds.iterdir())) == stamps  # the directory of the rebuild is kept


def test_difference_is_explained(compile_object: Callable[..., Path], tmp_path: Path) -> None:
    wheels = []
    for number, path in enumerate(("/scratch/ann/builds/4f2a", "/scratch/ann/builds/9c01")):
        built = compile_object("_native.so", f'const char *made_in = "{path}/native.c";')
        wheels.append(tmp_path / str(number) / "tiny-1.0-py3-none-any.whl")
        wheels[-1].parent.mkdir()
        with zipfile.ZipFile(wheels[-1], "w") as archive:
            archive.write(built, "tiny/_native.so")
            archive.writestr("tiny/data.bin", bytes([0, 1, 2, number]))
            archive.writestr("tiny/about.py", f"BY = '{('ann@login1', 'bin@another')[number]}'  # daemon\n")
            if number:
                archive.writestr("tiny/new.py", "")
            archive.writestr("tiny-1.0.dist-info/RECORD", str(number))
    own = {
        "/scratch/ann/builds/9c01": "the path of its build directory",
        "bin": "its user",
        "daemon": "other",
    }
    object_, about, data, new = differences(wheels[0], wheels[1], own)
    assert "_native.so: section .rodata differs" in object_.message
    assert "the published one has '/scratch/ann/builds/4f2a/native.c'" in object_.message
    assert "the path of its build directory, /scratch/ann/builds/9c01." in object_.message
    assert about.message.endswith("The rebuilt one contains its user, bin.")
    assert data.message == "tiny/data.bin: byte 3 differs."
    assert new.message == "tiny/new.py: only the rebuilt wheel has this member."
    assert not list(differences(wheels[0], wheels[0], {}))


@pytest.mark.integration
def test_wheel_does_not_depend_on_the_machine(
    task_for: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchsort, whose script compiles for CUDA if it can start nvcc: here, it names what it finds."""
    source = tmp_path / "sound"
    shutil.copytree(PACKAGES / "sound", source)
    with (source / "setup.py").open("a") as script:
        script.write(
            "\nimport os, shutil\n"
            "names = ['nvcc', 'conda', 'nvidia-smi', 'python9', 'pip9', 'hipcc']\n"
            "found = [name for name in names if shutil.which(name)]\n"
            "found += [name for name in os.environ if name.startswith(('CUDA', 'CONDA', 'PIP', 'X_'))]\n"
            "assert not found, found\n"
            "assert shutil.which('gcc') and shutil.which('sed')\n"
        )
    task = task_for("sound", source=source)
    wheel = build(task, Index(tmp_path / "plain"))
    tools = tmp_path / "toolkit/bin"
    tools.mkdir(parents=True)
    for name in ("nvcc", "conda", "nvidia-smi", "python9", "pip9", "hipcc", "sed"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    variables = {"CUDA_HOME": tools.parent, "CONDA_PREFIX": tools.parent, "PYTHONPATH": tools, "X_ANY": "1"}
    variables |= {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PIP_INDEX_URL": "x", "LC_ALL": "POSIX"}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    other = build(task, Index(tmp_path / "toolkits"))
    assert wheel.read_bytes() == other.read_bytes()


@pytest.mark.integration
def test_silently_skipped_extension_is_not_published(
    task_for: MakeTask, index: Index, contents: Contents
) -> None:
    before = contents(index.root)
    with pytest.raises(BuildError, match="no shared object at all") as caught:
        build(task_for("skips_extension"), index)
    assert caught.value.id == "audit"
    assert "skips_extension/_native*.so" in caught.value.message
    assert "Perhaps it needs FORCE_NATIVE (setup.py:" in caught.value.findings[0].fix
    match = re.search(r"kept as (.*\.whl)", caught.value.hint)
    assert match is not None
    assert Path(match[1]).is_file()
    assert contents(index.root) == before


@pytest.mark.integration
def test_extension_that_does_not_load_is_not_published(
    task_for: MakeTask, index: Index, contents: Contents
) -> None:
    before = contents(index.root)
    with pytest.raises(BuildError, match="fails with ImportError") as caught:
        build(task_for("does_not_load"), index)
    assert caught.value.id == "audit"
    assert "symbol_of_no_library" in caught.value.message
    assert [finding["id"] for finding in caught.value.details["diagnosis"]] == ["undefined-symbol"]
    assert contents(index.root) == before


@pytest.fixture
def without_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepare builds without installing anything: tests that use this do not compile."""

    def make_environment(*_: object, root: Path, **__: object) -> BuildEnvironment:
        root.mkdir(exist_ok=True)
        return BuildEnvironment(root, (), ())

    monkeypatch.setattr("builders.building.task.make_layers", lambda *_, **__: Layers(None, None))
    monkeypatch.setattr("builders.building.task.make_environment", make_environment)


@pytest.mark.usefixtures("without_environment")
@pytest.mark.parametrize("is_changed", [False, True])
def test_wheel_that_changes_after_the_build_is_not_published(
    task_for: MakeTask,
    index: Index,
    make_wheel: Callable[..., Path],
    contents: Contents,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_changed: bool,
) -> None:
    def call_backend(*_: object, directory: BuildDirectory, **__: object) -> Path:
        directory.log.touch()
        return make_wheel("sound", folder="raw").parent

    def check_build(wheel: Path, *_: object, **__: object) -> tuple[WheelAudit, list[Finding]]:
        if is_changed:
            other = make_wheel("sound", files={"sound.py": b"ANSWER = 43"}, folder="other")
            other.replace(wheel)
        return audit_wheel(wheel, Expected()), []

    monkeypatch.setattr("builders.building.task.call_backend", call_backend)
    monkeypatch.setattr("builders.building.task.check_build", check_build)
    before = contents(index.root)
    if is_changed:
        with pytest.raises(BuildError, match="changed after it was built"):
            build(task_for("sound"), index)
        assert contents(index.root) == before
    else:
        assert [build(task_for("sound"), index)] == index.wheels("sound")


@pytest.mark.usefixtures("without_environment")
@pytest.mark.parametrize(("code", "line", "is_kept"), [
    (-9, "", True),
    (137, "", True),
    (1, "FAILED: [code=137] kernel.o", True),
    (1, "kernel.cpp:1:10: fatal error: missing.h: No such file or directory", False),
])  # fmt: skip
def test_build_continues_unless_it_failed_by_itself(
    task_for: MakeTask, index: Index, monkeypatch: pytest.MonkeyPatch, code: int, line: str, *, is_kept: bool
) -> None:
    def fail(*_: object, directory: BuildDirectory, **__: object) -> NoReturn:
        (directory.source / "sound-1.0" / ".ninja_log").write_text("0\t1\t1\tkernel.o\tff\n")
        directory.log.write_text(f"{line}\n")
        what = "Building sound"
        raise CommandError(what, code=code, log=directory.log, lines=[line])

    monkeypatch.setattr("builders.building.task.call_backend", fail)
    task, recorder = task_for("sound"), Recorder()
    for _ in range(2):
        with pytest.raises(BuildError):
            build_wheel(task, index, Limits(jobs=1), recorder)
    continued = "continue an interrupted build: 1 command already finished"
    assert (continued in recorder.messages) == is_kept


BUILD = """
import pickle, sys
from builders.building.inputs import Limits
from builders.building.task import build_wheel
from resolver.reporter import SILENT
with open(sys.argv[1], "rb") as source:
    build_wheel(*pickle.load(source), Limits(jobs=1), SILENT)
"""


@pytest.mark.integration
@pytest.mark.parametrize("who", ["the program", "the build"])
def test_killed_build_succeeds_next_time(
    task_for: MakeTask, index: Index, contents: Contents, tmp_path: Path, who: str
) -> None:
    before = contents(index.root)
    task = task_for("interrupted")
    pickled = tmp_path / "task"
    pickled.write_bytes(pickle.dumps((task, index)))
    with subprocess.Popen(
        [sys.executable, "-c", BUILD, pickled], stderr=subprocess.PIPE, text=True
    ) as program:
        while not [*(index.state / "builds").rglob("started")]:
            assert program.poll() is None
            time.sleep(0.02)
        building = descendants(program.pid)
        (backend,) = (pid for pid in building if re.match(r"[^\0]+\0[^\0]+/call_hook\.py\0", command_of(pid)))
        os.kill(program.pid if who == "the program" else backend, signal.SIGKILL)
        _, errors = program.communicate() if who == "the build" else (None, "")
    assert who != "the build" or "BuildError" in errors
    until = time.monotonic() + 30
    while any(Path("/proc", str(pid)).exists() for pid in building):
        assert time.monotonic() < until, "the build is still running"
        time.sleep(0.05)
    assert contents(index.root) == before
    wheel = build_wheel(task, index, Limits(jobs=2), SILENT)
    assert index.find("interrupted", task.build_key) is not None
    assert answer_of(wheel, "interrupted", tmp_path / "loaded") == "42"


def command_of(process: int) -> str:
    """Return the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""


def descendants(process: int) -> list[int]:
    """Return the processes below a process."""
    pids = [process]
    for pid in pids:
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return pids[1:]


# The steps, one by one


def test_requirements_pin_torch_of_lock(task_for: MakeTask) -> None:
    task = task_for("sound")
    torch = make_distribution("torch", "2.13.0+cpu")
    recipe = msgspec.structs.replace(task.recipe, declared=("torch", "wheel"), undeclared=("wheel", "torchx"))

    def task_with(*picks: Distribution, recipe: Recipe = recipe, **fields: Any) -> Task:
        return replace(
            task, recipe=recipe, resolution=make_resolution(task.pick, *picks, backend="cpu", **fields)
        )

    assert requirements_of(task_with(torch)) == ("torch==2.13.0+cpu", ["build", "torchx", "wheel"])
    without = msgspec.structs.replace(recipe, declared=("wheel",))
    assert requirements_of(task_with(torch, recipe=without))[0] is None
    edge = Edge(task.pick.name, "torch", "run", declared=True)
    needed = task_with(torch, recipe=without, edges=(edge,))
    assert requirements_of(needed) == ("torch==2.13.0+cpu", ["build", "torchx", "wheel"])
    assert requirements_of(task_with()) == (None, ["build", "torch", "torchx", "wheel"])


def test_what_must_match_at_run_time_is_that_of_the_lock(task_for: MakeTask) -> None:
    task = task_for("sound")
    page = "https://repo.radeon.com/rocm/manylinux/rocm-rel-6.2/"
    tensorflow = make_distribution("tensorflow-rocm", "2.16.1", index=page)
    recipe = msgspec.structs.replace(
        task.recipe, declared=(), undeclared=("tensorflow-rocm", "wheel"), match_runtime=("tensorflow-rocm",)
    )
    with_tensorflow = replace(task, recipe=recipe, resolution=make_resolution(task.pick, tensorflow))
    assert requirements_of(with_tensorflow) == (None, ["build", "tensorflow-rocm==2.16.1", "wheel"])
    options = fetching_of(with_tensorflow, Limits(), log=Path("log"), reporter=SILENT)
    assert options.indexes == [page]


def test_offline_without_source_stops_at_once(task_for: MakeTask, index: Index, contents: Contents) -> None:
    task = task_for("sound")
    assert task.pick.sdist is not None
    shutil.rmtree(cache_root() / "sources" / task.pick.sdist.sha256[:16])
    before = contents(index.root)
    with pytest.raises(EnvironmentLacksError, match=r"sound-1\.0\.tar\.gz"):
        build_wheel(task, index, Limits(offline=True), SILENT)
    assert contents(index.root) == before
