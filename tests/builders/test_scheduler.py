"""The scheduler: limits, order and failures, on a simulated clock."""

from __future__ import annotations

import heapq
import random
import resource
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders.building.expected_time import Resources
from builders.scheduling.scheduler import BuildsOutcome, Event, remaining_paths, schedule

if TYPE_CHECKING:
    Graph = networkx.DiGraph[str]


class Simulation:
    """An executor whose clock jumps to the next event. It checks the limits at every start."""

    def __init__(
        self,
        graph: Graph,
        demands: Mapping[str, Resources],
        capacity: Resources,
        *,
        failing: Sequence[str] = (),
        accuracy: float = 0.0,
        events: Mapping[str, Sequence[Event]] | None = None,
    ) -> None:
        self.graph, self.demands, self.capacity = graph, demands, capacity
        self.failing, self.random, self.accuracy = set(failing), random.Random(1), accuracy
        self.events = {name: list(rows) for name, rows in (events or {}).items()}
        self.clock = 0.0
        self.queue: list[tuple[float, str]] = []
        self.running: dict[str, Resources] = {}
        self.starts: list[str] = []
        self.demanded: list[Resources] = []
        self.done: set[str] = set()

    def now(self) -> float:
        return self.clock

    def start(self, name: str, demand: Resources) -> None:
        assert name not in self.running
        assert name not in self.done
        assert self.done.issuperset(self.graph.predecessors(name))
        self.running[name] = demand
        self.starts.append(name)
        self.demanded.append(demand)
        assert sum(row.cores for row in self.running.values()) <= self.capacity.cores
        assert sum(row.memory for row in self.running.values()) <= self.capacity.memory + 1e-6
        error = self.random.uniform(1 - self.accuracy, 1 + self.accuracy)
        heapq.heappush(self.queue, (self.clock + demand.seconds * error, name))

    def wait(self) -> list[Event]:
        self.clock, name = heapq.heappop(self.queue)
        if rows := self.events.get(name):
            event = rows.pop(0)
            del self.running[name]
            return [event]
        self.running.pop(name, None)
        if name in self.failing:
            return [Event(name, "failed")]
        self.done.add(name)
        return [Event(name, "done")]


def run(
    graph: Graph,
    demands: Mapping[str, Resources],
    capacity: Resources,
    *,
    keep_going: bool = False,
    **options: Any,
) -> tuple[BuildsOutcome, Simulation]:
    simulation = Simulation(graph, demands, capacity, **options)
    outcome = schedule(successors(graph), demands, capacity, simulation, keep_going=keep_going)
    return outcome, simulation


def successors(graph: Graph) -> dict[str, list[str]]:
    return {name: [*graph.successors(name)] for name in graph}


def chain(*names: str) -> Graph:
    graph: Graph = networkx.DiGraph()
    networkx.add_path(graph, names)
    return graph


def generated(number: int, seed: int, *, cores: int, memory: float) -> tuple[Graph, dict[str, Resources]]:
    """Return a graph in which each task requires up to three earlier ones."""
    source = random.Random(seed)
    graph: Graph = networkx.DiGraph()
    demands = {}
    for position in range(number):
        name = f"t{position:05}"
        graph.add_node(name)
        demands[name] = Resources(
            source.randint(1, cores), source.uniform(0, memory), source.lognormvariate(3.0, 1.0)
        )
        for _ in range(min(position, source.choice([0, 1, 1, 2, 3]))):
            graph.add_edge(f"t{source.randrange(max(0, position - 400), position):05}", name)
    return graph, demands


@st.composite
def problems(draw: st.DrawFn) -> tuple[Graph, dict[str, Resources], Resources]:
    number = draw(st.integers(1, 12))
    graph: Graph = networkx.DiGraph()
    demands = {}
    for position in range(number):
        name = f"t{position}"
        graph.add_node(name)
        demands[name] = Resources(draw(st.integers(1, 6)), draw(st.floats(0, 20)), draw(st.floats(0.0, 10)))
        for other in draw(st.sets(st.integers(0, number - 1), max_size=3)):
            if other < position:
                graph.add_edge(f"t{other}", name)
    return graph, demands, Resources(draw(st.integers(1, 4)), draw(st.floats(0.5, 16)))


@given(problems())
def test_each_task_runs_once_and_limits_hold(problem: tuple[Graph, dict[str, Resources], Resources]) -> None:
    outcome, simulation = run(*problem)
    assert sorted(outcome.done) == sorted(problem[0])
    assert sorted(simulation.starts) == sorted(problem[0])
    assert not outcome.failed
    assert not outcome.skipped
    assert not outcome.left


@given(problems(), st.data())
def test_keep_going_skips_only_what_requires_a_failed_task(
    problem: tuple[Graph, dict[str, Resources], Resources], data: st.DataObject
) -> None:
    graph = problem[0]
    failing = data.draw(st.sets(st.sampled_from(sorted(graph))))
    outcome, simulation = run(*problem, keep_going=True, failing=failing)
    tainted = {name for bad in failing for name in networkx.descendants(graph, bad)}
    assert set(outcome.skipped) == tainted
    assert all(name in networkx.descendants(graph, bad) for name, bad in outcome.skipped.items())
    assert set(outcome.done) == set(graph) - tainted - failing
    assert len(simulation.starts) == len(set(simulation.starts))
    assert not outcome.left


def test_failure_lets_running_tasks_finish_and_starts_no_more() -> None:
    graph = chain("b", "c")
    graph.add_nodes_from(["a", "d"])
    demands = {
        "a": Resources(1, 0, 3),
        "b": Resources(1, 0, 9),
        "c": Resources(1, 0, 1),
        "d": Resources(1, 0, 2),
    }
    outcome, simulation = run(graph, demands, Resources(2, 1), failing=["a"])
    assert (outcome.failed, outcome.done, outcome.left) == (["a"], ["b"], ["c", "d"])
    assert simulation.clock == 9


def test_longest_remaining_path_starts_first() -> None:
    graph = chain("a", "b", "c")
    graph.add_node("long")
    demands = {name: Resources(1, 0, 5) for name in "abc"} | {"long": Resources(1, 0, 12)}
    _, simulation = run(graph, demands, Resources(1, 1))
    assert simulation.starts == ["a", "long", "b", "c"]


def test_large_task_is_not_starved() -> None:
    graph: Graph = networkx.DiGraph()
    demands = {"large": Resources(4, 0, 30)} | {f"s{number:02}": Resources(1, 0, 10) for number in range(40)}
    graph.add_nodes_from(demands)
    graph.add_edge("s00", "large")
    _, simulation = run(graph, demands, Resources(4, 1))
    assert simulation.starts.index("large") <= 8


def test_small_task_fills_the_gap_before_a_reservation() -> None:
    graph: Graph = networkx.DiGraph()
    demands = {
        "first": Resources(2, 0, 100),
        "whole": Resources(3, 0, 50),
        "long": Resources(1, 0, 45),
        "short": Resources(1, 0, 40),
    }
    graph.add_nodes_from(demands)
    _, simulation = run(graph, demands, Resources(3, 1))
    assert simulation.starts == ["first", "long", "short", "whole"]
    assert simulation.clock == 150


def run_with_reports(*reports: list[Event], keep_going: bool = False) -> tuple[BuildsOutcome, list[str]]:
    """Run two tasks, of which ``shared`` first reports these events instead of ending."""
    graph: Graph = networkx.DiGraph()
    demands = {"shared": Resources(1, 0, 10), "other": Resources(1, 0, 5)}
    graph.add_nodes_from(demands)
    left = [*reports]

    class Reporting(Simulation):
        def wait(self) -> list[Event]:
            if not left:
                return super().wait()
            self.running.pop("shared", None)
            self.queue = [row for row in self.queue if row[1] != "shared"]
            return left.pop(0)

    executor = Reporting(graph, demands, Resources(1, 1))
    outcome = schedule(successors(graph), demands, Resources(1, 1), executor, keep_going=keep_going)
    return outcome, executor.starts


def test_waiting_task_returns_its_tokens() -> None:
    outcome, starts = run_with_reports([Event("shared", "waiting")], [Event("shared", "ready")])
    assert starts == ["shared", "other", "shared"]
    assert outcome.done == ["other", "shared"]


def test_task_that_ends_instead_of_continuing_is_not_started_again() -> None:
    ending = [Event("shared", "ready"), Event("shared", "failed")]
    outcome, starts = run_with_reports([Event("shared", "waiting")], ending, keep_going=True)
    assert starts == ["shared", "other"]
    assert (outcome.failed, outcome.done) == (["shared"], ["other"])


def test_retried_task_gets_its_new_demand() -> None:
    graph: Graph = networkx.DiGraph()
    demands = {"hungry": Resources(4, 8, 10)}
    graph.add_nodes_from(demands)
    events = {"hungry": [Event("hungry", "ready", Resources(2, 8, 20))]}
    outcome, simulation = run(graph, demands, Resources(4, 8), events=events)
    assert outcome.done == ["hungry"]
    assert simulation.demanded == [Resources(4, 8, 10), Resources(2, 8, 20)]


def lower_bound(graph: Graph, demands: Mapping[str, Resources], capacity: Resources) -> float:
    """Return a lower bound in seconds: the critical path, or all work divided by all cores or memory."""
    path = max(remaining_paths(successors(graph), demands).values(), default=0.0)
    cores = sum(row.seconds * min(row.cores, capacity.cores) for row in demands.values()) / capacity.cores
    memory = sum(row.seconds * min(row.memory, capacity.memory) for row in demands.values()) / capacity.memory
    return max(path, cores, memory)


@pytest.mark.parametrize("seed", range(10))
def test_generated_graphs_on_two_cores_are_near_the_bound(seed: int) -> None:
    graph, demands = generated(40, seed, cores=1, memory=4)
    capacity = Resources(2, 16)
    _, simulation = run(graph, demands, capacity, accuracy=0.2)
    assert simulation.clock <= 1.15 * lower_bound(graph, demands, capacity)


@pytest.mark.slow
def test_ten_thousand_tasks_are_scheduled_in_seconds() -> None:
    graph, demands = generated(10_000, 7, cores=4, memory=16)
    capacity = Resources(128, 512)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    before = time.process_time()
    outcome, simulation = run(graph, demands, capacity)
    seconds = time.process_time() - before
    assert len(outcome.done) == 10_000
    assert simulation.clock <= 1.05 * lower_bound(graph, demands, capacity)
    assert seconds < 5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 500 * 1024


def elastic(cores: int, work: float, memory_per_job: float = 0.0) -> Resources:
    """Return the demand of a build that can use several cores."""
    return Resources(cores, cores * memory_per_job, work / cores, work)


def cores_of(simulation: Simulation) -> dict[str, int]:
    return dict(zip(simulation.starts, [demand.cores for demand in simulation.demanded], strict=True))


def test_build_that_starts_alone_gets_all_cores() -> None:
    graph = chain("light", "heavy")
    demands = {"light": Resources(1, 0, 10), "heavy": elastic(8, 14400)}
    _, simulation = run(graph, demands, Resources(8, 64))
    assert cores_of(simulation) == {"light": 1, "heavy": 8}
    assert simulation.clock == 10 + 14400 / 8


def test_builds_that_start_together_share_cores_by_their_work() -> None:
    graph: Graph = networkx.DiGraph()
    demands = {"heavy": elastic(8, 14400)} | {f"quick{number}": elastic(8, 120) for number in range(3)}
    graph.add_nodes_from(demands)
    _, simulation = run(graph, demands, Resources(8, 64))
    assert cores_of(simulation) == {"heavy": 5, "quick0": 1, "quick1": 1, "quick2": 1}
    equal = {f"t{number}": elastic(8, 800) for number in range(3)}
    graph = networkx.DiGraph()
    graph.add_nodes_from(equal)
    _, simulation = run(graph, equal, Resources(8, 64))
    assert sorted(cores_of(simulation).values()) == [2, 3, 3]


def test_heavy_build_waits_for_cores_that_are_returned_soon() -> None:
    graph = chain("first", "heavy")
    demands = {"first": Resources(1, 0, 10), "heavy": elastic(8, 14400)}
    demands |= {f"light{number}": Resources(1, 0, 12 + number) for number in range(7)}
    graph.add_nodes_from(demands)
    _, simulation = run(graph, demands, Resources(8, 64))
    assert cores_of(simulation)["heavy"] == 8
    assert simulation.clock == 18 + 14400 / 8


def test_build_does_not_wait_long_for_cores() -> None:
    graph = chain("first", "heavy")
    demands = {"first": Resources(4, 0, 10), "heavy": elastic(8, 800), "long": Resources(4, 0, 5000)}
    graph.add_nodes_from(demands)
    _, simulation = run(graph, demands, Resources(8, 64))
    assert cores_of(simulation)["heavy"] == 4


def test_memory_limits_the_cores_of_a_build() -> None:
    graph: Graph = networkx.DiGraph()
    graph.add_node("heavy")
    _, simulation = run(graph, {"heavy": elastic(16, 800, 4.0)}, Resources(16, 10))
    (demand,) = simulation.demanded
    assert (demand.cores, demand.memory) == (2, 8.0)


@given(problems(), st.sets(st.integers(0, 11)))
def test_limits_hold_for_builds_of_any_width(
    problem: tuple[Graph, dict[str, Resources], Resources], wide: set[int]
) -> None:
    graph, demands, capacity = problem
    for number, name in enumerate(demands):
        if number in wide:
            row = demands[name]
            demands[name] = elastic(row.cores, row.seconds * row.cores, row.memory / row.cores)
    outcome, _ = run(graph, demands, capacity)
    assert sorted(outcome.done) == sorted(graph)
