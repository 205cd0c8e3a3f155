"""The order, cores, memory and expected time of the builds of a plan."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from builders.building.expected_time import Estimate, expected_time
from builders.building.jobserver import can_join
from builders.building.provenance import read_statement
from builders.building.records import memory_of_failures
from builders.machine import host
from builders.scheduling.scheduler import graph_of
from resolver.errors import ProvenanceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from networkx import DiGraph

    from builders.building.expected_time import Resources
    from builders.building.plan import Task
    from builders.index import Index
    from resolver.model import Distribution

_LIGHT = 0.5
"""GiB for a build that compiles nothing."""


def task_graph(tasks: Sequence[Task]) -> DiGraph[str]:
    """Return the tasks by build key; an edge goes from a task to a task that requires its wheel."""
    return graph_of({task.build_key: [other.build_key for other in task.requires] for task in tasks})


def estimates(
    tasks: Mapping[str, Task],
    index: Index,
    capacity: Resources,
    *,
    sharing: bool = False,
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
        Whether builds can share their compile jobs. Otherwise, each gets a number of them when it starts.
    """
    return {key: _estimate(task, index, capacity, sharing=sharing) for key, task in tasks.items()}


def _estimate(task: Task, index: Index, capacity: Resources, *, sharing: bool) -> Estimate:
    measured = recorded(task.pick, index)
    compiles = _compiles(task)
    per_job = measured.get("process_gib") or max(
        task.recipe.memory_per_job if compiles else _LIGHT, memory_of_failures(index, task.pick.name)
    )
    per_job = min(per_job, capacity.memory)
    joins = sharing and can_join(task)
    cores = 1
    if compiles and not joins:
        cores = host.compile_jobs(per_job, jobs=capacity.cores, memory=capacity.memory)
    # A recipe can state the time of a build that compiles nothing, too; an alias only has metadata.
    recipe = task.recipe if compiles or (task.recipe.core_hours and not task.pick.alias_of) else None
    seconds, source = expected_time(recipe, measured, capacity.cores if joins else cores)
    used = {"recipe": capacity.cores if joins else cores, "record": measured.get("jobs", 1)}
    work = seconds * used.get(source, 1) if compiles else 0.0
    return Estimate(cores, cores * per_job, seconds, work, source, per_job, joins)


def _compiles(task: Task) -> bool:
    return task.recipe.compiles is not False and not task.pick.alias_of


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
