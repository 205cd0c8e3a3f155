"""The wheels in the index that a lock means: an index may have several builds of one version."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builders.building.build_host import find_build_host
from builders.building.inputs import environment_of
from builders.building.plan import plan
from matrix.show.render import counted
from resolver.errors import MatrixError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from builders.index import Index
    from matrix.show.console import Console
    from resolver.facts.catalog import Catalog
    from resolver.model import Resolution


def wheels_of_lock(
    lock: Resolution,
    catalog: Catalog,
    index: Index,
    console: Console,
    args: argparse.Namespace | None = None,
) -> dict[str, list[Path]]:
    """Return the wheels in the index of each distribution that a lock builds, by name.

    If the index has several builds of a version, only the one with the inputs of the lock is returned. If
    this machine cannot determine it, all are returned, with a warning. `args` may have the options of a
    build host.
    """
    wheels = candidate_wheels(lock, index)
    several = [name for name, paths in wheels.items() if len(paths) > 1]
    if not several:
        return wheels
    reason = "None of them was built from the inputs of the lock."
    options = {} if args is None else vars(args)
    try:
        build_host = find_build_host(
            lock,
            several,
            kind=options.get("where"),
            image=options.get("base_image"),
            python=options.get("python_from"),
            cpu=options.get("cpu", ""),
        )
        tasks = plan(lock, catalog, index, build_host, several)
    except MatrixError as error:
        tasks, reason = [], error.message.partition("\n")[0]
    wheels |= {task.pick.name: [task.wheel] for task in tasks if task.wheel and task.pick.name in several}
    for name in several:
        if len(wheels[name]) > 1:
            console.warning(
                f"{index.root} has {counted(len(wheels[name]), 'build')} of {name}, and it is not known "
                f"which of them the lock means. pip takes the newest. {reason}"
            )
    return wheels


def candidate_wheels(lock: Resolution, index: Index) -> dict[str, list[Path]]:
    """Return the wheels in the index with the versions of a lock, by name.

    Those that the lock's Python cannot install are left out, unless there are no others.
    """
    rank = environment_of(lock).rank
    found = {pick.name: index.wheels_of(pick.name, pick.pinned) for pick in lock.built()}
    return {
        name: [path for path in paths if rank(path.name) is not None] or paths
        for name, paths in found.items()
    }
