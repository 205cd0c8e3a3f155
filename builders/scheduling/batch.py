"""A run of builds in Slurm jobs: what is stored about it, and which wheels share a job.

Everything about a run is in one file per user in the index. Submitted jobs do not need the process that
follows them: it may be interrupted or killed, and any later process continues with the file.
"""

from __future__ import annotations

import math
import secrets
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from builders.building.expected_time import Resources
from builders.building.task_state import TaskState
from builders.scheduling.scheduler import graph_of, remaining_paths
from resolver.texts import Digest, Name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ENDED = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "LOST", "NODE_FAIL",
    "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT",
}  # fmt: skip
"""The states in which a job has ended, as Slurm names them. ``LAUNCH_FAILED`` and ``LOST`` are ours."""

_LIGHT = 60.0
"""Seconds; a build that is expected to take less shares a job with others."""
_LIGHT_JOBS = 4
"""Those that light tasks share at most, for each level of requirements."""
_TASKS_OF_JOB = 8
"""Number of light tasks for each job, up to that number of jobs."""
_CORES = 16
"""Cores of a shared job, if those of the nodes are not known."""


JobNumber = Annotated[str, msgspec.Meta(pattern="^[0-9]+$")]


class SubmittedJob(msgspec.Struct):
    """A job of a run; Slurm assigns the `number`."""

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
    keep_going: bool = False
    jobs: list[SubmittedJob] = []

    @cached_property
    def by_key(self) -> dict[str, TaskState]:
        """The tasks by key."""
        return {task.key: task for task in self.tasks}


def is_live(state: str) -> bool:
    """Return whether a job in this state has not ended."""
    return state not in ENDED


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
        # Two light tasks can be in the same job, and so on the same level. Any other requirement is one
        # between jobs, and leads to a higher level.
        both = lightness[task.key]
        levels[task.key] = max((levels[key] + (not (both and lightness[key])) for key in required), default=0)
        if not lightness[task.key]:
            heavy.setdefault(levels[task.key], []).append([task])
            continue
        present = light.setdefault(levels[task.key], [])
        chains = [chain for chain in present if {other.key for other in chain} & {*required}]
        # All that it requires on this level must be in its own job, so their chains become one.
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
            # Each level is a single job by now. Two neighbours can become one: nothing is between them.
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


def limits_of(needs: Resources) -> list[str]:
    """Return the options that limit the builds of a job to what it requests."""
    return ["--jobs", str(needs.cores), "--memory", f"{needs.memory:g}"]
