"""``matrix explain --graph``: text and JSON, parts of the lock, and cycles."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from matrix.cli import main
from resolver.lock import dumps, read_lock
from resolver.model import Resolution
from tests.resolver.graphs import builds, lock_of, runs

Capture = pytest.CaptureFixture[str]
ASKED = ["apex", "deepspeed", "flash-attn", "bitsandbytes"]
ON_LUMI = ["--site", "lumi-g", "--date", "2026-03-01", "--python", "3.12"]


@pytest.fixture
def lock(capsys: Capture) -> Resolution:
    assert main(["resolve", *ASKED, *ON_LUMI, "-q"]) == 0
    capsys.readouterr()
    return read_lock(Path("matrix.lock"))


def write(lock: Resolution) -> None:
    Path("matrix.lock").write_text(dumps(lock), encoding="utf-8")


def run(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert main(["explain", "--graph", *arguments]) == code
    return capsys.readouterr().out


def run_json(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(capsys, *arguments, "--format", "json", code=code))
    return document


def test_json_has_edges_and_order_of_lock(lock: Resolution, capsys: Capture) -> None:
    document = run_json(capsys)
    assert document["schema"] == 1
    known = {"site": "lumi-g", "date": "2026-03-01", "backend": "rocm", "gfx": ["gfx90a"], "rocm": "6.4.4"}
    assert {name: document["target"][name] for name in known} == known
    assert document["generations"] == [list(group) for group in lock.order]
    assert [(e["from"], e["to"], e["kind"], e["declared"]) for e in document["edges"]] == [
        (e.subject, e.object, e.kind, e.declared) for e in lock.edges
    ]
    nodes = {node["name"]: node for node in document["nodes"]}
    assert len(nodes) == len(document["nodes"])
    for pick in lock.picks:
        if pick.kind == "distribution":
            node = nodes.pop(pick.name)
            assert (node["version"], node["wheel_version"]) == (pick.version, pick.wheel_version)
            assert node["origin"] == pick.origin
            assert pick.name in document["generations"][node["generation"] - 1]
    assert {(node["origin"], node["version"]) for node in nodes.values()} == {("pip", "")}


def test_text_draws_tree_and_generations(lock: Resolution, capsys: Capture) -> None:
    del lock
    output = run(capsys)
    assert "    └── pytorch-triton-rocm" in output
    assert output.count("pytorch-triton-rocm 3.5.1") == 1
    assert output.count("torch 2.9.1+rocm6.4 (see above)") == 3
    assert "├╌╌ ninja" not in output
    assert "build, undeclared" in output
    assert "  2. torch\n  3. apex, bitsandbytes, deepspeed, flash-attn" in output


def test_build_tools_are_counted_unless_requested(lock: Resolution, capsys: Capture) -> None:
    tools = {edge.object for edge in lock.edges} - {pick.name for pick in lock.picks}
    assert "ninja" in tools
    assert main(["explain", "--graph"]) == 0
    captured = capsys.readouterr()
    assert f"{len(tools)} build tools hidden; -v shows them." in captured.err
    assert "ninja" not in captured.out
    assert "ninja" in run(capsys, "-v")
    assert "ninja" in run(capsys, "ninja")


def test_ascii_output_gets_ascii_tree(
    lock: Resolution, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    del lock
    assert "│   └── pytorch-triton-rocm" in run(capsys, "-v")
    output = _in_ascii(monkeypatch, "explain", "--graph", "-v")
    assert "|   `-- pytorch-triton-rocm" in output
    assert "|.. ninja" in output


def test_characters_outside_encoding_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = lock_of([runs("odd", "torch")], published=["rocm"])
    (rocm,) = (pick for pick in lock.picks if pick.name == "rocm")
    others = (pick for pick in lock.picks if pick is not rocm)
    write(replace(lock, picks=(*others, replace(rocm, kind="platform", version="éф😀"))))
    assert r"\xe9\u0444" in _in_ascii(monkeypatch, "explain", "--graph")


def test_json_in_ascii_is_still_json(monkeypatch: pytest.MonkeyPatch) -> None:
    write(lock_of([replace(runs("odd", "torch"), requirement="éф😀")]))
    document = json.loads(_in_ascii(monkeypatch, "explain", "--graph", "--format", "json"))
    assert [edge["requirement"] for edge in document["edges"]] == ["éф😀"]


def _in_ascii(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    plain = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(plain, encoding="ascii"))
    assert main(arguments) == 0
    sys.stdout.flush()
    return plain.getvalue().decode("ascii")


def test_graph_requires_a_lock(capsys: Capture) -> None:
    assert main(["explain", "--graph"]) == 2
    assert "matrix resolve" in capsys.readouterr().err


def test_names_choose_part_of_lock(lock: Resolution, capsys: Capture) -> None:
    del lock
    document = run_json(capsys, "Bitsandbytes")
    names = [node["name"] for node in document["nodes"]]
    assert names == ["bitsandbytes", "numpy", "pytorch-triton-rocm", "torch"]
    assert document["requirements"] == ["bitsandbytes"]


def test_unknown_name_is_exit_2(lock: Resolution, capsys: Capture) -> None:
    del lock
    assert main(["explain", "--graph", "apx"]) == 2
    output = capsys.readouterr()
    assert "does not have 'apx'" in output.err
    assert "Did you mean apex?" in output.err
    assert output.out == ""


CYCLE = [runs("apex", "torch"), runs("torch", "triton"), builds("triton", "apex"), builds("apex", "ninja")]


def test_cycle_is_bad_input_with_path(capsys: Capture) -> None:
    write(lock_of(CYCLE, built=["apex"]))
    assert main(["explain", "--graph"]) == 2
    output = capsys.readouterr()
    path = output.err.split("cycle: ")[1].split(".")[0].split(" -> ")
    _is_the_cycle(path)
    assert output.out == ""


def test_cycle_as_json_has_path(capsys: Capture) -> None:
    write(lock_of(CYCLE, built=["apex"]))
    document = run_json(capsys, code=2)
    assert (document["status"], document["id"]) == ("error", "cycle")
    _is_the_cycle(document["cycle"])


def _is_the_cycle(path: list[str]) -> None:
    assert path[0] == path[-1]
    assert set(pairwise(path)) == {("apex", "torch"), ("torch", "triton"), ("triton", "apex")}
