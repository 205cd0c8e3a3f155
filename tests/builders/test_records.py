"""Records of built, running, failed and interrupted builds, and the reasons for builds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from builders.building.plan import Task
from builders.building.provenance import Descriptor, RunMetadata, statement
from builders.building.records import (
    build_records,
    changed_inputs,
    changes_since_last_build,
    explain_changes,
    forget_attempt,
    log_path,
    record_start,
)
from builders.building.task_state import InputChange
from builders.index import Index
from builders.storage.lease import exclusive_lock
from tests.support.tasks import make_recipe, make_task

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MakeWheel = Callable[..., Path]


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index(tmp_path / "index")


def tiny(gfx: str = "gfx90a", *, torch: str = "2.9.1", version: str = "1.0", **identity: Any) -> Task:
    return make_task(make_recipe(), gfx, version=version, torch=torch, identity=identity)


def start(task: Task, index: Index) -> Path:
    log = log_path(index, task.pick.name, task.build_key)
    record_start(task, log)
    return log


def publish(task: Task, index: Index, make_wheel: MakeWheel, at: datetime = START, **measured: float) -> Path:
    version = f"{task.pick.pinned}+{task.build_key[:8]}"
    wheel = make_wheel(version=version)
    source = Descriptor(name="tiny-1.0.tar.gz", digest={"sha256": "a" * 64}, annotations={"role": "source"})
    run = RunMetadata(
        started_on=at,
        finished_on=at + timedelta(seconds=50),
        invocation_id="one",
        node="nid01",
        measured=dict(measured),
    )
    return index.publish(wheel, statement(task, [source], run, wheel=wheel.name, sha256="b" * 64))


def lock_of(task: Task, index: Index) -> Path:
    return index.state / "locks" / f"{task.build_key[:20]}.lock"


def test_built_wheel_is_listed_with_what_was_measured(index: Index, make_wheel: MakeWheel) -> None:
    task = tiny()
    wheel = publish(
        task, index, make_wheel, seconds=49.5, jobs=4, memory_gib=1.5, cache_hits=3, cache_misses=2
    )
    (record,) = build_records(index)
    assert (record.name, record.state, record.node) == ("tiny", "built", "nid01")
    assert (record.build_key, record.wheel) == (task.build_key, str(wheel))
    assert (record.started, record.finished) == (START, START + timedelta(seconds=50))
    assert (record.seconds, record.memory_gib, record.cores) == (49.5, 1.5, 4)
    assert (record.cache_hits, record.cache_misses) == (3, 2)
    assert (record.log, record.why, record.changed) == (None, "", ())


def test_started_build_runs_while_its_lock_is_held(index: Index) -> None:
    task = tiny()
    with exclusive_lock(lock_of(task, index)):
        log = start(task, index)
        log.write_text("compiling")
        (running,) = build_records(index)
    (interrupted,) = build_records(index)
    assert (running.state, running.node, running.log) == ("running", os.uname().nodename, str(log))
    assert running.seconds is not None
    assert (interrupted.state, interrupted.seconds) == ("interrupted", None)
    assert interrupted.inputs["gfx"] == ["gfx90a"]
    forget_attempt(log)
    assert build_records(index) == []


HOLD = """
import sys, time
from pathlib import Path
from builders.storage.lease import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_killed_build_is_interrupted(index: Index) -> None:
    task = tiny()
    start(task, index)
    command = [sys.executable, "-c", HOLD, str(lock_of(task, index))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert [record.state for record in build_records(index)] == ["running"]
        holder.kill()
    assert [record.state for record in build_records(index)] == ["interrupted"]


def test_build_of_lost_node_is_interrupted(index: Index) -> None:
    task = tiny()
    start(task, index)
    lease = lock_of(task, index).with_name(f"{lock_of(task, index).name}.1")
    lease.parent.mkdir(parents=True)
    lease.write_text('{"host": "elsewhere", "pid": 1, "user": "me", "since": "", "machine": "another"}')
    assert [record.state for record in build_records(index)] == ["running"]
    before = lease.stat().st_mtime - 3600
    os.utime(lease, (before, before))
    assert [record.state for record in build_records(index)] == ["interrupted"]


def test_finished_wheel_counts_more_than_start_record(index: Index, make_wheel: MakeWheel) -> None:
    task = tiny()
    start(task, index)
    publish(task, index, make_wheel)
    assert [record.state for record in build_records(index)] == ["built"]


def test_damaged_records_are_left_out(index: Index) -> None:
    log = start(tiny(), index)
    log.with_suffix(".started.json").write_bytes(b"\xff{")
    log.with_suffix(".failed.json").write_text("{}")
    assert build_records(index) == []


def test_rebuild_names_changed_inputs_of_build_before(index: Index, make_wheel: MakeWheel) -> None:
    publish(tiny(torch="2.10.0"), index, make_wheel, START + timedelta(days=2))
    publish(tiny(), index, make_wheel, START)
    publish(tiny("gfx942", compiler="gcc 13"), index, make_wheel, START + timedelta(days=1))
    first, second, third = build_records(index)
    assert first.why == ""
    assert second.why == "the inputs changed since tiny 1.0: compiler none -> gcc 13, gfx gfx90a -> gfx942"
    assert [change.input for change in third.changed] == ["compiler", "gfx", "torch"]
    assert build_records(index, ["other"]) == []
    assert len(build_records(index, ["tiny"])) == 3


def test_planned_task_is_compared_with_newest_build(index: Index, make_wheel: MakeWheel) -> None:
    assert changes_since_last_build(tiny(), index) == ("", ())
    publish(tiny(), index, make_wheel)
    last, changes = changes_since_last_build(tiny(glibc="2.39"), index)
    assert explain_changes(last, changes) == "the inputs changed since tiny 1.0: glibc none -> 2.39"


INPUTS = {
    "name": "tiny",
    "version": "1.0+cpu",
    "source": {"file": "tiny-1.0.tar.gz", "sha256": "a" * 64},
    "patches": [],
    "recipe": {"environment": {"CFLAGS": "-O2"}, "options": []},
    "torch": "2.9.1",
    "gfx": ["gfx90a"],
    "requires": {"other": "c" * 64},
}


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({}, []),
        ({"torch": "2.10.0"}, ["torch 2.9.1 -> 2.10.0"]),
        ({"version": "1.0+rocm"}, []),
        ({"version": "1.1", "source": {"file": "tiny-1.1.tar.gz"}}, ["version 1.0 -> 1.1"]),
        (
            {"source": {"file": "tiny-1.0.tar.gz", "sha256": "d" * 64}},
            ["source.sha256 aaaaaaaaaaaa -> dddddddddddd"],
        ),
        ({"patches": ["e" * 64]}, ["patches none -> eeeeeeeeeeee"]),
        ({"gfx": ["gfx90a", "gfx942"]}, ["gfx gfx90a -> gfx90a,gfx942"]),
        ({"recipe": {"environment": {}, "options": []}}, ["recipe.environment.CFLAGS -O2 -> none"]),
        ({"requires": {"other": "f" * 64}}, ["requires.other cccccccccccc -> ffffffffffff"]),
        ({"pinning": "release"}, ["pinning none -> release"]),
    ],
)
def test_each_changed_input_is_named(change: dict[str, Any], texts: list[str]) -> None:
    assert [str(row) for row in changed_inputs(INPUTS, {**INPUTS, **change})] == texts


def test_failure_record_of_an_earlier_version_is_read(index: Index) -> None:
    task = tiny()
    log = log_path(index, "tiny", task.build_key)
    log.parent.mkdir(parents=True)
    document = {
        "schema": 1,
        "name": "tiny",
        "version": "1.0",
        "build_key": task.build_key,
        "failed_on": "2026-03-01T10:01:00+00:00",
        "node": "nid01",
        "id": "build-failed",
        "message": "Building tiny 1.0 failed.\n  Log: x",
        "hint": "",
        "started_on": "2026-03-01T10:00:00Z",
        "inputs": {"torch": "2.9.1"},
        "diagnosis": [],
        "measured": {"jobs": 2, "memory_gib": 0.5},
    }
    log.with_suffix(".failed.json").write_text(json.dumps(document))
    (build,) = build_records(index)
    assert (build.state, build.error, build.node) == ("failed", "Building tiny 1.0 failed.", "nid01")
    assert (build.seconds, build.cores, build.memory_gib) == (60.0, 2, 0.5)


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("cp311", "cp312", "cp311 -> cp312"),
        ("a" * 64, "b" * 64, f"{'a' * 12} -> {'b' * 12}"),
        (["gfx90a"], [], "gfx90a -> none"),
        (f"sha256:{'0' * 64}", "x" * 90, f"{'0' * 12} -> {'x' * 45}..."),
    ],
)
def test_changed_input_is_shown_with_both_values(before: Any, after: Any, text: str) -> None:
    assert str(InputChange("it", before, after)) == f"it {text}"
