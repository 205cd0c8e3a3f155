"""The order, cores, memory and expected time of the builds of a plan."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from builders import host
from builders.expected_time import expected_time
from builders.provenance import read_statement
from builders.scheduling.jobserver import can_join
from builders.scheduling.scheduler import Demand
from resolver.errors import ProvenanceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from networkx import DiGraph

    from builders.expected_time import TimeSource
    from builders.index import Index
    from builders.plan import Task
    from resolver.model import Distribution

_LIGHT = 0.5
"""GiB for a build that compiles nothing."""


class Estimate(msgspec.Struct, frozen=True):
    """The expected needs of one build."""

    demand: Demand
    """A build that shares compile jobs with others demands only its first job."""
    memory_per_job: float
    """GiB."""
    joins: bool
    """Whether it shares the compile jobs with the builds that run at the same time."""
    source: TimeSource


def task_graph(tasks: Sequence[Task]) -> DiGraph[str]:
    """Return the tasks by build key; an edge goes from a task to a task that requires its wheel."""
    from networkx import DiGraph

    graph: DiGraph[str] = DiGraph()
    keys = [task.build_key for task in tasks]
    graph.add_nodes_from(keys)
    for key, task in zip(keys, tasks, strict=True):
        graph.add_edges_from((required.build_key, key) for required in task.requires)
    return graph.subgraph(keys).copy()


def estimates(
    tasks: Mapping[str, Task],
    index: Index,
    capacity: Demand,
    *,
    sharing: bool = False,
    alone: bool = False,
) -> dict[str, Estimate]:
    """Return the expected needs of each task on a machine.

    Parameters
    ----------
    tasks
        By build key.
    index
        The index, whose records have the time and the memory of earlier builds.
    capacity
        The machine.
    sharing
        Whether builds can share their compile jobs. Otherwise, each gets a fixed number.
    alone
        Whether each build has the machine to itself.
    """
    from networkx import topological_generations

    graph = task_graph(list(tasks.values()))
    width = max(
        (sum(_compiles(tasks[key]) for key in generation) for generation in topological_generations(graph)),
        default=1,
    )
    share = capacity.cores if alone else max(1, capacity.cores // max(1, width))
    return {key: _estimate(task, index, capacity, share, sharing=sharing) for key, task in tasks.items()}


def _estimate(task: Task, index: Index, capacity: Demand, share: int, *, sharing: bool) -> Estimate:
    measured = recorded(task.pick, index)
    compiles = _compiles(task)
    per_job = measured.get("process_gib") or (task.recipe.memory_per_job if compiles else _LIGHT)
    joins = sharing and can_join(task)
    cores = 1
    if compiles and not joins:
        cores = host.compile_jobs(per_job, jobs=share, memory=capacity.memory)
    recipe = task.recipe if compiles else None
    seconds, source = expected_time(recipe, measured, capacity.cores if joins else cores)
    return Estimate(Demand(cores, cores * per_job, seconds), per_job, joins, source)


def _compiles(task: Task) -> bool:
    return bool(task.recipe.must_contain) and not task.pick.alias_of


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
