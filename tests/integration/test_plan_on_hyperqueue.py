"""The tasks of ``matrix plan --format hq`` on the real HyperQueue.

Its wheel has server, worker and Python interface, but not the program that reads job definition files. So
the tasks of a file are submitted through that interface, except their memory, which its worker does not have.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from matrix.plan_formats import hyperqueue_jobs
from tests.support.plans import plan_of

pytestmark = pytest.mark.integration


def test_tasks_run_after_those_they_require(tmp_path: Path) -> None:
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig
    from hyperqueue.task.task import ResourceRequest

    scripts = {
        "base": ("sleep 1; echo base >> order", ()),
        "top": ("echo top >> order", ("base",)),
        "other": ("echo other >> others", ()),
    }
    tasks = tomllib.loads(hyperqueue_jobs(plan_of(tmp_path, scripts)))["task"]
    job = Job(name="matrix")
    made: dict[int, Any] = {}
    for task in tasks:
        made[task["id"]] = job.program(
            task["command"],
            cwd=task["cwd"],
            deps=[made[number] for number in task["deps"]],
            priority=task["priority"],
            resources=ResourceRequest(cpus=task["request"][0]["resources"]["cpus"]),
        )
    with LocalCluster() as cluster:
        cluster.start_worker(WorkerConfig(cores=2))
        client = cluster.client()
        client.wait_for_jobs([client.submit(job)])
    assert (tmp_path / "order").read_text().split() == ["base", "top"]
    assert (tmp_path / "others").read_text().split() == ["other"]
