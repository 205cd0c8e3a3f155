"""``matrix explain --log``: the explanation of a user's log for a support engineer."""

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


def test_explain_log_shows_cause_fix_lines_source(capsys: Capture) -> None:
    assert main(["explain", "--log", str(LOGS / "sdist-without-kernels.log")]) == 0
    output = capsys.readouterr().out
    assert output.startswith("What happened: The sdist lacks sources that it compiles.\n")
    assert "What to do: Build from the git tag" in output
    assert "csrc/causal_conv1d.cpp" in output
    assert "https://github.com/Dao-AILab/causal-conv1d/issues/99" in output


def test_explain_log_json_is_one_document(capsys: Capture) -> None:
    log = LOGS / "cxx-17.log"
    assert main(["explain", "--log", str(log), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.items() >= {"schema": 1, "status": "ok", "log": str(log)}.items()
    assert document["diagnosis"] == msgspec.to_builtins(read_log(log).findings)
    assert [row["line"] for row in document["diagnosis"][0]["evidence"]["text"]] == [3, 4, 13]


def test_explain_log_reads_a_pipe(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO((LOGS / "disk-full--python.log").read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(raw))
    assert main(["explain", "--log", "-"]) == 0
    assert "A disk is full." in capsys.readouterr().out


def test_explain_log_uses_name_and_backend(capsys: Capture, tmp_path: Path) -> None:
    log = LOGS / "deepspeed-cpu-accelerator-silent.log"
    assert main(["explain", "--log", str(log)]) == 1
    captured = capsys.readouterr()
    assert "No known failure was recognized in this log." in captured.out
    assert "--backend rocm" in captured.err
    assert main(["explain", "--log", str(log), "--backend", "rocm"]) == 0
    assert "Set DS_ACCELERATOR=cuda" in capsys.readouterr().out
    (tmp_path / "x.log").write_text("AttributeError: 'NoneType' object has no attribute 'split'\n")
    assert main(["explain", "vllm", "--log", "x.log"]) == 1
    assert main(["explain", "Apex", "--log", "x.log"]) == 0
    assert "Apex's setup needs a ROCm build of torch" in capsys.readouterr().out


def test_explain_log_without_known_failure_exits_1(capsys: Capture) -> None:
    assert main(["explain", "--log", str(LOGS / "good" / "deepspeed-cpu.log"), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["diagnosis"] == []


def test_unknown_errors_are_named_with_similar_failures(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.log").write_text("Epoch 1\nRuntimeError: operator torchaudio::decode does not exist\n")
    assert main(["explain", "--log", "x.log"]) == 1
    output = capsys.readouterr().out
    assert "fits no known failure: RuntimeError: operator torchaudio::decode does not exist" in output
    assert "torchvision-nms" in output
    assert main(["explain", "--log", "x.log", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["status"], document["kind"]) == ("unrecognized", "run")
    assert [finding["id"] for finding in document["unknown"]] == ["not-known"]


def test_explain_log_missing_file_is_bad_input(capsys: Capture) -> None:
    assert main(["explain", "--log", "none.log"]) == 2
    assert "Cannot read the log none.log" in capsys.readouterr().err
