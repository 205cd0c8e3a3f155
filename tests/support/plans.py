"""Plans of tasks that run shell scripts instead of builds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from builders.building.task_state import TaskState
from matrix.building.planning import Plan


def plan_of(directory: Path, scripts: Mapping[str, tuple[str, Sequence[str]]]) -> Plan:
    """Return a plan with a task for each script; a script has the names of the tasks that it requires."""
    tasks = tuple(
        TaskState(
            key=name,
            name=name,
            version="1.0",
            state="to build",
            why="",
            requires=tuple(requires),
            inputs={},
            lock=str(directory / "matrix.lock"),
            command=("sh", "-c", script, name),
            cores=1,
            memory_gib=0.1,
            seconds=100.0,
            seconds_from="guess",
            time_limit=300,
            network=False,
        )
        for name, (script, requires) in scripts.items()
    )
    return Plan(
        index=str(directory / "index"),
        directory=str(directory),
        tasks=tasks,
        critical_path=(),
        critical_path_seconds=0.0,
    )
