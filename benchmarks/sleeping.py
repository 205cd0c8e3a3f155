"""Builds that sleep instead of compiling, so that only the overhead of `matrix` counts; prints JSON.

- *schedule*: 32 builds on 8 jobs, of which the longest chain takes 20 s, and all together 150 s. The ideal is
  the list schedule of the sleeps alone, longest remaining path first. Target for the whole command: at most
  1.15 times the ideal, on a machine with two cores and no other work.
- *empty*: the CPU time of a build that compiles nothing, with everything that its build backend does: nine
  builds minus one build, divided by eight. Target: 0.4 s.

Each command has an empty index, and a cache that has the layer with the build requirements. Several programs
run in turn, to compare commits: ``python -m benchmarks.sleeping [--program MATRIX ...] [--runs N]``.
"""

from __future__ import annotations

import argparse
import heapq
import json
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import programs
from tests.support.projects import rows_of, write_catalog, write_sdist

JOBS = 8
CHAIN = 4
SECONDS = 20.0
"""Of the chain."""
OTHERS = 28
ALL = 150.0
"""Seconds of all builds together."""
SETUP = """
import sys, time
from setuptools import setup
if "bdist_wheel" in sys.argv:
    time.sleep({seconds})
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""


class Graph:
    """Builds with their seconds, and the build that each requires."""

    def __init__(self) -> None:
        chain = [f"chain{number}" for number in range(CHAIN)]
        self.requires = dict(zip(chain[1:], chain, strict=False))
        self.seconds = dict.fromkeys(chain, SECONDS / CHAIN)
        draw = random.Random(20)  # noqa: S311  no secret
        weights = [draw.uniform(1, 6) for _ in range(OTHERS)]
        for number, weight in enumerate(weights):
            self.seconds[f"other{number}"] = round(weight * (ALL - SECONDS) / sum(weights), 1)

    @property
    def ideal(self) -> float:
        """The end of the list schedule of the sleeps, in seconds."""
        after = {required: name for name, required in self.requires.items()}

        @cache
        def path(name: str) -> float:
            return self.seconds[name] + (path(after[name]) if name in after else 0.0)

        ready = [(-path(name), name) for name in self.seconds if name not in self.requires]
        heapq.heapify(ready)
        running: list[tuple[float, str]] = []
        clock = 0.0
        while ready or running:
            while ready and len(running) < JOBS:
                name = heapq.heappop(ready)[1]
                heapq.heappush(running, (clock + self.seconds[name], name))
            clock, ended = heapq.heappop(running)
            if ended in after:
                heapq.heappush(ready, (-path(after[ended]), after[ended]))
        return clock


def write(work: Path, cache_root: Path, seconds: dict[str, float], requires: dict[str, str]) -> None:
    """Write the projects, the catalog and the settings."""
    projects = []
    for name, sleep in seconds.items():
        files = {"setup.py": SETUP.format(name=name, seconds=sleep), f"{name}.py": ""}
        needs = ["setuptools", "wheel", *([requires[name]] if name in requires else [])]
        digest = write_sdist(cache_root / "matrix", name, files)
        hours = max(sleep, 0.1) / 3600
        projects.append(rows_of(name, digest, needs, core_hours=hours, compiles=False))
    write_catalog(work / "mine.toml", projects)
    (work / "matrix.toml").write_text('backend = "cpu"\ncatalog = ["mine.toml"]\n')


def measured(program: str, work: Path, env: dict[str, str]) -> tuple[float, float]:
    """Build everything into an empty index; return wall and CPU seconds of the whole command."""
    shutil.rmtree(work / "index", ignore_errors=True)
    command = [program, "build-wheels", "--jobs", str(JOBS), "-q"]
    run = programs.timed(command, work, env)
    return run.wall, run.cpu


def prepare(
    program: str, work: Path, seconds: dict[str, float], requires: dict[str, str]
) -> tuple[Path, dict[str, str]]:
    """Lock the builds, after the same builds without sleeps have created the layer."""
    work.mkdir(parents=True)
    env = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
    for sleeps in (dict.fromkeys(seconds, 0.0), seconds):
        write(work, work / "cache", sleeps, requires)
        programs.run([program, "resolve", *seconds, "-q"], cwd=work, env=env)
        if not any(sleeps.values()):
            measured(program, work, env)
    return work, env


def main() -> None:
    """Measure all programs in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", action="append", help="the matrix to measure (repeatable)")
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    found = shutil.which("matrix") or "matrix"
    names = [str(Path(name).absolute()) for name in args.program or [found]]
    graph = Graph()
    rows: dict[str, dict[str, Any]] = {
        name: {"wall": [], "cpu": [], "empty": {1: [], 9: []}} for name in names
    }
    document: dict[str, Any] = {
        "schema": 1,
        "load before": round(os.getloadavg()[0], 1),
        "ideal": graph.ideal,
    }
    with tempfile.TemporaryDirectory() as folder:
        works = {}
        for number, name in enumerate(names):
            root = Path(folder, str(number))
            works[name, 0] = prepare(name, root / "schedule", graph.seconds, graph.requires)
            for count in (1, 9):
                empty = {f"empty{index}": 0.0 for index in range(count)}
                works[name, count] = prepare(name, root / str(count), empty, {})
        for _ in range(args.runs):
            for name, row in rows.items():
                wall, cpu = measured(name, *works[name, 0])
                row["wall"].append(round(wall, 1))
                row["cpu"].append(round(cpu, 1))
                for count, times in row["empty"].items():
                    times.append(round(measured(name, *works[name, count])[1], 2))
    for row in rows.values():
        one, nine = (min(times) for times in row["empty"].values())
        row["wall to ideal"] = round(min(row["wall"]) / graph.ideal, 2)
        row["empty build, CPU seconds"] = round((nine - one) / 8, 2)
    document |= {"programs": rows, "load after": round(os.getloadavg()[0], 1)}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
