"""Slurm jobs: to verify an environment on a GPU node, and to build, a job for each heavy wheel.

Light wheels share jobs. Jobs run ``matrix build-one``, which builds the wheels of a shared job on all of its
cores. They are submitted held, each after the jobs of the wheels it requires, and then released, so that no
job starts before all are known. Each writes its exit code into the index. One ``squeue`` queries the states
of all jobs, less and less often while nothing changes. Slurm forgets jobs after some minutes; ``sacct``
reports those that left no exit code, if the cluster has accounting.

Sources: sbatch(1), squeue(1), scancel(1), sacct(1), sinfo(1).
"""

from __future__ import annotations

import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import msgspec

from builders.building.expected_time import Resources
from builders.building.records import command_of
from builders.machine.process import bytes_of, log_size, output_of, read_since, run
from builders.scheduling.batch import BatchSystem, SubmittedJob, is_live
from builders.scheduling.scheduler import graph_of, remaining_paths
from builders.storage.files import cache_root, write_atomic
from resolver.errors import EXIT_INTERRUPTED, CommandError, EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import Catalog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from builders.building.records import TaskState
    from builders.index import Index
    from resolver.facts.schema import Partition
    from resolver.reporter import Reporter


_LIGHT = 60.0
"""Seconds; a build that is expected to take less shares a job with others."""
_LIGHT_JOBS = 4
"""Those that light tasks share at most, for each level of requirements."""
_TASKS_OF_JOB = 8
"""Number of light tasks for each job, up to that number of jobs."""
_CORES = 16
"""Cores of a shared job, if those of the nodes are not known."""
_LAUNCH_FAILED = "launch failed requeued held"
"""The reason of a job that Slurm holds until its user releases it: its node could not start it."""
_TIME_LIMIT = "PartitionTimeLimit"
_GLANCE = 1.0
"""Seconds between two checks for new exit codes, which do not query Slurm."""

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
        'rm -f "$file"',
        shlex.join(job.command),
        "code=$?",
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
    reason: str


def partition_of(catalog: Catalog, site: str, name: str = "") -> Partition | None:
    """Return the partition of a site with that name, or else the one with the longest time limit, if any.

    Short partitions are for tests, and sites admit few jobs to them.
    """
    rows = [row for row in catalog.partition.values() if row.site == site and (not name or row.name == name)]
    return max(rows, key=lambda row: row.max_hours or math.inf, default=None)


def pack(tasks: Sequence[TaskState], most: int, cores: int = 0) -> list[list[TaskState]]:
    """Distribute tasks over a limited number of jobs, each job after those whose wheels it requires.

    Each heavy task has a separate job. Light tasks of the same level share a few: every requirement between
    two jobs leads to a higher level, so no two jobs wait for each other. `cores` is what a job may have at
    most.
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
    """Return what the builds of a job may use, and the MiB that it requests: 1 GiB more, if allowed.

    The tasks of a job run at once, as far as `cores` and `memory` (GiB) allow: what a job may have at most, 0
    if that is not known. `growth` multiplies the memory that was estimated.
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
