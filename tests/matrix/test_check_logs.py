"""``matrix check``: the explanation of a user's log for a support engineer."""

from __future__ import annotations

import io
import json
from pathlib import Path

import msgspec
import pytest

from builders.diagnosis import read_log
from matrix.cli import main

Capture = pytest.CaptureFixture[str]
LOGS = Path(__file__).parents[1] / "builders" / "data" / "logs"


pytestmark = pytest.mark.usefixtures("own_cache")


def test_log_shows_cause_fix_lines_source(capsys: Capture) -> None:
    assert main(["check", str(LOGS / "sdist-without-kernels.log")]) == 1
    output = capsys.readouterr().out
    assert "\nWhat happened: The sdist lacks sources that it compiles.\n" in output
    assert "What to do: Build from the git tag" in output
    assert "csrc/causal_conv1d.cpp" in output
    assert "https://github.com/Dao-AILab/causal-conv1d/issues/99" in output


def test_log_json_is_one_document(capsys: Capture) -> None:
    log = LOGS / "cxx-17.log"
    assert main(["check", str(log), "--format", "json"]) == 1
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert thing.items() >= {"thing": str(log), "verdict": "does-not-fit"}.items()
    assert thing["findings"] == msgspec.to_builtins(read_log(log).findings)
    assert [row["line"] for row in thing["findings"][0]["evidence"]["text"]] == [3, 4, 13]


def test_log_reads_a_pipe(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO((LOGS / "disk-full--python.log").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw))
    assert main(["check", "-"]) == 1
    assert "A disk is full." in capsys.readouterr().out


def test_log_uses_backend(capsys: Capture) -> None:
    log = LOGS / "deepspeed-cpu-accelerator-silent.log"
    assert main(["check", str(log)]) == 4
    assert "No known failure was recognized in this log." in capsys.readouterr().out
    assert main(["check", str(log), "--backend", "rocm"]) == 1
    assert "Set DS_ACCELERATOR=cuda" in capsys.readouterr().out


def test_log_without_known_failure_exits_4(capsys: Capture) -> None:
    assert main(["check", str(LOGS / "good" / "deepspeed-cpu.log"), "--format", "json"]) == 4
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert {row["id"] for row in thing["findings"]} <= {"log-not-judged", "not-known"}


def test_unknown_errors_are_named_with_similar_failures(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.log").write_text("Epoch 1\nRuntimeError: operator torchaudio::decode does not exist\n")
    assert main(["check", "x.log"]) == 4
    output = capsys.readouterr().out
    assert "fits no known failure: RuntimeError: operator torchaudio::decode does not exist" in output
    assert "torchvision-nms" in output
    assert main(["check", "x.log", "--format", "json"]) == 4
    (thing,) = json.loads(capsys.readouterr().out)["things"]
    assert (thing["verdict"], thing["kind"]) == ("not-judged", "log of a run")
    assert [finding["id"] for finding in thing["findings"]] == ["not-known"]


def test_log_missing_file_is_bad_input(capsys: Capture) -> None:
    assert main(["check", "none.log"]) == 2
    assert "none.log" in capsys.readouterr().err
