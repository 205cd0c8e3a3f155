"""Run builds in Slurm jobs: one job for each heavy wheel, and shared jobs for light wheels.

Jobs run ``matrix build-one``, which builds the wheels of a shared job on all of its cores. They are submitted
held, each after the jobs of the wheels it requires, and then released, so that no job starts before all are
known. Each writes its exit code into the index. One ``squeue`` queries the states of all jobs, less and less
often while nothing changes. Slurm forgets jobs after some minutes; ``sacct`` reports those that left no exit
code, if the cluster has accounting.

Sources: sbatch(1), squeue(1), scancel(1), sacct(1), sinfo(1).
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import time
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

import msgspec

from builders.building.expected_time import Resources
from builders.building.task_state import command_of
from builders.machine.process import bytes_of, run
from builders.probe.slurm import BatchJob, hours_of, job_script, submit
from builders.scheduling.batch import BatchSystem, SubmittedJob, is_live
from builders.scheduling.scheduler import graph_of, remaining_paths
from builders.storage.files import cache_root, write_atomic
from resolver.errors import EXIT_INTERRUPTED, CommandError, EnvironmentLacksError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from builders.building.task_state import TaskState
    from builders.index import Index
    from resolver.facts.catalog import Catalog
    from resolver.facts.schema import Partition
    from resolver.reporter import Reporter

_LIGHT = 60.0
"""Seconds; a build that is expected to take less shares a job with others."""
_LIGHT_JOBS = 4
"""Jobs that light tasks share at most, for each level of requirements."""
_TASKS_OF_JOB = 8
"""Number of light tasks for each job, up to that number of jobs."""
_CORES = 16
"""Cores of a shared job, if those of the nodes are not known."""
_LAUNCH_FAILED = "launch failed requeued held"
"""The reason of a job that Slurm holds until its user releases it: its node could not start it."""
_TIME_LIMIT = "PartitionTimeLimit"
_GLANCE = 1.0
"""Seconds between two checks for new exit codes, which do not query Slurm."""


class _QueueLine(msgspec.Struct, frozen=True):
    """A line of `squeue`."""

    number: str
    state: str
    partition: str
    name: str
    reason: str


def partition_of(catalog: Catalog, site: str, name: str = "") -> Partition | None:
    """Return the partition of a site with that name, or else the partition with the longest time limit.

    Short partitions are for tests, and sites admit few jobs to them. None if the catalog has no partition.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and (not name or row.name == name)]
    return max(rows, key=lambda row: row.max_hours or math.inf, default=None)


def pack(tasks: Sequence[TaskState], most: int, cores: int = 0) -> list[list[TaskState]]:
    """Distribute tasks over a limited number of jobs, each job after those whose wheels it requires.

    Each heavy task has a separate job. Light tasks of the same level share a few: every requirement between
    two jobs leads to a higher level, so no two jobs wait for each other. `cores` is what a job may have at
    most; 0 if that is not known.
    """
    levels: dict[str, int] = {}
    heavy: dict[int, list[list[TaskState]]] = {}
    light: dict[int, list[list[TaskState]]] = {}
    lightness = {task.key: task.estimate.seconds < _LIGHT for task in tasks}
    for task in tasks:
        required = [key for key in task.requires if key in levels]
        both = lightness[task.key]
        levels[task.key] = max((levels[key] + (not (both and lightness[key])) for key in required), default=0)
        if not lightness[task.key]:
            heavy.setdefault(levels[task.key], []).append([task])
            continue
        present = light.setdefault(levels[task.key], [])
        chains = [chain for chain in present if {other.key for other in chain} & {*required}]
        light[levels[task.key]] = [chain for chain in present if chain not in chains]
        light[levels[task.key]].append([*(other for chain in chains for other in chain), task])
    groups = {
        level: [*heavy.get(level, ()), *_shared(light.get(level, ()), cores)] for level in {*heavy, *light}
    }
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


def _shared(chains: Iterable[list[TaskState]], cores: int) -> list[list[TaskState]]:
    """Distribute chains of light tasks over a few jobs, those that take longest first."""
    jobs: list[list[TaskState]] = []
    ordered = sorted(chains, key=_expected, reverse=True)
    at_once = min(cores or _TASKS_OF_JOB, _TASKS_OF_JOB)
    number = min(_LIGHT_JOBS, math.ceil(sum(map(len, ordered)) / at_once))
    for chain in ordered:
        if len(jobs) < number:
            jobs.append(list(chain))
        else:
            min(jobs, key=_expected).extend(chain)
    return jobs


def _expected(group: Iterable[TaskState]) -> float:
    return sum(task.estimate.seconds for task in group)


def needs_of(
    group: Sequence[TaskState], *, cores: int = 0, memory: float = 0.0, growth: int = 1
) -> tuple[Resources, int]:
    """Return what the builds of a job for some tasks may use, and the memory that the job requests, in MiB.

    The tasks of a job run at once, as far as its cores and its memory allow. The job requests 1 GiB more than
    the builds use, if that is allowed.

    Parameters
    ----------
    cores, memory
        What a job may have at most (memory in GiB); 0 if that is not known.
    growth
        How much more memory than estimated it gets.
    """
    estimates = {task.key: task.estimate for task in group}
    widest = max(needs.cores for needs in estimates.values())
    number = min(sum(needs.cores for needs in estimates.values()), cores or max(_CORES, widest))
    per_core = max(needs.memory / needs.cores for needs in estimates.values())
    if memory:
        number = min(number, max(widest, math.floor((memory - 1) / per_core) if per_core else number))
    used = math.ceil(growth * max(*(needs.memory for needs in estimates.values()), number * per_core))
    requested = (used + 1) * 1024
    if memory and requested > memory * 1024:
        requested, used = math.floor(memory * 1024), math.ceil(memory)
        number = max(1, number // growth)  # a job that ran out of memory cannot get more, so it does less
    # One task may need its whole time limit. If another task does as well, the next job continues it.
    paths = remaining_paths(graph_of({task.key: task.requires for task in group}), estimates)
    longest = max(paths.values())
    at_once = max(1, number // widest)
    seconds = longest + (_expected(group) - longest) / at_once
    seconds += max(task.time_limit - task.estimate.seconds for task in group)
    return Resources(number, used, seconds), requested


class Slurm(BatchSystem):
    """Slurm, through its own commands."""

    name = "slurm"
    title = "Slurm"
    retries: ClassVar = {
        "BOOT_FAIL": 2,
        "LAUNCH_FAILED": 2,
        "NODE_FAIL": 2,
        "PREEMPTED": 2,
        "LOST": 1,
        "OUT_OF_MEMORY": 1,
        "TIMEOUT": 1,
    }
    explanations: ClassVar = {
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
    advice: ClassVar = {"TIMEOUT": "; allow more with --time"}
    while_silent = "The jobs continue; waiting for Slurm."
    longest_wait = 120.0
    how_to_find_jobs = "squeue --me"

    def __init__(self, index: Index, reporter: Reporter) -> None:
        super().__init__(index, reporter)
        self._rows: list[_QueueLine] = []  # the last answer of `squeue`
        self._warned: set[str] = set()  # jobs that Slurm does not start

    def require(self, consequence: str) -> None:  # noqa: D102
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
            if self._count_wheels():
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
        known = {row.number: "LAUNCH_FAILED" if row.reason == _LAUNCH_FAILED else row.state for row in rows}
        for row in rows:
            if row.reason == _TIME_LIMIT and row.number in self._of_run() and row.number not in self._warned:
                self._warned.add(row.number)
                text = (
                    f"Slurm does not start job {row.number}: its time limit is above the partition's limit."
                )
                advice = "Cancel the jobs with --cancel, and choose a shorter time limit with --time."
                self.reporter.warning(f"{text}\n{advice}")
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

    def _stopped_in_time(self, number: str) -> bool:
        return self._exit_code(number) == EXIT_INTERRUPTED

    def _ending(self, number: str) -> str:
        code = self._exit_code(number)
        return "failed" if code is None else f"failed with exit code {code}"

    # Cancel.

    def _scancel(self, numbers: Collection[str], *options: str) -> None:
        if numbers:
            run(["scancel", *options, *numbers], what="Cancelling jobs", log=self._directory / "slurm.log")

    def _of_run(self) -> list[str]:
        """Return the numbers of all jobs of the run that Slurm lists and that have not ended."""
        return [
            row.number for row in self._rows if row.name.endswith(f"-{self.run.id}") and is_live(row.state)
        ]

    def _cancel_unknown(self) -> None:
        """Cancel jobs that no process recorded, and jobs that Slurm holds because it could not start them."""
        live = {job.number for job in self._live()}
        self._scancel([number for number in self._of_run() if number not in live])

    def _cancel_all(self) -> list[str]:
        self.require("Nothing was cancelled.")
        numbers = self._of_run()
        self._scancel(numbers)
        return numbers

    def _drop_waiting(self) -> Collection[str]:
        waiting = {job.number for job in self._live() if job.state == "PENDING"} - self._dropped
        self._scancel(waiting, "--state=PENDING")
        return waiting

    # Submit.

    def _submit(self, tasks: Sequence[TaskState]) -> None:
        """Submit jobs, each after those that it requires; release all held jobs."""
        if tasks:
            self._complete_limits()
        live = {key: job for job in self._live() for key in job.keys}
        try:
            for group in pack(tasks, self._admitted(len(tasks)), self.run.most_cores) if tasks else []:
                required = {key for task in group for key in task.requires if key in live}
                after = sorted({live[key].number for key in required}, key=int)
                try:
                    number = self._sbatch(group, after)
                except CommandError as error:
                    if not live:
                        raise
                    self.reporter.warning(
                        f"{error.message}\nThe job is submitted when another job has ended."
                    )
                    break
                job = SubmittedJob(number, tuple(task.key for task in group), tuple(after), is_held=True)
                self.run.jobs.append(job)
                live |= dict.fromkeys(job.keys, job)
                self._save()
                waits = f", after {', '.join(after)}" if after else ""
                self.reporter.info(f"Submitted job {number}: {self._titles(job)}{waits}")
        finally:
            self._release()

    def _complete_limits(self) -> None:
        """Ask Slurm for the limits of the partition, and for the size of its nodes."""
        run = self.run
        minutes, cores, mebibytes = _limits(run.partition)
        run.most_minutes = run.most_minutes or minutes
        run.most_cores = min(run.most_cores or cores, cores or run.most_cores)
        gib = mebibytes / 1024
        run.memory = min(run.memory or gib, gib or run.memory)

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


def limits_of(needs: Resources) -> list[str]:
    """Return the options that limit the builds of a job to what it requests."""
    return ["--jobs", str(needs.cores), "--memory", f"{needs.memory:g}"]


def _queue() -> list[_QueueLine] | None:
    """Return all jobs of this user that Slurm knows; None if Slurm does not respond."""
    output = bytes_of(["squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%P|%j|%r"])
    if output is None:
        return None
    words = [line.split("|", 4) for line in output.decode(errors="replace").splitlines()]
    return [_QueueLine(*map(str.strip, row)) for row in words if len(row) == 5]  # noqa: PLR2004


def _limits(partition: str) -> tuple[int, int, int]:
    """Return the minutes, cores and MiB that a job may take in a partition, or in the default partition.

    A number is 0 if there is no limit, or if it is not known.
    """
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
    """Return the final states of those jobs that Slurm's accounting has."""
    command = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State"]
    output = bytes_of([*command, f"--jobs={','.join(numbers)}"]) or b""
    rows = (line.partition("|") for line in output.decode(errors="replace").splitlines())
    states = {number: state.split()[0] for number, _, state in rows if state.strip()}
    return {number: state for number, state in states.items() if not is_live(state)}
