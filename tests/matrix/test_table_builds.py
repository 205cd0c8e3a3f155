"""``matrix build-wheels --table`` and ``matrix plan --table``: states, order, budget, and later runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from builders.building.plan import Task
from builders.index import Index
from builders.machine.host import running_python
from builders.scheduling.batch import Run
from builders.scheduling.hyperqueue import HyperQueue
from builders.scheduling.local import Builds
from matrix.building.planning import EXECUTORS
from matrix.cli import main
from resolver.errors import BuildError, EnvironmentLacksError, MatrixError, StoppedError
from tests.support.records import record_of
from tests.support.tiny import tiny_wheel

Capture = pytest.CaptureFixture[str]
SELECTION = "deepspeed torch>=2.12,<2.14"
TORCHES = ["2.13.0+cpu", "2.12.1+cpu", "2.12.0+cpu"]
SECONDS = 90.0
"""The time in DeepSpeed's recipe for the CPU, with two cores."""


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Replace builds: those for some torches fail, others publish a tiny wheel; return the started ones."""
    failing: dict[str, MatrixError] = {}
    log = tmp_path / "started"

    def build(task: Task, index: Index, *_: object, **__: object) -> Path:
        torch = task.resolution.version_of("torch")
        with log.open("a") as file:
            file.write(f"{task.pick.name} {torch}\n")
        if torch in failing:
            raise failing[torch]
        wheel = tiny_wheel(tmp_path / "tiny", task.pick.name, task.pick.pinned)
        record = record_of(task.build_key)
        parameters = record["predicate"]["buildDefinition"]["internalParameters"]
        parameters["inputs"] = task.inputs
        return index.publish(wheel, record)

    monkeypatch.setattr("builders.scheduling.local.build_wheel", build)

    def started(**failures: MatrixError) -> list[str]:
        failing.clear()
        failing.update({f"{key[1:].replace('_', '.')}+cpu": error for key, error in failures.items()})
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines

    return started


def run(capsys: Capture, *arguments: str, code: int = 0, selection: str = SELECTION) -> Any:
    command = ["build-wheels", "--table", selection, "--backend", "cpu", "--jobs", "2", "--format", "json"]
    assert main([*command, *arguments]) == code
    return json.loads(capsys.readouterr().out)


def states(document: Any) -> list[tuple[str, str]]:
    return [(cell["torch"], cell["state"]) for cell in document["cells"]]


def test_dry_run_lists_every_cell_and_writes_nothing(capsys: Capture, tmp_path: Path) -> None:
    document = run(capsys, "--dry-run", selection=f"{SELECTION} cupy numpy")
    assert document["counts"] == {"proven": 0, "built": 3, "buildable": 3, "impossible": 3}
    rows = {(cell["package"], cell["torch"]): cell for cell in document["cells"]}
    cell = rows["deepspeed", "2.13.0+cpu"]
    assert (cell["state"], cell["why"]) == ("buildable", "the index has no wheel for it")
    assert (cell["python"], cell["seconds"], len(cell["tasks"])) == (running_python(), SECONDS, 1)
    assert rows["cupy", "2.13.0+cpu"]["state"] == "impossible"
    assert rows["cupy", "2.13.0+cpu"]["why"] == "the facts of backend exclude every version"
    assert rows["numpy", "2.13.0+cpu"]["why"] == "nothing is built: its wheels are published"
    assert len(document["wheels"]) == 3
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".msgpack"] == []


def test_selection_is_built_newest_first_and_only_once(
    capsys: Capture, builder: Callable[..., list[str]]
) -> None:
    document = run(capsys, "--jobs", "1")
    assert states(document) == [(torch, "built") for torch in TORCHES]
    assert builder() == [f"deepspeed {torch}" for torch in TORCHES]
    assert {wheel["state"] for wheel in document["wheels"]} == {"built"}
    assert states(run(capsys)) == [(torch, "built") for torch in TORCHES]
    assert builder() == []


def test_failure_stops_nothing_and_is_not_tried_again(
    capsys: Capture, builder: Callable[..., list[str]]
) -> None:
    builder(v2_12_1=BuildError("It does not compile.\n  Log: here"))
    document = run(capsys, code=1)
    assert states(document) == [(TORCHES[0], "built"), (TORCHES[1], "buildable"), (TORCHES[2], "built")]
    assert document["cells"][1]["why"].endswith(": It does not compile.")
    assert len(builder()) == 3
    again = run(capsys)
    (cell,) = (cell for cell in again["cells"] if cell["state"] == "buildable")
    assert cell["why"].endswith("; --retry-failed tries it again")
    assert builder() == []
    assert [state for _, state in states(run(capsys, "--retry-failed"))] == ["built"] * 3
    assert builder() == ["deepspeed 2.12.1+cpu"]


def test_what_the_machine_lacked_is_tried_again(capsys: Capture, builder: Callable[..., list[str]]) -> None:
    builder(v2_12_1=EnvironmentLacksError("No network."))
    run(capsys, code=3)
    assert len(builder()) == 3
    assert [state for _, state in states(run(capsys))] == ["built"] * 3
    assert builder() == ["deepspeed 2.12.1+cpu"]


def test_nothing_is_started_that_exceeds_the_budget(
    capsys: Capture, builder: Callable[..., list[str]]
) -> None:
    document = run(capsys, "--budget", "80s")
    assert builder() == []
    assert {cell["state"] for cell in document["cells"]} == {"buildable"}
    assert "the budget" in document["cells"][0]["why"]
    assert len(run(capsys, "--budget", "1h", "--jobs", "1")["wheels"]) == len(builder()) == 3


def test_stop_in_time_lists_the_cells(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        msg = "The time limit was reached."
        raise StoppedError(msg)

    monkeypatch.setattr(Builds, "run", stop)
    assert {state for _, state in states(run(capsys, code=130))} == {"buildable"}


def test_dry_run_with_budget_takes_the_newest(capsys: Capture) -> None:
    document = run(capsys, "--dry-run", "--budget", "190s")
    assert [wheel["state"] for wheel in document["wheels"]] == ["to build", "to build", "skipped"]
    assert "10 s of the budget is left" in document["cells"][2]["why"]


@pytest.mark.parametrize("how", ["matrix.toml", "matrix.lock", "index"])
def test_requested_cells_come_first(
    how: str, capsys: Capture, builder: Callable[..., list[str]], tmp_path: Path
) -> None:
    if how == "matrix.toml":
        (tmp_path / "matrix.toml").write_text('requirements = ["deepspeed", "torch==2.12.1"]\n')
    else:
        options = ["deepspeed", "torch==2.12.1", "--backend", "cpu", "-q"]
        assert main(["resolve", *options]) == 0
    if how == "index":  # it was built there before, from other inputs
        assert main(["build-wheels", "--cpu", "znver2", "-q"]) == 0
        (tmp_path / "matrix.lock").unlink()
        builder()
    capsys.readouterr()
    document = run(capsys, "--dry-run")
    assert [torch for torch, _ in states(document)] == ["2.12.1+cpu", "2.13.0+cpu", "2.12.0+cpu"]
    assert [cell["requested"] for cell in document["cells"]] == [True, False, False]


def test_proven_set_counts_when_its_wheels_are_built(
    capsys: Capture, builder: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "mine.toml").write_text(
        'schema = 1\n[[proven]]\nid = "our-training"\nbackend = "cpu"\nstatus = "observed"\n'
        'source = "a test"\npicks = {torch = "2.12.1+cpu", deepspeed = "0.19.8"}\n'
    )
    overlay = ("--catalog", "mine.toml")
    assert {state for _, state in states(run(capsys, "--dry-run", *overlay))} == {"buildable"}
    document = run(capsys, *overlay)
    assert [state for _, state in states(document)] == ["built", "proven", "built"]
    assert "these versions ran together (our-training)" in document["cells"][1]["why"]
    assert len(builder()) == 3


def test_text_has_counts_and_a_word_for_each_cell(capsys: Capture) -> None:
    command = ["build-wheels", "--table", "cupy deepspeed torch==2.13.0", "--backend", "cpu", "--dry-run"]
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 proven, 0 built, 1 buildable, 1 impossible"
    assert [line.split()[:2] for line in lines[4:6]] == [
        ["buildable", "deepspeed"],
        ["impossible", "cupy"],
    ]


def test_selection_names_architectures_and_python(capsys: Capture) -> None:
    command = ["build-wheels", "--table", "apex torch==2.9.1 python==3.12 gfx=gfx90a,gfx942"]
    assert main([*command, "--dry-run", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"]["gfx"] == ["gfx90a", "gfx942"]
    assert {cell["python"] for cell in document["cells"]} == {"3.12"}


def test_machine_that_can_build_nothing_exits_3(capsys: Capture) -> None:
    command = ["build-wheels", "--table", "apex torch==2.9.1 python==3.12", "--site", "lumi-g"]
    assert main([*command, "--date", "2026-06-01", "--format", "json"]) == 3
    output = capsys.readouterr()
    cells = json.loads(output.out)["cells"]
    assert any(cell["why"].startswith("not on this machine: ") for cell in cells)
    assert "error:" in output.err
    assert main(["plan", *command[1:], "--date", "2026-06-01"]) == 3


def test_selection_without_rows_is_a_conflict(capsys: Capture) -> None:
    assert main(["build-wheels", "--table", "deepspeed torch==2.9.1+rocm6.4", "--backend", "cpu"]) == 1
    assert "torch==2.9.1+rocm6.4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--table", "deepspeed", "apex"], "--table and NAME cannot be combined"),
        (["--table", "deepspeed", "--lock", "matrix.lock"], "--table and --lock cannot be combined"),
        (["--budget", "40h"], "--budget requires --table"),
        (["--retry-failed"], "--retry-failed requires --table"),
        (["--table", "deepspeed", "--budget", "40x"], "'40x' is not a valid duration"),
        (["--table", "deepspeed 'torch"], "cannot be read"),
    ],
)
def test_contradicting_options_are_rejected(arguments: Sequence[str], message: str, capsys: Capture) -> None:
    assert main(["build-wheels", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_plan_of_selection_can_be_executed_by_build_one(
    capsys: Capture, builder: Callable[..., list[str]]
) -> None:
    selection = ["--table", f"{SELECTION} torch-sparse torch-scatter", "--backend", "cpu"]
    assert main(["plan", *selection, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    names = [task["name"] for task in plan["tasks"]]
    assert sorted(set(names)) == ["deepspeed", "torch-scatter", "torch-sparse"]
    assert len(names) == 9  # the tasks of several cells are joined
    task = next(task for task in plan["tasks"] if task["name"] == "torch-sparse")
    assert main(task["command"][1:]) == 0
    assert builder() == ["torch-sparse 2.13.0+cpu"]
    assert main(["plan", *selection, "--format", "json"]) == 0
    again = json.loads(capsys.readouterr().out.partition("\n")[2])
    assert [task["name"] for task in again["tasks"] if task["state"] == "up to date"] == ["torch-sparse"]


@pytest.mark.parametrize(
    ("failing", "states"), [(TORCHES[:1], ["failed", "to build", "to build"]), (TORCHES, 3 * ["failed"])]
)
def test_failed_fetch_fails_only_its_task_in_batch_system(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, failing: list[str], states: list[str]
) -> None:
    started: list[Run] = []

    class Batch(HyperQueue):
        def require(self, consequence: str) -> None:
            pass

        def start(self, run: Run) -> Run:
            started.append(run)
            return run

    def fetch(task: Task, *_: object) -> None:
        if task.resolution.version_of("torch") in failing:
            msg = "no such wheel"
            raise EnvironmentLacksError(msg, hint="look elsewhere")

    monkeypatch.setitem(EXECUTORS, "hq", Batch)
    monkeypatch.setattr("matrix.building.planning.obtain", lambda *_, **__: None)
    monkeypatch.setattr("matrix.building.planning.wheels_of", fetch)
    document = run(capsys, "--executor", "hq", code=3)
    assert [wheel["state"] for wheel in document["wheels"]] == states
    assert document["wheels"][0]["why"] == "no such wheel\n  hint: look elsewhere"
    whys = [cell["why"] for cell in document["cells"]]
    assert whys.count("it failed: no such wheel") == len(failing)
    assert len(started) == (1 if "to build" in states else 0)
