"""``matrix build-wheels --executor hq`` with HyperQueue's real server and workers.

STAND-IN: the command line of ``hq`` (see ``tests/support/hq.py``). In tests of many tasks, and of tasks that
fail in every way, shell commands stand in for builds.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.building.records import TaskState
from builders.index import Index
from builders.scheduling.batch import Run
from builders.scheduling.hyperqueue import HyperQueue
from matrix.commands.plan import hyperqueue_jobs
from tests.integration.test_builds_on_slurm import DIAMOND, PROJECTS, write_projects
from tests.support.batch_runs import states, task
from tests.support.plans import plan_of
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


class Servers:
    """A server of HyperQueue and its workers, each a process that can be killed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir(parents=True)
        program = root / "bin" / "hq"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.support.hq "$@"\n')
        program.chmod(0o755)
        self.env = {
            "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "HQ_SERVER_DIR": str(root / "server"),
        }
        self.processes: list[subprocess.Popen[bytes]] = []

    def hq(self, *words: str) -> subprocess.Popen[bytes]:
        with (self.root / "hq.log").open("ab") as log:
            process = subprocess.Popen(
                ["hq", *words], env={**os.environ, **self.env}, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(process)
        return process

    def start(self) -> subprocess.Popen[bytes]:
        server = self.hq("server", "start")
        assert self.hq("server", "wait").wait(30) == 0, (self.root / "hq.log").read_text()
        return server

    def worker(self, cores: int = 2) -> subprocess.Popen[bytes]:
        return self.hq("worker", "start", f"--cpus={cores}")


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait(30)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    pytest.importorskip("hyperqueue")
    made = Servers(tmp_path / "hq")
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    yield made
    for process in made.processes:
        process.kill()
        process.wait(30)


class Scripts(HyperQueue):
    """Run shell commands instead of builds."""

    scripts: Mapping[str, str]

    def _build_command(self, task: TaskState) -> list[str]:
        return ["sh", "-c", self.scripts[task.key]]

    def _sleep(self, seconds: float) -> None:
        super()._sleep(min(seconds, 0.5))


def executor(tmp_path: Path, scripts: Mapping[str, str]) -> Scripts:
    made = Scripts(Index(tmp_path / "index"), Recorder())
    made.scripts = scripts
    return made


def run_of(
    tmp_path: Path, requires: Mapping[str, tuple[str, ...]], time_limits: Mapping[str, int] | None = None
) -> Run:
    limits = time_limits or {}
    tasks = [
        task(key, *required, seconds=1.0, cores=1, memory_gib=0.1, time_limit=limits.get(key, 300))
        for key, required in requires.items()
    ]
    return Run(directory=str(tmp_path), tasks=tuple(tasks), keep_going=True)


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_200_tasks_survive_killed_worker_and_killed_server(servers: Servers, tmp_path: Path) -> None:
    names = [[f"t{chain}x{place}" for place in range(10)] for chain in range(20)]
    requires = {
        name: tuple(chain[place - 1 : place]) if place else ()
        for chain in names
        for place, name in enumerate(chain)
    }
    done = tmp_path / "done"
    done.touch()
    scripts = {name: f"sleep 0.1; echo {name} >> {done}" for name in requires}

    def finished() -> list[str]:
        return done.read_text().split()

    server = servers.start()
    workers = [servers.worker(4), servers.worker(4)]
    made = executor(tmp_path, scripts)
    results: list[Run] = []
    with in_background(lambda: results.append(made.start(run_of(tmp_path, requires)))):
        wait_until(lambda: len(finished()) > 20)
        kill(workers[0])
        servers.worker(4)
        before = len(finished())
        wait_until(lambda: len(finished()) > before + 40)
        kill(server)
        servers.start()
        servers.worker(4)
    (run,) = results
    assert set(states(run).values()) == {"built"}
    assert len(states(run)) == len(set(finished())) == 200
    order = {name: place for place, name in reversed(list(enumerate(finished())))}
    assert all(order[required] < order[name] for name, needed in requires.items() for required in needed)
    assert "LOST" in {job.state for job in run.jobs}
    assert made.current_run() is None


@pytest.mark.timeout(300)
def test_ways_to_fail_are_told_apart(servers: Servers, tmp_path: Path) -> None:
    servers.start()
    worker = servers.worker(6)
    pids = tmp_path / "pids"
    scripts = {
        "slow": "sleep 60",
        "killed": "kill -9 $$",
        "broken": "exit 3",
        "after": "true",
        "unlucky": f"echo $$ >> {pids}; sleep 60",
    }
    run = run_of(tmp_path, {name: ("broken",) if name == "after" else () for name in scripts}, {"slow": 1})
    made = executor(tmp_path, scripts)
    results: list[Run] = []

    def killed_workers() -> int:
        return len(pids.read_text().split()) if pids.exists() else 0

    def is_over(key: str) -> bool:
        return key in states(made.run)

    with in_background(lambda: results.append(made.start(run))):
        wait_until(lambda: killed_workers() == 1 and is_over("slow"))
        for count in (2, 3):
            kill(worker)
            worker = servers.worker(6)
            wait_until(lambda count=count: killed_workers() == count)  # type: ignore[misc]
        kill(worker)
        wait_until(lambda: is_over("unlucky"))
        servers.worker(6)
    why = {task.key: task.why.partition("\n")[0] for task in results[0].tasks}
    assert why == {
        "slow": "task 1@1 reached its time limit",
        "killed": "task 2@1 ran out of memory, or was killed",
        "broken": "task 1@3 failed: Program terminated with exit code 3.",
        "after": "it requires broken, which was not built",
        "unlucky": "task 1@5 ended three times because its worker was lost",
    }


@pytest.mark.timeout(300)
def test_cancelled_tasks_end(servers: Servers, tmp_path: Path) -> None:
    servers.start()
    servers.worker()
    started = tmp_path / "started"
    made = executor(tmp_path, {"a": f"touch {started}; exec sleep 60", "b": "true"})
    results: list[Run] = []
    with in_background(lambda: results.append(made.start(run_of(tmp_path, {"a": (), "b": ("a",)})))):
        wait_until(lambda: started.exists() and "1@2" in made.state_file.read_text())
        assert executor(tmp_path, {}).cancel() == ["1@1", "1@2"]
    assert all("was cancelled" in task.why for task in results[0].tasks)
    assert made._ask("job", "list") == []


@pytest.mark.timeout(60)
def test_file_of_plan_is_accepted(servers: Servers, tmp_path: Path) -> None:
    scripts = {
        "base": ("sleep 1; echo base >> order", ()),
        "top": ("echo top >> order", ("base",)),
        "other": ("echo other >> others", ()),
    }
    servers.start()
    servers.worker()
    file = tmp_path / "job.toml"
    file.write_text(hyperqueue_jobs(plan_of(tmp_path, scripts)))
    assert servers.hq("job", "submit-file", str(file)).wait(30) == 0, (servers.root / "hq.log").read_text()
    wait_until((tmp_path / "order").exists)
    wait_until(lambda: (tmp_path / "order").read_text().split() == ["base", "top"])
    assert (tmp_path / "others").read_text().split() == ["other"]


@pytest.mark.long
@pytest.mark.timeout(600)
def test_wheels_are_built_by_tasks_that_outlive_the_command(servers: Servers, tmp_path: Path) -> None:
    projects = {name: PROJECTS[name] for name in (*DIAMOND, "slurmtop", "slurmbroken", "slurmnever")}
    write_projects(tmp_path)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = [sys.executable, "-m", "matrix"]

    def matrix(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    resolved = matrix("resolve", *projects, "--backend", "cpu", "--catalog", "facts")
    assert resolved.returncode == 0, resolved.stderr
    build = ("build-wheels", "--executor", "hq", "--index", "index")
    refused = matrix(*build)
    assert refused.returncode == 3
    assert "hq server start" in refused.stderr

    servers.start()
    servers.worker()
    log = tmp_path / "interrupted.txt"
    with log.open("w") as output:
        process = subprocess.Popen(
            [*program, *build, "--jobs", "1", "--keep-going"], cwd=tmp_path, env=environment, stderr=output
        )
    wait_until(lambda: ": running" in log.read_text() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130, log.read_text()
    assert "--executor hq --attach" in log.read_text()

    attached = matrix(*build, "--attach", "--format", "json")
    assert attached.returncode == 1, attached.stderr
    wheels = {wheel["name"]: wheel for wheel in json.loads(attached.stdout)["wheels"]}
    assert {name: wheel["state"] for name, wheel in wheels.items()} == {
        **dict.fromkeys((*DIAMOND, "slurmtop"), "built"), "slurmbroken": "failed", "slurmnever": "skipped",
    }  # fmt: skip
    assert all(Path(wheel["wheel"]).is_file() for wheel in wheels.values() if wheel["state"] == "built")
    assert "this source does not build" in attached.stderr
    assert not list((tmp_path / "index" / ".matrix" / "hq").glob("*.json"))

    selection = ("--table", "slurmbase slurmbroken torch==2.13.*", "--backend", "cpu", "--catalog", "facts")
    table = matrix(*build, *selection, "--index", "table", "--format", "json")
    assert table.returncode == 1, table.stderr
    cells = {cell["package"]: cell["state"] for cell in json.loads(table.stdout)["cells"]}
    assert cells == {"slurmbase": "built", "slurmbroken": "buildable"}
