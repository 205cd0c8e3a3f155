"""Layers and the environments on them, with real interpreters, real pip and tiny wheels."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from builders.containers.runtime import HostRuntime, run_in
from builders.environments.layers import (
    BuildEnvironment,
    Layers,
    fetch_build_wheels,
    make_environment,
    make_layer,
    make_layers,
)
from builders.environments.python import TargetPython, find_python
from builders.environments.wheelhouse import FetchOptions
from builders.machine.host import running_python
from builders.storage.files import cache_root
from resolver.errors import EnvironmentLacksError
from resolver.reporter import SILENT

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("links")]

PLACE = HostRuntime()
TORCH = "torch==2.9.1+rocm6.4"
SAY = "import sys; print('program of', sys.prefix)\n"


@pytest.fixture(autouse=True)
def shared(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Share a cache between tests; the wheels are identical in every test."""
    shared = tmp_path_factory.getbasetemp() / "shared"
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    return shared / "matrix"


@pytest.fixture
def own_cache(shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a separate cache for each test, except for pip, which takes a long time to install."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache_root().mkdir(parents=True)
    (shared / "tools").mkdir(parents=True, exist_ok=True)
    (cache_root() / "tools").symlink_to(shared / "tools")
    return cache_root()


@pytest.fixture(scope="session")
def python() -> TargetPython:
    return find_python(PLACE, running_python())


@pytest.fixture
def links(tmp_path: Path, make_wheel: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create fake wheels of torch and build requirements, and set PIP_FIND_LINKS to them."""
    make_wheel(
        "torch",
        "2.9.1+rocm6.4",
        {
            "torch/__init__.py": b"VALUE = 'torch'\n",
            "sub.pth": b"import os; os.environ['SEEN'] = 'nested'\n",
            "torch-2.9.1+rocm6.4.data/scripts/torchtool": f"#!python\n{SAY}".encode(),
        },
        executable=("torch-2.9.1+rocm6.4.data/scripts/torchtool",),
        metadata="Metadata-Version: 2.1\nName: torch\nVersion: 2.9.1+rocm6.4\nRequires-Dist: setuptools\n",
    )
    make_wheel("setuptools", "80.0", {"setuptools.py": b"VALUE = 80\n"})
    make_wheel("setuptools", "70.0", {"setuptools.py": b"VALUE = 70\n"})
    script = "tool-1.0.data/scripts/tool"
    make_wheel("tool", "1.0", {"tool.py": b"", script: f"#!python\n{SAY}".encode()}, executable=(script,))
    needing = "Metadata-Version: 2.1\nName: needing\nVersion: 1.0\nRequires-Dist: torch\n"
    make_wheel("needing", "1.0", metadata=needing)
    make_wheel("torch", "2.9.1", {"torch/__init__.py": b"VALUE = 'not this one'\n"})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "made"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return tmp_path / "made"


@pytest.fixture
def options(tmp_path: Path) -> FetchOptions:
    return FetchOptions(log=tmp_path / "log", reporter=SILENT)


def run(environment: BuildEnvironment, code: str, tmp_path: Path) -> str:
    """Run code in an environment and return its output."""
    log = tmp_path / "run.log"
    log.unlink(missing_ok=True)
    run_in(PLACE, [str(environment.python), "-c", code], environment.view, what="Trying", log=log)
    return log.read_text().partition("\n")[2].strip()


def installed(environment: BuildEnvironment, tmp_path: Path) -> str:
    """Return the distributions that an environment can import."""
    names = "{d.name + ' ' + d.version for d in m.distributions()}"
    code = f"import importlib.metadata as m; print(*sorted({names}), sep=', ')"
    return run(environment, code, tmp_path)


def test_environment_sees_torch_and_requirements(
    links: Path, options: FetchOptions, python: TargetPython, tmp_path: Path
) -> None:
    layers = make_layers(PLACE, python, torch=TORCH, requirements=["setuptools<75", "tool"], options=options)
    made = make_environment(python, layers.all, root=tmp_path / "env")
    assert installed(made, tmp_path) == "setuptools 70.0, setuptools 80.0, tool 1.0, torch 2.9.1+rocm6.4"
    code = (
        "import os, sys, torch, setuptools as s; print(torch.VALUE, s.VALUE, os.environ['SEEN'], sys.prefix)"
    )
    assert run(made, code, tmp_path) == f"torch 70 nested {made.root}"
    assert layers.torch is not None
    where = "import torch; print(torch.__file__)"
    assert run(made, where, tmp_path) == str(layers.torch.packages / "torch" / "__init__.py")
    assert {wheel.file for layer in layers.all for wheel in layer.wheels} == {
        path.name for path in links.iterdir()
    } - {
        "torch-2.9.1-py3-none-any.whl",
        "needing-1.0-py3-none-any.whl",
    }
    assert not (made.root / "bin" / "pip").exists()


def test_programs_of_layers_are_on_path(options: FetchOptions, python: TargetPython, tmp_path: Path) -> None:
    layers = make_layers(PLACE, python, torch=TORCH, requirements=["tool"], options=options)
    made = make_environment(python, layers.all, root=tmp_path / "env")
    code = "import subprocess; print([subprocess.getoutput(name) for name in ('tool', 'torchtool')])"
    assert layers.torch is not None
    assert layers.requirements is not None
    assert run(made, code, tmp_path) == str(
        [f"program of {layers.requirements.root}", f"program of {layers.torch.root}"]
    )


def test_packages_of_caller_are_not_visible(
    python: TargetPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "intruder.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "own"))
    made = make_environment(python, (), root=tmp_path / "env")
    assert installed(made, tmp_path) == ""
    code = "import importlib.util as u, site; print(u.find_spec('intruder'), site.ENABLE_USER_SITE)"
    assert run(made, code, tmp_path) == "None False"


def test_layers_are_built_once_and_shared(links: Path, options: FetchOptions, python: TargetPython) -> None:
    first = make_layers(PLACE, python, torch=TORCH, requirements=["tool"], options=options)
    options.log.unlink(missing_ok=True)
    for name in links.iterdir():
        name.unlink()
    offline = FetchOptions(log=options.log, reporter=options.reporter, offline=True)
    assert make_layers(PLACE, python, torch=TORCH, requirements=["tool"], options=offline) == first
    assert not options.log.exists()
    assert not any(path.stat().st_mode & 0o222 for path in first.all[1].packages.rglob("*.py"))


def test_requirement_of_torch_gets_pinned_torch(options: FetchOptions, python: TargetPython) -> None:
    layers = make_layers(PLACE, python, torch=TORCH, requirements=["needing"], options=options)
    assert layers.requirements is not None
    assert [wheel.name for wheel in layers.requirements.wheels] == ["needing"]
    code = "import torch; print(torch.VALUE)"
    own = str(layers.requirements.root / "bin" / "python")
    assert subprocess.run([own, "-c", code], check=True, capture_output=True, text=True).stdout == "torch\n"


def test_layers_without_torch(options: FetchOptions, python: TargetPython) -> None:
    layers = make_layers(PLACE, python, torch=None, requirements=["tool"], options=options)
    assert layers.torch is None
    assert make_layers(PLACE, python, torch=None, requirements=[], options=options) == Layers(None, None)
    with pytest.raises(EnvironmentLacksError, match="no torch is pinned"):
        make_layers(PLACE, python, torch=None, requirements=["needing"], options=options)


def test_wheel_is_installed_into_own_environment(
    options: FetchOptions, python: TargetPython, make_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    layers = make_layers(PLACE, python, torch=TORCH, requirements=[], options=options)
    wheel = make_wheel("tried", "1.0", {"tried.py": b"import torch\nVALUE = torch.VALUE\n"}, folder="dist")
    before = {path: path.stat().st_mtime_ns for path in layers.all[0].root.rglob("*")}
    made = make_environment(python, layers.all, [wheel], root=tmp_path / "env")
    assert "tried 1.0" in installed(made, tmp_path)
    assert run(made, "import tried; print(tried.VALUE)", tmp_path) == "torch"
    assert {path: path.stat().st_mtime_ns for path in layers.all[0].root.rglob("*")} == before
    again = make_environment(python, layers.all, [], root=tmp_path / "env")
    assert "tried" not in installed(again, tmp_path)


def test_wheel_for_another_python_is_an_error(
    python: TargetPython, make_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    wheel = make_wheel("tried", tags="cp27-cp27m-win32", folder="dist")
    with pytest.raises(EnvironmentLacksError, match="is not a supported wheel"):
        make_environment(python, (), [wheel], root=tmp_path / "env")


def test_programs_of_wheels_run(
    python: TargetPython, make_wheel: Callable[..., Path], tmp_path: Path
) -> None:
    files = {
        "tried.py": b"import sys\ndef main():\n    print('entry', sys.prefix)\n",
        "tried-1.0.dist-info/entry_points.txt": b"[console_scripts]\nentry = tried:main\n",
        "tried-1.0.data/scripts/script": f"#!python\n{SAY}".encode(),
        "tried-1.0.data/data/lib64/note": b"kept",
        "shared.py": b"VALUE = 1\n",
    }
    first = make_wheel("tried", "1.0", files, executable=("tried-1.0.data/scripts/script",), folder="dist")
    second = make_wheel("other", "1.0", {"shared.py": b"VALUE = 2\n"}, folder="dist")
    made = make_environment(python, (), [first, second], root=tmp_path / "env")
    code = "import shared, subprocess as s; print(shared.VALUE, s.getoutput('entry'), s.getoutput('script'))"
    assert run(made, code, tmp_path) == f"2 entry {made.root} program of {made.root}"
    assert (made.root / "lib64" / "note").read_bytes() == b"kept"


@pytest.mark.parametrize("name", ["tried-1.0.data/data/{}", "../../../{}", "tried-1.0.data/data/bin"])
def test_wheel_changes_nothing_outside(
    python: TargetPython, make_wheel: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """A wheel may have the names of the environment's own files, which are links to the Python."""
    names = ["bin/python", "pyvenv.cfg", f"{python.library}/matrix-layers.pth"]
    before = python.path.read_bytes()
    wheel = make_wheel("tried", "1.0", {name.format(one): b"hostile" for one in names}, folder="dist")
    if name.endswith("/{}") and name.startswith("tried"):
        made = make_environment(python, (), [wheel], root=tmp_path / "env")
        assert run(made, "print('runs')", tmp_path) == "runs"
    else:
        with pytest.raises(EnvironmentLacksError, match="cannot be installed"):
            make_environment(python, (), [wheel], root=tmp_path / "env")
    assert python.path.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} <= {"env", "dist", "made", "run.log", "cache"}


def test_damaged_wheel_is_not_installed(own_cache: Path, options: FetchOptions, python: TargetPython) -> None:
    fetch_build_wheels(PLACE, python, torch=TORCH, requirements=[], options=options)
    (wheel,) = (own_cache / "wheels").glob("*/setuptools-80.0-*.whl")
    wheel.chmod(0o644)
    wheel.write_bytes(wheel.read_bytes()[::-1])
    with pytest.raises(EnvironmentLacksError, match=r"in the cache were removed: setuptools-80\.0"):
        make_layers(PLACE, python, torch=TORCH, requirements=[], options=options)
    assert not any(path.is_dir() for path in (own_cache / "layers").iterdir())
    assert make_layers(PLACE, python, torch=TORCH, requirements=[], options=options).torch is not None


@pytest.fixture
def _little_room() -> Iterator[None]:
    """Limit files to 100 kB, which acts like a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_leaves_no_layer(
    own_cache: Path,
    options: FetchOptions,
    python: TargetPython,
    make_wheel: Callable[..., Path],
    request: pytest.FixtureRequest,
) -> None:
    make_wheel("large", files={"large.py": b"#" * 200_000})
    make_layers(PLACE, python, torch=None, requirements=["tool"], options=options)  # pip itself is there
    request.getfixturevalue("_little_room")
    with pytest.raises(EnvironmentLacksError, match="No space left") as caught:
        make_layers(PLACE, python, torch=None, requirements=["large"], options=options)
    assert "XDG_CACHE_HOME" in caught.value.hint
    assert len([path for path in (own_cache / "layers").iterdir() if path.is_dir()]) == 1


SAME_LAYER = """
import sys
from pathlib import Path
from builders.containers.runtime import HostRuntime
from builders.environments.layers import make_layers
from builders.environments.python import find_python
from builders.environments.wheelhouse import FetchOptions
from resolver.reporter import Reporter
class Printer(Reporter):
    def step(self, message, task=""):
        print(message)
options = FetchOptions(log=Path(sys.argv[1]), reporter=Printer())
runtime = HostRuntime()
python = find_python(runtime, sys.argv[2])
print(make_layers(runtime, python, torch=sys.argv[3], requirements=["tool"], options=options).all[0].root)
"""


@pytest.mark.usefixtures("own_cache")
def test_parallel_processes_build_layer_once(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SAME_LAYER]
    both = [
        subprocess.Popen(
            [*command, str(tmp_path / name), running_python(), TORCH], stdout=subprocess.PIPE, text=True
        )
        for name in ("one.log", "two.log")
    ]
    outputs = [process.communicate(timeout=120)[0].splitlines() for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert outputs[0][-1] == outputs[1][-1]
    steps = [line.split()[0] for lines in outputs for line in lines[:-1]]
    assert sorted(steps) == ["fetch", "fetch", "install", "install"]


def test_layers_of_other_wheels_differ(options: FetchOptions, python: TargetPython) -> None:
    layers = make_layers(PLACE, python, torch=TORCH, requirements=["tool"], options=options)
    assert layers.torch is not None
    wheels = layers.torch.wheels
    assert make_layer(PLACE, python, wheels[::-1], options).root == layers.torch.root
    assert make_layer(PLACE, python, wheels[:1], options).root != layers.torch.root
