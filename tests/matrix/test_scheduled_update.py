"""The jobs that update the catalog, and that compare the signed list before a release, with their scripts."""

from __future__ import annotations

import datetime
import json
import os
import runpy
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


NEW = """--- a/catalog/updates.toml
+++ b/catalog/updates.toml
@@ -0,0 +1,4 @@
+[[release]]
+package = "apex"
+version = "99.0"
+source = "an index, read 2026-11-29"
"""


def signed(
    directory: Path, *options: str, diff: str = NEW, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the script that compares the signed list; `matrix` would add a diff, and ends with a code."""
    program = directory / "matrix"
    (directory / "answer.json").write_text(json.dumps({"diff": diff}))
    program.write_text(f"#!/bin/sh\ncat '{directory}/answer.json'\nexit {code}\n")
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{directory}:{os.environ['PATH']}"}
    command = [sys.executable, str(ROOT / ".ci/signed_update.py"), *options]
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_release_needs_a_signed_list_of_what_the_catalog_leaves_out(tmp_path: Path) -> None:
    assert "Nobody has signed" in signed(tmp_path).stderr
    assert signed(tmp_path, "--sign", "someone").returncode == 0
    assert signed(tmp_path).returncode == 0
    assert signed(tmp_path, diff=NEW.replace("2026-11-29", "2026-11-30")).returncode == 0
    other = signed(tmp_path, diff=NEW.replace("99.0", "99.1"))
    assert other.returncode == 1
    assert '"version": "99.1"' in other.stderr
    assert "Not all sources were read" in signed(tmp_path, code=3).stderr


@pytest.mark.parametrize(
    ("old", "new"), [("99.0", "99.1"), ("signed by: someone", "signed by: "), ("day: 2", "day: 3")]
)
def test_a_list_that_was_changed_allows_no_release(tmp_path: Path, old: str, new: str) -> None:
    assert signed(tmp_path, "--sign", "someone").returncode == 0
    path = tmp_path / "CATALOG-UPDATE.txt"
    path.write_text(path.read_text().replace(old, new))
    done = signed(tmp_path)
    assert done.returncode == 1
    assert "changed after it was signed" in done.stderr


def test_a_list_of_last_month_allows_no_release() -> None:
    script = runpy.run_path(str(ROOT / ".ci/signed_update.py"))
    day = datetime.date(2026, 11, 1)
    text = script["signed"](["release {}"], "someone", day)
    assert script["problem_of"](text, ["release {}"], day) == ""
    assert "more than 7 days ago" in script["problem_of"](text, ["release {}"], datetime.date(2026, 11, 29))


@pytest.mark.parametrize("file", [".github/workflows/release.yml", ".gitlab-ci.yml"])
def test_jobs_of_tags_compare_the_signed_list(file: str) -> None:
    text = (ROOT / file).read_text()
    assert YAML(typ="safe").load(text)
    assert "noxfile.py release" in text
