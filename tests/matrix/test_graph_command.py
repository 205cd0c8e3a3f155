"""``matrix graph``: formats, the lock or a resolution, circles, and graphs of fromager both ways."""

from __future__ import annotations

import io
import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given

from matrix.cli import main
from matrix.fromager.reading import MOST_BYTES
from matrix.fromager.writing import fromager_document, left_out
from resolver.graph import graph_of_lock
from resolver.lock import Lock, dumps, read_lock
from tests.matrix.drawn import read_dot, read_fromager, read_mermaid
from tests.resolver.graphs import builds, lock_of, locks, runs
from tests.resolver.universe import EXAMPLES

Capture = pytest.CaptureFixture[str]
ASKED = ["apex", "deepspeed", "flash-attn", "bitsandbytes"]
ON_LUMI = ["--site", "lumi-g", "--date", "2026-03-01", "--python", "3.12"]


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def lock(capsys: Capture) -> Lock:
    assert main(["resolve", *ASKED, *ON_LUMI, "-q"]) == 0
    capsys.readouterr()
    return read_lock(Path("matrix.lock"))


def write(lock: Lock) -> None:
    Path("matrix.lock").write_text(dumps(lock), encoding="utf-8")


def run(capsys: Capture, *arguments: str, code: int = 0) -> str:
    assert main(["graph", *arguments]) == code
    return capsys.readouterr().out


def run_json(capsys: Capture, *arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(capsys, *arguments, "--format", "json", code=code))
    return document


def test_the_json_has_the_edges_and_the_order_of_the_lock(lock: Lock, capsys: Capture) -> None:
    document = run_json(capsys)
    assert document["schema"] == 1
    assert document["target"] == {
        "site": "lumi-g",
        "date": "2026-03-01",
        "backend": "rocm",
        "gfx": ["gfx90a"],
    }
    assert document["generations"] == [list(group) for group in lock.order]
    assert [(e["from"], e["to"], e["kind"], e["declared"]) for e in document["edges"]] == [
        (e.subject, e.object, e.kind, e.declared) for e in lock.edge
    ]
    nodes = {node["name"]: node for node in document["nodes"]}
    assert len(nodes) == len(document["nodes"])
    for pick in lock.pick:
        if pick.kind == "distribution":
            node = nodes.pop(pick.name)
            assert (node["version"], node["wheel_version"]) == (pick.version, pick.wheel_version)
            assert node["origin"] == pick.origin
            assert pick.name in document["generations"][node["generation"] - 1]
    assert {(node["origin"], node["version"]) for node in nodes.values()} == {("pip", "")}


def test_the_text_draws_a_tree_with_torch_once_and_the_generations(lock: Lock, capsys: Capture) -> None:
    del lock
    said = run(capsys)
    assert "│   └── pytorch-triton-rocm" in said
    assert said.count("pytorch-triton-rocm 3.5.1") == 1
    assert said.count("torch 2.9.1+rocm6.4 (see above)") == 3
    assert "├╌╌ ninja" in said
    assert "build, undeclared" in said
    assert "  2. torch\n  3. apex, bitsandbytes, deepspeed, flash-attn" in said


def test_an_output_without_box_characters_gets_ascii_and_a_file_does_not(
    lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    del lock
    said = _in_ascii(monkeypatch, "graph")
    assert _in_ascii(monkeypatch, "graph", "-o", "graph.txt", "-q") == ""
    assert "|   `-- pytorch-triton-rocm" in said
    assert "|.. ninja" in said
    assert "│   └── pytorch-triton-rocm" in Path("graph.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("format_", "wanted"),
    [("text", r"\xe9\u0444"), ("dot", r"\xe9\u0444"), ("mermaid", "#233;#1092;"), ("svg", "&#233;&#1092;")],
)
def test_what_the_encoding_lacks_is_escaped(
    format_: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(lock_of([runs("éф😀", "torch")]))
    assert wanted in _in_ascii(monkeypatch, "graph", "--format", format_)


def test_json_that_the_encoding_lacks_is_still_json(monkeypatch: pytest.MonkeyPatch) -> None:
    write(lock_of([runs("éф😀", "torch")]))
    document = json.loads(_in_ascii(monkeypatch, "graph", "--format", "json"))
    assert [node["name"] for node in document["nodes"]] == ["torch", "éф😀"]


def _in_ascii(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    plain = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(plain, encoding="ascii"))
    assert main(arguments) == 0
    sys.stdout.flush()
    return plain.getvalue().decode("ascii")


@pytest.mark.parametrize("format_", ["text", "dot", "mermaid", "svg", "json", "fromager"])
def test_a_file_holds_what_stdout_gets_and_the_same_again(format_: str, lock: Lock, capsys: Capture) -> None:
    del lock
    said = run(capsys, "--format", format_)
    assert run(capsys, "--format", format_) == said
    assert run(capsys, "--format", format_, "-o", "out") == ""
    assert Path("out").read_text(encoding="utf-8") == said
    assert sorted(path.name for path in Path().iterdir()) == ["matrix.lock", "out"]


def test_the_pictures_are_of_the_same_graph(lock: Lock, capsys: Capture) -> None:
    wanted = sorted((edge.subject, edge.object, edge.kind == "run") for edge in lock.edge)
    assert sorted(read_dot(run(capsys, "--format", "dot")).arrows) == wanted
    assert sorted(read_mermaid(run(capsys, "--format", "mermaid")).arrows) == wanted
    assert "For lumi-g on 2026-03-01" in (ET.fromstring(run(capsys, "--format", "svg"))[0].text or "")


def test_without_a_lock_the_request_is_resolved_and_nothing_is_written(capsys: Capture) -> None:
    assert main(["graph", "apex", *ON_LUMI, "--format", "json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert {node["name"] for node in document["nodes"]} >= {"apex", "torch", "ninja"}
    assert "deepspeed" not in {node["name"] for node in document["nodes"]}
    assert "no matrix.lock" in said.err
    assert list(Path().iterdir()) == []
    assert main(["resolve", "apex", *ON_LUMI, "-q"]) == 0
    capsys.readouterr()
    assert run_json(capsys) == document


def test_what_cannot_be_resolved_is_answered_as_resolve_does(capsys: Capture) -> None:
    asked = ["torch", "rocm==7.1.*", "--site", "lumi-g", "--date", "2026-02-01"]
    assert run_json(capsys, *asked, code=1)["status"] == "conflict"


def test_names_with_a_lock_choose_a_part_of_it(lock: Lock, capsys: Capture) -> None:
    del lock
    document = run_json(capsys, "bitsandbytes>=0.40")
    assert [node["name"] for node in document["nodes"]] == ["bitsandbytes", "pytorch-triton-rocm", "torch"]
    assert document["requirements"] == ["bitsandbytes>=0.40"]
    assert len(run_json(capsys, "rocm==6.4.*")["nodes"]) > 10  # a platform component limits nothing


@pytest.mark.parametrize(
    ("arguments", "found", "hint"),
    [
        (["apx"], "has no 'apx'", "Did you mean apex?"),
        (["torch<2"], "has torch 2.9.1+rocm6.4", "matrix"),
        (["rocm==6.2.*"], "has rocm 6.4", "--lock"),
        (["--python", "3.11"], "python 3.11", "--lock"),
        (["--date", "2025-06-01"], "2025-06-01", "--lock"),
        (["--format", "png"], "'png'", "svg"),
        (["--edges-from", "none.json"], "no file none.json", "fromager"),
    ],
)
def test_what_the_lock_is_not_is_exit_2(
    arguments: list[str], found: str, hint: str, lock: Lock, capsys: Capture
) -> None:
    del lock
    assert main(["graph", *arguments]) == 2
    said = capsys.readouterr()
    assert found in said.err
    assert hint in said.err
    assert said.out == ""


CIRCLE = [runs("apex", "torch"), runs("torch", "triton"), builds("triton", "apex"), builds("apex", "ninja")]


@pytest.mark.parametrize("format_", ["text", "dot", "mermaid", "svg", "fromager"])
def test_a_circle_is_bad_input_and_shown_as_a_path(format_: str, capsys: Capture) -> None:
    write(lock_of(CIRCLE, built=["apex"]))
    assert main(["graph", "--format", format_]) == 2
    said = capsys.readouterr()
    path = said.err.split("circle: ")[1].split(".")[0].split(" -> ")
    _is_the_circle(path)
    assert said.out == ""


def test_a_circle_as_json_has_its_path(capsys: Capture) -> None:
    write(lock_of(CIRCLE, built=["apex"]))
    document = run_json(capsys, code=2)
    assert (document["status"], document["id"]) == ("error", "cycle")
    _is_the_circle(document["cycle"])


def _is_the_circle(path: list[str]) -> None:
    assert path[0] == path[-1]
    assert set(pairwise(path)) == {("apex", "torch"), ("torch", "triton"), ("triton", "apex")}


@pytest.mark.usefixtures("lock")
def test_fromagers_graph_is_as_fromager_reads_it(capsys: Capture) -> None:
    assert main(["graph", "--format", "fromager"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    read = read_fromager(document)
    assert read[""] == [
        ("toplevel", "apex==1.9.0"),
        ("toplevel", "bitsandbytes==0.50.2"),
        ("toplevel", "deepspeed==0.19.8"),
        ("toplevel", "flash-attn==2.8.3.post2"),
    ]
    torch = "torch==2.9.1+rocm6.4"
    assert read["apex==1.9.0"] == [("build-system", torch), ("install", torch)]
    assert read["bitsandbytes==0.50.2"] == [("install", torch)]
    assert read[torch] == [("install", "pytorch-triton-rocm==3.5.1")]
    assert {key for key, entry in document.items() if entry["pre_built"]} == {
        "bitsandbytes==0.50.2",
        torch,
        "pytorch-triton-rocm==3.5.1",
    }
    assert document["apex==1.9.0"]["download_url"].startswith("git+https://github.com/ROCm/apex@")
    assert "Left out" in said.err
    assert "ninja, packaging, psutil, py-cpuinfo, setuptools, wheel" in said.err


@EXAMPLES
@given(locks())
def test_fromagers_graph_has_every_edge_between_what_has_a_version(lock: Lock) -> None:
    graph = graph_of_lock(lock)
    read = read_fromager(fromager_document(graph, lock))
    types = {"run": "install", "build": "build-system"}
    without = set(left_out(graph))
    wanted = [
        (f"{edge.subject}==1.0", types[edge.kind], f"{edge.object}==1.0")
        for edge in graph.edges
        if not {edge.subject, edge.object} & without
    ]
    found = [(key, kind, needed) for key, edges in read.items() if key for kind, needed in edges]
    assert sorted(found) == sorted(wanted)
    top = {key for kind, key in read[""] if kind == "toplevel"}
    versioned = {node.name for node in graph.nodes} - without
    assert set(read) == {"", *(f"{name}==1.0" for name in versioned)}
    assert top >= {f"{name}==1.0" for name in lock.requirements if name in versioned}
    assert len(top) == len(read[""])


@pytest.mark.parametrize("name", ["a b", "-x", "ф"])
def test_a_name_that_fromager_could_not_read_is_exit_2(name: str, capsys: Capture) -> None:
    write(lock_of([], published=[name]))
    assert main(["graph", "--format", "fromager"]) == 2
    said = capsys.readouterr()
    assert repr(name) in said.err
    assert said.out == ""


def entry(name: str, version: str, *edges: tuple[str, str, str], pre_built: bool = False) -> dict[str, Any]:
    return {
        "download_url": "",
        "pre_built": pre_built,
        "version": version,
        "canonicalized_name": name,
        "edges": [{"key": key, "req_type": kind, "req": text} for kind, key, text in edges],
    }


def write_graph(*entries: dict[str, Any], path: str = "graph.json") -> None:
    known = {f"{one['canonicalized_name']}=={one['version']}": one for one in entries}
    top = [("toplevel", key, one["canonicalized_name"]) for key, one in known.items()]
    Path(path).write_text(json.dumps({"": entry("", "0", *top)} | known), encoding="utf-8")


def test_a_graph_of_our_own_differs_only_in_what_it_cannot_say(lock: Lock, capsys: Capture) -> None:
    assert run(capsys, "--format", "fromager", "-o", "graph.json") == ""
    findings = run_json(capsys, "--edges-from", "graph.json")["findings"]
    assert {one["kind"] for one in findings} == {"missing-edge"}
    versionless = {edge.object for edge in lock.edge} - {pick.name for pick in lock.pick}
    assert {one["edge"]["to"] for one in findings} == versionless


APEX = lock_of(
    [builds("apex", "ninja", declared=False), runs("apex", "torch"), builds("apex", "torch", declared=False)],
    built=["apex"],
    published=["torch", "numpy"],
)


def test_edges_that_only_fromager_knows_are_added_and_are_findings(capsys: Capture) -> None:
    write(APEX)
    write_graph(
        entry(
            "apex",
            "1.0",
            ("install", "torch==1.0", "torch>=0.5"),
            ("install", "numpy==2.0", "numpy>=1"),
            ("build-backend", "cmake==4.0", "CMake>=3.20"),
            ("build-system", "torch==1.0", "torch"),
        ),
        entry("torch", "1.0", ("build-system", "cmake==4.0", "cmake")),
        entry("numpy", "2.0", ("install", "cmake==4.0", "cmake")),
        entry("cmake", "4.0", ("install", "other==1.0", "other")),
        entry("other", "1.0"),
    )
    document = run_json(capsys, "--edges-from", "graph.json")
    found = {
        (one["kind"], one["name"], (one["edge"] or {}).get("to"), (one["edge"] or {}).get("kind"))
        for one in document["findings"]
    }
    assert found == {
        ("unknown-edge", "apex", "numpy", "run"),
        ("unknown-edge", "apex", "cmake", "build"),
        ("missing-edge", "apex", "ninja", "build"),
        ("other-version", "numpy", None, None),
    }
    added = {(one["to"], one["kind"], one["requirement"]) for one in document["edges"] if one["added"]}
    assert added == {("numpy", "run", "numpy>=1"), ("cmake", "build", "CMake>=3.20")}
    assert document["generations"] == [["cmake", "ninja", "numpy", "torch"], ["apex"]]
    said = run(capsys, "--edges-from", "graph.json")
    assert "build, added (CMake>=3.20)" in said
    assert "apex needs cmake to be built, says fromager (CMake>=3.20); the recipes do not" in said
    assert "apex needs ninja to be built, undeclared, say the recipes; fromager's graph does not" in said
    assert "fromager knows numpy 2.0, the lock has 1.0" in said


def test_a_graph_with_the_same_edges_is_said_to_have_them(capsys: Capture) -> None:
    write(lock_of([runs("apex", "torch")], published=["apex", "torch"]))
    write_graph(entry("apex", "1.0", ("install", "torch==1.0", "torch")), entry("torch", "1.0"))
    assert "have the same edges" in run(capsys, "--edges-from", "graph.json")
    assert run_json(capsys, "--edges-from", "graph.json")["findings"] == []


def test_a_picture_says_on_stderr_that_there_are_differences(capsys: Capture) -> None:
    write(APEX)
    write_graph(entry("apex", "1.0", ("install", "hjson==1.0", "hjson")), entry("hjson", "1.0"))
    assert main(["graph", "--edges-from", "graph.json", "--format", "dot"]) == 0
    said = capsys.readouterr()
    assert ("apex", "hjson", True) in read_dot(said.out).arrows
    assert "differs from the recipes" in said.err


def test_distributions_that_need_each_other_only_to_run_elsewhere_are_no_fault(capsys: Capture) -> None:
    write(APEX)
    write_graph(
        entry("apex", "1.0", ("install", "x==1", "x")),
        entry("x", "1", ("install", "y==1", "y")),
        entry("y", "1", ("install", "x==1", "x")),
    )
    document = run_json(capsys, "--edges-from", "graph.json")
    assert [one["to"] for one in document["edges"] if one["added"]] == ["x"]


BAD = {
    "another JSON": (b'{"nodes": []}', "is no graph of fromager"),
    "a list": (b"[1, 2]", "is no graph of fromager"),
    "no JSON": (b"digraph {}", "is no graph of fromager"),
    "nothing": (b"", "is no graph of fromager"),
    "not UTF-8": (b'{"": "\xff\xfe"}', "not UTF-8 (byte 6)"),
    "no root": (b"{}", "no root"),
    "deep": (b'{"":' + b"[" * 200_000, "is no graph of fromager"),
    "a key that is not there": (
        json.dumps({"": entry("", "0", ("toplevel", "a==1", "a"))}).encode(),
        "'a==1', which is not in the file",
    ),
    "a type that is none": (
        json.dumps({"": entry("", "0"), "a==1": entry("a", "1", ("tests", "", "a"))}).encode(),
        "tests",
    ),
    "a version that is none": (json.dumps({"": entry("", "0"), "a==x": entry("a", "x")}).encode(), "'x'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_graph_is_exit_2_with_a_sentence(what: str, capsys: Capture) -> None:
    write(APEX)
    content, wanted = BAD[what]
    Path("graph.json").write_bytes(content)
    _is_refused(capsys, wanted)


def _is_refused(capsys: Capture, wanted: str) -> None:
    assert main(["graph", "--edges-from", "graph.json"]) == 2
    said = capsys.readouterr()
    assert wanted in said.err
    assert "graph.json" in said.err
    assert "Traceback" not in said.err
    assert len(said.err) < 1000
    assert said.out == ""


def test_a_huge_file_is_refused_without_reading_it_all(capsys: Capture) -> None:
    write(APEX)
    with Path("graph.json").open("wb") as file:
        file.truncate(100 * MOST_BYTES)  # takes no room on the disk
    _is_refused(capsys, "larger than")


def test_a_directory_is_refused(capsys: Capture) -> None:
    write(APEX)
    Path("graph.json").mkdir()
    _is_refused(capsys, "Cannot read")


def test_what_needs_itself_to_be_built_is_refused_with_the_circle(capsys: Capture) -> None:
    write(APEX)
    write_graph(
        entry("x", "1", ("build-system", "y==1", "y")),
        entry("y", "1", ("install", "z==1", "z")),
        entry("z", "1", ("install", "x==1", "x")),
    )
    _is_refused(capsys, "x==1 -> y==1 -> z==1 -> x==1")


def test_edges_that_close_a_circle_with_those_of_the_lock_are_refused_with_it(capsys: Capture) -> None:
    write(APEX)
    write_graph(entry("torch", "1.0", ("install", "apex==1.0", "apex")), entry("apex", "1.0"))
    _is_refused(capsys, "apex")
    assert main(["graph", "--edges-from", "graph.json"]) == 2
    said = capsys.readouterr().err
    path = said.split("circle: ")[1].split(".")[0].split(" -> ")
    assert set(pairwise(path)) == {("apex", "torch"), ("torch", "apex")}
