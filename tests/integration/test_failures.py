"""Failures of a real build: exit code, message, and an unchanged index."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.built import LABELLED, Built, matrix

pytestmark = pytest.mark.integration

WRONG_HASH = f"""
schema = 1
[[release]]
package = "deepspeed"
version = "0.19.8"
backend = ["cpu"]
sdist = {{ file = "deepspeed-0.19.8.tar.gz", sha256 = "{"0" * 64}" }}
status = "observed"
source = "a test"
"""

BROKEN_RECIPE = """
schema = 1
[[recipe]]
package = "deepspeed"
backend = "cpu"
undeclared = ["torch", "setuptools", "wheel", "packaging", "psutil", "py-cpuinfo", "ninja"]
environment = { DS_BUILD_CPU_ADAM = "1", CXXFLAGS = "-include no_such_header.h" }
must-contain = ["deepspeed/ops/adam/cpu_adam_op*.so"]
native-cpu = true
status = "observed"
source = "a test"
"""

WITHOUT_TORCH = BROKEN_RECIPE.replace('"torch", ', "").replace(', CXXFLAGS = "-include no_such_header.h"', "")
WITHOUT_TORCH = WITHOUT_TORCH.replace('DS_BUILD_CPU_ADAM = "1"', "")

WANTED = ("deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q")


def files_below(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def resolve_with(overlay: str, work: Path) -> None:
    (work / "overlay.toml").write_text(overlay)
    done = matrix(work, "resolve", *WANTED, "--catalog", "overlay.toml")
    assert done.returncode == 0, done.stderr


def test_sdist_with_other_hash_is_not_used(tmp_path: Path) -> None:
    resolve_with(WRONG_HASH, tmp_path)
    done = matrix(tmp_path, "build-wheels", "--catalog", "overlay.toml")
    assert done.returncode == 1
    assert "does not have the pinned hash" in done.stderr
    assert "actual   SHA-256" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "index" / "simple").exists()


def test_compile_error_names_line_and_log(built: Built, tmp_path: Path) -> None:
    before = files_below(built.index / "simple")
    resolve_with(BROKEN_RECIPE, tmp_path)
    done = matrix(tmp_path, "build-wheels", "--catalog", "overlay.toml", "--index", str(built.index))
    assert done.returncode == 1
    assert "no_such_header.h" in done.stderr
    (log,) = (line.split("Log: ")[1] for line in done.stderr.splitlines() if "Log: " in line)
    assert "no_such_header.h" in Path(log).read_text()
    assert "Traceback" not in done.stderr
    assert files_below(built.index / "simple") == before


def test_build_without_op_is_not_published(built: Built, tmp_path: Path) -> None:
    """The silent failure: without torch, DeepSpeed's build succeeds, and the wheel contains no op."""
    before = files_below(built.index / "simple")
    resolve_with(WITHOUT_TORCH, tmp_path)
    done = matrix(tmp_path, "build-wheels", "--catalog", "overlay.toml", "--index", str(built.index))
    assert done.returncode == 1
    assert "failed its checks, so it is not published" in " ".join(done.stderr.split())
    assert "cpu_adam_op*.so is not in the wheel" in done.stderr
    assert files_below(built.index / "simple") == before


def test_changed_recipe_is_planned_again(built: Built, tmp_path: Path) -> None:
    """The dry run reports that the inputs changed; the existing wheel stays."""
    resolve_with(BROKEN_RECIPE, tmp_path)
    arguments = ("--catalog", "overlay.toml", "--index", str(built.index), "--dry-run")
    done = matrix(tmp_path, "build-wheels", *arguments)
    assert done.returncode == 0
    assert f"deepspeed {LABELLED}  to build: the inputs changed since" in done.stdout


def test_missing_torch_wheel_names_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a configuration of pip, only PyTorch's own index has the CPU build."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    overlay = BROKEN_RECIPE + (
        '\n[[torch]]\nversion = "2.13.0+cpu"\nbackend = "cpu"\nindex = "http://127.0.0.1:9/whl/cpu"\n'
        'python = ["3.11", "3.12", "3.13", "3.14"]\nstatus = "observed"\nsource = "a test"\n'
    )
    resolve_with(overlay, tmp_path)
    done = matrix(tmp_path, "build-wheels", "--catalog", "overlay.toml")
    assert done.returncode == 3, done.stderr
    assert "Not reachable from here: http://127.0.0.1:9/whl/cpu" in done.stderr
    assert "torch==2.13.0+cpu" in done.stderr
    assert "[mirrors]" in done.stderr
    assert not (tmp_path / "index" / "simple").exists()
