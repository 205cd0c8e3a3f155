"""The search and the whole command against other resolvers, on made-up catalogs; prints JSON.

Run it from the clone: ``python -m benchmarks.resolving`` (or ``nox -s bench``). All run in turn on the
same universes (see `benchmarks.universes`): the same components, versions and requirements, each in
the form that the resolver reads. Every answer is checked from first principles; a wrong one is
reported as wrong, one that does not come in time as a timeout, a resolver that is not installed as
missing. Two groups:

in process
    the search alone, in a process of its own, input already in memory: ``solve_preferred`` with arc
    consistency and ``minimal_core``; nab-resolver (PubGrub in Python); clingo (grounding and solving).
    Only ours looks for the preferred solution; the others stop at the first.
whole command
    from start to exit: ``matrix resolve`` with the universe laid over the shipped catalog;
    ``uv pip compile`` and ``pip install --dry-run`` over an index of it on disk. The first run finds
    no cache, the others do.

Milliseconds are medians; ratios are to ours of the same group in the same run. Memory is the peak of
the resident set, interpreter included (Linux only).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from benchmarks.universes import Kind, Universe

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5
LONG = 5.0
"""After this many seconds in all, a resolver is not run again."""
IN_PROCESS = ("matrix", "matrix core", "nab-resolver", "clingo")
COMMANDS = ("matrix resolve", "uv pip compile", "pip install")
REFERENCE = {"in process": "matrix", "whole command": "matrix resolve"}
NEEDS = {"nab-resolver": "nab_resolver", "clingo": "clingo", "pip install": "pip"}
"""The module without which a resolver is missing."""


class Result(TypedDict, total=False):
    """What came of one resolver on one universe; times in milliseconds, memory in MiB."""

    state: str
    """``right``, ``wrong``, ``timeout``, ``missing`` or ``failed``."""
    first: float
    median: float
    runs: int
    ratio: float
    memory: float
    note: str


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description="Time the search against other resolvers.")
    parser.add_argument("--sizes", default="12x12,40x40,100x60", help="extensions x versions (%(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each (%(default)s)")
    parser.add_argument("--child", nargs=4, metavar=("WHAT", "SIZE", "KIND", "PATH"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        what, size, kind, path = args.child
        print(json.dumps(_child(what, size, kind, Path(path))))
        return
    with tempfile.TemporaryDirectory() as directory:
        report = _measured(args.sizes.split(","), args.timeout, Path(directory))
    print(json.dumps(report, indent=2))


def _measured(sizes: Sequence[str], timeout: float, directory: Path) -> dict[str, Any]:
    cases = []
    for size in sizes:
        for kind in ("satisfiable", "unsatisfiable", "low-driver"):
            place = directory / f"{size}-{kind}"
            place.mkdir()
            written = _in_child("write", size, kind, place, timeout)
            groups: dict[str, dict[str, Result]] = {"in process": {}, "whole command": {}}
            for name in IN_PROCESS:
                if name != "matrix core" or kind == "unsatisfiable":
                    groups["in process"][name] = _in_child(name, size, kind, place, timeout)
            for name in COMMANDS:
                groups["whole command"][name] = _command(name, place, timeout, written["note"])
            for group, results in groups.items():
                _compare(results, REFERENCE[group])
            _show(f"{size} {kind}", groups)
            cases.append({"size": size, "kind": kind, "groups": groups})
    targets = _targets(cases)
    for one in targets:
        print(f"{'met ' if one['met'] else 'MISSED'} {one['target']}: {one['value']}", file=sys.stderr)
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
    ours = results[reference]
    for result in results.values():
        if "median" in result and "median" in ours:
            result["ratio"] = round(result["median"] / ours["median"], 2)


def _show(title: str, groups: Mapping[str, Mapping[str, Result]]) -> None:
    print(title, file=sys.stderr)
    for results in groups.values():
        for name, one in results.items():
            if "median" in one:
                said = f"{one['median']:10.1f} ms {one['ratio']:8.2f} x  first {one['first']:10.1f} ms"
                said += f"  {one['memory']:6.0f} MiB" if "memory" in one else ""
                said += "" if one["state"] == "right" else f"  {one['state']}"
            else:
                said = f"{one['state']:>10} {one.get('note', '')}"
            print(f"  {name:16} {said}", file=sys.stderr)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415

    found = {}
    for name in ("rocm-matrix", "resolvelib", "nab-resolver", "clingo", "uv", "pip"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "missing"
    return found


def _targets(cases: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare with what was promised; what was not measured is not met."""

    def worst(size: str, group: str, name: str, key: str = "median") -> float:
        found = [
            case["groups"][group][name].get(key, float("inf"))
            for case in cases
            if case["size"] == size and name in case["groups"][group]
        ]
        return max(found, default=float("inf"))

    limits = [
        ("resolve 12x12 in process, ms", worst("12x12", "in process", "matrix"), 5.0),
        ("resolve 100x60 in process, ms", worst("100x60", "in process", "matrix"), 100.0),
        ("core of 12x12, ms", worst("12x12", "in process", "matrix core"), 50.0),
        ("core of 100x60, ms", worst("100x60", "in process", "matrix core"), 500.0),
    ]
    memory = max(
        case["groups"]["in process"][name].get("memory", float("inf"))
        for case in cases
        for name in ("matrix", "matrix core")
        if name in case["groups"]["in process"]
    )
    limits.append(("peak memory of the search, MiB", memory, 200.0))
    for case in cases:
        title = f"{case['size']} {case['kind']}"
        nab = case["groups"]["in process"]["nab-resolver"].get("ratio", 0.0)
        slower = round(1 / nab, 3) if nab else float("inf")
        if case["groups"]["in process"]["nab-resolver"]["state"] == "timeout":
            slower = 0.0
        limits.append((f"search by nab-resolver's time, {title}", slower, 2.0))
        whole = case["groups"]["whole command"]
        uv = whole["uv pip compile"].get("ratio", 0.0)
        limits.append((f"matrix resolve by uv's time, {title}", round(1 / uv, 2) if uv else float("inf"), 1.0))
    return [
        {
            "target": f"{text} at most {limit:g}",
            "value": None if value == float("inf") else value,
            "met": value <= limit,
        }
        for text, value, limit in limits
    ]


def _environment(place: Path) -> dict[str, str]:
    """Give the environment of children: this clone, caches of their own, no configuration of the user."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("UV_", "PIP_", "MATRIX_"))}
    own = {"XDG_CACHE_HOME": str(place / "cache"), "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": os.devnull}
    return {**kept, **own}


def _in_child(what: str, size: str, kind: str, place: Path, timeout: float) -> Result:
    """Run one measurement in a process of its own."""
    if find_spec(NEEDS.get(what, "json")) is None:
        return {"state": "missing"}
    command = [sys.executable, "-m", "benchmarks.resolving", "--child", what, size, kind, str(place)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(place),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"state": "timeout", "note": f"not done after {timeout:g} s"}
    if done.returncode:
        return {"state": "failed", "note": done.stderr.strip().rpartition("\n")[2][:200]}
    result: Result = json.loads(done.stdout)
    return result


def _command(name: str, place: Path, timeout: float, expected: str) -> Result:
    """Run a whole command several times; the first time without a cache."""
    wanted = (place / "requirements.txt").read_text(encoding="utf-8").split()
    index = (place / "simple").as_uri()
    uv = Path(sys.executable).with_name("uv")
    program = str(uv) if uv.exists() else shutil.which("uv")
    if (name == "uv pip compile" and program is None) or find_spec(NEEDS.get(name, "json")) is None:
        return {"state": "missing"}
    arguments: dict[str, list[str]] = {
        "matrix resolve": [sys.executable, "-m", "matrix", "resolve", *wanted, "--site", "local"]
        + ["--no-lock", "--format", "json", "--catalog", str(place / "catalog.toml")],
        "uv pip compile": [program or "uv", "pip", "compile", "requirements.txt", "--no-config", "--quiet"]
        + ["--no-header", "--no-annotate", "--python", sys.executable, "--index-url", index]
        + ["--cache-dir", str(place / "uv")],
        "pip install": [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed"]
        + ["--quiet", "--disable-pip-version-check", "--report", "-", "--index-url", index]
        + ["-r", "requirements.txt"],
    }
    times: list[float] = []
    while len(times) <= RUNS and sum(times) < LONG:
        started = time.perf_counter()
        try:
            done = subprocess.run(
                arguments[name],
                cwd=place,
                env=_environment(place),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return {"state": "timeout", "note": f"not done after {timeout:g} s"}
        times.append(time.perf_counter() - started)
    return _result(times, _answer_of(name, done.returncode, done.stdout), json.loads(expected))


def _answer_of(name: str, code: int, output: str) -> dict[str, int] | None | str:
    """Read what a command answered: a choice, None for a conflict, or what else it said."""
    if code == 1:
        return None
    if code:
        return f"exit code {code}"
    if name == "uv pip compile":
        pairs = [line.split("==") for line in output.splitlines() if "==" in line]
    elif name == "pip install":
        found = [one["metadata"] for one in json.loads(output)["install"]]
        pairs = [[one["name"], one["version"]] for one in found]
    else:
        picks = [one for one in json.loads(output)["picks"] if one["kind"] == "distribution"]
        pairs = [[one["name"], one["version"]] for one in picks]
    return {name: int(version) for name, version in pairs}


def _result(times: Sequence[float], answer: object, universe: Mapping[str, Any]) -> Result:
    """Put times and judgement together; a median without the first run, if there are others."""
    state = "right" if _is_right(answer, universe) else "wrong"
    return {
        "state": state,
        "first": round(1000 * times[0], 2),
        "median": round(1000 * statistics.median(times[1:] or times), 2),
        "runs": len(times),
    }


def _is_right(answer: object, universe: Mapping[str, Any]) -> bool:
    """Judge an answer by the universe alone."""
    made = _universe(universe["size"], universe["kind"])
    if isinstance(answer, dict):
        return made.holds(answer)
    return answer is None and made.planted is None


def _universe(size: str, kind: Kind) -> Universe:
    from benchmarks.universes import make  # noqa: PLC0415  keeps the parent small

    extensions, _, versions = size.partition("x")
    return make(int(extensions), int(versions), kind)


def _child(what: str, size: str, kind: str, place: Path) -> Result:
    """Measure one resolver in this process, or write the files of a universe."""
    from benchmarks import universes  # noqa: PLC0415

    universe = _universe(size, kind)  # type: ignore[arg-type]
    if what == "write":
        universes.write_index(universe, place / "simple")
        text = "\n".join(universes.requirements(universe)) + "\n"
        (place / "requirements.txt").write_text(text, encoding="utf-8")
        (place / "catalog.toml").write_text(universes.to_catalog(universe), encoding="utf-8")
        return {"note": json.dumps({"size": size, "kind": kind})}
    run = {"matrix": _ours, "matrix core": _core, "nab-resolver": _nab, "clingo": _clingo}[what](universe)
    times: list[float] = []
    while len(times) <= RUNS and sum(times) < LONG:
        seconds, answer = run()
        times.append(seconds)
    return {**_result(times, answer, {"size": size, "kind": kind}), "memory": _peak()}


def _peak() -> float:
    """Give the peak of the resident set of this process in MiB; Linux keeps it for each program."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM"):
            return round(int(line.split()[1]) / 1024, 1)
    return 0.0


Run = "Callable[[], tuple[float, dict[str, int] | None]]"


def _ours(universe: Universe) -> Callable[[], tuple[float, dict[str, int] | None]]:
    from benchmarks.universes import to_problem  # noqa: PLC0415
    from resolver.solve import solve_preferred  # noqa: PLC0415

    problem = to_problem(universe)

    def run() -> tuple[float, dict[str, int] | None]:
        started = time.perf_counter()
        found = solve_preferred(problem)
        seconds = time.perf_counter() - started
        if found is None:
            return seconds, None
        return seconds, {
            name: int(problem.variables[name].candidate(bit).version) for name, bit in found.items()
        }

    return run


def _core(universe: Universe) -> Callable[[], tuple[float, dict[str, int] | None]]:
    from benchmarks.universes import to_problem  # noqa: PLC0415
    from resolver.core import minimal_core  # noqa: PLC0415

    problem = to_problem(universe)

    def run() -> tuple[float, None]:
        started = time.perf_counter()
        minimal_core(problem)
        return time.perf_counter() - started, None

    return run


def _nab(universe: Universe) -> Callable[[], tuple[float, dict[str, int] | None]]:
    from benchmarks.pubgrub import Provider, as_range, resolve  # noqa: PLC0415

    class Layered(Provider):
        """Decides driver, ROCm, torch and then the rest, which is the faster order here."""

        def prioritize(self, package: str, *_: object) -> str:  # type: ignore[override]
            return package

    versions = {name: range(newest, 0, -1) for name, newest in universe.newest.items()}
    needs = {
        which: {name: as_range(allowed) for name, allowed in ones.items()}
        for which, ones in universe.needs.items()
    }
    asked = {name: as_range(allowed) for name, allowed in universe.asked.items()}

    def run() -> tuple[float, dict[str, int] | None]:
        provider = Layered(versions, needs)
        started = time.perf_counter()
        found = resolve(provider, asked)
        return time.perf_counter() - started, found

    return run


def _clingo(universe: Universe) -> Callable[[], tuple[float, dict[str, int] | None]]:
    import clingo  # noqa: PLC0415

    from benchmarks.universes import to_clingo  # noqa: PLC0415

    program = to_clingo(universe)

    def run() -> tuple[float, dict[str, int] | None]:
        found: dict[str, int] = {}

        def keep(model: clingo.Model) -> None:
            for atom in model.symbols(shown=True):
                found[atom.arguments[0].string] = atom.arguments[1].number

        started = time.perf_counter()
        control = clingo.Control(["1"])
        control.add("base", [], program)
        control.ground([("base", [])])
        satisfiable = control.solve(on_model=keep).satisfiable
        return time.perf_counter() - started, found if satisfiable else None

    return run


if __name__ == "__main__":
    main()
