"""The cost of one more build environment in time and disk space, as ratios to venv and pip; prints JSON.

The same wheels are on disk for all measurements, so no network is timed. The shared layers are created once
and then linked. For the comparison, a virtual environment is created each time, and pip installs everything
into it. The benchmark runs on this machine, or in a base image:
``--base-image FILE --torch torch==2.9.1+rocm6.4``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from builders.containers.engines import choose_runtime
from builders.containers.image import find_image
from builders.containers.runtime import Bind, View, run_in
from builders.environments.layers import fetch_build_wheels, make_environment, make_layers
from builders.environments.python import find_python, python_view
from builders.environments.wheelhouse import FetchOptions
from builders.machine.host import running_python
from builders.storage.files import remove_tree
from resolver.reporter import SILENT

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 7
TORCH = "torch==2.13.0+cpu"
REQUIREMENTS = ["setuptools", "wheel", "ninja", "packaging", "psutil", "py-cpuinfo"]


def mebibytes(directory: Path) -> float:
    """Return the disk usage of a directory in blocks, like du."""
    blocks = sum(path.lstat().st_blocks for path in [directory, *directory.rglob("*")])
    return round(blocks * 512 / 2**20, 2)


@contextmanager
def timed(times: dict[str, list[float]], what: str) -> Iterator[None]:
    """Add the wall time of the block, in seconds."""
    started = time.perf_counter()
    yield
    times.setdefault(what, []).append(time.perf_counter() - started)


def main() -> None:
    """Time layers, environments on them, and venv with pip; print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-image", type=Path, help="measure in this base image")
    parser.add_argument("--torch", default=TORCH, help=f"torch with its label (default {TORCH})")
    args = parser.parse_args()
    torch, requirements = args.torch, REQUIREMENTS
    times: dict[str, list[float]] = {}
    runtime = choose_runtime(None, find_image(args.base_image) if args.base_image else None)
    python = find_python(runtime, running_python())
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        os.environ["XDG_CACHE_HOME"] = str(work / "cache")
        how = FetchOptions(log=work / "log", reporter=SILENT)
        houses = fetch_build_wheels(runtime, python, torch=torch, requirements=requirements, options=how)
        with timed(times, "layers"):
            layers = make_layers(runtime, python, torch=torch, requirements=requirements, options=how)
        for run in range(RUNS):
            with timed(times, "environment"):
                made = make_environment(python, layers.all, root=work / f"env{run}")
        # An environment uses the requested version of a distribution that both layers have.
        files = {wheel.name: wheel.path for house in houses if house for wheel in house.wheels}
        rival = work / "rival"
        rival.mkdir()
        pip = [
            *f"{rival}/bin/python -m pip install -qq --no-index --no-deps".split(),
            *map(str, files.values()),
        ]
        view = python_view(python, binds=[Bind(work, writable=True)])
        with timed(times, "venv and pip"):
            for command in ([str(python.path), "-m", "venv", str(rival)], pip):
                run_in(runtime, command, view, what="The rival", log=how.log)
        for _ in range(RUNS):
            with timed(times, "start of a program"):
                run_in(runtime, ["/bin/true"], View(), what="A program", log=how.log)
        seconds = {what: round(statistics.median(taken), 2) for what, taken in times.items()}
        document = {
            "schema": 1,
            "place": runtime.kind,
            "python": python.version,
            "torch": torch,
            "seconds": seconds,
            "slowest environment": round(max(times["environment"]), 2),
            "ratio to venv and pip": round(seconds["environment"] / seconds["venv and pip"], 4),
            "MiB": {
                "layers": round(sum(mebibytes(one.root) for one in layers.all), 2),
                "environment": mebibytes(made.root),
                "venv and pip": mebibytes(rival),
            },
        }
        remove_tree(work / "cache")  # its directories are read-only
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
