"""``--ops``: the ops to compile are a part of the request and of the lock."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.show.resolution_text import build_times
from resolver.facts.catalog import load
from resolver.lock import read_lock

Capture = pytest.CaptureFixture[str]
REQUEST = ("deepspeed==0.19.8", "torch==2.9.1+rocm6.4", "--site", "lumi-g", "--date", "2026-11-20")
OPS = ("--ops", "deepspeed:fused_lamb,fused_adam", "--ops", "DeepSpeed:fused_adam, cpu_adam")
CHOSEN = "deepspeed:cpu_adam,fused_adam,fused_lamb"

pytestmark = pytest.mark.usefixtures("_no_indexes")


@pytest.fixture
def _no_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ops() -> tuple[str, ...]:
    return read_lock(Path("matrix.lock")).request.ops


def variables(capsys: Capture) -> list[str]:
    """Return the variables that choose ops in the plan of the lock; builds for the CPU need no image."""
    capsys.readouterr()
    assert main(["farm", "plan", "--format", "json"]) == 0
    (task,) = json.loads(capsys.readouterr().out)["tasks"]
    return [name for name in task["inputs"]["recipe"]["environment"] if name.startswith("DS_BUILD_")]


def test_lock_has_the_ops_of_all_options() -> None:
    assert main(["resolve", *REQUEST, *OPS]) == 0
    assert ops() == (CHOSEN,)


def test_setting_is_overridden_by_option(capsys: Capture) -> None:
    Path("matrix.toml").write_text('ops = ["deepspeed:fused_adam"]\n')
    assert main(["resolve", *REQUEST]) == 0
    assert ops() == ("deepspeed:fused_adam",)
    assert main(["resolve", *REQUEST]) == 0
    assert "is still valid and was not changed" in capsys.readouterr().err
    assert main(["resolve", *REQUEST, *OPS]) == 0
    assert "still valid" not in capsys.readouterr().err
    assert ops() == (CHOSEN,)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("deepspeed", "'deepspeed' names no ops."),
        ("deepspeed:", "'deepspeed:' names no ops."),
        ("deepspeed:a;b", "'deepspeed:a;b' names no ops."),
        ("deepspeed:fused_adm", "deepspeed has no op named 'fused_adm'."),
        ("deepspeed:cpu_adam", "None of these ops has GPU code"),
        ("apex:amp_C", "--ops names apex, but apex is not built."),
        ("torch:x", "--ops names torch, but torch is not built."),
    ],
)
def test_ops_that_cannot_be_compiled_are_refused_before_the_lock_is_written(
    capsys: Capture, text: str, problem: str
) -> None:
    assert main(["resolve", *REQUEST, "--ops", text]) == 2
    assert problem in capsys.readouterr().err
    assert not Path("matrix.lock").exists()


def test_options_that_contradict_the_lock_are_refused(capsys: Capture) -> None:
    words = ["build-wheels", *OPS, "--dry-run"]
    assert main(["resolve", *REQUEST, "-q"]) == 0
    assert main(words) == 2
    assert "matrix.lock was resolved for the ops of the recipes" in capsys.readouterr().err
    assert main(["resolve", *REQUEST, "--ops", "deepspeed:fused_adam", "-q"]) == 0
    assert main(words) == 2
    assert "matrix.lock was resolved for deepspeed:fused_adam" in capsys.readouterr().err


def test_plan_has_the_ops_of_the_lock(capsys: Capture) -> None:
    words = ["resolve", "deepspeed==0.19.8", "torch==2.13.0", "--backend", "cpu", "-q"]
    assert main(words) == 0
    (recipes,) = {tuple(variables(capsys))}
    assert main([*words, "--ops", "deepspeed:cpu_adam"]) == 0
    assert variables(capsys) == ["DS_BUILD_CPU_ADAM"]
    assert "DS_BUILD_CPU_ADAM" in recipes


def test_expected_time_follows_the_ops() -> None:
    seconds = []
    for options in ((), OPS):
        assert main(["resolve", *REQUEST, *options, "-q"]) == 0
        times = build_times(read_lock(Path("matrix.lock")), load(), Path("index"))
        seconds.append(times["deepspeed"].seconds)
    assert 0 < seconds[1] < seconds[0]


def test_suggested_commands_keep_the_ops(capsys: Capture) -> None:
    assert (
        main(["resolve", "deepspeed", "rocm==7.1.*", "--site", "lumi-g", "--date", "2026-02-01", *OPS]) == 1
    )
    assert f"--ops {CHOSEN}" in capsys.readouterr().out


def test_container_of_other_ops_is_resolved_again(capsys: Capture) -> None:
    words = ["build-container", "train.sif", *REQUEST, "--dry-run", "--format", "json"]
    assert main(["resolve", *REQUEST, "--ops", "deepspeed:fused_adam", "-q"]) == 0
    for chosen, state in (("deepspeed:fused_adam", "up to date"), (CHOSEN, "to do")):
        capsys.readouterr()
        assert main([*words, "--ops", chosen]) == 3  # the plan names what is missing here
        assert json.loads(capsys.readouterr().out)["steps"][0]["state"] == state
