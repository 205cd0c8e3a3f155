"""Several builds at once: real small sdists, built by the local executor."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from builders.building.directory import finished_commands, path_of
from builders.building.expected_time import Resources
from builders.building.inputs import Limits
from builders.building.jobserver import can_join
from builders.building.plan import Task, local_build_host
from builders.building.records import build_records, failure_path, log_path
from builders.index import Index
from builders.machine import host
from builders.scheduling.local import Builds
from builders.scheduling.scheduler import estimates
from builders.storage.files import cache_root
from resolver.errors import StoppedError
from resolver.facts.schema import Recipe, Sdist
from tests.support.built import running_below
from tests.support.locks import built_pick
from tests.support.projects import write_sdist
from tests.support.recorder import Recorder
from tests.support.tasks import make_recipe, make_resolution, make_task

pytestmark = pytest.mark.integration

SETUP = """
import sys, time
from setuptools import setup
{imports}
time.sleep({seconds})
if {fails}:
    sys.exit("this source does not build")
setup(name="{name}", version="1.0", py_modules=["{name}"])
"""
NINJA = """
import os, subprocess, sys
from setuptools import Extension, setup
rule = (
    "import sys, time; start = time.monotonic(); time.sleep(0.25); print('ran', start, time.monotonic());"
    "open(sys.argv[1], 'w')"
)
with open("build.ninja", "w") as file:
    print("rule run\\n  command = " + sys.executable + ' -c "' + rule + '" $out', file=file)
    for number in range({edges}):
        print(f"build o{{number}}: run", file=file)
if "bdist_wheel" in sys.argv:
    subprocess.run(["ninja", "-v", "-j", os.environ["MAX_JOBS"]], check=True)
native = Extension("{name}._native", ["native.c"])
setup(name="{name}", version="1.0", packages=["{name}"], ext_modules=[native])
"""
NATIVE = (Path(__file__).parent.parent / "packages" / "sound" / "sound" / "native.c").read_text()
MakeTask = Callable[..., Task]


@pytest.fixture
def packed(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> MakeTask:
    """Pack files as an sdist into the cache; return the task that builds it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared_cache))

    def make(
        name: str,
        files: Mapping[str, str],
        *,
        requires: Sequence[Task] = (),
        must_contain: tuple[str, ...] = (),
        core_hours: float = 0.0,
    ) -> Task:
        digest = write_sdist(cache_root(), name, files)
        pick = built_pick(name, wheel_version="1.0+cpu", sdist=Sdist(f"{name}-1.0.tar.gz", digest))
        recipe = Recipe(
            package=name,
            backend="cpu",
            undeclared=("setuptools", "wheel", "ninja"),
            match_runtime=(),
            compiles=bool(must_contain),
            must_contain=must_contain,
            memory_per_job=0.5,
            core_hours=core_hours,
            status="observed",
            source="a test",
        )
        lock = make_resolution(pick, *(task.pick for task in requires), backend="cpu")
        build_host = local_build_host(host.running_python())
        return Task(pick, recipe, build_host, lock, requires=tuple(requires))

    return make


@pytest.fixture
def idle() -> None:
    """Skip the test if other processes use the cores: wall times are meaningless then."""
    if os.getloadavg()[0] > 1.5:
        pytest.skip(f"the load of this machine is {os.getloadavg()[0]:.1f}")


@pytest.fixture
def sleeper(packed: MakeTask) -> MakeTask:
    """Return the task of a project that sleeps while it is built."""

    def make(name: str, seconds: float = 0.0, *, requires: Sequence[Task] = (), fails: bool = False) -> Task:
        imports = "\n".join(f"import {task.pick.name}" for task in requires)
        text = SETUP.format(name=name, seconds=seconds, imports=imports, fails=fails)
        files = {"setup.py": text, f"{name}.py": f"NAME = {name!r}\n"}
        return packed(name, files, requires=requires, core_hours=seconds / 3600)

    return make


@pytest.fixture
def ninja_project(packed: MakeTask) -> MakeTask:
    """Return the task of a project that runs some edges with ninja."""

    def make(name: str, edges: int) -> Task:
        native = NATIVE.replace("sound", name)
        files = {
            "setup.py": NINJA.format(name=name, edges=edges),
            "native.c": native,
            f"{name}/__init__.py": "",
        }
        return packed(name, files, must_contain=(f"{name}/_native*.so",))

    return make


def builds_of(tasks: Sequence[Task], index: Index, *, jobs: int = 4) -> Builds:
    return Builds({task.build_key: task for task in tasks}, index, Limits(jobs=jobs), Recorder())


@pytest.mark.parametrize("must_contain", [(), ("tiny/*.so",)])
def test_cores_depend_on_compiling_and_not_on_promised_objects(
    must_contain: tuple[str, ...], tmp_path: Path
) -> None:
    cores = {}
    for compiles in (None, True, False):
        recipe = make_recipe(
            "cpu", compiles=compiles, must_contain=must_contain, undeclared=("ninja",), memory_per_job=1.0
        )
        task = make_task(recipe)
        alone = estimates({task.build_key: task}, Index(tmp_path), Resources(8, 64.0))
        assert can_join(task) is (compiles is not False)
        cores[compiles] = alone[task.build_key].cores
    assert cores == {None: 8, True: 8, False: 1}


@pytest.mark.parametrize(("core_hours", "seconds"), [(0.01, 36.0), (0.0, 10.0)])
def test_time_in_recipe_counts_without_compiling(core_hours: float, seconds: float, tmp_path: Path) -> None:
    """It determines the order; all cores are no faster."""
    task = make_task(make_recipe("cpu", compiles=False, core_hours=core_hours))
    expected = estimates({task.build_key: task}, Index(tmp_path), Resources(8, 64.0))[task.build_key]
    assert expected.seconds == pytest.approx(seconds)
    assert (expected.cores, expected.work) == (1, 0.0)


def test_chain_is_built_beside_a_long_build(sleeper: MakeTask, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    first = sleeper("first")
    second = sleeper("second", requires=[first])
    tasks = [first, second, sleeper("third", requires=[second]), sleeper("long", 4)]
    builds = builds_of(tasks, index)
    outcome = builds.run()
    names = [builds.tasks[key].pick.name for key in outcome.done]
    assert sorted(names) == ["first", "long", "second", "third"], builds.errors
    assert names.index("long") > names.index("first")  # one after another, the long one would come first
    assert [path.name for path in index.wheels("third")] == ["third-1.0+cpu-py3-none-any.whl"]


def wall_time(tasks: Sequence[Task], index: Index, *, jobs: int) -> float:
    """Build, and return the wall time in seconds."""
    builds = builds_of(tasks, index, jobs=jobs)
    started = time.monotonic()
    builds.run()
    seconds = time.monotonic() - started
    assert not builds.errors
    return seconds


@pytest.mark.long
@pytest.mark.usefixtures("idle")
def test_wall_time_is_that_of_the_critical_path(sleeper: MakeTask, tmp_path: Path) -> None:
    first = sleeper("first", 5)
    second = sleeper("second", 5, requires=[first])
    tasks = [first, second, sleeper("third", 5, requires=[second]), sleeper("long", 20)]
    wall_time([sleeper("layer")], Index(tmp_path / "other"), jobs=1)
    seconds = wall_time(tasks, Index(tmp_path / "index"), jobs=4)
    sys.stdout.write(f"{seconds:.1f} s, {seconds / 20:.3f} of the critical path\n")
    assert seconds <= 1.1 * 20


@pytest.fixture(scope="module")
def backend_seconds(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Measure the wall time in which `build` alone builds the wheel of an empty project."""
    source, out = tmp_path_factory.mktemp("empty"), tmp_path_factory.mktemp("out")
    (source / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='empty', py_modules=['empty'])\n"
    )
    (source / "empty.py").touch()
    options = ["--wheel", "--no-isolation", "--skip-dependency-check", "--outdir", str(out)]
    taken = []
    for _ in range(3):
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "build", *options, str(source)], check=True, capture_output=True
        )
        taken.append(time.monotonic() - started)
    return min(taken)


@pytest.mark.long
@pytest.mark.usefixtures("idle")
@pytest.mark.parametrize("seed", range(10))
def test_wall_time_of_random_builds_on_two_cores(
    sleeper: MakeTask, tmp_path: Path, seed: int, backend_seconds: float
) -> None:
    choose = random.Random(seed)
    tasks: list[Task] = []
    seconds: dict[str, float] = {}
    paths: dict[str, float] = {}
    for number in range(10):
        requires = choose.sample(tasks, min(len(tasks), choose.choice([0, 0, 1, 1, 2])))
        task = sleeper(f"node{number}", choose.uniform(5, 15), requires=requires)
        tasks.append(task)
        seconds[task.build_key] = task.recipe.core_hours * 3600 + backend_seconds
        before = max((paths[required.build_key] for required in requires), default=0.0)
        paths[task.build_key] = before + seconds[task.build_key]
    bound = max(*paths.values(), sum(seconds.values()) / 2)
    wall_time([sleeper("layer")], Index(tmp_path / "other"), jobs=1)
    taken = wall_time(tasks, Index(tmp_path / "index"), jobs=2)
    sys.stdout.write(
        f"{taken:.1f} s, {taken / bound:.3f} of the bound; {backend_seconds:.2f} s per backend\n"
    )
    assert taken <= 1.15 * bound


def test_keep_going_finishes_other_branches(sleeper: MakeTask, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    broken = sleeper("broken", fails=True)
    tasks = [broken, sleeper("after", requires=[broken]), sleeper("other", 0.5), sleeper("another")]
    builds = builds_of(tasks, index, jobs=1)
    outcome = builds.run(keep_going=True)
    keys = {task.pick.name: task.build_key for task in tasks}
    assert outcome.failed == [keys["broken"]]
    assert outcome.skipped == {keys["after"]: keys["broken"]}
    assert sorted(outcome.done) == sorted([keys["other"], keys["another"]])
    assert index.projects() == ["another", "other"]
    record = json.loads(failure_path(log_path(index, broken.pick.name, broken.build_key)).read_text())
    assert record["id"] == "build-failed"
    assert "this source does not build" in record["message"]
    states = {row.name: (row.state, row.cores) for row in build_records(index)}
    assert states == {"broken": ("failed", 1), "other": ("built", 1), "another": ("built", 1)}


def test_two_runs_share_the_work(sleeper: MakeTask, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    tasks = [sleeper(name, 1) for name in ("east", "west", "north", "south")]
    readable, writable = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(readable)
        builds = builds_of(tasks, index, jobs=2)
        builds.run()
        os.write(writable, json.dumps([len(builds.wheels), sorted(builds.errors)]).encode())
        os._exit(0)
    os.close(writable)
    builds = builds_of(tasks, index, jobs=2)
    builds.run()
    with os.fdopen(readable) as answer:
        assert json.loads(answer.read()) == [4, []]
    os.waitpid(pid, 0)
    assert len(builds.wheels) == 4
    assert index.projects() == ["east", "north", "south", "west"]
    assert [len(index.wheels(name)) for name in index.projects()] == [1, 1, 1, 1]


def intervals(index: Index, name: str) -> list[tuple[float, float]]:
    """Return the start and end of each edge of a project's Ninja build, in seconds."""
    (log,) = (index.state / "logs").glob(f"{name}-*.log")
    lines = [line.split() for line in log.read_text().splitlines() if line.startswith("ran ")]
    return [(float(start), float(end)) for _, start, end in lines]


def concurrency(rows: Sequence[tuple[float, float]]) -> int:
    return max(sum(start <= moment < end for start, end in rows) for moment, _ in rows)


def test_builds_with_ninja_share_their_jobs(ninja_project: MakeTask, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    tasks = [ninja_project("large", 60), ninja_project("small", 4)]
    builds = builds_of(tasks, index)
    builds.run()
    assert not builds.errors
    assert "compile with jobs that all builds share" in " ".join(builds.reporter.messages)  # type: ignore[attr-defined]
    large, small = intervals(index, "large"), intervals(index, "small")
    assert (len(large), len(small)) == (60, 4)
    assert concurrency([*large, *small]) <= 4
    assert concurrency(large) > 2  # more than its fixed share
    assert list((index.state / "jobservers").iterdir()) == []


def test_build_stops_at_time_limit_and_continues(ninja_project: MakeTask, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    task = ninja_project("stopped", 40)
    stopped = builds_of([task], index, jobs=1)
    stopped.limits = replace(stopped.limits, until=time.time() + 5)
    with pytest.raises(StoppedError, match=r"Not finished: stopped 1\.0"):
        stopped.run()
    assert running_below(index.root) == []
    (record,) = build_records(index)
    assert (record.state, record.error) == ("interrupted", "stopped at the time limit")
    finished = finished_commands(path_of(index, task.build_key))
    assert finished < 40

    builds = builds_of([task], index)
    builds.run()
    assert not builds.errors
    messages = " ".join(builds.reporter.messages)  # type: ignore[attr-defined]
    assert ("continue an interrupted build" in messages) == (finished > 0)
    assert len(intervals(index, "stopped")) == 40  # the log shows both attempts
    (wheel,) = index.published("stopped")
    measured = wheel.provenance["predicate"]["runDetails"]["metadata"]["matrix_measured"]
    assert measured["attempts"] == (2 if finished else 1)


HUNGRY = """
import os, sys
from setuptools import Extension, setup
if "bdist_wheel" in sys.argv and int(os.environ["MAX_JOBS"]) > {jobs}:
    sys.exit("{message}")
native = Extension("{name}._native", ["native.c"])
setup(name="{name}", version="1.0", packages=["{name}"], ext_modules=[native])
"""


@pytest.mark.parametrize(("name", "jobs"), [("hungry", 2), ("insatiable", 1)])
def test_build_without_enough_memory_is_repeated_once(
    packed: MakeTask, tmp_path: Path, name: str, jobs: int
) -> None:
    """The compiler's message stands in for a real lack of memory."""
    index = Index(tmp_path / "index")
    files = {
        "setup.py": HUNGRY.format(
            name=name, jobs=jobs, message="virtual memory exhausted: Cannot allocate memory"
        ),
        "native.c": NATIVE.replace("sound", name),
        f"{name}/__init__.py": "",
    }
    task = packed(name, files, must_contain=(f"{name}/_native*.so",))
    builds = builds_of([task], index)
    builds.run()
    messages = builds.reporter.messages  # type: ignore[attr-defined]
    assert [text for text in messages if "ran out of memory" in text] == [
        f"{name} 1.0+cpu ran out of memory with up to 4 jobs; it is built once more with 2."
    ]
    assert [list(builds.wheels), list(builds.errors)] == (
        [[task.build_key], []] if jobs == 2 else [[], [task.build_key]]
    )
    for published in index.published(name):
        measured = published.provenance["predicate"]["runDetails"]["metadata"]["matrix_measured"]
        assert measured["jobs"] == 2
        assert 0 < measured["process_gib"] <= measured["memory_gib"] < 4


def test_build_that_someone_else_killed_is_not_repeated_with_fewer_jobs(
    packed: MakeTask, tmp_path: Path
) -> None:
    """The compiler's message stands in for a real signal; the kernel has killed nothing."""
    message = "g++: fatal error: Killed signal terminated program cc1plus"
    files = {"setup.py": HUNGRY.format(name="stopped", jobs=0, message=message), "native.c": NATIVE}
    task = packed("stopped", files, must_contain=("stopped/_native*.so",))
    builds = builds_of([task], Index(tmp_path / "index"))
    builds.run()
    assert not [text for text in builds.reporter.messages if "memory" in text]  # type: ignore[attr-defined]
    (error,) = builds.errors.values()
    assert "not by the kernel for lack of memory" in error.message
    assert "--jobs" not in error.message


RUN = """
import pickle, sys
from builders.building.records import build_records
from builders.scheduling.local import Builds
from builders.building.inputs import Limits
from resolver.reporter import SILENT
with open(sys.argv[1], "rb") as source:
    tasks, index = pickle.load(source)
try:
    Builds({task.build_key: task for task in tasks}, index, Limits(jobs=2), SILENT).run()
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_the_end_of_a_run(sleeper: MakeTask, tmp_path: Path, number: int) -> None:
    import pickle

    index = Index(tmp_path / "index")
    tasks = [sleeper("slow", 60), sleeper("slower", 90)]
    pickled = tmp_path / "tasks"
    pickled.write_bytes(pickle.dumps((tasks, index)))
    with subprocess.Popen([sys.executable, "-c", RUN, pickled]) as program:
        deadline = time.monotonic() + 60
        while len([line for line in running_below(index.root) if "build" in line]) < 2:
            assert program.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        program.send_signal(number)
        code = program.wait(30)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 20
    while running_below(index.root) or {row.state for row in build_records(index)} != {"interrupted"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert index.projects() == []


def test_build_that_cannot_share_gets_the_cores_that_are_free_when_it_starts(
    packed: MakeTask, tmp_path: Path
) -> None:
    index = Index(tmp_path / "index")
    report = "import os, sys\nif 'bdist_wheel' in sys.argv: print('jobs', os.environ['MAX_JOBS'])\n"

    def make(name: str, requires: Sequence[Task] = ()) -> Task:
        setup = f"from setuptools import Extension, setup\n{report}"
        setup += f"setup(name='{name}', version='1.0', packages=['{name}'],"
        setup += f"ext_modules=[Extension('{name}._native', ['native.c'])])"
        files = {"setup.py": setup, "native.c": NATIVE.replace("sound", name), f"{name}/__init__.py": ""}
        task = packed(name, files, must_contain=(f"{name}/_native*.so",), requires=requires)
        return replace(task, recipe=replace(task.recipe, undeclared=("setuptools", "wheel")))

    quick = [make(f"quick{number}") for number in range(4)]
    last = make("last", quick)
    builds = builds_of([*quick, last], index)
    builds.run()
    assert not builds.errors
    (log,) = (index.state / "logs").glob("last-*.log")
    assert "jobs 4" in log.read_text().splitlines()


GREEDY = """
import subprocess, sys
from setuptools import Extension, setup
rule = (
    "import sys, time; start = time.monotonic(); data = b'1' * (150 * 2**20); time.sleep(1.5);"
    "print('ran', start, time.monotonic()); open(sys.argv[1], 'w')"
)
with open("build.ninja", "w") as file:
    print("rule run\\n  command = " + sys.executable + ' -c "' + rule + '" $out', file=file)
    for number in range(12):
        print(f"build o{number}: run", file=file)
if "bdist_wheel" in sys.argv:
    subprocess.run(["ninja", "-v", "-j", "8"], check=True)
native = Extension("greedy._native", ["native.c"])
setup(name="greedy", version="1.0", packages=["greedy"], ext_modules=[native])
"""


def test_memory_is_a_limit_even_if_the_estimate_is_too_small(packed: MakeTask, tmp_path: Path) -> None:
    """Each job uses 0.15 GiB, but the recipe expects 0.05; eight jobs would use 1.2 GiB."""
    index = Index(tmp_path / "index")
    files = {
        "setup.py": GREEDY,
        "native.c": NATIVE.replace("sound", "greedy"),
        "greedy/__init__.py": "",
    }
    task = packed("greedy", files, must_contain=("greedy/_native*.so",))
    task = replace(task, recipe=replace(task.recipe, memory_per_job=0.05))
    builds = Builds({task.build_key: task}, index, Limits(jobs=8, memory=0.6), Recorder())
    builds.run()
    assert not builds.errors
    assert concurrency(intervals(index, "greedy")) <= 4


FIXED = """
import os, subprocess, sys
from setuptools import Extension, setup
if "bdist_wheel" in sys.argv:
    job = "data = b'1' * (200 * 2**20); import time; time.sleep(4)"
    jobs = [subprocess.Popen([sys.executable, "-c", job]) for _ in range(int(os.environ["MAX_JOBS"]))]
    assert not any([job.wait() for job in jobs])
native = Extension("fixed._native", ["native.c"])
setup(name="fixed", version="1.0", packages=["fixed"], ext_modules=[native])
"""


@pytest.mark.parametrize(("limit", "jobs"), [(0.6, 2), (0.15, 1)])
def test_fixed_jobs_are_reduced_if_they_exceed_the_limit(
    packed: MakeTask, tmp_path: Path, limit: float, jobs: int
) -> None:
    """Each job uses 0.2 GiB, but the recipe expects 0.03. A tool without a jobserver starts them all."""
    index = Index(tmp_path / "index")
    native = NATIVE.replace("sound", "fixed")
    task = packed(
        "fixed",
        {"setup.py": FIXED, "native.c": native, "fixed/__init__.py": ""},
        must_contain=("fixed/_native*.so",),
    )
    recipe = replace(task.recipe, undeclared=("setuptools", "wheel"), memory_per_job=0.03)
    task = replace(task, recipe=recipe)
    builds = Builds({task.build_key: task}, index, Limits(jobs=4, memory=limit), Recorder())
    builds.run()
    assert not builds.errors
    messages = builds.reporter.messages  # type: ignore[attr-defined]
    ended = [text for text in messages if "it is built once more with" in text]
    assert [text.rpartition(" ")[2] for text in ended] == (["2."] if jobs == 2 else ["2.", "1."])
    assert all(f"more than the limit of {limit:g} GiB" in text for text in ended)
    assert any("GiB with one job, more than the limit of 0.15" in text for text in messages) == (jobs == 1)
    (wheel,) = index.published("fixed")
    assert wheel.provenance["predicate"]["runDetails"]["metadata"]["matrix_measured"]["jobs"] == jobs


def test_failed_build_teaches_how_much_memory_a_job_needs(packed: MakeTask, tmp_path: Path) -> None:
    index = Index(tmp_path / "index")
    # Memory is measured now and then.
    text = "import sys, time\ndata = b'1' * (300 * 2**20)\n"
    text += "if 'bdist_wheel' in sys.argv:\n    time.sleep(2)\n    sys.exit('no')\n"
    text += "from setuptools import setup\nsetup(name='large', version='1.0')\n"
    task = packed("large", {"setup.py": text}, must_contain=("large/*.so",))
    task = replace(task, recipe=replace(task.recipe, memory_per_job=0.05))
    tasks = {task.build_key: task}
    assert estimates(tasks, index, Resources(4, 64.0))[task.build_key].memory_per_job == 0.05
    builds = Builds(tasks, index, Limits(jobs=4), Recorder())
    builds.run()
    assert list(builds.errors) == [task.build_key]
    assert estimates(tasks, index, Resources(4, 64.0))[task.build_key].memory_per_job > 0.25
