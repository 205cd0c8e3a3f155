"""Build environments inside the rig's base image, with the stand-in for torch's ROCm build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from msgspec.structs import replace

from builders.containers.engines import choose_runtime
from builders.containers.image import find_image
from builders.containers.runtime import run_in
from builders.environments.layers import make_environment, make_layers
from builders.environments.python import find_python
from builders.environments.wheelhouse import FetchOptions
from resolver.errors import EnvironmentLacksError
from tests.support.recorder import Recorder

if TYPE_CHECKING:
    from builders.containers.runtime import Runtime

pytestmark = pytest.mark.integration


class Rig(Protocol):
    """The rig: the base image, and a directory with the stand-in for torch."""

    image: Path
    wheels: Path


TORCH = "torch==2.13.0+rocm7.2"
ASK = """
import json, os, pathlib, shutil, subprocess, sys
import setuptools, torch
def refused(path):
    try:
        path.touch()
    except OSError as error:
        return error.strerror
print("answer " + json.dumps({
    "torch": torch.__version__, "hip": torch.version.hip, "from": torch.__file__,
    "setuptools": setuptools.__version__,
    "ninja": shutil.which("ninja"), "runs": subprocess.call(["ninja", "--version"], stdout=2) == 0,
    "refused": refused(pathlib.Path(torch.__file__).parent / "new"), "prefix": sys.prefix,
}))
"""


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Use one cache for all tests here, because creating the layer of torch takes almost a minute."""
    return tmp_path_factory.mktemp("rig-cache")


@pytest.fixture
def runtime(rig: Rig, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("PIP_FIND_LINKS", str(rig.wheels))
    return choose_runtime("apptainer", find_image(rig.image))


def answer(log: Path) -> dict[str, Any]:
    (line,) = (one for one in log.read_text().splitlines() if one.startswith("answer "))
    reply: dict[str, Any] = json.loads(line.partition(" ")[2])
    return reply


def test_torch_and_build_requirements_in_the_image(runtime: Runtime, cache: Path, tmp_path: Path) -> None:
    python = find_python(runtime, "3.11")
    assert python.where == "image"
    recorder = Recorder()
    # Some machines mirror only the newest setuptools, on an index that comes before the public one.
    how = FetchOptions(log=tmp_path / "log", reporter=recorder, strategy="unsafe-best-match")
    requirements = ["setuptools<80", "ninja"]
    layers = make_layers(runtime, python, torch=TORCH, requirements=requirements, options=how)
    assert layers.torch is not None
    assert layers.torch.root.is_relative_to(cache)

    made = make_environment(python, layers.all, root=tmp_path / "env")
    run_in(runtime, [str(made.python), "-c", ASK], made.view, what="Asking", log=tmp_path / "asked")
    reply = answer(tmp_path / "asked")
    assert reply["torch"] == "2.13.0+rocm7.2"
    assert reply["hip"].startswith("7.2")
    assert Path(reply["from"]).is_relative_to(layers.torch.root)
    assert int(reply["setuptools"].split(".")[0]) < 80
    assert reply["ninja"].startswith(str(cache))
    assert reply["runs"] is True
    assert reply["refused"] == "Read-only file system"
    assert reply["prefix"] == str(made.root)
    assert sum(path.lstat().st_blocks for path in made.root.rglob("*")) * 512 < 50e6

    recorder.messages.clear()
    offline = replace(how, offline=True)
    assert make_layers(runtime, python, torch=TORCH, requirements=requirements, options=offline) == layers
    with pytest.raises(EnvironmentLacksError, match="not in the cache"):
        make_layers(runtime, python, torch=TORCH, requirements=["setuptools<70"], options=offline)
    assert recorder.messages == []


def test_an_image_without_that_python(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path))
    with pytest.raises(EnvironmentLacksError, match=r"Python 3\.8 is required, .* has no usable Python 3\.8"):
        find_python(runtime, "3.8")
