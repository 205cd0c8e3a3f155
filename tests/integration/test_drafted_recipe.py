"""Drafts that are built: a real sdist for the CPU, and a HIP extension from git for a GPU in a base image."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from resolver.errors import EXIT_INTERRUPTED
from tests.rig.rig import Rig
from tests.support.built import matrix, running_below, wait_until_it_compiles
from tests.support.fusedtiny import Repository
from tests.support.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]
REQUEST = ("torchlpc==0.7.2", "torch==2.13.0")


def test_draft_is_interrupted_then_built_and_reused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "matrix", "recipe", "draft", *REQUEST]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    wait_until_it_compiles(process, tmp_path / "index")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == EXIT_INTERRUPTED, output.decode()
    assert not running_below(tmp_path)
    assert matrix(tmp_path, "catalog", "check", "torchlpc.toml").returncode == 0

    done = matrix(tmp_path, "recipe", "draft", *REQUEST, "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["trial"]["state"] == "built", document["trial"]
    assert document["trial"]["verdict"] == "sound"
    assert document["facts"]["extensions"][0]["kind"] == "CUDAExtension or CppExtension"
    assert any("torch.cuda.is_available()" in gap for gap in document["gaps"])
    recipes = tomllib.loads((tmp_path / "torchlpc.toml").read_text())["recipe"]
    assert {recipe["backend"]: recipe["status"] for recipe in recipes} == {
        "rocm": "inferred",
        "cpu": "observed",
    }

    catalog = ("--catalog", "torchlpc.toml", "--backend", "cpu")
    resolved = matrix(tmp_path, "resolve", *REQUEST, *catalog)
    assert resolved.returncode == 0, resolved.stderr
    again = matrix(tmp_path, "build-wheels", *catalog)
    assert again.returncode == 0, again.stderr
    assert "torchlpc 0.7.2+cpu.torch2.13.0  up to date" in again.stdout


def test_draft_from_git_is_built_for_a_gpu(rig: Rig, repository: Repository) -> None:
    site = Site(rig, "fusedtiny==1.0")
    drafted = site.matrix("recipe", "draft", f"git+{repository.url}@{repository.new}", "--no-build")
    assert drafted.returncode == 0, drafted.stderr
    assert "fusedtiny_cuda, CUDAExtension or CppExtension" in drafted.stdout
    (site.work / "matrix.toml").write_text('catalog = ["fusedtiny.toml"]\n')
    site.resolve()
    done = site.build()
    assert done.returncode == 0, done.stdout + done.stderr
    (architectures,) = site.audit(site.wheel("fusedtiny"), "--gfx90a")["code_objects"].values()
    assert architectures == ["gfx90a"]
