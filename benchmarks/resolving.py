"""Compare the search and the whole command with other resolvers on generated catalogs; print JSON.

Run it from the clone: ``python -m benchmarks.resolving`` (or ``nox -s bench``). All resolvers run in turn on
the same universes (see `benchmarks.universes`): the same components, versions and requirements, each in the
form that the resolver reads. Every answer is checked against the requirements. A wrong answer is reported as
wrong, a late answer as a timeout, and a resolver that is not installed as missing. If a resolver failed or
was wrong, the benchmark ends with exit code 1 after it has printed everything. There are two groups:

in process
    the search alone, in a separate process, input already in memory: ``Session.solve`` with arc
    consistency and ``Session.explain``; nab-resolver (PubGrub in Python); clingo (grounding and solving).
    Only `matrix` looks for the preferred solution; the others stop at the first solution.
whole command
    from start to exit: ``matrix resolve`` with the universe as an overlay of the shipped catalog, without an
    index; ``uv pip compile`` and ``pip install --dry-run`` with an index of the universe on disk. Only the
    first run has no cache.

Milliseconds are medians; ratios are to `matrix` in the same group and run. For whole commands, the minimum
CPU time of all runs (of all threads) is given, too: other work on the machine affects it less. Memory is the
peak of the resident set, interpreter included (Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from benchmarks import universes
from benchmarks.universes import KINDS, SIZES, make, to_problem
from resolver.solving.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.universes import Universe

    Answer = dict[str, int] | None
    Run = Callable[[], tuple[float, Answer]]
    """Run a resolver once; return the seconds and its answer."""

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5
LONG = 5.0
"""A resolver that took this many seconds in total is not run again."""
NEVER = float("inf")
RESOLVE = {"12x12": 5.0, "100x60": 100.0}
EXPLAIN = {"12x12": 50.0, "100x60": 500.0}
"""Targets in milliseconds."""
IN_PROCESS = ("matrix", "matrix core", "nab-resolver", "clingo")
COMMANDS = ("matrix resolve", "uv pip compile", "pip install")
REFERENCE = {"in process": "matrix", "whole command": "matrix resolve"}
NEEDS = {"nab-resolver": "nab_resolver", "clingo": "clingo", "pip install": "pip"}
"""The module that a resolver requires."""


class Result(TypedDict, total=False):
    """The result of one resolver on one universe; times in milliseconds, memory in MiB."""

    state: str
    """``right``, ``wrong``, ``timeout``, ``missing`` or ``failed``."""
    first: float
    median: float
    runs: int
    ratio: float
    memory: float
    cpu: float
    note: str


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description="Time the search against other resolvers.")
    parser.add_argument(
        "--sizes",
        default=",".join(f"{one}x{other}" for one, other in SIZES),
        help="extensions x versions (%(default)s)",
    )
    parser.add_argument(
        "--only",
        default=",".join([*IN_PROCESS, *COMMANDS]),
        help="which resolvers, of those that are measured by default (%(default)s)",
    )
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each (%(default)s)")
    parser.add_argument("--child", nargs=3, metavar=("WHAT", "SIZE", "KIND"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(_child(*args.child)))
        return
    with tempfile.TemporaryDirectory() as directory:
        report = _measured(args.sizes.split(","), args.only.split(","), args.timeout, Path(directory))
    print(json.dumps(report, indent=2))
    if failures := _failures(report["cases"]):
        sys.exit("\n".join(["Programs that failed or gave a wrong answer:", *failures]))


def _failures(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each program that failed or gave a wrong answer; late answers are results."""
    return [
        f"  {name}, {case['size']} {case['kind']}: {result.get('note', result['state'])}"
        for case in cases
        for results in case["groups"].values()
        for name, result in results.items()
        if result["state"] in {"failed", "wrong"}
    ]


def _measured(sizes: Sequence[str], only: Sequence[str], timeout: float, directory: Path) -> dict[str, Any]:
    cases = []
    for size in sizes:
        for kind in KINDS:
            place = directory / f"{size}-{kind}"
            place.mkdir()
            universe = _universe(size, kind)
            _write(universe, place)
            groups: dict[str, dict[str, Result]] = {"in process": {}, "whole command": {}}
            for name in (one for one in IN_PROCESS if one in only):
                if name != "matrix core" or kind == "unsatisfiable":
                    groups["in process"][name] = _in_child(name, size, kind, place, timeout)
            for name in (command for command in COMMANDS if command in only):
                groups["whole command"][name] = _command(name, universe, place, timeout)
            for group, results in groups.items():
                _compare(results, REFERENCE[group])
            _show(f"{size} {kind}", groups)
            cases.append({"size": size, "kind": kind, "groups": groups})
    whole = {*IN_PROCESS, *COMMANDS} <= {*only}
    targets = _targets(cases) if whole else []
    for target in targets:
        print(
            f"{'met ' if target['met'] else 'MISSED'} {target['target']}: {target['value']}", file=sys.stderr
        )
    return {
        "schema": 1,
        "date": datetime.now(tz=UTC).date().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "versions": _versions(),
        "timeout": timeout,
        "cases": cases,
        "targets": targets,
    }


def _compare(results: Mapping[str, Result], reference: str) -> None:
    ours = results.get(reference, {})
    for result in results.values():
        if "median" in result and "median" in ours:
            result["ratio"] = round(result["median"] / ours["median"], 2)


def _show(title: str, groups: Mapping[str, Mapping[str, Result]]) -> None:
    print(title, file=sys.stderr)
    for results in groups.values():
        for name, result in results.items():
            if "median" in result:
                ratio = f"{result['ratio']:8.2f} x" if "ratio" in result else " " * 10
                text = f"{result['median']:10.1f} ms {ratio}  first {result['first']:10.1f} ms"
                text += f"  {result['memory']:6.0f} MiB" if "memory" in result else ""
                text += f"  cpu {result['cpu']:8.1f} ms" if "cpu" in result else ""
                text += "" if result["state"] == "right" else f"  {result['state']}"
            else:
                text = f"{result['state']:>10} {result.get('note', '')}"
            print(f"  {name:16} {text}", file=sys.stderr)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in ("rocm-matrix", "resolvelib", "nab-resolver", "clingo", "uv", "pip"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    return versions


def _targets(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare with the targets; a result without a time (missing, failed, timeout) does not meet them."""
    worst_cases: dict[str, tuple[float, float]] = {}

    def add(text: str, value: float | None, limit: float) -> None:
        worst = worst_cases.get(text, (0.0, limit))[0]
        worst_cases[text] = max(worst, NEVER if value is None else value), limit

    for case in cases:
        search, whole = case["groups"]["in process"], case["groups"]["whole command"]
        ours, nab, uv = search["matrix"].get("median"), search["nab-resolver"], whole["uv pip compile"]
        add(f"search of {case['size']}, ms", ours, RESOLVE.get(case["size"], NEVER))
        for name in ("matrix", "matrix core"):
            if name in search:
                add("peak memory of the search, MiB", search[name].get("memory"), 200)
        if "matrix core" in search:
            limit = EXPLAIN.get(case["size"], NEVER)
            add(f"core of {case['size']}, ms", search["matrix core"].get("median"), limit)
        if nab["state"] == "timeout":
            add("search, times that of nab-resolver", 0, 2)
        else:
            add("search, times that of nab-resolver", _times(search["matrix"], nab), 2)
        times = _times(whole["matrix resolve"], uv)
        add(f"whole command, times that of uv, {case['size']} {case['kind']}", times, 1)
    return [
        {
            "target": f"{text} at most {limit:g}",
            "value": None if value == NEVER else round(value, 3),
            "met": value <= limit,
        }
        for text, (value, limit) in worst_cases.items()
        if limit != NEVER
    ]


def _times(ours: Result, other: Result) -> float | None:
    """Return the ratio of our time to that of another resolver; None if a time is missing."""
    return ours["median"] / other["median"] if "median" in ours and "median" in other else None


def _environment(place: Path) -> dict[str, str]:
    """Return the environment of child processes: this clone, separate caches, no user configuration."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_", "MATRIX_"))}
    own = {"XDG_CACHE_HOME": str(place / "cache"), "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": os.devnull}
    return {**kept, **own}


def _run(
    command: Sequence[str], directory: Path, place: Path, timeout: float, *, no_index: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program in a directory with the caches of a universe."""
    return subprocess.run(
        command,
        cwd=directory,
        env=_environment(place) | ({"PIP_NO_INDEX": "1"} if no_index else {}),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def _in_child(what: str, size: str, kind: str, place: Path, timeout: float) -> Result:
    """Run one measurement in its own process."""
    if find_spec(NEEDS.get(what, "json")) is None:
        return {"state": "missing"}
    command = [sys.executable, "-m", "benchmarks.resolving", "--child", what, size, kind]
    try:
        done = _run(command, ROOT, place, timeout)
    except subprocess.TimeoutExpired:
        return {"state": "timeout", "note": f"not done after {timeout:g} s"}
    if done.returncode:
        return {"state": "failed", "note": done.stderr.strip().rpartition("\n")[2][:200]}
    result: Result = json.loads(done.stdout)
    return result


def _command(name: str, universe: Universe, place: Path, timeout: float) -> Result:
    """Run a whole command several times; the first time without a cache."""
    program = _uv() if name == "uv pip compile" else sys.executable
    if program is None or find_spec(NEEDS.get(name, "json")) is None:
        return {"state": "missing"}
    index = (place / "simple").as_uri()
    requirements = universes.requirements(universe)
    words = {
        "matrix resolve": "-m matrix resolve --site local --no-lock --format json --catalog catalog.toml",
        "uv pip compile": "pip compile --no-config --quiet --no-header --no-annotate --cache-dir uv "
        f"--python {sys.executable} --index-url {index} requirements.txt",
        "pip install": "-m pip install --dry-run --ignore-installed --quiet --disable-pip-version-check "
        f"--report - --index-url {index} -r requirements.txt",
    }
    command = [program, *words[name].split(), *(requirements if name == "matrix resolve" else [])]
    times: list[float] = []
    cpu: list[float] = []
    while len(times) <= RUNS and sum(times) < LONG:
        before, started = _cpu_of_children(), time.perf_counter()
        try:
            done = _run(command, place, place, timeout, no_index=name == "matrix resolve")
        except subprocess.TimeoutExpired:
            return {"state": "timeout", "note": f"not done after {timeout:g} s"}
        times.append(time.perf_counter() - started)
        cpu.append(_cpu_of_children() - before)
        result = _result(times, _answer_of(name, done), universe)
        if result["state"] != "right":
            break
    return {**result, "cpu": round(1000 * min(cpu), 2)}


def _cpu_of_children() -> float:
    """Return the CPU seconds of all finished child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _uv() -> str | None:
    """Return the path of uv, next to this Python or on PATH; None if there is none."""
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.exists() else shutil.which("uv")


_SAYS_CONFLICT = {
    "matrix resolve": '"status": "conflict"',
    "uv pip compile": "No solution found",
    "pip install": "ResolutionImpossible",
}
"""The text that each command prints if there is no solution."""


def _answer_of(name: str, done: subprocess.CompletedProcess[str]) -> Answer | str:
    """Parse the answer of a command: a choice, None for a conflict, or the failure."""
    if done.returncode:
        proved = _SAYS_CONFLICT[name] in done.stdout + done.stderr
        said = " ".join((done.stderr or done.stdout).split())[:200]
        return None if proved else f"exit code {done.returncode}: {said}"
    try:
        return {name: int(version) for name, version in _versions_in(name, done.stdout)}
    except (ValueError, KeyError, TypeError) as error:
        return f"unreadable answer: {error!r}"


def _versions_in(name: str, output: str) -> list[list[str]]:
    """Return the names and versions in the output of a command."""
    if name == "uv pip compile":
        return [line.split("==") for line in output.splitlines() if "==" in line]
    if name == "pip install":
        rows = [row["metadata"] for row in json.loads(output)["install"]]
    else:
        rows = [pick for pick in json.loads(output)["picks"] if pick["kind"] == "distribution"]
    return [[row["name"], row["version"]] for row in rows]


def _result(times: Sequence[float], answer: Answer | str, universe: Universe) -> Result:
    """Combine times and verdict; the median leaves out the first run, if there are others."""
    result: Result = {
        "state": "right",
        "first": round(1000 * times[0], 2),
        "median": round(1000 * statistics.median(times[1:] or times), 2),
        "runs": len(times),
    }
    if isinstance(answer, str):
        return {"state": "failed", "note": answer}
    if not (universe.holds(answer) if answer is not None else universe.planted is None):
        result["state"] = "wrong"
    return result


def _universe(size: str, kind: str) -> Universe:
    extensions, _, versions = size.partition("x")
    return make(int(extensions), int(versions), next(one for one in KINDS if one == kind))


def _write(universe: Universe, place: Path) -> None:
    """Write a universe as a package index, a catalog file and requirements."""
    universes.write_index(universe, place / "simple")
    text = "\n".join(universes.requirements(universe)) + "\n"
    (place / "requirements.txt").write_text(text, encoding="utf-8")
    (place / "catalog.toml").write_text(universes.to_catalog(universe), encoding="utf-8")


def _child(what: str, size: str, kind: str) -> Result:
    """Measure one resolver in this process."""
    universe = _universe(size, kind)
    run = {"matrix": _ours, "matrix core": _core, "nab-resolver": _nab, "clingo": _clingo}[what](universe)
    times: list[float] = []
    answer: Answer = None
    while len(times) <= RUNS and sum(times) < LONG:
        seconds, answer = run()
        times.append(seconds)
    return {**_result(times, answer, universe), "memory": _peak()}


def _peak() -> float:
    """Return the peak resident set size of this process in MiB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


def _ours(universe: Universe) -> Run:
    def run() -> tuple[float, Answer]:
        problem = to_problem(universe)  # each time, because searches of one problem share a cache
        started = time.perf_counter()
        solution = Session(problem).solve()
        seconds = time.perf_counter() - started
        if solution is None:
            return seconds, None
        return seconds, {
            name: int(problem.variables[name].candidate(bit).version) for name, bit in solution.items()
        }

    return run


def _core(universe: Universe) -> Run:
    def run() -> tuple[float, Answer]:
        problem = to_problem(universe)
        started = time.perf_counter()
        Session(problem).explain()
        return time.perf_counter() - started, None

    return run


def _nab(universe: Universe) -> Run:
    from benchmarks.pubgrub import Provider, as_range, resolve

    class Layered(Provider):
        """Decide driver, ROCm, torch and then the rest, which is faster here."""

        def prioritize(self, package: str, *_: object) -> str:  # type: ignore[override]
            return package

    versions = {name: range(newest, 0, -1) for name, newest in universe.newest.items()}
    needs = {
        which: {name: as_range(allowed) for name, allowed in ones.items()}
        for which, ones in universe.needs.items()
    }
    asked = {name: as_range(allowed) for name, allowed in universe.asked.items()}

    def run() -> tuple[float, Answer]:
        provider = Layered(versions, needs)
        started = time.perf_counter()
        solution = resolve(provider, asked)
        return time.perf_counter() - started, solution

    return run


def _clingo(universe: Universe) -> Run:
    import clingo

    program = universes.to_clingo(universe)

    def run() -> tuple[float, Answer]:
        solution: dict[str, int] = {}

        def keep(model: clingo.Model) -> None:
            for atom in model.symbols(shown=True):
                solution[atom.arguments[0].string] = atom.arguments[1].number

        started = time.perf_counter()
        control = clingo.Control(["1"])
        control.add("base", [], program)
        control.ground([("base", [])])
        satisfiable = control.solve(on_model=keep).satisfiable
        return time.perf_counter() - started, solution if satisfiable else None

    return run


if __name__ == "__main__":
    main()
