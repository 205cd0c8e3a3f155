"""Pure sdists of the index: `matrix build-wheels` beside ``python -m build``, and twenty at once, as JSON.

- *build*: the time of building one project, as a whole command with a warm cache, divided by that of
  ``python -m build --wheel`` on its unpacked sdist, with pip's cache warm. Target: at most 1.5. Both are run
  by turns, and the best of each counts. CPU seconds are also right beside other work on the machine.
- *twenty*: the wall time of building all into an empty index, divided by the ideal: the seconds of the single
  builds, less those of a command that builds nothing, on as many cores as there are. Target: at most 1.2.

Needs the index. ``python -m benchmarks.pure_builds [--program MATRIX] [--singles N] [--turns N]``
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks import programs
from builders.sources.source import unpack_sdist

PROJECTS = (
    "antlr4-python3-runtime==4.9.3", "commentjson==0.9.0", "docopt==0.6.2", "func-timeout==4.3.5",
    "fvcore==0.1.5.post20221221", "GPUtil==1.4.0", "iopath==0.1.10", "jieba==0.42.1", "langdetect==1.0.9",
    "lark-parser==0.7.8", "liac-arff==2.5.0", "odfpy==1.4.1", "pathtools==0.1.2", "progressbar==2.5",
    "pyrouge==0.1.3", "randomname==0.2.1", "ratelimit==2.2.1", "rouge-score==0.1.2", "seqeval==1.2.2",
    "sgmllib3k==1.0.0",
)  # fmt: skip
"""Projects that have no wheel (docs/development/sources.md)."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=shutil.which("matrix") or "matrix")
    parser.add_argument("--turns", type=int, default=3, help="how often each is built alone, by turns")
    parser.add_argument("--singles", type=int, default=len(PROJECTS), help="projects to build alone, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        env = {**os.environ, "XDG_CACHE_HOME": str(work / "cache")}
        python = f"{sys.version_info[0]}.{sys.version_info[1]}"
        request = [args.program, "resolve", *PROJECTS, "--backend", "cpu", "--python", python, "-q"]
        programs.run(request, cwd=work, env=env)
        build = [args.program, "build-wheels", "-q", "--index"]
        programs.run([*build, "first"], cwd=work, env=env)
        twenty = programs.timed([*build, "twenty"], work, env).wall
        nothing = programs.timed([*build, "twenty"], work, env).wall
        alone: list[float] = []
        ratios: dict[str, list[float]] = {"cpu": [], "wall": []}
        for text in PROJECTS[: args.singles]:
            name = text.partition("==")[0]
            (sdist,) = (work / "cache").rglob(f"{name.replace('-', '[-_]')}-[0-9]*.tar.gz")
            source = unpack_sdist(sdist, work / "sources" / name)
            theirs = [sys.executable, "-m", "build", "--wheel", str(source)]
            programs.timed(theirs, work, env)  # fills pip's cache
            runs: list[tuple[programs.Run, programs.Run]] = []
            for number in range(args.turns):
                ours = programs.timed([*build, f"{name}-{number}", name], work, env)
                runs.append((ours, programs.timed(theirs, work, env)))
            alone.append(min(ours.wall for ours, _ in runs) - nothing)
            for what, values in ratios.items():
                best = [min(getattr(run, what) for run in column) for column in zip(*runs, strict=True)]
                values.append(best[0] / best[1])
    cores = len(os.sched_getaffinity(0))
    ideal = max(sum(alone) / cores, *alone) * len(PROJECTS) / len(alone)
    document = {
        "schema": 1,
        "build": {
            what: {"median": round(statistics.median(values), 2), "most": round(max(values), 2)}
            for what, values in ratios.items()
        },
        "twenty": {"wall": round(twenty, 1), "ideal": round(ideal, 1), "ratio": round(twenty / ideal, 2)},
        "nothing to build": round(nothing, 2),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
