"""Drafts that are built: a real sdist for the CPU, and a HIP extension from git for a GPU in a base image."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from resolver.lock import read_lock
from tests.rig.rig import Rig
from tests.support.built import matrix
from tests.support.commands import new_environment
from tests.support.fusedtiny import Repository
from tests.support.site import Site

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]


def test_distributions_without_wheels_are_built_and_installed(tmp_path: Path) -> None:
    """Pure, compiled, and compiled against a torch that the source does not declare: all become wheels."""
    names = ("docopt==0.6.2", "antlr4-python3-runtime==4.9.3", "ihm==2.12", "torchlpc==0.7.2")
    resolved = matrix(tmp_path, "resolve", *names, "torch==2.13.0", "--backend", "cpu")
    assert resolved.returncode == 0, resolved.stderr
    assert "4 to build, time unknown, untried: ihm, torchlpc" in resolved.stdout
    assert {"docopt", "antlr4-python3-runtime", "ihm"} <= {*read_lock(tmp_path / "matrix.lock").incomplete}
    built = matrix(tmp_path, "build-wheels")
    assert built.returncode == 0, built.stdout + built.stderr
    lock = read_lock(tmp_path / "matrix.lock")
    assert lock.incomplete == ()
    assert {one.name: one.requires for one in lock.request.stated}["ihm"] == ("msgpack",)
    assert matrix(tmp_path, "env", "--for", "pip", "-o", "requirements.txt").returncode == 0
    requirements = (tmp_path / "requirements.txt").read_text().splitlines()
    assert "--only-binary :all:" in requirements
    built_names = {name.partition("==")[0] for name in names}
    ours = [line for line in requirements if re.split("[ =]", line)[0] in built_names]
    assert len(ours) == len(names)
    options = [line for line in requirements if line.startswith("--extra-index-url")]
    (tmp_path / "ours.txt").write_text("\n".join([*options, "--only-binary :all:", *ours]))
    environment = tmp_path / "environment"
    python, file = str(new_environment(environment)), str(tmp_path / "ours.txt")
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "-r", file], check=True)
    subprocess.run([python, "-c", "import docopt, antlr4, ihm._format"], check=True)
    assert len(list(environment.glob("lib/*/site-packages/torchlpc/_C*.so"))) == 1


def test_draft_from_git_is_built_for_a_gpu(rig: Rig, repository: Repository) -> None:
    site = Site(rig, "fusedtiny==1.0")
    drafted = site.matrix("catalog", "draft", f"git+{repository.url}@{repository.new}")
    assert drafted.returncode == 0, drafted.stderr
    assert "fusedtiny_cuda, CUDAExtension or CppExtension" in drafted.stdout
    (site.work / "matrix.toml").write_text('catalog = ["fusedtiny.toml"]\n')
    site.resolve()
    done = site.build()
    assert done.returncode == 0, done.stdout + done.stderr
    (architectures,) = site.audit(site.wheel("fusedtiny"), "--gfx90a")["code_objects"].values()
    assert architectures == ["gfx90a"]
