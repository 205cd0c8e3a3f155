"""Decide when each task starts. The executor and its clock are passed in, so a simulated clock works, too.

The scheduler reacts to events and always starts the task with the longest remaining path first. Cores and
memory are tokens. If the first task does not fit, its start is reserved at the time when the running tasks
are expected to have returned enough tokens. Another task may start before it only if that does not delay
the reservation (EASY backfilling, as in Slurm and Maui), so no small tasks starve a large task.
"""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from networkx import DiGraph

_LOOK_AHEAD = 64
"""Number of ready tasks to consider at each event, which limits the cost of thousands of tasks."""
_EPSILON = 1e-9


class Demand(msgspec.Struct, frozen=True):
    """The resources that a task needs while it runs, or that a machine has."""

    cores: int
    memory: float
    """GiB."""
    seconds: float = 0.0
    """The expected time; it affects the order, but not the result."""

    def fits(self, free: Demand) -> bool:
        """Return whether the free resources are sufficient."""
        return self.cores <= free.cores and self.memory <= free.memory + _EPSILON

    def without(self, other: Demand) -> Demand:
        """Return the resources without those of another demand."""
        return replace(self, cores=self.cores - other.cores, memory=self.memory - other.memory)

    def plus(self, other: Demand) -> Demand:
        """Return the resources plus those of another demand."""
        return replace(self, cores=self.cores + other.cores, memory=self.memory + other.memory)


class Event(msgspec.Struct, frozen=True):
    """A change of the state of a started task."""

    name: str
    state: Literal["done", "failed", "waiting", "ready"]
    """`waiting`: it needs no tokens for now. `ready`: it can be started (again)."""
    demand: Demand | None = None
    """Its demand from now on, if that has changed."""


class Executor(Protocol):
    """Run tasks, and provide a clock."""

    def now(self) -> float:
        """Return the time in seconds."""
        ...

    def start(self, name: str, demand: Demand) -> None:
        """Start a task, or continue a task that reported `ready`."""
        ...

    def wait(self) -> Sequence[Event]:
        """Wait until the state of a started task changes."""
        ...


class Outcome(msgspec.Struct, frozen=True):
    """The results of the tasks, each list in the order of events."""

    done: list[str] = []
    failed: list[str] = []
    skipped: dict[str, str] = {}
    """Tasks that require a failed task, each with the failed task."""
    left: list[str] = []
    """Tasks that were not started because another task failed."""
    over_budget: list[str] = []
    """Tasks that were not started because they, or tasks that they require, would exceed the budget."""


def remaining_paths(graph: DiGraph[str], demands: Mapping[str, Demand]) -> dict[str, float]:
    """Return for each task the seconds from its start to the end of everything that requires it.

    The largest of them is the critical path.

    Parameters
    ----------
    graph
        An edge goes from a task to a task that requires it.
    demands
        The demand of each task.
    """
    from networkx import topological_sort

    paths: dict[str, float] = {}
    for name in reversed(list(topological_sort(graph))):
        after = max((paths[successor] for successor in graph.successors(name)), default=0.0)
        paths[name] = demands[name].seconds + after
    return paths


def schedule(
    graph: DiGraph[str],
    demands: Mapping[str, Demand],
    capacity: Demand,
    executor: Executor,
    *,
    keep_going: bool = False,
    rank: Mapping[str, int] | None = None,
    budget: float | None = None,
) -> Outcome:
    """Run all tasks, each after those that it requires, and return the outcome.

    Parameters
    ----------
    graph
        An edge goes from a task to a task that requires it.
    demands
        The demand of each task. A task that needs more than the machine has gets everything.
    capacity
        The cores and the memory of the machine.
    executor
        Starts the tasks.
    keep_going
        Whether to start more tasks after a failure. Running tasks are always finished.
    rank
        Tasks with a lower rank are started first, whatever their remaining paths; the default is 0.
    budget
        Seconds from now; tasks that are expected to end later are not started.
    """
    scheduler = _Scheduler(graph, demands, capacity, executor, rank or {})
    outcome, start = scheduler.outcome, executor.now()
    while not scheduler.is_finished:
        if keep_going or not outcome.failed:
            if budget is not None:
                scheduler.leave_out(start + budget)
            scheduler.start_tasks()
        elif not scheduler.is_running:
            break
        if not scheduler.is_finished:
            for event in executor.wait():
                scheduler.handle(event)
    finished = {*outcome.done, *outcome.failed, *outcome.skipped, *outcome.over_budget}
    outcome.left.extend(name for name in graph if name not in finished)
    return outcome


class _Scheduler:
    """The state of one run."""

    def __init__(
        self,
        graph: DiGraph[str],
        demands: Mapping[str, Demand],
        capacity: Demand,
        executor: Executor,
        rank: Mapping[str, int],
    ) -> None:
        self.outcome = Outcome()
        self._waiting: set[str] = set()
        self._graph = graph
        self._executor = executor
        self._capacity = capacity
        self._free = capacity
        self._demands = {name: _clipped(demands[name], capacity) for name in graph}
        self._priority = {
            name: (rank.get(name, 0), -path) for name, path in remaining_paths(graph, demands).items()
        }
        self._missing = dict(graph.in_degree())
        self._started: set[str] = set()
        self._running: dict[str, float] = {}
        """Tasks that hold tokens, with the time at which they started."""
        self._ready = sorted((self._priority[name], name) for name in graph if not self._missing[name])

    @property
    def is_finished(self) -> bool:
        return not self._ready and not self._running and not self._waiting

    @property
    def is_running(self) -> bool:
        """Whether a task holds tokens; waiting tasks are not counted."""
        return bool(self._running)

    def leave_out(self, deadline: float) -> None:
        """Leave out ready tasks that are expected to end after the deadline, and tasks that require them."""
        from networkx import descendants

        now = self._executor.now()
        late = [
            entry
            for entry in self._ready
            if entry[1] not in self._started and now + self._demands[entry[1]].seconds > deadline
        ]
        for entry in late:
            self._ready.remove(entry)
            known = {*self.outcome.skipped, *self.outcome.over_budget}
            others = sorted(descendants(self._graph, entry[1]) - known)
            self.outcome.over_budget.extend([entry[1], *others])

    def start_tasks(self) -> None:
        """Start the ready tasks that fit, those with the longest remaining path first."""
        reserved: tuple[float, Demand] | None = None
        for entry in self._ready[:_LOOK_AHEAD]:
            if self._free.cores < 1:
                return
            demand = self._demands[entry[1]]
            if not demand.fits(self._free):
                reserved = reserved or self._reservation(demand)
                continue
            if reserved is not None:
                time, spare = reserved
                if self._executor.now() + demand.seconds > time + _EPSILON:
                    if not demand.fits(spare):
                        continue
                    reserved = time, spare.without(demand)
            self._ready.remove(entry)
            self._start(entry[1], demand)

    def handle(self, event: Event) -> None:
        """Record a change of the state of a task."""
        name = event.name
        if name in self._running:
            del self._running[name]
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

    def _start(self, name: str, demand: Demand) -> None:
        self._free = self._free.without(demand)
        self._running[name] = self._executor.now()
        self._started.add(name)
        self._executor.start(name, demand)

    def _finish(self, name: str) -> None:
        self.outcome.done.append(name)
        for successor in self._graph.successors(name):
            self._missing[successor] -= 1
            if not self._missing[successor] and successor not in self.outcome.skipped:
                insort(self._ready, (self._priority[successor], successor))

    def _fail(self, name: str) -> None:
        from networkx import descendants

        self.outcome.failed.append(name)
        for successor in sorted(descendants(self._graph, name)):
            self.outcome.skipped.setdefault(successor, name)

    def _reservation(self, demand: Demand) -> tuple[float, Demand]:
        """Return when a demand is expected to fit, and the other free resources at that time."""
        now, free = self._executor.now(), self._free
        ends = sorted(
            (max(now, start + self._demands[name].seconds), name) for name, start in self._running.items()
        )
        for end, name in ends:
            free = free.plus(self._demands[name])
            if demand.fits(free):
                return end, free.without(demand)
        return now, free.without(demand)


def _clipped(demand: Demand, capacity: Demand) -> Demand:
    return replace(
        demand,
        cores=max(1, min(demand.cores, capacity.cores)),
        memory=min(demand.memory, capacity.memory),
    )
