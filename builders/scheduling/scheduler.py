"""Decide when each task starts, for any executor and clock, from what its build is expected to need.

The scheduler reacts to events and always starts the task with the longest remaining path first. Cores and
memory are tokens. If the first task does not fit, its start is reserved at the time when the running tasks
are expected to have returned enough tokens. Another task may start before it only if that does not delay the
reservation (EASY backfilling, as in Slurm and Maui), so no small tasks starve a large task.

A task that can use several cores gets its number when it starts: every other task that could start now gets
one core, and the rest is shared in proportion to the expected work. It waits if it would end much sooner with
the cores that running tasks are about to return.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from contextlib import suppress
from graphlib import TopologicalSorter
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from builders.building.expected_time import Resources, expected_time
from builders.building.jobserver import can_join
from builders.building.provenance import read_statement
from builders.building.records import memory_of_failures
from builders.machine import cluster
from resolver.errors import ProvenanceError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from builders.building.plan import Task
    from builders.index import Index
    from resolver.model import Distribution


Graph: TypeAlias = "Mapping[str, Collection[str]]"
"""Tasks, each with those that require it."""
_LOOK_AHEAD = 64
"""Ready tasks to consider at each event, which limits the cost of thousands of tasks."""
_FEW = 16
"""Ready tasks up to which a task may wait for more cores."""
_TOLERANCE = 1e-9
"""Seconds."""

_LIGHT = 0.5
"""GiB for a build that compiles nothing."""


class Event(msgspec.Struct, frozen=True):
    """A change of the state of a started task."""

    name: str
    state: Literal["done", "failed", "waiting", "ready"]
    """`waiting`: it needs no tokens for now. `ready`: it can be started (again)."""
    demand: Resources | None = None
    """Its demand from now on, if that has changed."""


class Executor(Protocol):
    """Run tasks, and provide a clock."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def start(self, name: str, demand: Resources) -> None:
        """Start a task, or continue a task that reported `ready`."""
        ...

    def wait(self) -> Sequence[Event]:
        """Wait until the state of a started task changes."""
        ...


class BuildsOutcome(msgspec.Struct, frozen=True):
    """The results of the tasks, each list in the order of events."""

    done: list[str] = []
    failed: list[str] = []
    skipped: dict[str, str] = {}
    """Those that require a failed task, each with that task."""
    left: list[str] = []
    """Those that were not started because another task failed."""


def graph_of(requires: Mapping[str, Iterable[str]]) -> Graph:
    """Return the graph of tasks, from what each requires; others than these tasks do not count."""
    graph: dict[str, list[str]] = {name: [] for name in requires}
    for name, others in requires.items():
        for other in {*others} & graph.keys():
            graph[other].append(name)
    return graph


def remaining_paths(graph: Graph, demands: Mapping[str, Resources]) -> dict[str, float]:
    """Return for each task the seconds from its start to the end of everything that requires it."""
    paths: dict[str, float] = {}
    for name in TopologicalSorter(graph).static_order():
        after = max((paths[successor] for successor in graph[name]), default=0.0)
        paths[name] = demands[name].seconds + after
    return paths


def schedule(
    graph: Graph,
    demands: Mapping[str, Resources],
    capacity: Resources,
    executor: Executor,
    *,
    keep_going: bool = False,
) -> BuildsOutcome:
    """Run all tasks, each after those that it requires, and return the outcome.

    A task that needs more than the machine has gets everything. With `keep_going`, more tasks start after a
    failure; running tasks are always finished.
    """
    scheduler = _Scheduler(graph, demands, capacity, executor)
    outcome = scheduler.outcome
    while not scheduler.is_finished:
        if keep_going or not outcome.failed:
            scheduler.start_tasks()
        elif not scheduler.running:
            break
        if not scheduler.is_finished:
            for event in executor.wait():
                scheduler.handle(event)
    finished = {*outcome.done, *outcome.failed, *outcome.skipped}
    outcome.left.extend(name for name in graph if name not in finished)
    return outcome


class _Scheduler:
    """The state of one run."""

    def __init__(
        self,
        graph: Graph,
        demands: Mapping[str, Resources],
        capacity: Resources,
        executor: Executor,
    ) -> None:
        self.outcome = BuildsOutcome()
        self._waiting: set[str] = set()
        self._graph = graph
        self._executor = executor
        self._capacity = capacity
        self._free = capacity
        self._demands = {name: _clipped(demands[name], capacity) for name in graph}
        self._priority = {name: -path for name, path in remaining_paths(graph, demands).items()}
        self._missing = Counter(chain.from_iterable(graph.values()))
        self.running: dict[str, float] = {}
        """Tasks that hold tokens, with the time at which they started."""
        self._ready = sorted((self._priority[name], name) for name in graph if not self._missing[name])

    @property
    def is_finished(self) -> bool:
        return not self._ready and not self.running and not self._waiting

    def start_tasks(self) -> None:
        """Start the ready tasks that fit, those with the longest remaining path first."""
        reserved: tuple[float, Resources] | None = None
        # A copy, because tasks that start are removed.
        for entry in self._ready[:_LOOK_AHEAD]:
            if self._free.cores < 1:
                return
            demand = self._granted(entry[1])
            if not demand.fits(self._free):
                # The first task that does not fit gets a reservation: without it, small tasks that start
                # again and again would keep a large one waiting.
                reserved = reserved or self._reservation(demand)
                continue
            if reserved is not None:
                # Whoever comes after it may start only if that does not delay it: by ending before, or by
                # taking what it leaves.
                time, spare = reserved
                if self._executor.now() + demand.seconds > time + _TOLERANCE:
                    if not demand.fits(spare):
                        continue
                    reserved = time, spare.without(demand)
            self._ready.remove(entry)
            self._start(entry[1], demand)

    def handle(self, event: Event) -> None:
        name = event.name
        if name in self.running:
            del self.running[name]
            self._free = self._free.plus(self._demands[name])
        elif name not in self._waiting:  # it ended instead of continuing
            self._ready = [entry for entry in self._ready if entry[1] != name]
        if event.demand is not None:
            self._demands[name] = _clipped(event.demand, self._capacity)
        self._waiting.discard(name)
        match event.state:
            case "waiting":
                self._waiting.add(name)
            case "ready":
                insort(self._ready, (self._priority[name], name))
            case "done":
                self._finish(name)
            case "failed":
                self._fail(name)

    def _granted(self, name: str) -> Resources:
        """Return the demand of a task now; it does not fit if the task should wait for more cores."""
        demand = self._demands[name]
        if demand.cores == 1 or not demand.work:
            return demand
        now = self._executor.now()
        best = self._part(name, self._free) if demand.least.fits(self._free) else demand.least
        cost = best.seconds if best.fits(self._free) else inf
        if len(self._ready) > _FEW:  # the others would take the cores
            return best
        free = self._free
        # Compare starting now with starting when the next one, two, ... running tasks have ended.
        for end, other in self._ends(late=2.0):
            free = free.plus(self._demands[other])
            if demand.least.fits(free):
                part = self._part(name, free)
                other_cost = 2 * (end - now) + part.seconds  # waiting must save more time than it takes
                if other_cost < cost - _TOLERANCE:
                    best, cost = part, other_cost
            if best.cores == demand.cores:
                break
        return best

    def _part(self, name: str, free: Resources) -> Resources:
        """Return what a task gets of free resources, beside the other ready tasks and the shared jobs."""
        demand = self._demands[name]
        others = [self._demands[other] for _, other in self._ready[:_LOOK_AHEAD] if other != name]
        others = [other for other in others if other.least.fits(free)]
        sharing = [self._demands[other] for other in self.running]
        work = sum(other.work for other in (*others, *sharing))
        spare = max(0, free.cores - 1 - len(others))  # one core for each first, the rest by expected work
        cores = 1 + round(spare * demand.work / (demand.work + work))
        per_core = demand.least.memory
        by_memory = free.memory / per_core + _TOLERANCE if per_core else cores
        return demand.with_cores(max(1, int(min(cores, demand.cores, by_memory))))

    def _ends(self, late: float = 1.0) -> list[tuple[float, str]]:
        """Return the running tasks by expected end; a late task takes `late` times its time so far."""
        now, rows = self._executor.now(), []
        for name, start in self.running.items():
            end = start + self._demands[name].seconds
            rows.append((end if end >= now else start + late * (now - start), name))
        return sorted(rows)

    def _start(self, name: str, demand: Resources) -> None:
        if self._demands[name].cores > 1:
            # Compilers that run cannot be given fewer cores, and ninja does not take more.
            demand = replace(demand, work=0.0)  # the number of cores is fixed from now on
        self._demands[name] = demand
        self._free = self._free.without(demand)
        self.running[name] = self._executor.now()
        self._executor.start(name, demand)

    def _finish(self, name: str) -> None:
        self.outcome.done.append(name)
        for successor in self._graph[name]:
            self._missing[successor] -= 1
            if not self._missing[successor] and successor not in self.outcome.skipped:
                insort(self._ready, (self._priority[successor], successor))

    def _fail(self, name: str) -> None:
        self.outcome.failed.append(name)
        below = {name}
        pending = [name]
        while pending:
            new = {*self._graph[pending.pop()]} - below
            below |= new
            pending += new
        for successor in sorted(below - {name}):
            self.outcome.skipped.setdefault(successor, name)

    def _reservation(self, demand: Resources) -> tuple[float, Resources]:
        """Return when a demand is expected to fit, and the other free resources at that time."""
        now, free = self._executor.now(), self._free
        for end, name in self._ends():
            free = free.plus(self._demands[name])
            if demand.fits(free):
                return end, free.without(demand)
        return now, free.without(demand)


def _clipped(demand: Resources, capacity: Resources) -> Resources:
    """Return a demand that the machine can meet; a task that runs with one core must fit with one."""
    cores = max(1, min(demand.cores, capacity.cores))
    if demand.work:
        demand = demand.with_cores(cores)
        return replace(demand, memory=min(demand.memory, cores * capacity.memory))
    return replace(demand, cores=cores, memory=min(demand.memory, capacity.memory))


def task_graph(tasks: Sequence[Task]) -> Graph:
    """Return the graph of tasks by build key."""
    return graph_of({task.build_key: [other.build_key for other in task.requires] for task in tasks})


def estimates(
    tasks: Mapping[str, Task],
    index: Index,
    capacity: Resources,
    *,
    sharing: bool = False,
) -> dict[str, Resources]:
    """Return the expected needs of each task by build key; without `sharing`, its compile jobs are fixed."""
    return {key: _estimate(task, index, capacity, sharing=sharing) for key, task in tasks.items()}


def _estimate(task: Task, index: Index, capacity: Resources, *, sharing: bool) -> Resources:
    measured = recorded(task.pick, index)
    compiles = task.recipe.compiles is not False and not task.pick.alias_of
    per_job = measured.get("process_gib") or max(
        task.recipe.memory_per_job if compiles else _LIGHT, memory_of_failures(index, task.pick.name)
    )
    per_job = min(per_job, capacity.memory)
    joins = sharing and can_join(task)
    cores = 1
    if compiles and not joins:
        cores = cluster.compile_jobs(per_job, jobs=capacity.cores, memory=capacity.memory)
    # A recipe can state the time of a build that compiles nothing, too; an alias only has metadata.
    recipe = task.recipe if compiles or (task.recipe.core_hours and not task.pick.alias_of) else None
    seconds, source = expected_time(recipe, measured, capacity.cores if joins else cores)
    used = {"recipe": capacity.cores if joins else cores, "record": measured.get("jobs", 1)}
    work = seconds * used.get(source, 1) if compiles else 0.0
    return Resources(cores, cores * per_job, seconds, work, source, per_job, joins)


def recorded(pick: Distribution, index: Index) -> dict[str, float]:
    """Return the measurements of the last build of this package, preferably of the same version."""
    best: tuple[bool, str, dict[str, float]] = False, "", {}
    for wheel in index.published(pick.name):
        with suppress(ProvenanceError):
            metadata = read_statement(wheel.provenance).predicate.run_details.metadata
            is_same = f"-{pick.pinned}-" in wheel.path.name
            row = is_same, str(metadata.finished_on or ""), metadata.measured
            if row[2] and row[:2] >= best[:2]:
                best = row
    return best[2]
