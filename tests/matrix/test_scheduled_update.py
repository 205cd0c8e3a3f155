"""The scheduled jobs that update the catalog, and the script that they share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from resolver.facts.catalog import load
from tests.builders.gitrepos import commit, git
from tests.matrix.test_catalog_update import Sources, as_file, newest_sdist, sdist, sources

__all__ = ["sources"]
ROOT = Path(__file__).parents[2]
SCRIPT = ".ci/update-catalog"
HOSTS = (
    "download.pytorch.org",
    "raw.githubusercontent.com",
    "repo.amd.com",
    "stable.repo.amd.com",
    "wheels.vllm.ai",
    "api.github.com",
    "github.com",
)


@pytest.fixture
def clone(sources: Sources, tmp_path: Path) -> Path:
    """Return a repository with the script, in which only the package index can be reached."""
    repository = tmp_path / "clone"
    mirrors = "".join(f'"https://{host}/" = "http://127.0.0.1:9/"\n' for host in HOSTS)
    commit(repository, {"matrix.toml": f"[mirrors]\n{mirrors}", ".gitignore": "bin/\n"})
    (repository / ".ci").mkdir()
    shutil.copy(ROOT / SCRIPT, repository / SCRIPT)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "script")
    program = repository / "bin" / "matrix"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m matrix "$@"\n')
    program.chmod(0o755)
    catalog = load()
    sources.project("horovod", [as_file(newest_sdist(catalog, "horovod"))])
    return repository


def run(clone: Path) -> subprocess.CompletedProcess[str]:
    path = f"{clone / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    command = [str(clone / SCRIPT), "report.md"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_script_commits_new_rows_with_report(clone: Path, sources: Sources) -> None:
    known = as_file(newest_sdist(load(), "horovod"))
    sources.project("horovod", [known, sdist("horovod", "99.0.0")])
    done = run(clone)
    assert done.returncode == 0, done.stderr
    assert git(clone, "branch", "--show-current") == "catalog-update"
    assert git(clone, "show", "--name-only", "--format=") == "catalog/updates.toml"
    report = (clone / "report.md").read_text()
    assert '+version = "99.0.0"' in report
    assert "could not be reached" in report


@pytest.mark.slow
def test_script_without_news_commits_nothing(clone: Path) -> None:
    head = git(clone, "rev-parse", "HEAD")
    assert run(clone).returncode == 3  # most sources were not reached
    assert git(clone, "rev-parse", "HEAD") == head
    assert not (clone / "report.md").exists()


@pytest.mark.parametrize("file", [".github/workflows/catalog-update.yml", ".gitlab-ci.yml"])
def test_jobs_call_the_script(file: str) -> None:
    text = (ROOT / file).read_text()
    assert YAML(typ="safe").load(text)
    assert f"{SCRIPT} report.md" in text
    assert os.access(ROOT / SCRIPT, os.X_OK)
