"""Builds as HyperQueue tasks. STAND-IN: an ``hq`` whose tasks stay in the states that the tests set."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from builders.building.records import failure_path, log_path
from builders.index import Index
from builders.scheduling import hyperqueue
from builders.scheduling.hyperqueue import HyperQueue
from resolver.errors import CommandError, EnvironmentLacksError, UsageError
from tests.support.batch_runs import Follow, Killed, follower, kill, run_of, states, task
from tests.support.recorder import Recorder

HQ = """\
import json, os, sys, time
root = {root!r}
with open(root + "/calls", "a") as calls:
    print(*sys.argv[1:], file=calls)
options = dict(word.split("=", 1) for word in sys.argv[1:] if word.startswith("--") and "=" in word)
words = [word for word in sys.argv[1:] if not word.startswith("--")]
server = root + "/" + options.get("--server-dir", "default").replace("/", "_")
if words[:2] == ["server", "start"]:
    os.mkdir(server + ".new")
    json.dump({{}}, open(server + ".new/jobs.json", "w"))
    os.rename(server + ".new", server)
    sys.exit()
deadline = time.monotonic() + 60
while words[:2] == ["server", "wait"] and not os.path.isdir(server) and time.monotonic() < deadline:
    time.sleep(0.02)
if not os.path.isdir(server):
    print('{{"error": "no server"}}')
    sys.exit(1)
state = server + "/jobs.json"
jobs = json.load(open(state)) if os.path.exists(state) else {{}}
if words[:2] == ["server", "stop"]:
    os.rename(server, server + ".stopped")
    sys.exit()
elif words == ["server", "info"]:
    print('{{"server_uid": "x"}}')
elif words == ["job", "list"]:
    print(json.dumps([job["info"] for job in jobs.values()]))
elif words[:2] == ["job", "info"]:
    print(json.dumps([jobs[words[2]]] if words[2] in jobs else []))
elif words[:2] == ["job", "cancel"]:
    for task in jobs[words[2]]["tasks"]:
        if task["state"] in ("waiting", "running"):
            task["state"] = "canceled"
elif words[:2] == ["job", "submit-file"]:
    import shutil, tomllib
    if os.path.exists(root + "/rejects"):
        sys.exit("error: unknown field")
    definition = tomllib.load(open(words[2], "rb"))
    number = str(len(jobs) + 1)
    shutil.copy(words[2], root + "/" + number + ".toml")
    tasks = [{{"id": task["id"], "state": "waiting"}} for task in definition["task"]]
    jobs[number] = {{"info": {{"id": int(number), "name": definition["name"]}}, "tasks": tasks}}
    print(number)
json.dump(jobs, open(state, "w"))
"""
_LOST = "Task was running on a worker that was lost; the task has occurred 3 times in this situation."


@dataclass
class Server:
    """The stand-in for HyperQueue."""

    root: Path
    index: Index

    def set(self, states: Mapping[str, str]) -> None:
        """Set states of tasks, as ``{"1@2": "running"}``. Any other word is the error of a failed task."""
        path = self.root / "default" / "jobs.json"
        jobs = json.loads(path.read_text())
        for number, state in states.items():
            job, task = number.split("@")
            row = jobs[job]["tasks"][int(task) - 1]
            if state in {"waiting", "running", "finished", "canceled", "aborted"}:
                row["state"] = state
            else:
                row.update(state="failed", error=state)
        path.write_text(json.dumps(jobs))

    def start(self) -> None:
        (self.root / "default").mkdir()

    def kill(self) -> None:
        (self.root / "default").rename(self.root / "killed")

    def restart_with_journal(self) -> None:
        (self.root / "killed").rename(self.root / "default")

    def fail(self, name: str, *causes: str) -> None:
        """Write the failure record of a build, with the known causes that were found in its log."""
        record = failure_path(log_path(self.index, name, name))
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(
            json.dumps(
                {
                    "id": "build-failed",
                    "message": f"Building {name} failed.",
                    "diagnosis": [{"id": cause} for cause in causes],
                }
            )
        )

    def job(self, number: int) -> dict[str, Any]:
        """Return a job definition file that was submitted."""
        return tomllib.loads((self.root / f"{number}.toml").read_text())

    def calls(self, *words: str) -> list[str]:
        lines = (self.root / "calls").read_text().splitlines()
        return [line for line in lines if " ".join(words) in line]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    root = tmp_path / "hq"
    (root / "bin").mkdir(parents=True)
    (root / "hq.py").write_text(HQ.format(root=str(root)))
    program = root / "bin" / "hq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {root}/hq.py "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    made = Server(root, Index(tmp_path / "index"))
    made.start()
    return made


@pytest.fixture
def follow(server: Server, monkeypatch: pytest.MonkeyPatch) -> Follow:
    return follower(HyperQueue, server, monkeypatch)


def test_tasks_are_submitted_as_one_job_after_those_they_require(server: Server, follow: Follow) -> None:
    tasks = (task("base"), task("left", "base"), task("right", "base"), task("top", "left", "right"))
    run, reporter = follow(
        run_of(*tasks),
        {"1@1": "running"},
        {"1@1": "finished", "1@2": "running", "1@3": "running"},
        {"1@2": "finished", "1@3": "finished", "1@4": "finished"},
    )
    assert set(states(run).values()) == {"built"}
    rows = server.job(1)["task"]
    assert [row["deps"] for row in rows] == [[], [1], [1], [2, 3]]
    command = " ".join(rows[0]["command"])
    assert command.endswith(
        "-m matrix build-one base --lock matrix.lock --index /work/index --jobs 2 --memory 4 --offline"
    )
    assert rows[0]["request"] == [{"resources": {"cpus": 2, "mem": 5120}}]
    assert (rows[0]["cwd"], rows[0]["env"]) == ("/work", {"XDG_CACHE_HOME": os.environ["XDG_CACHE_HOME"]})
    assert "task 1@1 (base 1.0): running" in reporter.messages
    assert HyperQueue(server.index, Recorder()).current_run() is None


def test_failed_build_shows_its_record_and_skips_dependents(server: Server, follow: Follow) -> None:
    run, _ = follow(
        run_of(task("a"), task("b", "a"), task("c"), keep_going=True),
        [lambda: server.fail("a"), {"1@1": "Program terminated with exit code 1.", "1@2": "aborted"}],
        {"1@3": "finished"},
    )
    assert states(run) == {"a": "failed", "b": "skipped", "c": "built"}
    assert run.by_key["a"].why == "Building a failed."
    assert run.by_key["b"].why == "it requires a, which was not built"
    assert len(server.calls("submit-file")) == 1


def test_failure_cancels_other_tasks_without_keep_going(follow: Follow) -> None:
    run, _ = follow(run_of(task("a"), task("b")), {"1@1": "Program terminated with exit code 2."}, {})
    assert states(run) == {"a": "failed", "b": "skipped"}
    assert run.by_key["a"].why.startswith("task 1@1 failed: Program terminated with exit code 2.")
    assert "hq-1-1-a.log" in run.by_key["a"].why
    assert run.by_key["b"].why == "another wheel failed, and --keep-going is not set"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        ("Time limit reached", "reached its time limit"),
        (_LOST, "ended three times because its worker was lost"),
    ],
)
def test_failures_of_tasks_are_told_apart(error: str, why: str, follow: Follow) -> None:
    run, _ = follow(run_of(task("a")), {"1@1": error})
    assert why in run.by_key["a"].why


@pytest.mark.parametrize("has_record", [True, False])
def test_task_out_of_memory_gets_more_once(server: Server, follow: Follow, *, has_record: bool) -> None:
    error = "Program terminated with exit code -1. Received signal 9 (SIGKILL)."
    if has_record:
        error = "Program terminated with exit code 1."

    def record() -> None:
        if has_record:
            server.fail("a", "out-of-memory")

    run, reporter = follow(
        run_of(task("a"), task("b", "a")),
        [record, {"1@1": error, "1@2": "aborted"}],
        {"2@1": "finished", "2@2": "finished"},
    )
    assert states(run) == {"a": "built", "b": "built"}
    memory = [server.job(number)["task"][0]["request"][0]["resources"]["mem"] for number in (1, 2)]
    assert memory == [5120, 9216]
    assert any(
        "ran out of memory, or was killed; it is submitted again for a" in text for text in reporter.messages
    )


def test_cancelled_job_is_not_submitted_again(server: Server, follow: Follow) -> None:
    run, _ = follow(
        run_of(task("a"), task("b", "a")), {"1@1": "running"}, {"1@1": "canceled", "1@2": "canceled"}
    )
    assert states(run) == {"a": "skipped", "b": "skipped"}
    assert run.by_key["a"].why == "its task 1@1 was cancelled"
    assert len(server.calls("submit-file")) == 1


def test_restarted_server_with_journal_is_waited_for(server: Server, follow: Follow) -> None:
    run, reporter = follow(
        run_of(task("a")), server.kill, {}.copy, [server.restart_with_journal, {"1@1": "finished"}]
    )
    assert states(run) == {"a": "built"}
    assert sum("HyperQueue does not respond" in text for text in reporter.messages) == 1
    assert len(server.calls("submit-file")) == 1


def test_tasks_that_new_server_does_not_know_are_submitted_again(server: Server, follow: Follow) -> None:
    run, reporter = follow(
        run_of(task("a"), task("b", "a")),
        {"1@1": "finished", "1@2": "running"},
        [server.kill, server.start],
        {"1@1": "finished"},
    )
    assert states(run) == {"a": "built", "b": "built"}
    assert [row["deps"] for row in server.job(1)["task"]] == [[]]
    assert any("which was started again; it is submitted again for b" in text for text in reporter.messages)


def test_job_of_others_with_same_number_is_not_taken_for_ours(server: Server, follow: Follow) -> None:
    def other_server() -> None:
        server.kill()
        server.start()
        rows = {"1": {"info": {"id": 1, "name": "theirs"}, "tasks": [{"id": 1, "state": "finished"}]}}
        (server.root / "default" / "jobs.json").write_text(json.dumps(rows))

    run, _ = follow(run_of(task("a")), {"1@1": "running"}, other_server, {"2@1": "finished"})
    assert states(run) == {"a": "built"}
    assert [job.number for job in run.jobs] == ["1@1", "2@1"]


def test_rejected_tasks_are_error_and_leave_nothing(server: Server, follow: Follow) -> None:
    (server.root / "rejects").touch()
    with pytest.raises(CommandError, match="unknown field"):
        follow(run_of(task("a")))
    assert HyperQueue(server.index, Recorder()).current_run() is None


def test_interrupted_run_is_continued(server: Server, follow: Follow) -> None:
    with pytest.raises(Killed):
        follow(run_of(task("a"), task("b", "a")), {"1@1": "running"}, kill)
    with pytest.raises(UsageError, match="not finished"):
        HyperQueue(server.index, Recorder()).check()
    run, _ = follow(None, {"1@1": "finished", "1@2": "finished"})
    assert states(run) == {"a": "built", "b": "built"}
    assert len(server.calls("submit-file")) == 1


def test_job_of_killed_submission_is_replaced(
    server: Server, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(hyperqueue, "read_since", lambda *_: kill())
        with pytest.raises(Killed):
            follow(run_of(task("a")))
    run, _ = follow(None, {"2@1": "finished"})
    assert len(server.calls("job cancel 1")) == 1
    assert states(run) == {"a": "built"}


def test_cancel_ends_tasks_and_forgets_run(server: Server, follow: Follow) -> None:
    executor = HyperQueue(server.index, Recorder())
    assert executor.cancel() == []
    with pytest.raises(Killed):
        follow(run_of(task("a"), task("b")), {"1@1": "finished"}, kill)
    assert executor.cancel() == ["1@2"]
    assert len(server.calls("job cancel 1")) == 1
    assert executor.current_run() is None


def test_run_of_dead_server_can_be_cancelled(server: Server, follow: Follow) -> None:
    with pytest.raises(Killed):
        follow(run_of(task("a")), kill)
    server.kill()
    reporter = Recorder()
    assert HyperQueue(server.index, reporter).cancel() == []
    assert "does not respond" in reporter.messages[0]
    assert HyperQueue(server.index, Recorder()).current_run() is None


def test_no_server_is_error_that_says_how_to_start_one(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    with pytest.raises(EnvironmentLacksError, match="No HyperQueue server responds") as caught:
        HyperQueue(server.index, Recorder()).check()
    assert "hq server start" in caught.value.hint
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EnvironmentLacksError, match="not on PATH"):
        HyperQueue(server.index, Recorder()).check()


def test_allocation_without_server_gets_its_own_and_stops_it(
    server: Server, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.kill()
    steps = server.root / "steps"
    srun = server.root / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\necho "$*" >> {steps}\n')
    srun.chmod(0o755)
    for name, value in {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_ON_NODE": "64"}.items():
        monkeypatch.setenv(name, value)
    HyperQueue(server.index, Recorder()).check()
    run = run_of(task("a"))
    directory = os.environ["XDG_CACHE_HOME"] + f"/matrix/hq/{run.id}"
    own = server.root / directory.replace("/", "_")

    def finish() -> None:
        jobs = json.loads((own / "jobs.json").read_text())
        jobs["1"]["tasks"][0]["state"] = "finished"
        (own / "jobs.json").write_text(json.dumps(jobs))

    done, _ = follow(run, finish)
    assert states(done) == {"a": "built"}
    assert "--nodes=2 --ntasks-per-node=1 --cpus-per-task=64" in steps.read_text()
    assert f"--server-dir={directory} worker start" in steps.read_text()
    assert not own.exists()
