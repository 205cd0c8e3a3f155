"""``matrix check`` on real things: the rig's image, installed wheels, and a repaired environment."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rig.rig import Rig
from tests.support.built import matrix
from tests.support.commands import new_environment, pip_environment

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
WHEELS = ("numpy==2.2.6", "markupsafe", "pyyaml", "psutil", "msgspec", "zstandard", "rich")
CUDA = "torch==2.13.0+cu126\nnumpy==2.2.6\nnvidia-nccl-cu12==2.27.5\ntriton==3.5.0\n"
MOST_MEMORY = 500_000  # kilobytes
"""Limit of the issue for an image of 10 GB; this one has 0.5 GB."""


def inspected(work: Path, *arguments: str, code: int) -> dict[str, Any]:
    done = matrix(work, "check", *arguments, "--format", "json")
    assert done.returncode == code, done.stdout + done.stderr
    (thing,) = json.loads(done.stdout)["things"]
    return dict(thing)


def ids(document: dict[str, Any], *severities: str) -> set[str]:
    return {row["id"] for row in document["findings"] if row["severity"] in severities}


def test_image_of_the_rig_is_read_without_being_started(rig: Rig) -> None:
    """An ordinary user needs neither a container runtime nor squashfs-tools for it: PATH is empty."""
    work = rig.work()
    (work / "bin").mkdir(mode=0o755)
    env = {"PATH": str(work / "bin")}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # of those that made the rig
    done = rig.matrix("check", str(rig.image), "--site", "lumi-g", "--format", "json", cwd=work, env=env)
    assert done.returncode == 0, done.stderr
    (document,) = json.loads(done.stdout)["things"]
    assert document["how"].endswith("its file system was read without starting it")
    assert document["verdict"] == "own-risk"
    assert "works at your own risk since 2026-01 at lumi-g on " in document["text"]
    assert "lumi-g ran ROCm 7.2" in document["text"]
    assert "rocm-copy" in ids(document, "info")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss <= max(before, MOST_MEMORY)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install real wheels with compiled objects."""
    folder = tmp_path_factory.mktemp("real") / "env"
    new_environment(folder)
    line: list[str | Path] = [
        folder / "bin/python",
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "--only-binary=:all:",
        *WHEELS,
    ]
    subprocess.run(line, check=True, env=pip_environment())
    return folder


def test_real_wheels_cause_no_alarm(environment: Path) -> None:
    document = inspected(environment.parent, "env", "--site", "lumi-g", code=0)
    assert ids(document, "error", "warning") == set()
    assert document["verdict"] == "fits"
    assert len(document["distributions"]) >= len(WHEELS)


def test_real_wheels_that_are_broken_are_named(environment: Path, tmp_path: Path) -> None:
    """A wheel for another Python, one for CUDA, a damaged object, a lost object, a lost requirement."""
    broken = tmp_path / "env"
    shutil.copytree(environment, broken, symlinks=True)
    (site,) = broken.glob("lib/python3.*/site-packages")
    pip: list[str | Path] = [
        broken / "bin/python",
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "--no-deps",
        "--target",
        site,
    ]
    other = [
        "--upgrade",
        "--only-binary=:all:",
        "--python-version",
        "3.10" if sys.version_info[1] != 10 else "3.12",
    ]
    subprocess.run([*pip, *other, "markupsafe"], check=True, env=pip_environment(), capture_output=True)
    subprocess.run([*pip, "nvidia-nvtx-cu12"], check=True, env=pip_environment())
    shutil.rmtree(next(site.glob("markdown_it_py-*.dist-info")))
    next(site.glob("psutil/_psutil_linux*.so")).unlink()
    damaged = next(site.glob("msgspec/_core*.so"))
    damaged.write_bytes(damaged.read_bytes()[:5000])
    document = inspected(tmp_path, "env", "--site", "lumi-g", code=1)
    assert ids(document, "error") == {"verify-nvidia", "other-python", "object-gone", "not-elf"}
    assert "verify-pip-check-others" in ids(document, "warning")


def test_repaired_environment_is_installed_and_verified(tmp_path: Path) -> None:
    """An environment for CUDA becomes one for CPUs, which the real pip installs from the written files."""
    (tmp_path / "freeze.txt").write_text(CUDA)
    options = ["--backend", "cpu", "--repair", "-o", "repaired", "--for", "pip"]
    document = inspected(tmp_path, "freeze.txt", *options, code=0)
    assert {row["before"].split()[0] for row in document["changes"]} >= {"torch", "nvidia-nccl-cu12"}
    repaired = tmp_path / "repaired"
    python = new_environment(repaired / "env")
    line: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "-r",
        repaired / "requirements.txt",
    ]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=pip_environment())
    assert done.returncode == 0, done.stderr
    verified = matrix(repaired, "check", str(python), "--run", "--format", "json")
    assert verified.returncode in {0, 4}, verified.stdout
    document = inspected(repaired, "env", code=0)
    assert "verify-pins" in ids(document, "info")  # the lock is beside it
    assert ids(document, "error") == set()
