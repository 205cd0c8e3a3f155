"""Build the wheels of a plan in a batch system: submit tasks, follow them, and submit some of them again.

Everything about a run is in one file per user in the index. Submitted jobs do not need the process that
follows them: it may be interrupted or killed, and any later process continues with the file. The result for a
wheel is in the index and in the failure record of its build; the batch system reports why a job ended.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import msgspec

from builders.building.directory import finished_commands, path_of
from builders.building.records import TaskState, failure_path, log_path
from builders.building.watch import task_names
from builders.storage.files import write_atomic
from builders.storage.lease import exclusive_lock, holder_of
from resolver.errors import CommandError, MatrixError, UsageError
from resolver.texts import Digest, Name, check_texts, explained

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from builders.index import Index
    from resolver.reporter import Phase, Reporter

_SHORTEST_WAIT = 2.0
"""Seconds between two queries to the batch system after a change."""
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "LOST", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""The states in which a job has ended, as Slurm names them. ``LAUNCH_FAILED`` and ``LOST`` are ours."""
_RUNNING = {"RUNNING", "COMPLETING"}
_PHASES: dict[str, Phase] = {"built": "done", "failed": "failed", "skipped": "skipped"}
"""What to report for a task that has ended, by its state."""
_NO_JOBS_HINT = (
    "They may have finished or been cancelled. If they belong to another index, name the index with --index."
)
_ANOTHER_FAILED = "another wheel failed, and --keep-going is not set"


JobNumber = Annotated[str, msgspec.Meta(pattern="^[0-9]+(@[0-9]+)?$")]


class SubmittedJob(msgspec.Struct):
    """A job of a run; the batch system assigns the `number`."""

    number: JobNumber
    keys: tuple[Name, ...]
    after: tuple[JobNumber, ...]
    """Those that must have succeeded before it starts."""
    state: str = "PENDING"
    """As Slurm names it."""
    is_held: bool = False
    finished_commands: dict[str, int] = {}
    """Commands of ninja that an unfinished build has finished, by key."""


class Run(msgspec.Struct, kw_only=True, dict=True):
    """Everything that is stored about a run, in one file."""

    schema: Literal[3] = 3
    id: Digest = msgspec.field(default_factory=lambda: secrets.token_hex(4))
    """Suffix of the names of all its jobs."""
    directory: str
    tasks: tuple[TaskState, ...]
    """Each task comes after those that it requires; their states are the results of the run."""
    partition: str = ""
    account: str = ""
    minutes: int = 0
    """Time limit of each job; 0 means the time limits of its tasks."""
    most_minutes: int = 0
    """Longest time limit of the partition; 0 if there is none."""
    most_jobs: int = 0
    """Jobs that one user may have in the partition; 0 if there is no limit."""
    most_cores: int = 0
    """Cores that a job may have at most; 0 if that is not known."""
    memory: float = 0.0
    """GiB that a job may have at most; 0 if there is no limit."""
    server: str = ""
    """Directory of the HyperQueue server that was started for the run; empty for any other server."""
    keep_going: bool = False
    jobs: list[SubmittedJob] = []

    @cached_property
    def by_key(self) -> dict[str, TaskState]:
        """The tasks by key."""
        return {task.key: task for task in self.tasks}


def is_live(state: str) -> bool:
    """Return whether a job in this state has not ended."""
    return state not in _ENDED


class BatchSystem(ABC):
    """Submit the jobs of a run and follow them; a batch system is a subclass."""

    name: ClassVar[str]
    """The value of ``--executor``."""
    title: ClassVar[str]
    unit: ClassVar[str] = "job"
    retries: ClassVar[Mapping[str, int]]
    """How often to submit a wheel again after each state. For ``TIMEOUT``, the number applies to jobs that
    finished other wheels; a wheel whose build made progress is submitted as often as needed."""
    explanations: ClassVar[Mapping[str, str]]
    """By state, as the rest of a sentence about a job."""
    advice: ClassVar[Mapping[str, str]] = {}
    """By state, as the end of a sentence."""
    while_silent: ClassVar[str]
    """A sentence about the jobs."""
    longest_wait: ClassVar[float]
    """Seconds between two queries to the batch system while nothing changes."""
    how_to_find_jobs: ClassVar[str]
    """A command that lists the submitted jobs."""

    run: Run

    def __init__(self, index: Index, reporter: Reporter) -> None:
        self.index = index
        self.reporter = reporter
        self._is_silent = False  # whether the last query got no response
        self._dropped: set[str] = set()  # jobs that were cancelled because a wheel failed
        self._published_at = 0  # when the index last changed

    # Methods that a batch system implements.

    @abstractmethod
    def require(self, consequence: str) -> None:
        """Raise `EnvironmentLacksError`, whose message ends with the consequence, if there is no response."""

    def _prepare(self) -> None:  # noqa: B027  most need nothing
        """Start the services that the run needs."""

    @abstractmethod
    def _states(self) -> Mapping[str, str] | None:
        """Return the states of jobs by number; missing jobs are lost. None if there is no response."""

    @abstractmethod
    def _submit(self, tasks: Sequence[TaskState]) -> None:
        """Submit jobs for tasks; raise `CommandError` if one was rejected, and no other job is left."""

    @abstractmethod
    def _drop_waiting(self) -> Collection[str]:
        """After a wheel failed, cancel the jobs that have not started; return their numbers."""

    @abstractmethod
    def _cancel_unknown(self) -> None:
        """Cancel jobs that were submitted by a process that was killed before it could record them."""

    @abstractmethod
    def _cancel_all(self) -> list[str]:
        """Cancel all jobs of the run; return their numbers."""

    @abstractmethod
    def _log(self, number: str, keys: Sequence[str]) -> Path:
        """Return the path of a job's output."""

    @abstractmethod
    def _ending(self, number: str) -> str:
        """Return how a job failed, as the rest of a sentence."""

    def _stopped_in_time(self, number: str) -> bool:  # noqa: ARG002
        """Return whether the builds of a failed job stopped because the job was about to end."""
        return False

    # Methods that all batch systems share.

    def current_run(self) -> Run | None:
        """Return the run of this user that has not been finished; raise `MatrixError` if it is damaged."""
        path = self.state_file
        hint = f"List the jobs with `{self.how_to_find_jobs}`, then remove {path}."
        data: object = None
        try:
            data = msgspec.json.decode(path.read_bytes())
            check_texts(data, path, MatrixError, hint, lines=True)
            return msgspec.convert(data, Run)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            reason = explained(str(error), data)
            msg = f"{path}, which lists the {self.title} jobs of a run, cannot be read: {reason}."
            raise MatrixError(msg, hint=hint) from None

    def check(self) -> None:
        """Check that the batch system responds, and that no run of this user is unfinished (`UsageError`)."""
        if self.current_run() is not None:
            msg = f"The {self.title} jobs of an earlier run into this index are not finished."
            option = f"--executor {self.name}"
            hint = f"Follow them with `{option} --attach`, or cancel them with `{option} --cancel`."
            raise UsageError(msg, hint=hint)
        self.require("Nothing was built.")

    def start(self, run: Run) -> Run:
        """Submit the jobs of a run and follow them until all have ended; return the run with its results."""
        for task in run.tasks:
            self._failure_record(task).unlink(missing_ok=True)
        write_atomic(self.state_file, msgspec.json.encode(run))
        return self.follow()

    def follow(self) -> Run:
        """Follow the jobs of this user's run until all have ended; return the run with its results.

        Missing jobs are submitted. An interrupt does not affect the jobs. Raise `UsageError` if there is no
        run, and `CommandError` if a job was rejected, and no other job is left.
        """
        path = self.state_file

        def waiting() -> None:
            self.reporter.info(f"Another process follows these jobs: {holder_of(path)}. Waiting for it.")

        with exclusive_lock(path.with_suffix(".lock"), on_wait=waiting):
            run = self.current_run()
            if run is None:
                msg = f"You have no {self.title} jobs that build wheels for {self.index.root}."
                raise UsageError(msg, hint=_NO_JOBS_HINT)
            self.run = run
            try:
                self._prepare()
                with self.reporter.task(f"{self.title} jobs"):
                    self._follow()
            except MatrixError:
                if not run.jobs:
                    self._forget()
                raise
            self._forget()
            return run

    def cancel(self) -> list[str]:
        """Cancel the jobs of this user's run, if there is one; return their numbers.

        If the batch system does not respond (`EnvironmentLacksError`, `CommandError`), the run is kept.
        """
        run = self.current_run()
        if run is None:
            return []
        self.run = run
        self.state_file.unlink(missing_ok=True)  # first: a process that follows the run submits no more
        try:
            numbers = self._cancel_all()
        except MatrixError:
            write_atomic(self.state_file, msgspec.json.encode(run))
            raise
        self._forget()
        return numbers

    @property
    def state_file(self) -> Path:
        """The file with this user's run."""
        return self.index.state / self.name / f"{os.getuid()}.json"

    @property
    def _directory(self) -> Path:
        """That of the submitted scripts."""
        return self.index.state / self.name / self.run.id

    def _failure_record(self, task: TaskState) -> Path:
        return failure_path(log_path(self.index, task.name, task.key))

    def _forget(self) -> None:
        self.state_file.unlink(missing_ok=True)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _save(self) -> None:
        write_atomic(self.state_file, msgspec.json.encode(self.run))

    def _follow(self) -> None:
        wait = _SHORTEST_WAIT
        changed = True  # the first time, even if no state has changed
        while True:
            changed = self._poll() or changed
            if not self.state_file.exists():
                for task in self.run.tasks:
                    if task.state == "to build":
                        _end_task(task, "skipped", f"its {self.unit} was cancelled")
                return
            if changed and not self._is_silent:
                changed = not self._act()
                wait = _SHORTEST_WAIT
            else:
                wait = min(2 * wait, self.longest_wait)
            self._report_tasks()
            if not self._live() and not self._unsubmitted():
                return
            self._sleep(wait)

    def _act(self) -> bool:
        """Act on the states of the jobs; return False if this must be repeated.

        Raise `CommandError` if a command was rejected although nothing has changed.
        """
        try:
            self._cancel_unknown()
            self._settle()
            self._submit(self._unsubmitted())
        except CommandError:
            if not self._poll() and not self._is_silent:
                raise
            return False
        finally:
            self._save()
        return True

    def _sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def _live(self) -> list[SubmittedJob]:
        return [job for job in self.run.jobs if is_live(job.state)]

    def _unsubmitted(self) -> list[TaskState]:
        """Return the tasks that have neither a result nor a job."""
        live = {key for job in self._live() for key in job.keys}
        return [task for task in self.run.tasks if task.state == "to build" and task.key not in live]

    def _tasks(self, job: SubmittedJob) -> list[TaskState]:
        return [self.run.by_key[key] for key in job.keys]

    def _titles(self, job: SubmittedJob) -> str:
        return ", ".join(task.title for task in self._tasks(job))

    def _poll(self) -> bool:
        """Query the states of all jobs; return whether one has changed."""
        known = self._states()
        if known is None:
            if not self._is_silent:
                self.reporter.warning(f"{self.title} does not respond. {self.while_silent}")
            self._is_silent = True
            return False
        self._is_silent = False
        changed = False
        for job in self._live():
            state = known.get(job.number, "LOST")
            if state != job.state:
                job.state, changed = state, True
                if is_live(state):
                    self._report(job)
                else:
                    self._end(job)
        return changed

    def _report(self, job: SubmittedJob) -> None:
        state = job.state.lower().replace("_", " ")
        self.reporter.step(f"{self.unit} {job.number} ({self._titles(job)}): {state}", f"{self.title} jobs")

    def _count_wheels(self) -> bool:
        """Count the wheels that running jobs have published; return whether there are new ones."""
        try:
            changed = self.index.provenance.stat().st_mtime_ns
        except OSError:
            return False
        if changed == self._published_at:
            return False
        self._published_at = changed
        running = [task for job in self._live() if job.state in _RUNNING for task in self._tasks(job)]
        found = [task for task in running if task.state == "to build" and self._is_published(task)]
        for task in found:
            task.state = "built"
        return bool(found)

    def _is_published(self, task: TaskState) -> bool:
        return self.index.find(task.name, task.key) is not None

    def _report_tasks(self) -> None:
        self._count_wheels()
        live = {key: job.state for job in self._live() for key in job.keys}
        tasks = self.run.tasks
        names = task_names({task.key: f"{task.name} {task.version.partition('+')[0]}" for task in tasks})
        for task in tasks:
            phase: Phase = "running" if live.get(task.key) in _RUNNING else "waiting"
            self.reporter.progress(
                names[task.key],
                state=_PHASES.get(task.state, phase),
                expected=task.estimate.seconds,
                after=[names[key] for key in task.requires if key in names],
            )

    def _end(self, job: SubmittedJob) -> None:
        missing = []
        if job.state == "FAILED" and self._stopped_in_time(job.number):
            job.state = "TIMEOUT"
        for task in self._tasks(job):
            if job.state == "COMPLETED" or self._is_published(task):
                task.state = "built"
            else:
                missing.append(task)
        self._report(job)
        ended = {other.number: other.state for other in self.run.jobs}
        if job.state == "CANCELLED" and {ended[number] for number in job.after} & (_ENDED - {"COMPLETED"}):
            return  # a job that it waited for failed; that job decides about these tasks
        has_progress = len(missing) < len(job.keys)
        again = [task for task in missing if self._helps(task, job, has_progress=has_progress)]
        for task in missing:
            if task not in again:
                self._fail(task, job)
        if again:
            names = ", ".join(task.name for task in again)
            explanation = self.explanations[job.state]
            self.reporter.warning(
                f"{self.unit.capitalize()} {job.number} {explanation}; it is submitted again for {names}."
            )

    def _helps(self, task: TaskState, job: SubmittedJob, *, has_progress: bool) -> bool:
        """Return whether to submit a task again."""
        if "message" in self._record(task) and job.state != "OUT_OF_MEMORY":
            return False
        if job.state == "TIMEOUT":
            if self._got_further(task.key, job):
                return True
            if not has_progress:
                return False
        return self._count(task.key, job.state) <= self.retries.get(job.state, 0)

    def _got_further(self, key: str, job: SubmittedJob) -> bool:
        """Return whether a build has finished more commands than in any earlier job."""
        before = max((other.finished_commands.get(key, 0) for other in self.run.jobs), default=0)
        job.finished_commands[key] = finished_commands(path_of(self.index, key))
        return job.finished_commands[key] > before

    def _count(self, key: str, state: str) -> int:
        return sum(job.state == state and key in job.keys for job in self.run.jobs)

    def _fail(self, task: TaskState, job: SubmittedJob) -> None:
        if recorded := self._record(task).get("message"):
            _end_task(task, "failed", recorded)
        elif job.number in self._dropped:
            _end_task(task, "skipped", _ANOTHER_FAILED)
        elif job.state == "CANCELLED":
            _end_task(task, "skipped", f"its {self.unit} {job.number} was cancelled")
        elif lacking := self._lacking_requirement(task):
            _end_task(task, "skipped", lacking)
        else:
            why = f"{self.unit} {job.number} {self.explanations.get(job.state) or self._ending(job.number)}"
            advice = self.advice.get(job.state, "")
            _end_task(task, "failed", f"{why}{advice}\n  Log: {self._log(job.number, job.keys)}")

    def _record(self, task: TaskState) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            return dict(json.loads(self._failure_record(task).read_bytes()))
        return {}

    def _lacking_requirement(self, task: TaskState) -> str:
        """Return why a task is skipped, if it requires a wheel that was not built."""
        required = (self.run.by_key.get(key) for key in task.requires)
        lacking = next((other for other in required if other and other.state in {"failed", "skipped"}), None)
        return f"it requires {lacking.name}, which was not built" if lacking else ""

    def _settle(self) -> None:
        """Skip tasks that cannot or need not run after failures."""
        stops = not self.run.keep_going and any(task.state == "failed" for task in self.run.tasks)
        for task in self._unsubmitted():
            if why := self._lacking_requirement(task) or (_ANOTHER_FAILED if stops else ""):
                _end_task(task, "skipped", why)
        if stops:
            self._dropped |= set(self._drop_waiting())


def _end_task(task: TaskState, state: Literal["failed", "skipped"], why: str) -> None:
    task.state, task.why, task.exit_code = state, why, 1
