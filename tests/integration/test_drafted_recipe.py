"""Drafts that are built: a real sdist for the CPU, and a HIP extension from git for a GPU in a base image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.rig.rig import Rig
from tests.support.built import matrix
from tests.support.fusedtiny import Repository
from tests.support.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def test_draft_of_a_project_is_built_for_the_cpu(tmp_path: Path) -> None:
    done = matrix(tmp_path, "recipe", "draft", "torchlpc==0.7.2", "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["facts"]["extensions"][0]["kind"] == "CUDAExtension or CppExtension"
    assert any("torch.cuda.is_available()" in gap for gap in document["gaps"])
    assert matrix(tmp_path, "catalog", "check", "torchlpc.toml").returncode == 0
    catalog = ("--catalog", "torchlpc.toml", "--backend", "cpu")
    resolved = matrix(tmp_path, "resolve", "torchlpc==0.7.2", "torch==2.13.0", *catalog)
    assert resolved.returncode == 0, resolved.stderr
    built = matrix(tmp_path, "build-wheels", *catalog)
    assert built.returncode == 0, built.stderr
    assert "torchlpc 0.7.2+cpu.torch2.13.0  built" in built.stdout


def test_draft_from_git_is_built_for_a_gpu(rig: Rig, repository: Repository) -> None:
    site = Site(rig, "fusedtiny==1.0")
    drafted = site.matrix("recipe", "draft", f"git+{repository.url}@{repository.new}")
    assert drafted.returncode == 0, drafted.stderr
    assert "fusedtiny_cuda, CUDAExtension or CppExtension" in drafted.stdout
    (site.work / "matrix.toml").write_text('catalog = ["fusedtiny.toml"]\n')
    site.resolve()
    done = site.build()
    assert done.returncode == 0, done.stdout + done.stderr
    (architectures,) = site.audit(site.wheel("fusedtiny"), "--gfx90a")["code_objects"].values()
    assert architectures == ["gfx90a"]
