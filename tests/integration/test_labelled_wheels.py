"""Labelled wheels with real installers: a compiled wheel, the pin on torch, and how to replace the pin."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from uv import find_uv_bin
from wheel.wheelfile import WheelFile

from builders.building.provenance import SBOM_NAME, Descriptor, sbom
from builders.wheels.labelling import Labels, label_wheel, runtime_pins
from tests.support.tasks import make_distribution, make_recipe, make_task

pytestmark = pytest.mark.integration

PACKAGES = Path(__file__).resolve().parent.parent / "packages"
PIP = (sys.executable, "-m", "pip", "--python")
TORCH = "2.9.1+rocm6.4"
LABELLED = "1.0+rocm6.4.torch2.9.1.gfx90a"
ASK = (
    "import importlib.metadata as m, json, sound._native as n;"
    "d = m.distribution('sound');"
    "print(json.dumps([d.version, d.requires, n.answer(), [str(f) for f in d.files if 'sboms' in str(f)]]))"
)


def run(*command: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a program without the user's settings of pip and uv."""
    env = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "PYTHON"))
    }
    return subprocess.run(
        list(map(str, command)),
        check=check,
        capture_output=True,
        text=True,
        env=env | {"PIP_CONFIG_FILE": os.devnull},
    )


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile the tiny project with the installed setuptools, always in the same directory."""
    source = tmp_path_factory.mktemp("source")
    code = "from setuptools import build_meta as b; import sys; b.build_wheel(sys.argv[1])"

    def build_in(epoch: str) -> Path:
        out = tmp_path_factory.mktemp("raw")
        shutil.rmtree(source)
        shutil.copytree(PACKAGES / "sound", source)
        env = os.environ | {"SOURCE_DATE_EPOCH": epoch}
        command = [sys.executable, "-c", code, str(out)]
        subprocess.run(command, cwd=source, check=True, capture_output=True, env=env)
        (wheel,) = out.glob("*.whl")
        return wheel

    return build_in


@pytest.fixture(scope="module")
def raw(build: Callable[[str], Path]) -> Path:
    return build("1700000000")


@pytest.fixture(scope="module")
def labelled(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    platform = raw.stem.rpartition("-")[2]
    source = Descriptor(
        name="sound-1.0.tar.gz",
        uri="pkg:pypi/sound@1.0",
        digest={"sha256": "0" * 64},
        annotations={"role": "source"},
    )
    task = make_task(make_recipe("cpu"), pick=make_distribution("sound", wheel_version=LABELLED))
    bill = sbom(task, [source], program="0")
    labels = Labels(version=LABELLED, platform=platform, pins=runtime_pins(TORCH), sboms={SBOM_NAME: bill})
    return label_wheel(raw, labels, tmp_path_factory.mktemp("labelled")).path


@pytest.fixture
def torches(tmp_path: Path) -> Callable[..., Path]:
    """Write stand-ins for torch: empty wheels of that name in some versions."""

    def make(*versions: str) -> Path:
        folder = tmp_path / "torches"
        folder.mkdir(exist_ok=True)
        for version in versions:
            info = f"torch-{version}.dist-info"
            with WheelFile(str(folder / f"torch-{version}-py3-none-any.whl"), "w") as sink:
                sink.writestr("torch/__init__.py", f"__version__ = {version!r}\n")
                sink.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
                sink.writestr(
                    f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
                )
        return folder

    return make


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the Python of a fresh environment."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    return tmp_path / "venv" / "bin" / "python"


def answer(python: Path) -> list[object]:
    return list(json.loads(run(python, "-c", ASK).stdout))


EXPECTED = [LABELLED, [f"torch=={TORCH}"], 42, [f"sound-{LABELLED}.dist-info/sboms/{SBOM_NAME}"]]


def test_wheel_library_unpacks_labelled_wheel(labelled: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "wheel", "unpack", "--dest", tmp_path, labelled)
    (tree,) = tmp_path.iterdir()
    assert tree.name == f"sound-{LABELLED}"
    assert (tree / f"sound-{LABELLED}.dist-info" / "sboms" / SBOM_NAME).is_file()


def test_two_builds_give_the_same_labelled_bytes(
    raw: Path, build: Callable[[str], Path], tmp_path: Path
) -> None:
    """The backend writes the time of the build into the members of its wheel."""
    again = build("1000000000")
    assert again.read_bytes() != raw.read_bytes()
    labels = Labels(version=LABELLED, platform="linux_x86_64")
    first = label_wheel(raw, labels, tmp_path / "first").path
    assert label_wheel(again, labels, tmp_path / "second").path.read_bytes() == first.read_bytes()


def test_pip_installs_labelled_wheel(labelled: Path, python: Path) -> None:
    run(*PIP, python, "install", "-q", "--no-index", "--no-deps", labelled)
    assert answer(python) == EXPECTED
    checked = run(*PIP, python, "check", check=False)
    assert "requires torch, which is not installed" in checked.stdout


def test_uv_installs_labelled_wheel(labelled: Path, python: Path) -> None:
    run(find_uv_bin(), "pip", "install", "--offline", "--no-index", "--no-deps", "--python", python, labelled)
    assert answer(python) == EXPECTED


def test_pip_requires_exact_torch(labelled: Path, python: Path, torches: Callable[..., Path]) -> None:
    install = [*PIP, python, "install", "-q", "--no-index", "--find-links"]
    others = torches("2.9.1", "2.9.1+rocm6.3", "2.10.0+rocm6.4")
    refused = run(*install, others, labelled, check=False)
    assert refused.returncode != 0
    assert f"No matching distribution found for torch=={TORCH}" in refused.stderr
    run(*install, torches(TORCH), labelled)
    assert run(python, "-c", "import torch; print(torch.__version__)").stdout == f"{TORCH}\n"
    assert run(*PIP, python, "check").stdout == "No broken requirements found.\n"


def test_uv_override_replaces_pin(
    labelled: Path, python: Path, torches: Callable[..., Path], tmp_path: Path
) -> None:
    """docs/reference/provenance.md describes this override."""
    others = torches("2.9.1+rocm6.3")
    uv = [
        find_uv_bin(),
        "pip",
        "install",
        "--offline",
        "--no-index",
        "--find-links",
        others,
        "--python",
        python,
    ]
    assert run(*uv, labelled, check=False).returncode != 0
    override = tmp_path / "override.txt"
    override.write_text("torch==2.9.1+rocm6.3\n")
    run(*uv, "--override", override, labelled)
    assert run(python, "-c", "import torch; print(torch.__version__)").stdout == "2.9.1+rocm6.3\n"
