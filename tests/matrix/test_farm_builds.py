"""``matrix farm builds``: the past and running builds of an index."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from builders.building.inputs import Limits
from builders.building.records import log_path, record_start
from builders.index import Index
from builders.scheduling.local import Builds
from builders.storage.lease import exclusive_lock
from matrix.cli import main
from resolver.errors import BuildError
from tests.support.recorder import Recorder
from tests.support.tasks import make_recipe, make_task

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """Return the default index of an empty directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Index(tmp_path / "index")


def test_failed_build_is_listed_with_its_error(
    index: Index, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail(*_: object, **__: object) -> None:
        record_start(task, log_path(index, task.pick.name, task.build_key))
        msg = "Building tiny failed.\n  a long log"
        error = BuildError(msg, hint="Try again.")
        error.details = {"measured": {"jobs": 2, "memory_gib": 0.5}}
        raise error

    task = make_task(make_recipe())
    monkeypatch.setattr("builders.scheduling.local.build_wheel", fail)
    Builds({task.build_key: task}, index, Limits(jobs=2), Recorder()).run()
    assert main(["farm", "builds", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["index"]) == (1, str(index.root))
    (build,) = document["builds"]
    assert (build["name"], build["state"], build["build_key"]) == ("tiny", "failed", task.build_key)
    assert (build["error"], build["cores"], build["memory_gib"]) == ("Building tiny failed.", 2, 0.5)
    assert build["started"] <= build["finished"]
    assert build["seconds"] is not None
    assert main(["farm", "builds"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1 build: 1 failed"
    assert lines[3].startswith("failed")
    assert lines[5] == "tiny 1.0: Building tiny failed."


def test_running_and_interrupted_builds_are_listed(index: Index, capsys: Capture) -> None:
    running, interrupted = make_task(make_recipe()), make_task(make_recipe(), "gfx90a")
    with exclusive_lock(index.state / "locks" / f"{running.build_key[:20]}.lock"):
        for task in (interrupted, running):
            record_start(task, log_path(index, task.pick.name, task.build_key))
        assert main(["farm", "builds", "Tiny", "--format", "json"]) == 0
    builds = json.loads(capsys.readouterr().out)["builds"]
    states = {build["build_key"]: build["state"] for build in builds}
    assert states == {running.build_key: "running", interrupted.build_key: "interrupted"}


def test_index_without_builds(index: Index, capsys: Capture) -> None:
    assert main(["farm", "builds"]) == 2
    assert f"{index.root} is not an index: it has no directory simple/." in capsys.readouterr().err
    index.simple.mkdir(parents=True)
    assert main(["farm", "builds", "apex"]) == 0
    assert capsys.readouterr().out == "There are no builds.\n"
