"""The overhead of `matrix build-wheels` over a bare ``pip wheel`` of the same source; prints JSON.

Both compile the same sdist in the rig's image, with the same torch, build requirements, variables
and number of jobs. The bare build is ``pip wheel --no-build-isolation --no-deps`` alone, in an environment
that exists already. The other build is the whole command from start to exit: it reads the lock, creates the
environment, unpacks, compiles, audits, probes, labels and publishes. They run in turn. The torch layer
exists, except in the first run (*cold*), which fetches and installs everything. Target: at most 10 % and 5 s
more than the bare build.

``python -m benchmarks.building [--only NAME] [--runs N] [--jobs N]`` takes about ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks import programs
from tests.rig.rig import the_rig
from tests.support.site import Site

if TYPE_CHECKING:
    from tests.rig.rig import Rig

ALLOWED_SHARE = 0.10
ALLOWED_SECONDS = 5.0


class Case(NamedTuple):
    """A build: its requirement and its ops."""

    requirement: str
    ops: str = ""

    @property
    def arguments(self) -> list[str]:
        """The options for the command."""
        return ["--ops", f"{self.requirement.partition('==')[0]}:{self.ops}"] if self.ops else []


CASES = {
    "deepspeed fused_adam": Case("deepspeed==0.19.8", "fused_adam"),
    "flash-attn, pure Python": Case("flash-attn[triton]==2.8.3"),
}
"""The second package compiles nothing, so only the fixed cost remains."""

# The user's Python runs both scripts. The program is the real one. The bare build replaces the step that
# compiles, with the same arguments, and then ends the program.
WHOLE = """
import json, sys, time
from matrix.cli import main
from matrix.show.console import Console
steps, said = [], Console.step
def step(self, text, task=""):
    steps.append((text.split(";")[0].split(" with ")[0], time.time()))
    said(self, text, task)
Console.step = step
started = time.time()
code = main(sys.argv[1:])
steps.append(("", time.time()))
taken = {"start": steps[0][1] - started}
for (text, at), (_, then) in zip(steps, steps[1:]):
    taken[text.split()[0]] = taken.get(text.split()[0], 0) + then - at
print("@" + json.dumps({name: round(one, 2) for name, one in taken.items()}), file=sys.stderr)
sys.exit(code)
"""
BARE = """
import sys, time
from builders.building import task
from builders.containers.runtime import Bind, run_in
from builders.environments.python import ensure_pip
from msgspec.structs import replace
from matrix.cli import main
make, get, known = task.make_environment, task.obtain, {}
def remember(python, *rest, **more):
    known["python"] = python
    return make(python, *rest, **more)
def obtain(*rest, **more):
    known["source"] = get(*rest, **more)
    return known["source"]
def bare(hook, built, python, view, *, directory, **more):
    runtime, work, log = built.build_host.runtime, directory.sandbox, directory.log
    pip = ensure_pip(runtime, known["python"], log=log)
    sdist = known["source"].path
    view = replace(view, binds=[*view.binds, Bind(pip.parent), Bind(sdist)])
    line = [str(python), str(pip), "wheel", "--no-build-isolation", "--no-deps", "--no-index"]
    line += ["--no-cache-dir", "--disable-pip-version-check", "-w", str(work / "bare"), str(sdist)]
    started = time.time()
    run_in(runtime, line, view, what="The bare build", log=log)
    print(f"@{time.time() - started:.2f}", file=sys.stderr)
    assert len(list((work / "bare").glob("*.whl"))) == 1
    sys.exit(0)
task.make_environment, task.obtain, task.call_hook = remember, obtain, bare
main(sys.argv[1:])
"""


def run(site: Site, script: str, arguments: list[str]) -> tuple[float, str]:
    """Run one of the scripts on an empty index; return wall seconds and the figures that it printed."""
    shutil.rmtree(site.index, ignore_errors=True)
    command = ["-c", script, "build-wheels", *arguments]
    started = time.perf_counter()
    done = site.rig.run_python(*command, cwd=site.work, env=site.env)
    seconds = time.perf_counter() - started
    lines = [line[1:] for line in done.stderr.splitlines() if line.startswith("@")]
    programs.check(command, done.returncode, done.stdout, done.stderr)
    if len(lines) != 1:
        programs.fail(command, f"printed {len(lines)} lines of times instead of one", done.stderr)
    return seconds, lines[0]


def measure(rig: Rig, case: Case, *, runs: int, jobs: int) -> dict[str, Any]:
    """Measure one case.

    Parameters
    ----------
    runs
        Number of runs of each command, after the cold run.
    jobs
        Compile jobs at once.
    """
    site = Site(rig, case.requirement)
    site.env["XDG_CACHE_HOME"] = str(site.work / "cache")
    site.resolve()
    arguments = [*case.arguments, "--jobs", str(jobs)]
    cold, cold_steps = run(site, WHOLE, arguments)
    bare, whole, steps = [], [], []
    for _ in range(runs):
        bare.append(float(run(site, BARE, arguments)[1]))
        seconds, taken = run(site, WHOLE, arguments)
        whole.append(seconds)
        steps.append(json.loads(taken))
    plain, ours = statistics.median(bare), statistics.median(whole)
    allowed = plain * (1 + ALLOWED_SHARE) + ALLOWED_SECONDS
    return {
        "bare": [round(seconds, 1) for seconds in bare],
        "build-wheels": [round(seconds, 1) for seconds in whole],
        "over": round(ours - plain, 1),
        "ratio": round(ours / plain, 2),
        "allowed": round(allowed, 1),
        "met": ours <= allowed,
        "cold": round(cold, 1),
        "seconds of each step": {
            name: round(statistics.median(step[name] for step in steps), 2) for name in steps[0]
        },
        "cold steps": json.loads(cold_steps),
    }


def main() -> None:
    """Measure all cases one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only these (repeatable)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="compile jobs at once")
    args = parser.parse_args()
    document: dict[str, Any] = {"schema": 1, "load before": round(os.getloadavg()[0], 1), "cases": {}}
    with the_rig() as rig:
        for name, case in CASES.items():
            if not args.only or name in args.only:
                document["cases"][name] = measure(rig, case, runs=args.runs, jobs=args.jobs)
    document["load after"] = round(os.getloadavg()[0], 1)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
