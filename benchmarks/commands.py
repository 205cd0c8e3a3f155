"""Wall time of commands as ratios to a bare interpreter, all in one run; prints JSON.

Numbers of different machines cannot be compared; ratios of one run can. Every command is run several
times in turn, and the medians are compared. The first run of each, which compiles modules and the catalog,
is not counted, because installed packages have bytecode. The fixed cost of every command, importing the
catalog and loading its compiled form, is measured inside a fresh interpreter.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import programs

RUNS = 7
FOUR = ["apex", "deepspeed", "flash-attn", "bitsandbytes", "--site", "lumi-g", "--date", "2026-03-01"]
MATRIX = [sys.executable, "-m", "matrix"]
ENVIRONMENT = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
LOADING = """
import time
started = time.perf_counter()
from resolver.facts.catalog import load
load(cache="compiled")
print(time.perf_counter() - started)
"""
COMMANDS = {
    "interpreter": [sys.executable, "-c", "pass"],
    "version": [*MATRIX, "--version"],
    "help": [*MATRIX, "--help"],
    "resolve-default": [*MATRIX, "resolve", *FOUR, "torch", "--no-lock", "-q"],
    "resolve-offline": [*MATRIX, "resolve", *FOUR, "torch", "--no-lock", "-q", "--offline"],
    "resolve": [*MATRIX, "resolve", *FOUR, "--python", "3.12", "-q"],
    "conflict": [*MATRIX, "resolve", "torch", "rocm==7.1.*", "--date", "2026-03-01"],
    "table": [*MATRIX, "table", "--site", "lumi-g", "--date", "2026-06-01", "-q"],
    "diff": [*MATRIX, "diff", "--site", "lumi-g", "--date", "2026-06-01", "--driver", "30.10", "-q"],
    "dry-run": [*MATRIX, "build-wheels", "deepspeed", "--backend", "cpu", "--dry-run"],
}
ANSWERS: dict[str, tuple[int, tuple[str, ...]]] = {
    "interpreter": (0, ()),
    "version": (0, ("matrix ",)),
    "help": (0, ("resolve", "build-wheels")),
    "resolve-default": (0, ("torch",)),
    "resolve-offline": (0, ("torch",)),
    "resolve": (0, ("apex", "deepspeed", "flash-attn", "bitsandbytes")),
    "conflict": (1, ("There is no resolution",)),
    "table": (0, ("torch", "rocm")),
    "diff": (0, ("30.10",)),
    "dry-run": (0, ("deepspeed",)),
}
"""The exit code of the right answer of each command, and texts that it contains."""


def seconds(name: str, directory: Path) -> float:
    """Time one run of a command; a wrong answer ends the benchmark."""
    code, contains = ANSWERS[name]
    started = time.perf_counter()
    programs.run(COMMANDS[name], cwd=directory, env=ENVIRONMENT, expected=code, contains=contains)
    return time.perf_counter() - started


def loading(directory: Path) -> float:
    """Time importing and loading the catalog inside a fresh interpreter, compiled form warm."""
    runs = []
    for _ in range(RUNS + 1):
        command = [sys.executable, "-c", LOADING]
        runs.append(float(programs.run(command, cwd=directory, env=ENVIRONMENT)))
    return statistics.median(runs[1:])


def main() -> None:
    """Time all commands in turn and print medians and ratios."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as directory:
        for run in range(RUNS + 1):
            for name in COMMANDS:
                folder = Path(directory) / name  # one each: a lock of another command must not be read
                folder.mkdir(exist_ok=True)
                elapsed = seconds(name, folder)
                if run:
                    times[name].append(elapsed)
        load = loading(Path(directory))
    base = statistics.median(times["interpreter"])
    report: dict[str, dict[str, float]] = {
        name: {
            "milliseconds": round(1000 * (median := statistics.median(runs))),
            "ratio": round(median / base, 1),
        }
        for name, runs in times.items()
    }
    report["import and load the catalog"] = {
        "milliseconds": round(1000 * load, 1),
        "ratio": round(load / base, 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
