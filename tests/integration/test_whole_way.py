"""From sdist to trained model: the real DeepSpeed, compiler, pip and uv."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename
from pypi_simple import PyPISimple
from ruamel.yaml import YAML
from uv import find_uv_bin

from builders.storage.files import sha256_of
from tests.support.built import LABELLED, Built, running_below, wait_until_it_compiles
from tests.support.commands import pip_environment
from tests.support.records import inputs_of, materials_of, results_of

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]


def test_wheel_is_labelled_and_has_compiled_op(built: Built) -> None:
    name, version, _, tags = parse_wheel_filename(built.wheel.name)
    assert (name, str(version)) == ("deepspeed", LABELLED)
    assert all(tag.platform.startswith("manylinux") for tag in tags)
    with zipfile.ZipFile(built.wheel) as archive:
        names = archive.namelist()
        ops = [
            one for one in names if one.startswith("deepspeed/ops/adam/cpu_adam_op") and one.endswith(".so")
        ]
        assert len(ops) == 1
        assert archive.read(ops[0])[:4] == b"\x7fELF"
        metadata = archive.read(f"deepspeed-{LABELLED}.dist-info/METADATA").decode()
    assert f"\nVersion: {LABELLED}\n" in metadata


def test_provenance_records_inputs_and_findings(built: Built) -> None:
    (record,) = (json.loads(path.read_text()) for path in (built.index / "provenance").iterdir())
    assert record["sha256"] == sha256_of(built.wheel)
    assert inputs_of(record)["torch"] == "2.13.0+cpu"
    assert inputs_of(record)["source"]["file"] == "deepspeed-0.19.8.tar.gz"
    (torch,) = (one for one in materials_of(record) if one["name"] == "torch")
    assert "2.13.0" in torch["uri"]
    results = results_of(record)
    assert any("cpu_adam_op" in one["path"] for one in results["objects"])
    assert {"object-found", "probe-object"} <= {finding["id"] for finding in results["findings"]}
    needed = {library for one in results["objects"] for library in one["needed"]}
    assert any(library.startswith("libtorch") for library in needed), needed


def test_second_run_builds_nothing(built: Built) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.index.rglob("*") if path.is_file()}
    again = built.matrix("build-wheels")
    assert again.returncode == 0
    assert "up to date: the index has a wheel built from the same inputs" in again.stdout
    assert "Nothing to build." in again.stdout
    assert {path: path.stat().st_mtime_ns for path in built.index.rglob("*") if path.is_file()} == before


def test_pip_installs_pin_from_index(
    index_url: str, built: Built, fresh_environment: Callable[..., Path]
) -> None:
    options = ["--no-deps", "--extra-index-url", index_url, "--only-binary", "deepspeed"]
    python = fresh_environment(*options, f"deepspeed=={LABELLED}")
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    assert Distribution.at(site / f"deepspeed-{LABELLED}.dist-info").version == LABELLED
    assert list(site.glob("deepspeed/ops/adam/cpu_adam_op*.so"))
    assert built.wheel.exists()


def test_uv_installs_pin_from_index(index_url: str, tmp_path: Path) -> None:
    environment = {**pip_environment(), "UV_CACHE_DIR": str(tmp_path / "cache")}
    uv = find_uv_bin()
    subprocess.run(
        [uv, "venv", "-q", "-p", sys.executable, str(tmp_path / "uv")], check=True, env=environment
    )
    command = [uv, "pip", "install", "--python", str(tmp_path / "uv"), "--no-deps"]
    command += ["--extra-index-url", index_url, f"deepspeed=={LABELLED}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert LABELLED in done.stderr


def test_independent_reader_finds_hash(http_url: str, built: Built) -> None:
    with PyPISimple(endpoint=http_url) as client:
        assert client.get_index_page().projects == ["deepspeed"]
        (package,) = client.get_project_page("deepspeed").packages
    assert (package.filename, package.version) == (built.wheel.name, LABELLED)
    assert package.digests == {"sha256": sha256_of(built.wheel)}


def test_op_from_index_trains_like_torch(
    built: Built, file_url: str, fresh_environment: Callable[..., Path]
) -> None:
    """Install the lines of the conda file's pip section, except PyTorch's index, and train."""
    done = built.matrix("env", "--for", "cotainr", "--index-url", file_url)
    assert done.returncode == 0, done.stderr
    assert "is not in" not in done.stderr  # nothing is missing from the index
    environment = YAML(typ="safe").load(done.stdout)
    (section,) = (item["pip"] for item in environment["dependencies"] if isinstance(item, dict))
    # PyTorch's own index cannot be reached on every machine; pip's configuration then provides torch.
    reachable = [line for line in section if "download.pytorch.org" not in line]
    requirements = built.work / "requirements.txt"
    requirements.write_text("\n".join(reachable) + "\n")
    python = fresh_environment("-r", str(requirements))
    trained = subprocess.run(
        [str(python), str(ROOT / "examples" / "five_steps.py")], capture_output=True, text=True, check=False
    )
    assert trained.returncode == 0, trained.stdout + trained.stderr
    assert "DeepSpeed and torch agree" in trained.stdout
    verified = built.matrix("check", str(python), "--run")
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_killed_build_is_finished_by_next_run(built: Built) -> None:
    assert built.killed == ()
    assert not running_below(built.index)
    assert [path.name for path in (built.index / "simple" / "deepspeed").glob("*.whl")] == [built.wheel.name]


def test_interrupted_build_exits_130(built: Built, tmp_path: Path) -> None:
    index = tmp_path / "index"
    command = [sys.executable, "-m", "matrix", "build-wheels", "--lock", str(built.work / "matrix.lock")]
    process = subprocess.Popen(
        [*command, "--index", str(index)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait_until_it_compiles(process, index)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted" in output
    assert "Traceback" not in output
    assert not running_below(index)
    assert not (index / "simple").exists()
