"""Plans as files for HyperQueue and CI, checked against the published schemas."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from ruamel.yaml import YAML

from matrix.building.planning import Plan
from matrix.commands.plan import (
    FORMATS,
    github_workflow,
    gitlab_pipeline,
    hyperqueue_jobs,
    sbatch_script,
)
from tests.support.plans import plan_of

CHAIN = {"base": ("true", ()), "top": ("true", ("base",)), "other": ("true", ())}


def plan(directory: Path = Path("/work")) -> Plan:
    made = plan_of(directory, CHAIN)
    lock = ("matrix", "build-one", "0123", "--lock", f"{directory}/matrix.lock", "--index", made.index)
    return replace(made, tasks=tuple(replace(task, command=lock) for task in made.tasks))


def load(text: str) -> Any:
    return YAML(typ="safe").load(text)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("schema", "write"), [("github-workflows", github_workflow), ("gitlab-ci", gitlab_pipeline)]
)
def test_pipeline_agrees_with_published_schema(
    schema: str, write: Callable[[Plan], str], tmp_path: Path
) -> None:
    file = tmp_path / "pipeline.yml"
    file.write_text(write(plan()))
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_github_job_gets_the_wheels_it_requires() -> None:
    jobs = load(github_workflow(plan()))["jobs"]
    assert {name: job.get("needs", []) for name, job in jobs.items()} == {
        "base-base": [], "top-top": ["base-base"], "other-other": [],
    }  # fmt: skip
    steps = jobs["top-top"]["steps"]
    assert steps[1]["with"] == {"name": "base-base", "path": "index"}
    assert steps[2]["run"] == "matrix build-one 0123 --lock matrix.lock --index index"
    assert steps[3]["with"]["path"] == "index"


def test_gitlab_job_needs_the_wheels_it_requires() -> None:
    pipeline = load(gitlab_pipeline(plan()))
    assert pipeline["top-top"]["needs"] == ["base-base"]
    assert pipeline["top-top"]["script"] == ["matrix build-one 0123 --lock matrix.lock --index index"]
    assert pipeline["base-base"]["artifacts"]["paths"] == ["index"]


def test_hyperqueue_tasks_have_dependencies_and_resources() -> None:
    tasks = tomllib.loads(hyperqueue_jobs(plan()))["task"]
    assert [(task["id"], task["deps"]) for task in tasks] == [(1, []), (2, [1]), (3, [])]
    assert tasks[0]["request"] == [{"resources": {"cpus": 1, "mem": 1127}}]
    assert tasks[0]["command"][-2:] == ["--jobs", "1"]
    assert (tasks[0]["time_limit"], tasks[0]["cwd"]) == ("300s", "/work")


def test_slurm_jobs_are_those_of_the_executor() -> None:
    """Light tasks share a job, and the site admits at most that many jobs."""
    made = plan()
    light = tuple(replace(task, seconds=5.0) for task in made.tasks)
    text = sbatch_script(replace(made, tasks=light))
    assert text.count("submit matrix-") == 1
    assert "submit matrix-base+2 3 2048 6 ''" in text
    assert text.count("build-one 0123 0123 0123 --lock /work/matrix.lock --index /work/index --jobs 3") == 1
    assert sbatch_script(made).count("submit matrix-") == 3
    assert sbatch_script(replace(made, max_jobs=2)).count("submit matrix-") == 2


@pytest.mark.parametrize("name", FORMATS)
def test_finished_tasks_are_left_out(name: str) -> None:
    made = plan()
    first = replace(made.tasks[0], state="up to date")
    text = FORMATS[name](replace(made, tasks=(first, *made.tasks[1:])))
    assert text.count("build-one") == 2
    assert "base-base" not in text
