"""Run builds as HyperQueue tasks: one task for each wheel, after the tasks whose wheels it requires.

A run is one HyperQueue job, plus another job each time that tasks are submitted again. The program ``hq``
finds the server. If there is no server and this is a Slurm allocation, a server and a worker on each of its
nodes are started. They end with the run or with the allocation. Jobs are identified by name: a server that
was started again without a journal counts from 1 again.

Source: It4innovations/hyperqueue@680857bd, under ``docs/``: ``jobs/jobfile.md``, ``jobs/failure.md``,
``cli/output-mode.md``, ``deployment/server.md``, ``deployment/worker.md``; the texts of failures are in
``crates/tako/src/internal`` (``server/reactor.rs``, ``worker/reactor.rs``) and
``crates/hyperqueue/src/worker/start/program.rs``.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec.structs import replace

from builders.building.records import command_of
from builders.diagnosis import OUT_OF_MEMORY, diagnosed
from builders.machine.process import bytes_of, log_size, read_since, run, start_in_background
from builders.scheduling.batch import BatchSystem, SubmittedJob
from builders.scheduling.scheduler import graph_of, remaining_paths
from builders.storage.files import cache_root, write_atomic
from resolver.errors import EnvironmentLacksError, MatrixError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from builders.building.records import TaskState
    from builders.index import Index
    from resolver.reporter import Reporter

_STATES = {
    "waiting": "PENDING",
    "running": "RUNNING",
    "finished": "COMPLETED",
    "canceled": "CANCELLED",
    "aborted": "CANCELLED",
}
"""Our state for each of HyperQueue's; the error text of a failed task distinguishes the kinds of failure."""
_FAILURES = (
    ("Time limit reached", "TIMEOUT"),
    ("exit code 130", "TIMEOUT"),  # stopped, because the Slurm job of its worker was about to end
    ("Task was running on a", "NODE_FAIL"),
    ("Received signal 9 ", "OUT_OF_MEMORY"),
)
_START_TIMEOUT = 120
"""Seconds until a server that was started must answer."""


def job_definition(
    name: str,
    tasks: Sequence[TaskState],
    commands: Mapping[str, Sequence[str]],
    *,
    directory: str,
    logs: Path,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Return a job definition file for the commands by key; the longest remaining paths come first."""
    import tomli_w

    numbers = {task.key: number for number, task in enumerate(tasks, start=1)}
    graph = graph_of({task.key: task.requires for task in tasks})
    remaining = remaining_paths(graph, {task.key: task.estimate for task in tasks})
    rows = [
        {
            "id": numbers[task.key],
            "command": list(commands[task.key]),
            "cwd": directory,
            "env": dict(environment or {}),
            "stdout": "none",
            "stderr": str(_log(logs, "%{JOB_ID}", "%{TASK_ID}", task)),
            "deps": [numbers[key] for key in task.requires if key in numbers],
            "time_limit": f"{task.time_limit}s",
            "crash_limit": 3,
            "priority": math.ceil(remaining[task.key] / 60),
            "request": [{"resources": {"cpus": task.estimate.cores, "mem": mebibytes(task.estimate.memory)}}],
        }
        for task in tasks
    ]
    return tomli_w.dumps({"name": name, "task": rows})


def mebibytes(gib: float) -> int:
    """Return the memory to request in MiB: for the compile jobs, and 1024 for everything else."""
    return math.ceil(gib * 1024) + 1024


def _log(logs: Path, job: str, task_number: str, task: TaskState) -> Path:
    return logs / f"hq-{job}-{task_number}-{task.name}.log"


class HyperQueue(BatchSystem):
    """HyperQueue, through its program ``hq``. A task has the number ``JOB@TASK``, as in HyperQueue."""

    name = "hq"
    title = "HyperQueue"
    unit = "task"
    retries: ClassVar = {"LOST": 2, "OUT_OF_MEMORY": 1, "TIMEOUT": 1}
    explanations: ClassVar = {
        "CANCELLED": "was cancelled",
        "LOST": "is not known to the server, which was started again",
        "NODE_FAIL": "ended three times because its worker was lost",
        "OUT_OF_MEMORY": "ran out of memory, or was killed",
        "TIMEOUT": "reached its time limit",
    }
    while_silent = (
        "Waiting for its server. If the server has ended, start it again: `hq server start`, with the same "
        "--journal if it had one. Tasks that the server has lost are submitted again."
    )
    longest_wait = 15.0
    how_to_find_jobs = "hq job list"

    def __init__(self, index: Index, reporter: Reporter) -> None:
        super().__init__(index, reporter)
        self._server = ""  # the server directory; empty for the server that `hq` finds
        self._errors: dict[str, str] = {}  # of failed tasks, by number
        self._has_looked = False  # for jobs that no process recorded

    def require(self, consequence: str) -> None:  # noqa: D102
        if not shutil.which("hq"):
            msg = f"hq, the program of HyperQueue, is not on PATH. {consequence}"
            raise EnvironmentLacksError(msg, hint="Use --executor local to build on this machine.")
        if not self._answers() and not _is_allocation():
            msg = f"No HyperQueue server responds, and this is not a Slurm allocation. {consequence}"
            hint = (
                "Start a server with `hq server start`, and workers with `hq worker start`. Or run the "
                "command in an allocation. $HQ_SERVER_DIR names another server directory."
            )
            raise EnvironmentLacksError(msg, hint=hint)

    def _command(self, *words: str, output: str = "json") -> list[str]:
        server = [f"--server-dir={self._server}"] if self._server else []
        return ["hq", f"--output-mode={output}", *server, *words]

    def _ask(self, *words: str) -> Any:  # noqa: ANN401  JSON
        """Return the parsed output of ``hq``; None if it fails."""
        try:
            return json.loads(bytes_of(self._command(*words)) or b"")
        except ValueError:
            return None

    def _answers(self) -> bool:
        return self._ask("server", "info") is not None

    # The server of an allocation.

    def _prepare(self) -> None:
        self._server = self.run.server
        if self._answers():
            return
        self._server = ""
        if self.run.server and self._answers():
            self.run.server = ""
        elif _is_allocation():
            self._start_server()
        else:
            self._server = self.run.server

    def _start_server(self) -> None:
        """Start a server and a worker on each node of this allocation."""
        self.run.server = self._server = self._own_server
        self._save()
        log = self.index.state_directory("logs") / f"hq-server-{self.run.id}.log"
        start_in_background(self._command("server", "start", output="cli"), log)
        wait = self._command("server", "wait", f"--timeout={_START_TIMEOUT}s", output="cli")
        run(wait, what="Starting a HyperQueue server", log=log)
        worker = self._command("worker", "start", output="cli")
        nodes, cores = (os.environ.get(name, "1") for name in ("SLURM_JOB_NUM_NODES", "SLURM_CPUS_ON_NODE"))
        step = ["srun", "--overlap", f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={cores}"]
        start_in_background([*step, "--mem=0", *worker], log)
        self.reporter.info(f"Started a HyperQueue server and workers in this allocation. Log: {log}")

    @property
    def _own_server(self) -> str:
        return str(cache_root() / "hq" / self.run.id)

    def _forget(self) -> None:
        if self.run.server:
            bytes_of(self._command("server", "stop", output="cli"))
            shutil.rmtree(self._own_server, ignore_errors=True)  # the state may name another directory
        super()._forget()

    # Follow.

    def _states(self) -> Mapping[str, str] | None:
        states = {}
        for job in self._live_jobs():
            details = self._ask("job", "info", job)
            if details is None and self.run.server:
                self._prepare()
                details = self._ask("job", "info", job)
            if details is None:
                return None
            for detail in details:
                if detail["info"]["name"] == self._job_name:
                    for row in detail["tasks"]:
                        states[f"{job}@{row['id']}"] = self._state(f"{job}@{row['id']}", row)
        return states

    def _live_jobs(self) -> list[str]:
        return sorted({task.number.partition("@")[0] for task in self._live()}, key=int)

    @property
    def _job_name(self) -> str:
        return f"matrix-{self.run.id}"

    def _state(self, number: str, row: Mapping[str, Any]) -> str:
        if row["state"] != "failed":
            return _STATES[row["state"]]
        error = self._errors[number] = row["error"]
        tasks = [task for job in self.run.jobs if job.number == number for task in self._tasks(job)]
        if any(OUT_OF_MEMORY in diagnosed(self._record(task)) for task in tasks):
            return "OUT_OF_MEMORY"
        return next((state for text, state in _FAILURES if text in error), "FAILED")

    def _ending(self, number: str) -> str:
        return f"failed: {self._errors[number]}"

    def _log(self, number: str, keys: Sequence[str]) -> Path:
        job, _, task = number.partition("@")
        return _log(self.index.state / "logs", job, task, self.run.by_key[keys[0]])

    # Cancel.

    def _cancel_jobs(self, jobs: Collection[str]) -> None:
        log = self._directory / "hq.log"
        for job in jobs:
            run(self._command("job", "cancel", job, output="cli"), what="Cancelling tasks", log=log)

    def _cancel_unknown(self) -> None:
        if self._has_looked:
            return
        known = {job.number.partition("@")[0] for job in self.run.jobs}
        rows = self._ask("job", "list") or []
        self._cancel_jobs(
            [str(row["id"]) for row in rows if row["name"] == self._job_name and str(row["id"]) not in known]
        )
        self._has_looked = True

    def _cancel_all(self) -> list[str]:
        numbers = [task.number for task in self._live()]
        self._server = self.run.server
        if self._answers():
            self._cancel_unknown()
            self._cancel_jobs(self._live_jobs())
            return numbers
        self.reporter.warning("The HyperQueue server does not respond. Its tasks have ended with it.")
        return []

    def _drop_waiting(self) -> Collection[str]:
        """Cancel all tasks, including running ones: HyperQueue cannot cancel single tasks of a job."""
        tasks = [task for task in self._live() if task.number not in self._dropped]
        self._cancel_jobs(sorted({task.number.partition("@")[0] for task in tasks}, key=int))
        return [task.number for task in tasks]

    # Submit.

    def _submit(self, tasks: Sequence[TaskState]) -> None:
        """Submit a job with all tasks, except those that require a task of a job that has not ended."""
        waits_for = {key for job in self._live() for key in job.keys}
        ready: list[TaskState] = []
        for task in tasks:
            if waits_for.isdisjoint(task.requires):
                growth = 2 ** self._count(task.key, "OUT_OF_MEMORY")
                ready.append(replace(task, memory_gib=task.estimate.memory * growth))
            else:
                waits_for.add(task.key)
        if not ready:
            return
        for task in ready:
            self._failure_record(task).unlink(missing_ok=True)
        job = self._submit_file(ready)
        numbers = {task.key: f"{job}@{number}" for number, task in enumerate(ready, start=1)}
        for task in ready:
            after = tuple(numbers[key] for key in task.requires if key in numbers)
            self.run.jobs.append(SubmittedJob(numbers[task.key], (task.key,), after))
        self.reporter.info(f"Submitted HyperQueue job {job}; tasks: {len(ready)}")

    def _submit_file(self, tasks: Sequence[TaskState]) -> str:
        """Submit tasks; return the number of their job."""
        text = job_definition(
            self._job_name,
            tasks,
            {task.key: self._build_command(task) for task in tasks},
            directory=self.run.directory,
            logs=self.index.state_directory("logs"),
            environment={"XDG_CACHE_HOME": str(cache_root().parent)},
        )
        file = self._directory / f"{len(self.run.jobs) + 1}.toml"
        write_atomic(file, text)
        log = self._directory / "hq.log"
        start = log_size(log)
        command = self._command("job", "submit-file", str(file), output="quiet")
        run(command, what="Submitting the tasks", log=log)
        numbers = re.findall(r"(?m)^(\d+)$", read_since(log, start))
        if not numbers:
            msg = f"hq succeeded but printed no job number.\n  Log: {log}"
            raise MatrixError(msg, hint="Check with `hq job list` whether the job is listed.")
        return str(numbers[-1])

    def _build_command(self, task: TaskState) -> list[str]:
        needs = task.estimate
        limits = ["--jobs", str(needs.cores), "--memory", str(math.ceil(needs.memory)), "--offline"]
        return [*command_of([task]), *limits]


def _is_allocation() -> bool:
    return "SLURM_JOB_ID" in os.environ and shutil.which("srun") is not None
