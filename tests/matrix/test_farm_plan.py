"""``matrix farm plan`` and ``matrix farm build-one``: a plan as data, and one of its tasks."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from builders.index import Index
from matrix.building.planning import Plan
from matrix.cli import main
from matrix.farm.plan import sbatch_script
from resolver.errors import BuildError
from tests.support.plans import plan_of
from tests.support.records import record_of

Capture = pytest.CaptureFixture[str]
HERE = Path(__file__).parents[2]
LIMITS = ("--jobs", "8", "--memory", "8")


@pytest.fixture(autouse=True)
def _lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Resolve deepspeed for the CPU in an empty directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["resolve", "deepspeed", "torch==2.13.0", "--backend", "cpu", "-q"]) == 0
    capsys.readouterr()


def planned(capsys: Capture, *arguments: str) -> Any:
    assert main(["farm", "plan", *LIMITS, "--format", "json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def publish(make_wheel: Callable[..., Path], task: Any, key: str, **metadata: Any) -> Path:
    record = record_of(key)
    record["predicate"]["runDetails"]["metadata"] = metadata
    return Index("index").publish(make_wheel(name=task["name"], version=task["version"]), record)


def test_plan_has_key_command_and_resources(capsys: Capture, tmp_path: Path) -> None:
    plan = planned(capsys, "--cpu", "znver3")
    (task,) = plan["tasks"]
    assert (task["name"], task["state"], task["requires"]) == ("deepspeed", "to build", [])
    assert (task["cores"], task["memory_gib"]) == (4, 8.0)
    assert task["command"][:4] == ["matrix", "farm", "build-one", task["key"][:16]]
    assert task["command"][4:] == [
        "--lock", str(tmp_path / "matrix.lock"), "--index", str(tmp_path / "index"), "--cpu", "znver3",
    ]  # fmt: skip
    assert task["inputs"]["cpu"] == "znver3"
    assert (task["seconds_from"], plan["critical_path"]) == ("recipe", [task["key"]])
    assert not (tmp_path / "index").exists()


def test_site_names_the_cpu_of_a_build(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """DeepSpeed compiles for the CPU of the build machine, which may have what the nodes have not."""
    site = tmp_path / "lumi"
    site.mkdir()
    monkeypatch.chdir(site)
    python = "{}.{}".format(*sys.version_info)
    assert main(["resolve", "deepspeed", "torch==2.13.0", "--site", "lumi-c", "--python", python, "-q"]) == 0
    capsys.readouterr()
    (task,) = planned(capsys, "--in", "host")["tasks"]
    assert (task["inputs"]["cpu"], "--cpu" in task["command"]) == ("znver3", False)
    (other,) = planned(capsys, "--in", "host", "--cpu", "znver2")["tasks"]
    assert (other["inputs"]["cpu"], other["key"] == task["key"]) == ("znver2", False)


def test_planned_command_is_accepted(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "deepspeed.whl"
    monkeypatch.setattr("builders.scheduling.local.build_wheel", lambda *_, **__: wheel)
    (task,) = planned(capsys, "--cpu", "znver3", "--offline")["tasks"]
    assert main([*task["command"][1:], "--format", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["key"], result["state"], result["wheel"]) == (task["key"], "built", str(wheel))


def test_plan_uses_recorded_time_and_memory(capsys: Capture, make_wheel: Callable[..., Path]) -> None:
    (task,) = planned(capsys)["tasks"]
    measured = {"seconds": 50.0, "jobs": 2, "process_gib": 1.0}
    publish(make_wheel, task, "of other inputs", matrix_measured=measured)
    (again,) = planned(capsys)["tasks"]
    assert (again["seconds"], again["seconds_from"]) == (50.0, "record")
    assert (again["cores"], again["memory_gib"]) == (8, 8.0)


def test_plan_and_build_one_find_finished_wheel(capsys: Capture, make_wheel: Callable[..., Path]) -> None:
    (task,) = planned(capsys)["tasks"]
    wheel = publish(make_wheel, task, task["key"])
    plan = planned(capsys)
    assert [row["state"] for row in plan["tasks"]] == ["up to date"]
    assert plan["critical_path"] == []
    assert main(["farm", "plan"]) == 0
    assert "Nothing to build." in capsys.readouterr().out
    assert main(["farm", "build-one", task["key"][:6]]) == 0
    assert capsys.readouterr().out == f"deepspeed {task['version']}  up to date: {wheel}\n"


def test_several_locks_share_their_tasks(capsys: Capture, tmp_path: Path) -> None:
    other = ["resolve", "deepspeed", "torch==2.12.0", "--backend", "cpu", "-q", "-o", "other.lock"]
    assert main(other) == 0
    capsys.readouterr()
    plan = planned(capsys, "--lock", "matrix.lock", "--lock", "other.lock", "--lock", "matrix.lock")
    assert len({task["key"] for task in plan["tasks"]}) == len(plan["tasks"]) == 2
    locks = [task["command"][task["command"].index("--lock") + 1] for task in plan["tasks"]]
    assert locks == [str(tmp_path / "matrix.lock"), str(tmp_path / "other.lock")]


def test_build_one_builds_tasks_of_several_locks(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    other = ["resolve", "deepspeed", "torch==2.12.0", "--backend", "cpu", "-q", "-o", "other.lock"]
    assert main(other) == 0
    capsys.readouterr()
    locks = ("--lock", "matrix.lock", "--lock", "other.lock")
    keys = [task["key"] for task in planned(capsys, *locks)["tasks"]]
    monkeypatch.setattr(
        "builders.scheduling.local.build_wheel", lambda task, *_, **__: Path(f"{task.build_key}.whl")
    )
    assert main(["farm", "build-one", *keys, *locks, "--format", "json"]) == 0
    results = json.loads(capsys.readouterr().out)["tasks"]
    assert [result["wheel"] for result in results] == [f"{key}.whl" for key in keys]


def test_unknown_key_is_bad_usage(capsys: Capture) -> None:
    (task,) = planned(capsys)["tasks"]
    assert main(["farm", "build-one", "0000zz"]) == 2
    error = capsys.readouterr().err
    assert "has the key '0000zz'" in error
    assert task["key"][:16] in error


def test_plan_without_lock_is_bad_usage(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "matrix.lock").unlink()
    assert main(["farm", "plan"]) == 2
    assert "matrix.lock" in capsys.readouterr().err


def test_failed_task_is_recorded(capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object, **__: object) -> None:
        msg = "Building it failed."
        raise BuildError(msg, hint="Try again.")

    monkeypatch.setattr("builders.scheduling.local.build_wheel", fail)
    (task,) = planned(capsys)["tasks"]
    assert main(["farm", "build-one", task["key"]]) == 1
    assert "Building it failed." in capsys.readouterr().err
    (record,) = (tmp_path / "index" / ".matrix" / "logs").glob("deepspeed-*.failed.json")
    document = json.loads(record.read_text())
    assert (document["build_key"], document["message"]) == (task["key"], "Building it failed.")


def test_sbatch_script_is_valid_shell(tmp_path: Path) -> None:
    assert main(["farm", "plan", *LIMITS, "--format", "sbatch", "-o", "build.sh"]) == 0
    done = subprocess.run(["bash", "-n", "build.sh"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    text = (tmp_path / "build.sh").read_text()
    assert "submit matrix-deepspeed 4 9216 120" in text
    assert text.count(f"{sys.executable} -m matrix farm build-one ") == 1


def test_exported_job_runs_without_the_path_of_the_user(tmp_path: Path) -> None:
    assert main(["farm", "plan", *LIMITS, "--format", "sbatch", "-o", "build.sh"]) == 0
    (job,) = (word for word in shlex.split((tmp_path / "build.sh").read_text()) if " build-one " in word)
    command = [*shlex.split(job)[:4], "--help"]
    env = {"PATH": "/nowhere", "PYTHONPATH": str(HERE), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "build-one" in done.stdout


def chain() -> Plan:
    """Return a plan of three tasks."""
    made = plan_of(Path("/work"), {"base": ("true", ()), "top": ("true", ("base",)), "other": ("true", ())})
    command = ("matrix", "farm", "build-one", "0123", "--lock", "/work/matrix.lock", "--index", made.index)
    return replace(made, tasks=tuple(replace(task, command=command) for task in made.tasks))


def test_slurm_jobs_are_those_of_the_executor() -> None:
    """Light tasks share a job, and the site admits at most that many jobs."""
    made = chain()
    light = tuple(replace(task, seconds=5.0) for task in made.tasks)
    text = sbatch_script(replace(made, tasks=light))
    assert text.count("submit matrix-") == 1
    assert "submit matrix-base+2 3 2048 6 ''" in text
    assert text.count("build-one 0123 0123 0123 --lock /work/matrix.lock --index /work/index --jobs 3") == 1
    assert sbatch_script(made).count("submit matrix-") == 3
    assert sbatch_script(replace(made, max_jobs=2)).count("submit matrix-") == 2


def test_finished_tasks_are_left_out() -> None:
    made = chain()
    first = replace(made.tasks[0], state="up to date")
    text = sbatch_script(replace(made, tasks=(first, *made.tasks[1:])))
    assert text.count("build-one") == 2
    assert "matrix-base" not in text
