"""Slurm jobs: to verify an environment on a GPU node, and to build, a job for each heavy wheel.

Light wheels share jobs. Jobs run ``matrix farm build-one``, which builds the wheels of a shared job on all of
its cores. They are submitted held, each after the jobs of the wheels it requires, and then released, so that
no job starts before all are known. Each writes its exit code into the index; the result for a wheel is in the
index and in the failure record of its build, and Slurm reports why a job ended. One ``squeue`` queries the
states of all jobs, less and less often while nothing changes. Slurm forgets jobs after some minutes;
``sacct`` reports those that left no exit code, if the cluster has accounting.

Sources: sbatch(1), squeue(1), scancel(1), sacct(1), sinfo(1).
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from builders.building.directory import finished_commands, path_of
from builders.building.records import command_of, failure_path, log_path
from builders.building.watch import LogCount, last_step, task_names
from builders.machine.process import bytes_of, log_size, output_of, read_since, run
from builders.scheduling.batch import ENDED, Run, SubmittedJob, is_live, limits_of, needs_of, pack
from builders.storage.files import cache_root, write_atomic
from builders.storage.lease import exclusive_lock, holder_of
from resolver.errors import EXIT_INTERRUPTED, CommandError, EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import Catalog
from resolver.texts import check_texts, explained

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from builders.building.task_state import TaskState
    from builders.index import Index
    from resolver.facts.schema import Partition
    from resolver.reporter import Phase, Progress, Reporter


_LAUNCH_FAILED = "launch failed requeued held"
"""The reason of a job that Slurm holds until its user releases it: its node could not start it."""
_TIME_LIMIT = "PartitionTimeLimit"
_GLANCE = 1.0
"""Seconds between two checks for new exit codes, which do not query Slurm."""

_SHORTEST_WAIT = 2.0
"""Seconds between two queries after a change."""
_RUNNING = {"RUNNING", "COMPLETING"}
_PHASES: dict[str, Phase] = {"built": "done", "failed": "failed", "skipped": "skipped"}
"""What to report for a task that has ended, by its state."""
_ANOTHER_FAILED = "another wheel failed, and --keep-going is not set"
_NO_JOBS_HINT = (
    "They may have finished or been cancelled. If they belong to another index, name the index with --index."
)
_LONGEST_WAIT = 120.0
"""Seconds between two queries while nothing changes."""
_RETRIES = {
    "BOOT_FAIL": 2, "LAUNCH_FAILED": 2, "NODE_FAIL": 2, "PREEMPTED": 2, "LOST": 1, "OUT_OF_MEMORY": 1,
    "TIMEOUT": 1,
}  # fmt: skip
"""How often to submit a wheel again after each state. For ``TIMEOUT``, the number applies to jobs that
finished other wheels; a wheel whose build made progress is submitted as often as needed."""
_EXPLANATIONS = {
    "BOOT_FAIL": "could not start: its node did not boot",
    "CANCELLED": "was cancelled",
    "DEADLINE": "reached its deadline",
    "LAUNCH_FAILED": "could not start on its node",
    "LOST": "is no longer known to Slurm, and left no exit code",
    "NODE_FAIL": "ended because its node failed",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
    "TIMEOUT": "reached its time limit",
}
"""By state, as the rest of a sentence about a job."""
_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_PLAIN = re.compile(r"[\w.,+-]+")
_MOST_RESTARTS = 3
_LIVE = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STOPPED"}
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
"""Seconds between two queries of a job's state."""
_SUBMITTED = re.compile(r"(?m)^(\d+)(;\S+)?$")


class BatchJob(msgspec.Struct, frozen=True):
    """The resources and the command of a job."""

    partition: str
    account: str
    time: str
    """Time limit in sbatch's format, such as ``00:15:00``."""
    command: Sequence[str]
    output: str
    """File for its output; ``%j`` is the job number."""
    name: str = "matrix-verify"
    options: Mapping[str, str] = msgspec.field(default_factory=lambda: {"gpus-per-node": "1"})
    """In addition to those of the other fields."""
    before: Sequence[str] = ()
    """Lines of shell before the command."""
    exit_file: str = ""
    """File for the command's exit code; ``%j`` is the job number."""


def job_script(job: BatchJob) -> str:
    """Return the script of a job."""
    options = {
        "job-name": job.name,
        "partition": job.partition,
        "account": job.account,
        "time": job.time,
        "nodes": "1",
        "ntasks": "1",
        **job.options,
    }
    for name, value in options.items():
        if value and not _PLAIN.fullmatch(value.replace(":", "")):
            msg = f"{value!r} is not a valid value for sbatch's --{name}."
            raise UsageError(msg)
    if not job.output.isprintable() or {*'"\\'} & {*job.output}:
        msg = f"sbatch cannot write the output of a job to {job.output!r}."
        raise UsageError(msg, hint="Use a directory without quotes, backslashes and control characters.")
    lines = [f"#SBATCH --{name}={value}" for name, value in options.items() if value]
    return "\n".join(
        [
            "#!/bin/bash",
            "# Written by matrix.",
            *lines,
            f'#SBATCH --output="{job.output}"',
            *job.before,
            *(_keeping_exit_code(job) if job.exit_file else [f"exec {shlex.join(job.command)}"]),
            "",
        ]
    )


def _keeping_exit_code(job: BatchJob) -> list[str]:
    before, _, after = job.exit_file.partition("%j")
    return [
        f"file={shlex.quote(before)}$SLURM_JOB_ID{shlex.quote(after)}",
        f'if [ "${{SLURM_RESTART_COUNT:-0}}" -gt {_MOST_RESTARTS} ]; then',
        '  echo "error: Slurm restarted this job too often." >&2; exit 1',
        "fi",
        # Slurm starts a requeued job again under its number: the code of the earlier start must not count.
        'rm -f "$file"',
        shlex.join(job.command),
        "code=$?",
        # A reader must never find an empty file.
        'echo $code > "$file.tmp" && mv "$file.tmp" "$file"',
        "exit $code",
    ]


def partition_for(catalog: Catalog, site: str, hours: float, backend: str = "rocm") -> str:
    """Return the partition of a site with the lowest sufficient time limit: its jobs start first."""
    rows = [row for row in catalog.partition.values() if row.site == site and row.backend == backend]
    sufficient = [row for row in rows if not row.max_hours or row.max_hours >= hours]
    if not sufficient:
        known = ", ".join(f"{row.name} up to {row.max_hours:g} h" for row in rows)
        kind = "GPU partition" if backend == "rocm" else "partition"
        msg = f"The catalog has no {kind} of {site} for {hours:g} hours."
        raise UsageError(msg, hint=f"It has {known}." if known else "Name a partition with --partition.")
    return min(sufficient, key=lambda row: row.max_hours or math.inf).name


def hours_of(time: str) -> float:
    """Parse a time as sbatch does: minutes, minutes:seconds, hours:minutes:seconds, days-hours:...

    Examples
    --------
    >>> hours_of("30"), hours_of("90:00"), hours_of("01:15:00"), hours_of("1-12")
    (0.5, 1.5, 1.25, 36.0)
    """
    match = _TIME.fullmatch(time)
    if not match:
        msg = f"{time!r} is not a valid time for sbatch."
        raise UsageError(msg, hint="Use the form HH:MM:SS.")
    days, *rest = match.groups()
    first, second, third = (int(number) if number else 0 for number in rest)
    if days is not None:
        return int(days) * 24 + first + second / 60 + third / 3600
    if rest[2] is not None:
        return first + second / 60 + third / 3600
    return first / 60 + second / 3600


def submit(script: Path, log: Path, *options: str) -> str:
    """Submit a script, with additional options for sbatch, and return the job number."""
    if not shutil.which("sbatch"):
        msg = f"sbatch is not on PATH, so nothing was submitted. The script is {script}."
        raise EnvironmentLacksError(msg, hint=f"Run `sbatch {script}` on a login node of the cluster.")
    start = log_size(log)
    try:
        run(["sbatch", "--parsable", *options, str(script)], what=f"Submitting {script}", log=log)
    except CommandError as error:
        if any("account" in line.lower() for line in error.lines):
            hint = "Name your project with --account NAME, or as `account` in matrix.toml."
            raise error.changed(hint=hint) from None
        raise
    numbers = _SUBMITTED.findall(read_since(log, start))
    if not numbers:
        msg = f"sbatch succeeded but printed no job number.\n  Log: {log}"
        raise MatrixError(msg, hint="Check with `squeue --me` whether the job is queued.")
    return str(numbers[-1][0])


def wait_for(number: str, *, minutes: float, exit_file: Path, output: Path) -> int:
    """Wait until a job has ended, and return its exit code, which it writes to a file.

    Raise `MatrixError` if it has not started in this many minutes, or has ended without an exit code.
    """
    limit = time.monotonic() + minutes * 60
    pause = _FIRST_PAUSE
    while True:
        # Slurm forgets ended jobs, and squeue then fails or prints nothing.
        command = ["squeue", "--noheader", f"--jobs={number}", "--states=all", "--format=%T|%r"]
        state, _, reason = output_of(command).strip().partition("|")
        # Only after the query: a job that Slurm calls ended by then has written the file before.
        if exit_file.exists():
            return int(exit_file.read_text())
        if state not in _LIVE:
            msg = f"Job {number} ended without a result{f' ({state.lower()})' if state else ''}."
            raise MatrixError(msg, hint=f"Read its output, {output}, and `scontrol show job {number}`.")
        if state == "PENDING" and time.monotonic() > limit:
            msg = f"Job {number} has not started within {minutes:g} minutes; Slurm's reason is {reason}."
            hint = f"It stays queued, and writes to {output}. `scancel {number}` removes it."
            raise MatrixError(msg, hint=hint)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


class _QueueLine(msgspec.Struct, frozen=True):
    """A line of `squeue`."""

    number: str
    state: str
    partition: str
    name: str
    used: str
    """The time that it has run, as `hours_of` reads it."""
    reason: str


def partition_of(catalog: Catalog, site: str, name: str = "") -> Partition | None:
    """Return the partition of a site with that name, or else the one with the longest time limit, if any.

    Short partitions are for tests, and sites admit few jobs to them.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and (not name or row.name == name)]
    return max(rows, key=lambda row: row.max_hours or math.inf, default=None)


class Slurm:
    """Submit the jobs of a run, follow them, and submit some of them again."""

    run: Run

    def __init__(self, index: Index, reporter: Reporter) -> None:
        self.index = index
        self.reporter = reporter
        self._is_silent = False  # whether the last query got no response
        self._dropped: set[str] = set()  # jobs that were cancelled because a wheel failed
        self._published_at = 0  # when the index last changed
        self._rows: list[_QueueLine] = []  # the last answer of `squeue`
        self._warned: set[str] = set()  # jobs that Slurm does not start
        self._started: dict[str, float] = {}  # when each running job began
        self._steps: dict[str, tuple[float, str] | None] = {}  # the step of each build that was reported
        self._counts: dict[str, LogCount] = {}

    def current_run(self) -> Run | None:
        """Return the run of this user that has not been finished; raise `MatrixError` if it is damaged."""
        path = self.state_file
        hint = f"List the jobs with `squeue --me`, then remove {path}."
        data: object = None
        try:
            data = msgspec.json.decode(path.read_bytes())
            check_texts(data, path, MatrixError, hint, lines=True)
            return msgspec.convert(data, Run)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            reason = explained(str(error), data)
            msg = f"{path}, which lists the Slurm jobs of a run, cannot be read: {reason}."
            raise MatrixError(msg, hint=hint) from None

    def check(self) -> None:
        """Check that Slurm responds, and that no run of this user is unfinished (`UsageError`)."""
        if self.current_run() is not None:
            msg = "The Slurm jobs of an earlier run into this index are not finished."
            option = "--executor slurm"
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
                msg = f"You have no Slurm jobs that build wheels for {self.index.root}."
                raise UsageError(msg, hint=_NO_JOBS_HINT)
            self.run = run
            try:
                with self.reporter.task("Slurm jobs"):
                    self._follow()
            except MatrixError:
                if not run.jobs:
                    self._forget()
                raise
            self._forget()
            return run

    def cancel(self) -> list[str]:
        """Cancel the jobs of this user's run, if there is one; return their numbers.

        If Slurm does not respond (`EnvironmentLacksError`, `CommandError`), the run is kept.
        """
        run = self.current_run()
        if run is None:
            return []
        self.run = run
        self.state_file.unlink(missing_ok=True)  # first: a process that follows the run submits no more
        try:
            self.require("Nothing was cancelled.")
            numbers = self._of_run()
            self._scancel(numbers)
        except MatrixError:
            write_atomic(self.state_file, msgspec.json.encode(run))
            raise
        self._forget()
        return numbers

    @property
    def state_file(self) -> Path:
        """The file with this user's run."""
        return self.index.state / "slurm" / f"{os.getuid()}.json"

    @property
    def _directory(self) -> Path:
        """That of the submitted scripts."""
        return self.index.state / "slurm" / self.run.id

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
            # `cancel` in another process has removed it.
            if not self.state_file.exists():
                for task in self.run.tasks:
                    if task.state == "to build":
                        _end_task(task, "skipped", "its job was cancelled")
                return
            if changed and not self._is_silent:
                changed = not self._act()
                wait = _SHORTEST_WAIT
            else:
                wait = min(2 * wait, _LONGEST_WAIT)
            self._report_tasks()
            if not self._live() and not self._unsubmitted():
                return
            self._sleep(wait)

    def _act(self) -> bool:
        """Act on the states of the jobs; return False if this must be repeated.

        Raise `CommandError` if a command was rejected although nothing has changed.
        """
        try:
            # Jobs that no process recorded, and jobs that Slurm holds because it could not start them.
            live = {job.number for job in self._live()}
            self._scancel([number for number in self._of_run() if number not in live])
            self._settle()
            self._submit(self._unsubmitted())
        except CommandError:
            # Slurm rejects a command about a job that has ended in the meantime. Then the states have
            # changed, and what to do follows from the new ones.
            if not self._poll() and not self._is_silent:
                raise
            return False
        finally:
            self._save()
        return True

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
                self.reporter.warning("Slurm does not respond. The jobs continue; waiting for Slurm.")
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
        self.reporter.step(f"job {job.number} ({self._titles(job)}): {state}", "Slurm jobs")

    def _count_wheels(self) -> None:
        """Count the wheels that running jobs have published."""
        with suppress(OSError):
            # Each published wheel adds a record there. The time is read first, so that a wheel that is
            # published during the search for the others is found the next time.
            changed = self.index.provenance.stat().st_mtime_ns
            if changed == self._published_at:
                return
            self._published_at = changed
            for task in (task for job in self._live() if job.state in _RUNNING for task in self._tasks(job)):
                if task.state == "to build" and self._is_published(task):
                    task.state = "built"

    def _is_published(self, task: TaskState) -> bool:
        return self.index.find(task.name, task.key) is not None

    def _report_tasks(self) -> None:
        self._count_wheels()
        running = {key: job for job in self._live() if job.state in _RUNNING for key in job.keys}
        tasks = self.run.tasks
        names = _names(tasks)
        for task in tasks:
            job = running.get(task.key)
            change: Progress = {
                "state": _PHASES.get(task.state, "running" if job else "waiting"),
                "expected": task.estimate.seconds,
                "after": [names[key] for key in task.requires if key in names],
            }
            if job and job.number in self._started:
                change["started"] = self._started[job.number]
            self.reporter.progress(names[task.key], **change)
            if job and change["state"] == "running":
                self._report_build(names[task.key], task, job)

    def _report_build(self, name: str, task: TaskState, job: SubmittedJob) -> None:
        """Report the step and the count of a build, which the logs of its job and build tool have."""
        step = last_step(self._log(job.number, job.keys), _names(self._tasks(job))[task.key])
        if step is not None:
            if self._steps.get(task.key) != step:
                self.reporter.step(step[1], name)
            self._steps[task.key] = step
            if job.number in self._started:
                self.reporter.progress(name, step_started=self._started[job.number] + step[0])
        count = self._counts.setdefault(task.key, LogCount(log_path(self.index, task.name, task.key)))
        self.reporter.progress(name, **count.read())

    def _end(self, job: SubmittedJob) -> None:
        missing = []
        # It stopped by itself, shortly before Slurm would have ended it: see `stop_time`.
        if job.state == "FAILED" and self._exit_code(job.number) == EXIT_INTERRUPTED:
            job.state = "TIMEOUT"
        for task in self._tasks(job):
            if job.state == "COMPLETED" or self._is_published(task):
                task.state = "built"
            else:
                missing.append(task)
        self._report(job)
        # Slurm cancels a job whose dependency failed, often before this process has seen the failure.
        ended = {other.number: other.state for other in self.run.jobs}
        if job.state == "CANCELLED" and {ended[number] for number in job.after} & (ENDED - {"COMPLETED"}):
            return  # a job that it waited for failed; that job decides about these tasks
        has_progress = len(missing) < len(job.keys)
        again = [task for task in missing if self._helps(task, job, has_progress=has_progress)]
        for task in missing:
            if task not in again:
                self._fail(task, job)
        if again:
            names = ", ".join(task.name for task in again)
            explanation = _EXPLANATIONS[job.state]
            self.reporter.warning(f"Job {job.number} {explanation}; it is submitted again for {names}.")

    def _helps(self, task: TaskState, job: SubmittedJob, *, has_progress: bool) -> bool:
        """Return whether to submit a task again."""
        # A recorded failure is that of the build itself, which would fail again; with more memory it may not.
        if "message" in self._record(task) and job.state != "OUT_OF_MEMORY":
            return False
        if job.state == "TIMEOUT":
            if self._got_further(task.key, job):
                return True
            if not has_progress:
                return False
        return self._count(task.key, job.state) <= _RETRIES.get(job.state, 0)

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
            _end_task(task, "skipped", f"its job {job.number} was cancelled")
        elif lacking := self._lacking_requirement(task):
            _end_task(task, "skipped", lacking)
        else:
            code = self._exit_code(job.number)
            ending = "failed" if code is None else f"failed with exit code {code}"
            why = f"job {job.number} {_EXPLANATIONS.get(job.state, ending)}"
            advice = "; allow more with --time" if job.state == "TIMEOUT" else ""
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
            waiting = {job.number for job in self._live() if job.state == "PENDING"} - self._dropped
            # A job that has started since the last query is not cancelled: it finishes its wheel.
            self._scancel(waiting, "--state=PENDING")
            self._dropped |= waiting

    def require(self, consequence: str) -> None:
        """Raise `EnvironmentLacksError`, whose message ends with the consequence, without Slurm."""
        missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if not shutil.which(name)]
        if missing:
            msg = (
                f"{missing[0]} is not on PATH, so this is not a login node of a Slurm cluster. {consequence}"
            )
            raise EnvironmentLacksError(msg, hint="Use --executor local to build on this machine.")
        rows = _queue()
        if rows is None:
            msg = f"Slurm does not respond. {consequence}"
            hint = "Check it with `squeue --me`, then run the same command again."
            raise EnvironmentLacksError(msg, hint=hint)
        self._rows = rows

    def _sleep(self, seconds: float) -> None:
        """Wait until a job has written its exit code, or until the time is up."""
        before = self._exit_files()
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0 and self._exit_files() == before:
            time.sleep(min(rest, _GLANCE))
            self._report_tasks()

    def _exit_files(self) -> set[str]:
        with suppress(FileNotFoundError):
            return {name for name in os.listdir(self._directory) if name.endswith(".exit")}  # noqa: PTH208
        return set()

    # Follow.

    def _states(self) -> Mapping[str, str] | None:
        rows = _queue()
        if rows is None:
            return None
        self._rows = rows
        with suppress(UsageError):  # a time that Slurm does not know
            self._started |= {
                row.number: time.monotonic() - 3600 * hours_of(row.used)
                for row in rows
                if row.state in _RUNNING
            }
        known = {row.number: "LAUNCH_FAILED" if row.reason == _LAUNCH_FAILED else row.state for row in rows}
        for row in rows:
            if row.reason == _TIME_LIMIT and row.number in self._of_run() and row.number not in self._warned:
                self._warned.add(row.number)
                text = (
                    f"Slurm does not start job {row.number}: its time limit is above the partition's limit."
                )
                advice = "Cancel the jobs with --cancel, and choose a shorter time limit with --time."
                self.reporter.warning(f"{text}\n{advice}")
        # The exit file comes first: not every cluster has accounting.
        gone = [job.number for job in self._live() if job.number not in known]
        for number in list(gone):
            code = self._exit_code(number)
            if code is not None:
                known[number] = "FAILED" if code else "COMPLETED"
                gone.remove(number)
        return known | _accounted(gone) if gone else known

    def _exit_code(self, number: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._directory / f"{number}.exit").read_text())
        return None

    # Cancel.

    def _scancel(self, numbers: Collection[str], *options: str) -> None:
        if numbers:
            run(["scancel", *options, *numbers], what="Cancelling jobs", log=self._directory / "slurm.log")

    def _of_run(self) -> list[str]:
        """Return the numbers of all jobs of the run that Slurm lists and that have not ended."""
        return [
            row.number for row in self._rows if row.name.endswith(f"-{self.run.id}") and is_live(row.state)
        ]

    # Submit.

    def _submit(self, tasks: Sequence[TaskState]) -> None:
        """Submit jobs, each after those that it requires; release all held jobs."""
        run = self.run
        if tasks:
            minutes, cores, mebibytes = partition_limits(run.partition)
            run.most_minutes = run.most_minutes or minutes
            run.most_cores = min(run.most_cores or cores, cores or run.most_cores)
            gib = mebibytes / 1024
            run.memory = min(run.memory or gib, gib or run.memory)
        live = {key: job for job in self._live() for key in job.keys}
        submitted: list[str] = []
        try:
            for group in pack(tasks, self._admitted(len(tasks)), run.most_cores) if tasks else []:
                required = {key for task in group for key in task.requires if key in live}
                after = sorted({live[key].number for key in required}, key=int)
                try:
                    number = self._sbatch(group, after)
                except CommandError as error:
                    # With a live job, a limit of jobs for each user may be the reason: its end helps.
                    if not live:
                        raise
                    self.reporter.warning(
                        f"{error.message}\nThe job is submitted when another job has ended."
                    )
                    break
                job = SubmittedJob(number, tuple(task.key for task in group), tuple(after), is_held=True)
                run.jobs.append(job)
                live |= dict.fromkeys(job.keys, job)
                # At once, because a job of this run that is not recorded is cancelled: see `_act`.
                self._save()
                waits = f", after {', '.join(after)}" if after else ""
                submitted.append(f"Submitted job {number}: {self._titles(job)}{waits}")
        finally:
            # Even after an error: the jobs that were submitted before it would be held for ever.
            self._release()
            # Who reads this may end the command: the jobs start without it.
            for text in submitted:
                self.reporter.info(text)

    def _admitted(self, number: int) -> int:
        """Return how many more jobs this user may submit to the partition; at least one."""
        if not self.run.most_jobs:
            return number
        present = sum(row.partition == self.run.partition and is_live(row.state) for row in self._rows)
        return max(1, self.run.most_jobs - present)

    def _release(self) -> None:
        held = [job for job in self._live() if job.is_held]
        if held:
            numbers = [job.number for job in held]
            log = self._directory / "slurm.log"
            run(["scontrol", "release", *numbers], what="Releasing the jobs", log=log)
            for job in held:
                job.is_held = False

    def _log(self, number: str, keys: Sequence[str]) -> Path:
        return self.index.state / "logs" / f"slurm-{number}-{self.run.by_key[keys[0]].name}.log"

    def _build_command(self, group: Sequence[TaskState]) -> list[str]:
        return command_of(group)

    def _sbatch(self, group: Sequence[TaskState], after: Sequence[str]) -> str:
        run, keys = self.run, [task.key for task in group]
        for task in group:
            self._failure_record(task).unlink(missing_ok=True)
        needs, mebibytes = needs_of(
            group,
            cores=run.most_cores,
            memory=run.memory,
            growth=2 ** max(self._count(key, "OUT_OF_MEMORY") for key in keys),
        )
        minutes = run.minutes or math.ceil(needs.seconds / 60)
        more = f"+{len(group) - 1}" if len(group) > 1 else ""
        options = {
            "cpus-per-task": str(needs.cores),
            "mem": f"{mebibytes}M",
            # Without it, Slurm keeps a job in the queue whose dependency can never be met.
            "kill-on-invalid-dep": "yes",
        }
        if after:
            options["dependency"] = f"afterok:{':'.join(after)}"
        job = BatchJob(
            partition=run.partition,
            account=run.account,
            time=str(min(minutes, run.most_minutes or minutes)),
            command=[*self._build_command(group), *limits_of(needs), "--offline"],
            output=str(self._log("%j", keys)),
            name=f"matrix-{group[0].name}{more}-{run.id}",
            options=options,
            exit_file=str(self._directory / "%j.exit"),
            before=(
                f"cd {shlex.quote(run.directory)}",
                f"export XDG_CACHE_HOME={shlex.quote(str(cache_root().parent))}",
            ),
        )
        script = self._directory / f"{len(run.jobs) + 1}.sh"
        write_atomic(script, job_script(job))
        self.index.state_directory("logs")
        return submit(script, self._directory / "slurm.log", "--hold", "--requeue")


def _names(tasks: Iterable[TaskState]) -> dict[str, str]:
    return task_names({task.key: f"{task.name} {task.version.partition('+')[0]}" for task in tasks})


def _end_task(task: TaskState, state: Literal["failed", "skipped"], why: str) -> None:
    task.state, task.why, task.exit_code = state, why, 1


def _queue() -> list[_QueueLine] | None:
    """Return all jobs of this user that Slurm knows; None if Slurm does not respond."""
    output = bytes_of(["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%P|%j|%M|%r"])
    if output is None:
        return None
    words = [line.split("|", 5) for line in output.decode(errors="replace").splitlines()]
    return [_QueueLine(*map(str.strip, row)) for row in words if len(row) == 6]  # noqa: PLR2004


def partition_limits(partition: str) -> tuple[int, int, int]:
    """Return the minutes, cores and MiB that a job may take in a partition; 0 if that is not known."""
    output = bytes_of(["sinfo", "--noheader", "--format=%P|%l|%c|%m"]) or b""
    for line in output.decode(errors="replace").splitlines():
        name, *limits = f"{line.strip()}|||".split("|")
        if name.rstrip("*") == partition or (name.endswith("*") and not partition):
            minutes = 0
            with suppress(UsageError):  # such as "infinite"
                minutes = math.floor(60 * hours_of(limits[0]))
            least = [word.strip().rstrip("+") for word in limits[1:3]]  # "+": some nodes have more
            cores, mebibytes = (int(word) if word.isdecimal() else 0 for word in least)
            return minutes, cores, mebibytes
    return 0, 0, 0


def _accounted(numbers: Sequence[str]) -> dict[str, str]:
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
    output = bytes_of([*command, f"--jobs={','.join(numbers)}"]) or b""
    rows = (line.partition("|") for line in output.decode(errors="replace").splitlines())
    states = {number: state.split()[0] for number, _, state in rows if state.strip()}
    return {number: state for number, state in states.items() if not is_live(state)}
