"""What one more build environment costs in time and on disk, as ratios to venv and pip; prints JSON.

Both start from the same wheels on disk, so that no network is timed: the shared layers are made once and
then linked, and the rival makes a virtual environment and has pip install everything into it, each time.
Arguments: torch's pin (default ``torch==2.13.0+cpu``) and build requirements, as pip has them.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.place import HostPlace
from builders.environments.kept import remove
from builders.environments.python import find_python
from builders.environments.task import Fetching, fetch_for, make_layers, task_environment
from builders.host import running_python

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 7
TORCH = "torch==2.13.0+cpu"
REQUIREMENTS = ["setuptools", "wheel", "ninja", "packaging", "psutil", "py-cpuinfo"]


def mebibytes(directory: Path) -> float:
    """Give what a directory takes on disk, in blocks as du counts them."""
    blocks = sum(path.lstat().st_blocks for path in [directory, *directory.rglob("*")])
    return round(blocks * 512 / 2**20, 2)


@contextmanager
def timed(times: dict[str, list[float]], what: str) -> Iterator[None]:
    """Add the wall time of the block, in seconds."""
    started = time.perf_counter()
    yield
    times.setdefault(what, []).append(time.perf_counter() - started)


def main(torch: str, *requirements: str) -> None:
    """Time layers, environments on them, and the rival; print medians and ratios."""
    times: dict[str, list[float]] = {}
    place, wanted = HostPlace(), [*requirements] or REQUIREMENTS
    python = find_python(place, running_python())
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        how = Fetching(log=work / "log", say=lambda text: print(text, file=sys.stderr))
        wheels = fetch_for(place, python, torch=torch, requirements=wanted, how=how)
        with timed(times, "layers"):
            layers = make_layers(place, python, torch=torch, requirements=wanted, how=how)
        for run in range(RUNS):
            with timed(times, "environment"):
                made = task_environment(place, python, layers.all, root=work / f"env{run}", log=how.log)
        with timed(times, "venv and pip"):
            subprocess.run([python.path, "-m", "venv", work / "rival"], check=True)
            # Of what both layers hold, an environment sees the one that it asked for.
            files = {one.name: str(one.path) for one in wheels}.values()
            pip = f"{work}/rival/bin/python -m pip install -qq --no-index --no-deps".split()
            subprocess.run([*pip, *files], check=True)
        seconds = {what: round(statistics.median(taken), 2) for what, taken in times.items()}
        document = {
            "schema": 1,
            "python": python.version,
            "torch": torch,
            "seconds": seconds,
            "slowest environment": round(max(times["environment"]), 2),
            "ratio to venv and pip": round(seconds["environment"] / seconds["venv and pip"], 4),
            "MiB": {
                "layers": round(sum(mebibytes(one.root) for one in layers.all), 2),
                "environment": mebibytes(made.root),
                "venv and pip": mebibytes(work / "rival"),
            },
        }
        remove(work / "cache")  # its directories are read-only
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main(*(sys.argv[1:] or [TORCH]))
