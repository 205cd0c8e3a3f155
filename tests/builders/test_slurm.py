"""Builds in Slurm jobs. STAND-IN: a Slurm whose commands keep a list of jobs; the tests set their states."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from builders.building.directory import path_of
from builders.building.records import failure_path, log_path
from builders.building.task_state import TaskState
from builders.index import Index
from builders.scheduling import slurm
from builders.scheduling.batch import Run, pack
from builders.scheduling.slurm import Slurm, partition_of, submit
from matrix.show.progress import Board, Plain, Tasks
from resolver.errors import CommandError, EnvironmentLacksError, MatrixError, UsageError
from resolver.facts.catalog import load
from tests.support.batch_runs import Follow, Killed, follower, kill, run_of, states, task
from tests.support.progress import Clock, Terminal
from tests.support.recorder import Recorder
from tests.support.records import record_of

COMMANDS = {
    "sbatch": """\
for script; do :; done
case "$(cat "$script")" in *reject-me*) echo "sbatch: error: too much memory" >&2; exit 1;; esac
if [ -e full ] && [ "$(grep -c . queue)" -ge "$(cat full)" ]; then
  echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1
fi
number=$(($(cat last 2>/dev/null || echo 0) + 1))
echo $number > last
cp "$script" $number.sh
echo "$number|PENDING|small|$(sed -n 's/#SBATCH --job-name=//p' "$script")" >> queue
echo "$number;rig"
""",
    "squeue": r"""
test ! -e silent && sed 's/|HELD|\(.*\)/|PENDING|\1|0:00|launch failed requeued held/;t
s/|LONG|\(.*\)/|PENDING|\1|0:00|PartitionTimeLimit/;t
s/$/|1:30:00|None/' queue
""",
    "scancel": """\
for number; do sed -i "s/^$number|[A-Z]*/$number|CANCELLED/" queue; done
""",
    "scontrol": "",
    "sinfo": "cat partitions 2>/dev/null",
    "sacct": 'cat accounting 2>/dev/null || { echo "Slurm accounting storage is disabled" >&2; exit 1; }',
}


@dataclass
class Cluster:
    """The stand-in for Slurm."""

    root: Path
    index: Index
    make_wheel: Callable[..., Path]

    def set(self, states: Mapping[int, str]) -> None:
        """Set the states of jobs; those with the state ``gone`` are forgotten."""
        rows = [line.split("|") for line in (self.root / "queue").read_text().splitlines()]
        for row in rows:
            row[1] = states.get(int(row[0]), row[1])
        (self.root / "queue").write_text("".join("|".join(row) + "\n" for row in rows if row[1] != "gone"))

    def exits(self, run: Run, number: int, code: int) -> None:
        """Write the exit code of a job, as its script does."""
        (self.index.state / "slurm" / run.id / f"{number}.exit").write_text(f"{code}\n")

    def publish(self, name: str) -> None:
        self.index.publish(self.make_wheel(name=name, version="1.0"), record_of(name))

    def fail(self, name: str) -> None:
        """Record the failure of a build."""
        record = failure_path(log_path(self.index, name, name))
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(json.dumps({"message": f"Building {name} failed."}))

    def calls(self, command: str) -> list[str]:
        lines = (self.root / "calls").read_text().splitlines()
        return [line for line in lines if line.startswith(f"{command} ")]

    def option(self, number: int, name: str) -> str:
        """Return an option in the script of a job."""
        match = re.search(rf"(?m)^#SBATCH --{name}=(.*)$", (self.root / f"{number}.sh").read_text())
        return match[1] if match else ""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_wheel: Callable[..., Path]) -> Cluster:
    root = tmp_path / "slurm"
    (root / "bin").mkdir(parents=True)
    (root / "queue").touch()
    for name, code in COMMANDS.items():
        path = root / "bin" / name
        path.write_text(f'#!/bin/sh\ncd {root}\necho "{name} $*" >> calls\n{code}\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return Cluster(root, Index(tmp_path / "index"), make_wheel)


@pytest.fixture
def follow(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Follow:
    return follower(Slurm, cluster, monkeypatch)


# --- which tasks share a job ---------------------------------------------------------------------------


def names(groups: Sequence[Sequence[TaskState]]) -> list[list[str]]:
    return [[task.name for task in group] for group in groups]


def test_heavy_tasks_have_own_jobs_light_share() -> None:
    tasks = [task("torch"), task("a", seconds=5), task("b", "a", seconds=5), task("c", "torch", "a")]
    tasks += [task("d", "torch", seconds=5), task("e", "c", seconds=5), task("f", "d", seconds=5)]
    assert names(pack(tasks, 10)) == [["torch"], ["a", "b"], ["c"], ["d", "f"], ["e"]]


def test_light_tasks_spread_over_jobs_and_chains_stay_together() -> None:
    light = [task(f"a{number:02}", seconds=20.0) for number in range(11)]
    assert [len(group) for group in pack(light, 99)] == [6, 5]
    assert [len(group) for group in pack(light, 99, cores=2)] == [3, 3, 3, 2]
    chain = [task(name, *before, seconds=20.0) for name, before in (("x", ()), ("y", ("x",)), ("z", ("y",)))]
    groups = names(pack([*light, *chain], 99, cores=1))
    assert len(groups) == 4
    assert sum({"x", "y", "z"} <= {*group} for group in groups) == 1


@pytest.mark.parametrize("most", range(1, 9))
def test_packed_jobs_never_wait_for_each_other(most: int) -> None:
    letters = "abcdefgh"
    pairs = list(itertools.combinations(letters, 2))
    for number in range(60):
        chosen = [pair for place, pair in enumerate(pairs) if (number * 7919 + place * place * 31) % 5 < 2]
        required = {letter: [one for one, other in chosen if other == letter] for letter in letters}
        light = {letter: (number + ord(letter)) % 3 > 0 for letter in letters}
        tasks = [task(name, *required[name], seconds=5 if light[name] else 500) for name in letters]
        groups = names(pack(tasks, most))
        assert len(groups) <= most
        order = [name for group in groups for name in group]
        assert sorted(order) == list(letters)
        assert all(order.index(one) < order.index(other) for other in letters for one in required[other])


def test_partition_and_its_limits_come_from_site() -> None:
    row = partition_of(load(), "lumi-c")
    assert row is not None
    assert (row.name, row.max_jobs) == ("small", 220)
    debug = partition_of(load(), "lumi-c", "debug")
    assert debug is not None
    assert (debug.max_hours, debug.max_jobs) == (0.5, 2)
    assert partition_of(load(), "local") is None


# --- submitting ----------------------------------------------------------------------------------------


def test_jobs_are_submitted_held_in_order_and_released(cluster: Cluster, follow: Follow) -> None:
    tasks = (task("base"), task("left", "base"), task("right", "base"), task("top", "left", "right"))
    run, _ = follow(
        run_of(*tasks, partition="small", account="project_1", most_minutes=4),
        {1: "RUNNING"},
        {1: "COMPLETED", 2: "RUNNING", 3: "RUNNING"},
        {2: "COMPLETED", 3: "COMPLETED"},
        {4: "COMPLETED"},
    )  # fmt: skip
    assert states(run)["top"] == "built"
    assert [cluster.option(number, "dependency") for number in range(1, 5)] == [
        "", "afterok:1", "afterok:1", "afterok:2:3",
    ]  # fmt: skip
    assert all("--hold" in call for call in cluster.calls("sbatch"))
    assert cluster.calls("scontrol") == ["scontrol release 1 2 3 4"]
    assert [cluster.option(1, name) for name in ("partition", "account", "time", "mem", "cpus-per-task")] == [
        "small", "project_1", "4", "5120M", "2",
    ]  # fmt: skip
    assert cluster.option(2, "kill-on-invalid-dep") == "yes"
    script = (cluster.root / "1.sh").read_text()
    assert "build-one base --lock matrix.lock --index /work/index --jobs 2 --memory 4 --offline" in script


def test_job_of_light_tasks_has_time_for_one_that_takes_longest(cluster: Cluster, follow: Follow) -> None:
    light = [msgspec.structs.replace(task(name, seconds=30), time_limit=7200) for name in "abc"]
    follow(run_of(*light), {1: "COMPLETED"})
    assert cluster.option(1, "time") == "121"


@pytest.mark.parametrize(
    ("nodes", "options", "requested"),
    [
        ("", {}, ("11", "12288M")),
        ("small*|infinite|4|64000+\n", {}, ("4", "5120M")),
        ("small*|infinite|128|8192\n", {}, ("7", "8192M")),
        ("small*|infinite|4|64000\n", {"most_cores": 2, "memory": 2.0}, ("1", "2048M")),
    ],
)
def test_shared_job_has_a_core_for_each_task_within_all_limits(
    cluster: Cluster, follow: Follow, nodes: str, options: dict[str, Any], requested: tuple[str, str]
) -> None:
    (cluster.root / "partitions").write_text(nodes)
    light = [task(f"a{number}", seconds=5.0, cores=1, memory_gib=1.0) for number in range(11)]
    chained = [light[0], *(msgspec.structs.replace(one, requires=("a0",)) for one in light[1:])]
    follow(run_of(*chained, **options), {1: "COMPLETED"})
    assert (cluster.option(1, "cpus-per-task"), cluster.option(1, "mem")) == requested
    assert f"--jobs {requested[0]} " in (cluster.root / "1.sh").read_text()


def test_jobs_of_many_tasks_have_many_cores(cluster: Cluster, follow: Follow) -> None:
    (cluster.root / "partitions").write_text("small*|infinite|8|64000\n")
    heavy = [task(name, cores=2) for name in "abcdef"]
    follow(run_of(*heavy, partition="small", most_jobs=1), {1: "COMPLETED"})
    assert cluster.option(1, "cpus-per-task") == "8"


@pytest.mark.parametrize(
    ("partition", "time"), [("", "60"), ("small", "90"), ("long", "121"), ("unknown", "121")]
)
def test_time_limit_is_at_most_that_of_partition(
    cluster: Cluster, follow: Follow, partition: str, time: str
) -> None:
    (cluster.root / "partitions").write_text("small|1:30:00\ndebug*|1:00:00\nlong|infinite\n")
    guessed = msgspec.structs.replace(task("a"), time_limit=7260)
    follow(run_of(guessed, partition=partition), {1: "COMPLETED"})
    assert cluster.option(1, "time") == time


def test_never_more_jobs_than_site_admits(cluster: Cluster, follow: Follow) -> None:
    (cluster.root / "queue").write_text(
        "90|RUNNING|small|mine\n91|PENDING|small|mine\n92|RUNNING|other|mine\n"
    )
    tasks = [task(name) for name in "abcdef"]
    run, _ = follow(
        run_of(*tasks, partition="small", most_jobs=5), {1: "COMPLETED", 2: "COMPLETED", 3: "COMPLETED"}
    )
    assert len(run.jobs) == 3
    assert set(states(run).values()) == {"built"}
    assert sorted(key for job in run.jobs for key in job.keys) == list("abcdef")


def test_jobs_beyond_unknown_limit_are_submitted_later(cluster: Cluster, follow: Follow) -> None:
    (cluster.root / "full").write_text("2")
    run, reporter = follow(
        run_of(task("a"), task("b"), task("c", "a")),
        [lambda: cluster.publish("a"), {1: "CANCELLED"}, (cluster.root / "full").unlink],
        {2: "COMPLETED", 3: "COMPLETED"},
    )
    assert any("QOSMaxSubmitJobPerUserLimit" in message for message in reporter.messages)
    assert set(states(run).values()) == {"built"}


def test_rejected_first_job_is_error_and_leaves_nothing(cluster: Cluster, follow: Follow) -> None:
    with pytest.raises(CommandError, match="too much memory"):
        follow(run_of(task("reject-me")))
    assert Slurm(cluster.index, Recorder()).current_run() is None


def test_run_without_slurm_exits_3(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    Slurm(cluster.index, Recorder()).check()
    (cluster.root / "silent").touch()
    with pytest.raises(EnvironmentLacksError, match="Slurm does not respond"):
        Slurm(cluster.index, Recorder()).check()
    monkeypatch.setenv("PATH", str(cluster.root / "nowhere"))
    with pytest.raises(EnvironmentLacksError, match="sbatch is not on PATH"):
        Slurm(cluster.index, Recorder()).check()


# --- results of jobs -----------------------------------------------------------------------------------


def test_failed_build_shows_its_record(cluster: Cluster, follow: Follow) -> None:
    run, _ = follow(
        run_of(task("a"), task("b", "a"), task("c"), keep_going=True),
        [lambda: cluster.fail("a"), {1: "FAILED", 3: "CANCELLED"}],
        {2: "COMPLETED"},
    )
    assert states(run) == {"a": "failed", "b": "skipped", "c": "built"}
    assert run.by_key["a"].why == "Building a failed."
    assert run.by_key["b"].why == "it requires a, which was not built"
    assert len(cluster.calls("sbatch")) == 3


def test_failure_without_record_names_exit_code_and_log(cluster: Cluster, follow: Follow) -> None:
    run = run_of(task("a"))
    done, _ = follow(run, [lambda: cluster.exits(run, 1, 2), {1: "FAILED"}])
    assert "job 1 failed with exit code 2" in done.by_key["a"].why
    assert "slurm-1-a.log" in done.by_key["a"].why


def test_failure_stops_waiting_jobs_without_keep_going(cluster: Cluster, follow: Follow) -> None:
    run, _ = follow(run_of(task("a"), task("b"), task("c")), {1: "FAILED", 2: "RUNNING"}, {2: "COMPLETED"})
    assert states(run) == {"a": "failed", "b": "built", "c": "skipped"}
    assert cluster.calls("scancel") == ["scancel --state=PENDING 3"]


@pytest.mark.parametrize("state", ["NODE_FAIL", "PREEMPTED", "BOOT_FAIL"])
def test_job_that_lost_its_node_is_submitted_again(state: str, cluster: Cluster, follow: Follow) -> None:
    run, reporter = follow(
        run_of(task("a"), task("b", "a")), {1: state, 2: "CANCELLED"}, {3: "COMPLETED", 4: "COMPLETED"}
    )
    assert states(run) == {"a": "built", "b": "built"}
    assert cluster.option(4, "dependency") == "afterok:3"
    assert any("it is submitted again for a" in message for message in reporter.messages)


def test_job_held_after_failed_launch_is_replaced(cluster: Cluster, follow: Follow) -> None:
    run, reporter = follow(
        run_of(task("a"), task("b", "a")), {1: "HELD"}, {2: "CANCELLED", 3: "COMPLETED"}, {4: "COMPLETED"}
    )
    assert states(run) == {"a": "built", "b": "built"}
    assert cluster.calls("scancel") == ["scancel 1"]
    assert any("could not start on its node; it is submitted again" in text for text in reporter.messages)


def test_job_longer_than_partition_admits_is_reported_once(follow: Follow) -> None:
    _, reporter = follow(run_of(task("a")), {1: "LONG"}, {}, {1: "COMPLETED"})
    assert sum("Slurm does not start job 1" in text for text in reporter.messages) == 1


def test_node_failures_are_retried_twice(follow: Follow) -> None:
    run, _ = follow(run_of(task("a")), {1: "NODE_FAIL"}, {2: "NODE_FAIL"}, {3: "NODE_FAIL"})
    assert run.by_key["a"].why.startswith("job 3 ended because its node failed")


def test_timed_out_job_is_retried_once_if_it_finished_a_wheel(cluster: Cluster, follow: Follow) -> None:
    tasks = [task(name, seconds=5) for name in "abc"]
    run, _ = follow(
        run_of(*tasks),
        [lambda: cluster.publish("a"), {1: "TIMEOUT"}],
        [lambda: cluster.publish("b"), {2: "TIMEOUT"}],
    )
    assert [job.keys for job in run.jobs] == [("a", "b", "c"), ("b", "c")]
    assert states(run) == {"a": "built", "b": "built", "c": "failed"}
    assert "allow more with --time" in run.by_key["c"].why


def test_timed_out_job_is_submitted_again_while_its_build_gets_further(
    cluster: Cluster, follow: Follow
) -> None:
    def compile_objects(number: int) -> None:
        log = path_of(cluster.index, "a") / "build" / "source" / "a-1.0" / ".ninja_log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("".join(f"0\t1\t1\t{name}.o\t{name}\n" for name in range(number)))

    run = run_of(task("a"))
    done, reporter = follow(
        run,
        [lambda: compile_objects(3), {1: "TIMEOUT"}],
        [lambda: compile_objects(5), lambda: cluster.exits(run, 2, 130), {2: "FAILED"}],  # it stopped in time
        [lambda: compile_objects(5), {3: "TIMEOUT"}],
    )
    assert [job.state for job in done.jobs] == ["TIMEOUT"] * 3
    assert [job.finished_commands for job in done.jobs] == [{"a": 3}, {"a": 5}, {"a": 5}]
    again = "reached its time limit; it is submitted again for a."
    assert len([message for message in reporter.messages if again in message]) == 2
    assert "allow more with --time" in done.by_key["a"].why


def test_timed_out_job_without_progress_fails(follow: Follow) -> None:
    run, _ = follow(run_of(task("a")), {1: "TIMEOUT"})
    assert "job 1 reached its time limit" in run.by_key["a"].why


def test_job_out_of_memory_gets_more_once(cluster: Cluster, follow: Follow) -> None:
    run, _ = follow(
        run_of(task("a")), [lambda: cluster.fail("a"), {1: "OUT_OF_MEMORY"}], {2: "OUT_OF_MEMORY"}
    )
    assert [cluster.option(number, "mem") for number in (1, 2)] == ["5120M", "9216M"]
    assert "job 2 ran out of memory" in run.by_key["a"].why


def test_job_requests_no_more_memory_than_the_user_allows(cluster: Cluster, follow: Follow) -> None:
    follow(run_of(task("a"), memory=4.0), [lambda: cluster.fail("a"), {1: "OUT_OF_MEMORY"}], {2: "COMPLETED"})
    assert [cluster.option(number, "mem") for number in (1, 2)] == ["4096M", "4096M"]
    assert [cluster.option(number, "cpus-per-task") for number in (1, 2)] == ["2", "1"]
    assert "--jobs 1 --memory 4 " in (cluster.root / "2.sh").read_text()


def test_cancelled_job_is_not_submitted_again(cluster: Cluster, follow: Follow) -> None:
    run, _ = follow(
        run_of(task("a"), task("b", "a"), task("c", "b")),
        {1: "RUNNING", 2: "CANCELLED", 3: "CANCELLED"},
        {1: "COMPLETED"},
    )
    assert states(run) == {"a": "built", "b": "skipped", "c": "skipped"}
    assert run.by_key["b"].why == "its job 2 was cancelled"
    assert len(cluster.calls("sbatch")) == 3


def test_forgotten_jobs_are_judged_by_exit_code_then_accounting(cluster: Cluster, follow: Follow) -> None:
    run = run_of(*[task(name) for name in "abcd"], keep_going=True)
    (cluster.root / "accounting").write_text("3|CANCELLED by 1000\n")
    done, _ = follow(
        run,
        [
            lambda: cluster.exits(run, 1, 0),
            lambda: cluster.exits(run, 2, 1),
            dict.fromkeys((1, 2, 3, 4), "gone"),
        ],
        {5: "gone"},
    )
    assert [job.state for job in done.jobs] == ["COMPLETED", "FAILED", "CANCELLED", "LOST", "LOST"]
    assert states(done) == {"a": "built", "b": "failed", "c": "skipped", "d": "failed"}
    assert len(cluster.calls("sacct")) == 2


def test_published_wheel_counts_whatever_slurm_says(cluster: Cluster, follow: Follow) -> None:
    run, _ = follow(
        run_of(task("a"), task("b", "a")),
        [lambda: cluster.publish("a"), {1: "OUT_OF_MEMORY", 2: "CANCELLED"}],
        {3: "COMPLETED"},
    )
    assert states(run) == {"a": "built", "b": "built"}
    assert cluster.option(3, "dependency") == ""


def test_finished_wheel_of_running_job_counts_at_once(cluster: Cluster, follow: Follow) -> None:
    _, reporter = follow(
        run_of(task("a", seconds=5), task("b", seconds=5)),
        {1: "RUNNING"},
        lambda: cluster.publish("a"),
        {1: "COMPLETED"},
    )
    shown = [(name, change.get("state")) for name, change in reporter.changes]
    assert ("b 1.0", "running") in shown[shown.index(("a 1.0", "done")) :]


def test_running_job_is_shown_like_a_build_here(
    cluster: Cluster, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After attaching, too: the times count from the start of the job, which `squeue` reports."""
    monkeypatch.setattr("builders.scheduling.slurm.time.monotonic", lambda: 10_000.0)
    clock = Clock(10_000.0)
    frames: list[list[str]] = []
    terminal = Terminal(100, 30)
    board: Any = Board(Tasks(clock), terminal)
    monkeypatch.setattr(board, "_size", lambda: (100, 30))
    with pytest.raises(Killed):
        follow(run_of(task("a", seconds=9000)), {1: "RUNNING"}, kill)
    logs = cluster.index.state / "logs"
    written = io.StringIO()
    job_clock = Clock()
    job = Plain(Tasks(job_clock), written)
    job.progress("a 1.0", state="running", expected=9000)
    job.step("fetch a-1.0.tar.gz", "a 1.0")
    job_clock.now = 1400
    job.step(f"compile with 8 jobs\nlog: {log_path(cluster.index, 'a', 'a')}", "a 1.0")
    job_clock.now = 1461
    job.tick()
    (logs / "slurm-1-a.log").write_text(written.getvalue())
    log_path(cluster.index, "a", "a").write_text("[1/32] c++ x.cpp\n[12/32] hipcc y.hip\n")

    def look(*_: object) -> None:
        clock.now += 1
        board.tick()
        frames.append(terminal.shown)
        cluster.set({1: "COMPLETED"})

    monkeypatch.setattr(Slurm, "_sleep", look)
    Slurm(cluster.index, board).follow()
    first, path, *_ = frames[0]
    assert first == "▶ a 1.0       1:06:41, 60 min left  12/32    compile with 8 jobs"
    assert path.startswith("  log: ")


def test_silent_slurm_is_waited_for(cluster: Cluster, follow: Follow) -> None:
    silent = cluster.root / "silent"
    run, reporter = follow(run_of(task("a")), [silent.touch], [{}], [silent.unlink, {1: "COMPLETED"}])
    assert states(run) == {"a": "built"}
    assert sum("Slurm does not respond" in message for message in reporter.messages) == 1


def test_slurm_is_asked_once_for_all_jobs_and_less_often(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    run = run_of(*[task(name) for name in "abcdefgh"])

    def sleep(_: object, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 10:
            cluster.set(dict.fromkeys(range(1, 9), "COMPLETED"))

    monkeypatch.setattr(Slurm, "_sleep", sleep)
    Slurm(cluster.index, Recorder()).start(run)
    assert waits == [2, 4, 8, 16, 32, 64, 120, 120, 120, 120]
    assert len(cluster.calls("squeue")) == 11
    assert cluster.calls("sacct") == []


# --- attaching and cancelling --------------------------------------------------------------------------


def test_interrupted_run_is_continued(cluster: Cluster, follow: Follow) -> None:
    with pytest.raises(Killed):
        follow(run_of(task("a"), task("b", "a")), {1: "RUNNING"}, kill)
    with pytest.raises(UsageError, match="not finished"):
        Slurm(cluster.index, Recorder()).check()
    cluster.set({1: "COMPLETED"})
    run, _ = follow(None, {2: "COMPLETED"})
    assert states(run) == {"a": "built", "b": "built"}
    assert len(cluster.calls("sbatch")) == 2
    assert Slurm(cluster.index, Recorder()).current_run() is None
    with pytest.raises(UsageError, match="You have no Slurm jobs"):
        Slurm(cluster.index, Recorder()).follow()


def test_job_of_killed_submission_is_replaced(
    cluster: Cluster, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed_after(*arguments: Any) -> str:
        submit(*arguments)
        raise Killed

    monkeypatch.setattr(slurm, "submit", killed_after)
    with pytest.raises(Killed):
        follow(run_of(task("a")))
    monkeypatch.setattr(slurm, "submit", submit)
    run, _ = follow(None, {2: "COMPLETED"})
    assert cluster.calls("scancel") == ["scancel 1"]
    assert states(run) == {"a": "built"}


def test_held_jobs_of_killed_submission_are_released(
    cluster: Cluster, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Slurm, "_release", lambda _: kill())
        with pytest.raises(Killed):
            follow(run_of(task("a")))
    assert cluster.calls("sbatch")
    run, _ = follow(None, {1: "COMPLETED"})
    assert cluster.calls("scontrol") == ["scontrol release 1"]
    assert states(run) == {"a": "built"}


def test_cancel_ends_live_jobs_and_forgets_run(cluster: Cluster, follow: Follow) -> None:
    assert Slurm(cluster.index, Recorder()).cancel() == []
    with pytest.raises(Killed):
        follow(run_of(task("a"), task("b"), task("c")), {1: "COMPLETED"}, kill)
    assert Slurm(cluster.index, Recorder()).cancel() == ["2", "3"]
    assert cluster.calls("scancel") == ["scancel 2 3"]
    assert Slurm(cluster.index, Recorder()).current_run() is None


def test_cancel_ends_process_that_follows(cluster: Cluster, follow: Follow) -> None:
    run, _ = follow(run_of(task("a"), task("b", "a")), lambda: Slurm(cluster.index, Recorder()).cancel())
    assert states(run) == {"a": "skipped", "b": "skipped"}
    assert Slurm(cluster.index, Recorder()).current_run() is None


def test_damaged_state_file_is_named(cluster: Cluster) -> None:
    path = Slurm(cluster.index, Recorder()).state_file
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(MatrixError, match=re.escape(str(path))) as caught:
        Slurm(cluster.index, Recorder()).current_run()
    assert "squeue --me" in caught.value.hint


def test_run_of_an_earlier_version_is_refused_with_its_file(cluster: Cluster) -> None:
    executor = Slurm(cluster.index, Recorder())
    executor.state_file.parent.mkdir(parents=True)
    task = {"key": "a", "name": "a", "version": "1.0", "requires": [], "cores": 1, "memory_gib": 1.0}
    old = {
        "schema": 1,
        "directory": "/work",
        "options": [],
        "tasks": [{**task, "seconds": 1.0}],
        "results": {},
    }
    executor.state_file.write_text(json.dumps(old))
    with pytest.raises(MatrixError) as caught:
        executor.current_run()
    assert (
        f"{executor.state_file}, which lists the Slurm jobs of a run, cannot be read" in caught.value.message
    )
    assert "squeue --me" in caught.value.hint
