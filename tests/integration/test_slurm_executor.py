"""Runs on a real Slurm with three nodes, without accounting, and with accounting and a limit of jobs.

STAND-IN: shell commands instead of builds. The tests check the results of jobs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from builders.building.task_state import TaskState
from builders.index import Index
from builders.scheduling.batch import Run
from builders.scheduling.slurm import Slurm as SlurmExecutor
from tests.rig.slurm import PARTITION, Slurm, cluster
from tests.support.batch_runs import states, task
from tests.support.recorder import Recorder
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

NODES = ("rig1", "rig2", "rig3")
MOST_JOBS = 3


@pytest.fixture(
    scope="module",
    params=[pytest.param(0, id="plain"), pytest.param(MOST_JOBS, id="accounting", marks=pytest.mark.long)],
)
def slurm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    root = tmp_path_factory.mktemp("slurm")
    with cluster(root, nodes=NODES, max_submit=request.param) as made, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", made.env["SLURM_CONF"])
        yield made


@pytest.fixture
def has_accounting(slurm: Slurm) -> bool:
    return "slurmdbd" in slurm.daemons


class Scripts(SlurmExecutor):
    """Run shell commands instead of builds."""

    scripts: Mapping[str, str]

    def _build_command(self, group: list[TaskState]) -> list[str]:  # type: ignore[override]
        return ["sh", "-c", "; ".join(self.scripts[task.key] for task in group)]

    def _sleep(self, seconds: float) -> None:
        super()._sleep(min(seconds, 0.5))


class Killed(BaseException):
    """Stand in for ``kill -9`` of the process that follows the jobs."""


class Case:
    """A run of scripts in a separate directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.reporter = Recorder()
        self.is_killed = False

    def executor(self, scripts: Mapping[str, str]) -> Scripts:
        made = Scripts(Index(self.root / "index"), self.reporter)
        made.scripts = {key: f"cd {self.root}; {script}" for key, script in scripts.items()}
        sleep = made._sleep

        def sleep_or_die(seconds: float) -> None:
            if self.is_killed:
                raise Killed
            sleep(seconds)

        made._sleep = sleep_or_die  # type: ignore[method-assign]
        return made

    def run(self, requires: Mapping[str, tuple[str, ...]], minutes: int = 0) -> Run:
        tasks = tuple(
            task(key, *required, cores=1, memory_gib=0.1, time_limit=300)
            for key, required in requires.items()
        )
        return Run(
            directory=str(self.root),
            tasks=tasks,
            partition=PARTITION,
            minutes=minutes,
            keep_going=True,
        )

    @contextmanager
    def in_background(self, work: Callable[[], Run]) -> Iterator[list[Run]]:
        """Follow in a thread; the list has the finished run after the block."""
        results: list[Run] = []

        def follow() -> None:
            try:
                results.append(work())
            except Killed:
                self.is_killed = False

        thread = threading.Thread(target=follow)
        thread.start()
        yield results
        thread.join()

    def lines(self) -> list[str]:
        path = self.root / "order"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def case(tmp_path: Path, slurm: Slurm) -> Iterator[Case]:
    yield Case(tmp_path)
    slurm.run("scancel", "--user=root")
    wait_until(lambda: not slurm.run("squeue", "--noheader"))


DIAMOND = {"base": (), "left": ("base",), "right": ("base",), "top": ("left", "right")}


def test_diamond_beside_failing_parent(case: Case, *, has_accounting: bool) -> None:
    requires = {**DIAMOND, "bad": (), "never": ("bad", "top")}
    scripts = {name: f"sleep 0.5; echo {name} >> order" for name in requires} | {"bad": "exit 7"}
    run = case.executor(scripts).start(case.run(requires))
    assert states(run) == {**dict.fromkeys(DIAMOND, "built"), "bad": "failed", "never": "skipped"}
    assert "failed with exit code 7" in run.by_key["bad"].why
    assert run.by_key["never"].why == "it requires bad, which was not built"
    order = case.lines()
    assert (order[0], sorted(order[1:3]), order[3:]) == ("base", ["left", "right"], ["top"])
    rejected = [
        text for text in case.reporter.messages if "The job is submitted when another job has ended" in text
    ]
    assert bool(rejected) == has_accounting


def test_job_cancelled_by_hand(case: Case, slurm: Slurm) -> None:
    scripts = {"a": "touch started; sleep 60", "b": "true", "c": "echo c >> order"}
    executor = case.executor(scripts)
    with case.in_background(lambda: executor.start(case.run({"a": (), "b": ("a",), "c": ()}))) as results:
        wait_until((case.root / "started").exists)
        slurm.run("scancel", executor.run.jobs[0].number)
    assert states(results[0]) == {"a": "skipped", "b": "skipped", "c": "built"}
    assert "was cancelled" in results[0].by_key["a"].why


@pytest.mark.long
def test_job_of_node_that_is_down_runs_again(case: Case, slurm: Slurm) -> None:
    """Slurm starts a job again two minutes after it was requeued; its node may be up again by then."""
    scripts = {
        "a": "echo $SLURMD_NODENAME >> order; test -e again || sleep 60",
        "b": "true",
    }
    executor = case.executor(scripts)
    with case.in_background(lambda: executor.start(case.run({"a": (), "b": ("a",)}))) as results:
        wait_until(case.lines)
        (node,) = case.lines()
        (case.root / "again").touch()
        slurm.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        wait_until(lambda: len(case.lines()) == 2, patience=200)
    assert states(results[0]) == {"a": "built", "b": "built"}


@pytest.mark.long
def test_controller_that_is_killed_is_waited_for(case: Case, slurm: Slurm) -> None:
    scripts = {"a": "touch started; sleep 3; echo a >> order", "b": "echo b >> order"}
    executor = case.executor(scripts)
    with case.in_background(lambda: executor.start(case.run({"a": (), "b": ("a",)}))):
        wait_until((case.root / "started").exists)
        slurm.kill_controller()
        wait_until(lambda: any("does not respond" in text for text in case.reporter.messages))
        case.is_killed = True
    with case.in_background(case.executor(scripts).follow) as results:
        time.sleep(1)
        assert not results
        slurm.start_controller()
    assert states(results[0]) == {"a": "built", "b": "built"}
    assert case.lines() == ["a", "b"]


@pytest.mark.long
def test_job_killed_by_its_time_limit(case: Case, slurm: Slurm, *, has_accounting: bool) -> None:
    """With accounting, the state of the job is known after Slurm itself has forgotten the job."""
    executor = case.executor({"a": "touch started; sleep 600", "b": "true"})
    with case.in_background(lambda: executor.start(case.run({"a": (), "b": ("a",)}, minutes=1))) as results:
        wait_until((case.root / "started").exists)
        if has_accounting:
            case.is_killed = True
    if has_accounting:
        number = executor.run.jobs[0].number
        wait_until(lambda: number not in slurm.run("squeue", "--noheader", "--states=all"), patience=400)
        with case.in_background(executor.follow) as results:
            pass
    assert states(results[0]) == {"a": "failed", "b": "skipped"}
    assert "reached its time limit" in results[0].by_key["a"].why
