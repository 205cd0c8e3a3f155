"""``matrix explain ID`` knows every id of an error, a finding or a warning."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from matrix.cli import main
from matrix.show.meanings import meanings
from resolver.errors import IDS
from resolver.facts.catalog import load

ROOT = Path(__file__).parents[2]
MADE = re.compile(r"\b(?:Finding|Notice)\(\s*\"([a-z0-9-]+)\"")


def test_every_id_has_a_meaning() -> None:
    files = (
        file for package in ("resolver", "builders", "matrix") for file in (ROOT / package).rglob("*.py")
    )
    made = {id_ for file in files for id_ in MADE.findall(file.read_text())} - {"a", "b", "c"}  # of examples
    assert len(made) > 200
    known = meanings()
    assert {*made, *IDS} - known.keys() == set()


def test_shown_problems_of_the_catalog_have_an_id_and_a_summary() -> None:
    rows = [row for row in load().known_bad.values() if row.is_shown]
    assert rows
    for row in rows:
        assert re.fullmatch(r"[a-z0-9-]+", row.id), row.title
        assert 10 < len(row.summary) <= 60, row.title


@pytest.mark.parametrize(
    ("id_", "text"),
    [
        ("fp16-flush", "hipBLASLt flushes subnormal numbers"),
        ("verify-torch-cpu", "built for the CPU"),
        ("bad-lock", "A lock file cannot be used."),
        ("killed", "What to do: "),
        ("years-back", "more than a year or a major version newer"),
        ("torch-missing", "compiled against torch, which the request lacks"),
        ("torch-missing", "In a log: The build needs torch"),
    ],
)
def test_id_is_explained_without_a_lock(id_: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", id_]) == 0
    assert text in capsys.readouterr().out
    assert main(["explain", id_, "--format", "json"]) == 0
    assert text in json.loads(capsys.readouterr().out)["meaning"]


def test_id_of_a_warning_shows_the_warning_of_the_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "torch==2.9.1", "--site", "lumi-g", "--date", "2026-06-01", "-q"]) == 0
    warnings = re.findall(r"(?m)^warning: (.*) \[([a-z0-9-]+)\]$", capsys.readouterr().err)
    assert "fp16-flush" in {id_ for _, id_ in warnings}
    for text, id_ in warnings:
        assert main(["explain", id_]) == 0
        assert text in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (["resolve", "torch", "apex", "deepspeed", "vllm", "flash-attn[triton]"], 0, "resolved"),
        (["resolve", "apex", "rocm==7.1.*"], 1, "conflict"),
        (["resolve", "no-such-project"], 2, "error"),
        (["table", "apex", "deepspeed", "torch>=2.8", "python==3.12"], 0, "ok"),
    ],
)
def test_brief_answer_has_at_most_four_kilobytes(
    words: list[str], code: int, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--site", "lumi-g", "--date", "2026-06-01"]
    assert main([*words, *where, "--format", "brief"]) == code
    text = capsys.readouterr().out
    assert 100 < len(text) <= 4096
    document = json.loads(text)
    assert document["status"] == status
    assert not any("https://" in warning for warning in document["warnings"])


@pytest.mark.slow
def test_table_as_json_has_at_most_100_kilobytes(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["table", "python==3.12", "--site", "lumi-g", "--date", "2026-06-01", "--format", "json"]) == 0
    )
    text = capsys.readouterr().out
    assert len(text) <= 100_000
    assert {row["rocm"] for row in json.loads(text)["rows"]} >= {"6.4.4", "6.2.4"}
