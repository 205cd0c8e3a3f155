"""Wall time of commands as ratios to a bare interpreter, all in one run; prints JSON.

Numbers of different machines cannot be compared; ratios of one run can. Every command is run several
times in turn, and the medians are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 7
FOUR = ["apex", "deepspeed", "flash-attn", "bitsandbytes", "--site", "lumi-g", "--date", "2026-03-01"]
MATRIX = [sys.executable, "-m", "matrix"]
COMMANDS = {
    "interpreter": [sys.executable, "-c", "pass"],
    "help": [*MATRIX, "--help"],
    "resolve": [*MATRIX, "resolve", *FOUR, "--python", "3.12", "-q"],
    "conflict": [*MATRIX, "resolve", "torch", "rocm==7.1.*", "--date", "2026-03-01"],
    "dry-run": [*MATRIX, "build-wheels", "deepspeed", "--backend", "cpu", "--dry-run", "--lock", "cpu.lock"],
}


def seconds(command: list[str], directory: Path) -> float:
    """Time one run of a command."""
    started = time.perf_counter()
    subprocess.run(command, cwd=directory, capture_output=True, check=False)
    return time.perf_counter() - started


def main() -> None:
    """Time all commands in turn and print medians and ratios."""
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as directory:
        for _ in range(RUNS):
            for name, command in COMMANDS.items():
                times[name].append(seconds(command, Path(directory)))
    base = statistics.median(times["interpreter"])
    report = {
        name: {
            "milliseconds": round(1000 * (median := statistics.median(runs))),
            "ratio": round(median / base, 1),
        }
        for name, runs in times.items()
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
