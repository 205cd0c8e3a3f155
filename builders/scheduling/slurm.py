"""Build the wheels of a plan in Slurm jobs: submit a few, follow them, and submit again where that helps.

Each job runs ``matrix build-one`` for one heavy wheel, or for several light ones. Jobs are submitted held,
each after those whose wheels it requires, and then released, so that no job starts before all are known.

Everything about a run is in one file per user in the index. The jobs do not need the process that follows
them: it may be interrupted or killed, and any later process continues with that file. What became of a wheel
is in the index, in the failure record of its build and in the exit code that the job wrote. Slurm itself is
asked with one ``squeue`` for all jobs, less and less often while nothing changes. Slurm forgets jobs after
some minutes; accounting (``sacct``) is asked about those that left no exit code, but is not needed.

Sources: sbatch(1), squeue(1), scancel(1), sacct(1).
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shlex
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

from builders.cache import cache_root
from builders.files import exclusive_lock, write_atomic
from builders.lease import holder_of
from builders.probe.slurm import Job, job_script, submit
from builders.process import bytes_of, run
from builders.records import failure_path, log_path
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from builders.index import Index
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Partition
    from resolver.reporter import Reporter

_LIGHT = 60.0
"""Seconds; a build that is expected to take less shares a job with others."""
_SHORTEST_WAIT = 2.0
_LONGEST_WAIT = 120.0
"""Seconds between two questions to Slurm."""
_GLANCE = 1.0
"""Seconds between two looks for new exit codes, for which Slurm is not asked."""
_ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LOST", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""The states of Slurm in which a job has ended. ``LOST`` is ours: no longer known, and without exit code."""
_RETRIES = {"BOOT_FAIL": 2, "NODE_FAIL": 2, "PREEMPTED": 2, "LOST": 1, "OUT_OF_MEMORY": 1, "TIMEOUT": 1}
"""How often a wheel is submitted again after such a state; ``TIMEOUT`` only if the job finished others."""
_ANOTHER_FAILED = "another wheel failed, and --keep-going is not set"
_EXPLANATIONS = {
    "BOOT_FAIL": "could not start: its node did not boot",
    "CANCELLED": "was cancelled",
    "DEADLINE": "reached its deadline",
    "LOST": "is no longer known to Slurm, and left no exit code",
    "NODE_FAIL": "ended because its node failed",
    "OUT_OF_MEMORY": "ran out of memory",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
    "TIMEOUT": "reached its time limit",
}


class WheelTask(msgspec.Struct, frozen=True):
    """What a job needs to know of one task of a plan."""

    key: str
    name: str
    version: str
    requires: tuple[str, ...]
    """Keys of the tasks whose wheels are installed to build this one."""
    cores: int
    memory_gib: float
    seconds: float
    time_limit: int
    """Seconds after which something must be wrong."""
    lock: str
    """Path of the lock that it belongs to."""


class SubmittedJob(msgspec.Struct):
    """A job of a run; `number` is Slurm's."""

    number: str
    keys: tuple[str, ...]
    after: tuple[str, ...]
    """Numbers of the jobs that must have succeeded before it starts."""
    state: str = "PENDING"
    """As `squeue` names it."""
    is_held: bool = True


class Result(msgspec.Struct, frozen=True):
    """What became of a task."""

    state: Literal["built", "failed", "skipped"]
    why: str = ""


class Run(msgspec.Struct, kw_only=True):
    """Everything that is kept about a run, in one file."""

    schema: int = 1
    id: str = msgspec.field(default_factory=lambda: secrets.token_hex(4))
    """The end of the names of all its jobs."""
    directory: str
    """Where the jobs run."""
    options: tuple[str, ...]
    """Those of ``matrix build-one`` that all tasks have in common, so not their locks."""
    tasks: tuple[WheelTask, ...]
    """Each follows those that it requires."""
    partition: str = ""
    account: str = ""
    minutes: int = 0
    """Time limit of each job; 0 means that of its tasks."""
    most_minutes: int = 0
    """Longest time limit of the partition; 0 if there is none."""
    most_jobs: int = 0
    """Jobs that one user may have in the partition; 0 if there is no limit."""
    keep_going: bool = False
    """Whether to build further wheels after one has failed."""
    jobs: list[SubmittedJob] = []
    results: dict[str, Result] = {}
    """By key; a task without result is not finished."""


class _Row(msgspec.Struct, frozen=True):
    """A line of `squeue`."""

    number: str
    state: str
    partition: str
    name: str


def partition_of(catalog: Catalog, site: str, name: str = "") -> Partition | None:
    """Return the partition of a site with that name, or else the one with the longest time limit.

    Short partitions are for tests, and sites admit few jobs to them. None if the catalog does not know it.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and (not name or row.name == name)]
    return max(rows, key=lambda row: row.max_hours or math.inf, default=None)


def pack(tasks: Sequence[WheelTask], most: int) -> list[list[WheelTask]]:
    """Return the tasks of each of at most so many jobs, each job after those whose wheels it requires.

    Each heavy task has a job of its own. Light tasks of the same level share one: every requirement between
    two jobs leads to a higher level, so no two jobs wait for each other.
    """
    levels: dict[str, int] = {}
    groups: dict[int, list[list[WheelTask]]] = {}
    light = {task.key: task.seconds < _LIGHT for task in tasks}
    for task in tasks:
        required = [key for key in task.requires if key in levels]
        level = max((levels[key] + (not (light[key] and light[task.key])) for key in required), default=0)
        levels[task.key] = level
        present = groups.setdefault(level, [])
        shared = next((group for group in present if light[group[0].key]), None) if light[task.key] else None
        if shared is not None:
            shared.append(task)
        else:
            present.append([task])
    while sum(map(len, groups.values())) > most:
        wide = [level for level, present in groups.items() if len(present) > 1]
        if wide:
            level = max(wide, key=lambda level: len(groups[level]))
            first, second, *rest = sorted(groups[level], key=_expected)
            groups[level] = [first + second, *rest]
        else:
            lower, upper = sorted(groups)[:2]
            groups[upper] = [groups.pop(lower)[0] + groups[upper][0]]
    return [group for level in sorted(groups) for group in groups[level]]


def _expected(group: Iterable[WheelTask]) -> float:
    return sum(task.seconds for task in group)


def current_run(index: Index) -> Run | None:
    """Return the run of this user that has not been finished; None if there is none.

    Raises
    ------
    MatrixError
        Its file cannot be read.
    """
    path = _state_file(index)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except FileNotFoundError:
        return None
    except msgspec.MsgspecError as error:
        msg = f"{path}, which lists the Slurm jobs of a run, cannot be read: {error}"
        raise MatrixError(msg, hint=f"Look for the jobs with `squeue --me`, then remove {path}.") from None


def check_slurm(index: Index) -> None:
    """Check that Slurm answers, and that no run of this user is unfinished.

    Raises
    ------
    EnvironmentLacksError
        Slurm is not installed, or does not answer.
    UsageError
        A run is unfinished.
    """
    _answered_queue("Nothing was built.")
    if current_run(index) is not None:
        msg = "The Slurm jobs of an earlier run into this index are not finished."
        hint = (
            "Follow them with `--executor slurm --attach`, or cancel them with `--executor slurm --cancel`."
        )
        raise UsageError(msg, hint=hint)


def start(run: Run, index: Index, reporter: Reporter) -> Run:
    """Submit the jobs of a run and follow them until all have ended; return the run with its results.

    Raises
    ------
    CommandError
        Slurm rejected a job, and no other job is left.
    """
    for task in run.tasks:
        _failure_record(task, index).unlink(missing_ok=True)
    write_atomic(_state_file(index), msgspec.json.encode(run))
    return follow(index, reporter)


def follow(index: Index, reporter: Reporter) -> Run:
    """Follow the jobs of this user's run until all have ended; return the run with its results.

    Jobs that are missing are submitted. An interrupt leaves all jobs as they are.

    Raises
    ------
    UsageError
        There is no run.
    CommandError
        Slurm rejected a job, and no other job is left.
    """
    path = _state_file(index)

    def waiting() -> None:
        reporter.info(f"Another process follows these jobs: {holder_of(path)}. Waiting for it.")

    with exclusive_lock(path.with_suffix(".lock"), on_wait=waiting):
        run = current_run(index)
        if run is None:
            msg = f"No Slurm jobs of yours build wheels for {index.root}."
            raise UsageError(msg, hint="They are finished, were cancelled, or belong to another index.")
        try:
            _Controller(run, index, reporter).follow()
        except MatrixError:
            if not run.jobs:
                _forget(run, index)
            raise
        _forget(run, index)
        return run


def cancel(index: Index) -> list[str]:
    """Cancel the jobs of this user's run; return their numbers, none without a run.

    Raises
    ------
    EnvironmentLacksError, CommandError
        Slurm does not answer, or cannot cancel them; the run is kept.
    """
    unfinished = current_run(index)
    if unfinished is None:
        return []
    rows = _answered_queue("Nothing was cancelled.")
    numbers = [row.number for row in rows if _is_live(row.state) and _is_of(row, unfinished)]
    _state_file(index).unlink(missing_ok=True)  # first, so that a process that follows them submits no more
    try:
        _scancel(numbers, unfinished, index)
    except MatrixError:
        write_atomic(_state_file(index), msgspec.json.encode(unfinished))
        raise
    _forget(unfinished, index)
    return numbers


def _state_file(index: Index) -> Path:
    return index.state / "slurm" / f"{os.getuid()}.json"


def _run_directory(run: Run, index: Index) -> Path:
    """Return the directory with the scripts and the exit codes of a run."""
    return index.state / "slurm" / run.id


def _failure_record(task: WheelTask, index: Index) -> Path:
    """Return the file that says why the last attempt to build a task failed."""
    return failure_path(log_path(index, task.name, task.key))


def _forget(run: Run, index: Index) -> None:
    _state_file(index).unlink(missing_ok=True)
    shutil.rmtree(_run_directory(run, index), ignore_errors=True)


def _is_live(state: str) -> bool:
    return state not in _ENDED


def _is_of(row: _Row, run: Run) -> bool:
    return row.name.endswith(f"-{run.id}")


def _queue() -> list[_Row] | None:
    """Return all jobs of this user that Slurm knows; None if it does not answer."""
    output = bytes_of(["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%P|%j"])
    if output is None:
        return None
    words = [line.split("|", 3) for line in output.decode(errors="replace").splitlines()]
    return [_Row(*map(str.strip, row)) for row in words if len(row) == 4]  # noqa: PLR2004


def _answered_queue(consequence: str) -> list[_Row]:
    missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol") if not shutil.which(name)]
    if missing:
        msg = f"{missing[0]} is not on PATH, so this is not a login node of a Slurm cluster. {consequence}"
        raise EnvironmentLacksError(msg, hint="Use --executor local to build on this machine.")
    rows = _queue()
    if rows is None:
        msg = f"Slurm does not answer. {consequence}"
        raise EnvironmentLacksError(msg, hint="Check it with `squeue --me`, then run the same command again.")
    return rows


def _accounted(numbers: Sequence[str]) -> dict[str, str]:
    """Return the final states of jobs as far as accounting knows them."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
    output = bytes_of([*command, f"--jobs={','.join(numbers)}"]) or b""
    rows = (line.partition("|") for line in output.decode(errors="replace").splitlines())
    states = {number: state.split()[0] for number, _, state in rows if state.strip()}
    return {number: state for number, state in states.items() if not _is_live(state)}


def _scancel(numbers: Collection[str], of: Run, index: Index, *options: str) -> None:
    if numbers:
        log = _run_directory(of, index) / "slurm.log"
        run(["scancel", *options, *numbers], what="Cancelling jobs", log=log)


@dataclass
class _Controller:
    """Submits the jobs of a run and follows them."""

    run: Run
    index: Index
    reporter: Reporter
    _rows: list[_Row] = field(default_factory=list)
    """The last answer of `squeue`."""
    _is_silent: bool = False
    """Whether Slurm did not answer the last time."""
    _dropped: set[str] = field(default_factory=set)
    """Numbers of waiting jobs that were cancelled because a wheel failed."""

    def follow(self) -> None:
        wait = _SHORTEST_WAIT
        changed = True  # at the start, whatever Slurm says
        while True:
            changed = self._poll() or changed
            if not _state_file(self.index).exists():
                self._skip_all("its job was cancelled")
                return
            if changed:
                self._cancel_unknown()
                self._settle()
                self._submit()
                self._save()
            if not self._live():
                return
            wait = _SHORTEST_WAIT if changed else min(2 * wait, _LONGEST_WAIT)
            changed = False
            self._sleep(wait)

    @property
    def _directory(self) -> Path:
        return _run_directory(self.run, self.index)

    def _live(self) -> list[SubmittedJob]:
        return [job for job in self.run.jobs if _is_live(job.state)]

    def _task(self, key: str) -> WheelTask:
        return next(task for task in self.run.tasks if task.key == key)

    def _save(self) -> None:
        write_atomic(_state_file(self.index), msgspec.json.encode(self.run))

    def _sleep(self, seconds: float) -> None:
        """Wait, but not longer than until a job has written its exit code."""
        before = self._exit_files()
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0 and self._exit_files() == before:
            time.sleep(min(rest, _GLANCE))

    def _exit_files(self) -> set[str]:
        with suppress(FileNotFoundError):
            return {name for name in os.listdir(self._directory) if name.endswith(".exit")}  # noqa: PTH208
        return set()

    # Follow.

    def _poll(self) -> bool:
        """Ask Slurm for the states of all jobs; return whether one has changed."""
        rows = _queue()
        if rows is None:
            if not self._is_silent:
                self.reporter.warning("Slurm does not answer. The jobs go on; waiting for Slurm.")
            self._is_silent = True
            return False
        self._rows, self._is_silent = rows, False
        known = {row.number: row.state for row in rows}
        live = self._live()
        gone = [job.number for job in live if job.number not in known]
        for number in list(gone):
            code = self._exit_code(number)
            if code is not None:
                known[number] = "FAILED" if code else "COMPLETED"
                gone.remove(number)
        accounted = _accounted(gone) if gone else {}
        changed = False
        for job in live:
            state = known.get(job.number) or accounted.get(job.number, "LOST")
            if state != job.state:
                job.state, changed = state, True
                if _is_live(state):
                    self.reporter.step(f"job {job.number} ({self._titles(job)}): {state.lower()}")
                else:
                    self._end(job)
        return changed

    def _exit_code(self, number: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._directory / f"{number}.exit").read_text())
        return None

    def _titles(self, job: SubmittedJob) -> str:
        return ", ".join(f"{task.name} {task.version}" for task in map(self._task, job.keys))

    def _end(self, job: SubmittedJob) -> None:
        """Find out what became of the tasks of a job that has ended."""
        results = self.run.results
        missing = []
        for key in job.keys:
            if job.state == "COMPLETED" or self.index.find(self._task(key).name, key) is not None:
                results[key] = Result("built")
            else:
                missing.append(key)
        self.reporter.step(f"job {job.number} ({self._titles(job)}): {job.state.lower().replace('_', ' ')}")
        ended = {other.number: other.state for other in self.run.jobs}
        if job.state == "CANCELLED" and {ended[number] for number in job.after} & (_ENDED - {"COMPLETED"}):
            return  # because of the jobs that it waited for; they decide what becomes of its tasks
        has_progress = len(missing) < len(job.keys)
        again = [key for key in missing if self._helps(key, job, has_progress=has_progress)]
        for key in missing:
            if key not in again:
                results[key] = self._failure(key, job)
        if again:
            names = ", ".join(self._task(key).name for key in again)
            explanation = _EXPLANATIONS[job.state]
            self.reporter.warning(f"Job {job.number} {explanation}; it is submitted again for {names}.")

    def _helps(self, key: str, job: SubmittedJob, *, has_progress: bool) -> bool:
        """Return whether to submit a task again."""
        if self._recorded_failure(key) is not None and job.state != "OUT_OF_MEMORY":
            return False
        if job.state == "TIMEOUT" and not has_progress:
            return False
        return self._count(key, job.state) <= _RETRIES.get(job.state, 0)

    def _count(self, key: str, state: str) -> int:
        """Return how many jobs of a task ended so."""
        return sum(job.state == state and key in job.keys for job in self.run.jobs)

    def _failure(self, key: str, job: SubmittedJob) -> Result:
        recorded = self._recorded_failure(key)
        if recorded is not None:
            return Result("failed", recorded)
        if job.number in self._dropped:
            return Result("skipped", _ANOTHER_FAILED)
        if job.state == "CANCELLED":
            return Result("skipped", f"its job {job.number} was cancelled")
        if required := self._unbuilt_requirement(self._task(key)):
            return Result("skipped", f"it requires {required.name}, which was not built")
        code = self._exit_code(job.number)
        ended = "failed" if code is None else f"failed with exit code {code}"
        why = f"job {job.number} {_EXPLANATIONS.get(job.state, ended)}"
        advice = "; allow more with --time" if job.state == "TIMEOUT" else ""
        return Result("failed", f"{why}{advice}\n  Log: {self._log(job.number, job.keys)}")

    def _recorded_failure(self, key: str) -> str | None:
        record = _failure_record(self._task(key), self.index)
        with suppress(OSError, ValueError, KeyError, TypeError):
            return str(json.loads(record.read_bytes())["message"])
        return None

    def _unbuilt_requirement(self, task: WheelTask) -> WheelTask | None:
        results = self.run.results
        required = (key for key in task.requires if key in results and results[key].state != "built")
        return next(map(self._task, required), None)

    def _settle(self) -> None:
        """Skip what cannot or need not be built after failures."""
        live = {key for job in self._live() for key in job.keys}
        stops = not self.run.keep_going and any(row.state == "failed" for row in self.run.results.values())
        for task in self.run.tasks:
            if task.key in self.run.results or task.key in live:
                continue
            if required := self._unbuilt_requirement(task):
                self.run.results[task.key] = Result(
                    "skipped", f"it requires {required.name}, which was not built"
                )
            elif stops:
                self.run.results[task.key] = Result("skipped", _ANOTHER_FAILED)
        if stops:
            waiting = {job.number for job in self._live() if job.state == "PENDING"} - self._dropped
            _scancel(waiting, self.run, self.index, "--state=PENDING")
            self._dropped |= waiting

    def _skip_all(self, why: str) -> None:
        for task in self.run.tasks:
            self.run.results.setdefault(task.key, Result("skipped", why))

    # Submit.

    def _cancel_unknown(self) -> None:
        """Cancel jobs that were submitted by a process that was killed before it could record them."""
        known = {job.number for job in self.run.jobs}
        rows = [row for row in self._rows if _is_of(row, self.run) and _is_live(row.state)]
        _scancel([row.number for row in rows if row.number not in known], self.run, self.index)

    def _submit(self) -> None:
        """Submit jobs for all tasks that have neither a result nor a job; release all that are held."""
        live = {key: job for job in self._live() for key in job.keys}
        tasks = [task for task in self.run.tasks if task.key not in self.run.results and task.key not in live]
        try:
            for group in pack(tasks, self._admitted(len(tasks))) if tasks else []:
                required = {key for task in group for key in task.requires if key in live}
                after = sorted({live[key].number for key in required}, key=int)
                try:
                    number = self._sbatch(group, after)
                except CommandError as error:
                    if not live:
                        raise
                    self.reporter.warning(f"{error.message}\nIt is submitted when another job has ended.")
                    break
                job = SubmittedJob(number, tuple(task.key for task in group), tuple(after))
                self.run.jobs.append(job)
                live |= dict.fromkeys(job.keys, job)
                self._save()
                waits = f", after {', '.join(after)}" if after else ""
                self.reporter.info(f"Submitted job {number}: {self._titles(job)}{waits}")
        finally:
            self._release()

    def _admitted(self, wanted: int) -> int:
        """Return how many more jobs this user may submit to the partition; at least one."""
        if not self.run.most_jobs:
            return wanted
        present = sum(row.partition == self.run.partition and _is_live(row.state) for row in self._rows)
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
        return self.index.state / "logs" / f"slurm-{number}-{self._task(keys[0]).name}.log"

    def _sbatch(self, group: Sequence[WheelTask], after: Sequence[str]) -> str:
        run, keys = self.run, [task.key for task in group]
        for task in group:
            _failure_record(task, self.index).unlink(missing_ok=True)
        growth = 2 ** max(self._count(key, "OUT_OF_MEMORY") for key in keys)
        cores = max(task.cores for task in group)
        memory = math.ceil(growth * max(task.memory_gib for task in group))
        minutes = run.minutes or math.ceil(sum(task.time_limit for task in group) / 60)
        more = f"+{len(group) - 1}" if len(group) > 1 else ""
        options = {
            "cpus-per-task": str(cores),
            "mem": f"{(memory + 1) * 1024}M",
            "kill-on-invalid-dep": "yes",
        }
        if after:
            options["dependency"] = f"afterok:{':'.join(after)}"
        locks = [word for lock in dict.fromkeys(task.lock for task in group) for word in ("--lock", lock)]
        command = [sys.executable, "-m", "matrix", "build-one", *keys, *locks, *run.options]
        job = Job(
            partition=run.partition,
            account=run.account,
            time=str(min(minutes, run.most_minutes or minutes)),
            command=[*command, "--jobs", str(cores), "--memory", str(memory), "--offline"],
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
