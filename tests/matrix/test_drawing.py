"""Drawings of random build graphs: read back, they have every node and edge once."""

from __future__ import annotations

import re
from collections import Counter
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from msgspec.structs import replace
from networkx import DiGraph

from matrix.show.drawing import draw_dot, draw_mermaid, draw_svg, draw_text, origin_in
from resolver.answers.graph import build_graph, edges_of_graph, generations, pick_in
from resolver.errors import EnvironmentLacksError
from resolver.model import Resolution
from resolver.texts import printable
from tests.matrix.drawn import Drawn, read_dot, read_mermaid
from tests.resolver.graphs import ODD, PLAIN, builds, lock_of, locks, runs
from tests.resolver.universe import EXAMPLES, FEWER

SVG = "{http://www.w3.org/2000/svg}"


def _arrows(graph: DiGraph[str]) -> Counter[tuple[str, str, bool]]:
    return Counter((edge.subject, edge.object, edge.kind == "run") for edge in edges_of_graph(graph))


def _check(drawn: Drawn, graph: DiGraph[str], box: str) -> None:
    labels = {label.partition("\n")[0]: (label, where) for label, where in drawn.nodes}
    assert len(drawn.nodes) == len(labels) == len(graph)
    for number, group in enumerate(generations(graph), start=1):
        for name in group:
            label, where = labels[name]
            assert where == f"{box}{number}"
            word = {"build": "built", "published": "published", "pip": "left to pip"}[origin_in(graph, name)]
            pick = pick_in(graph, name)
            assert label.split("\n") == [name, *([pick.pinned] if pick else []), word]
    assert Counter(drawn.arrows) == _arrows(graph)
    undeclared = sum("undeclared" in words for words in drawn.words)
    assert undeclared == sum(not edge.declared for edge in edges_of_graph(graph))


@pytest.mark.slow
@EXAMPLES
@given(locks())
def test_dot_has_every_node_and_edge_once(lock: Resolution) -> None:
    graph = build_graph(lock)
    _check(read_dot(draw_dot(graph, "a title")), graph, "cluster_")


@pytest.mark.slow
@EXAMPLES
@given(locks())
def test_mermaid_has_every_node_and_edge_once(lock: Resolution) -> None:
    graph = build_graph(lock)
    _check(read_mermaid(draw_mermaid(graph, "a title")), graph, "g")


@FEWER
@given(locks(ODD))
def test_odd_names_are_escaped_in_dot_and_mermaid(lock: Resolution) -> None:
    graph = build_graph(lock)
    for drawn in (read_dot(draw_dot(graph, ODD[0])), read_mermaid(draw_mermaid(graph, "%%{x}%%"))):
        assert len(drawn.nodes) == len(graph)
        assert sum(_arrows(graph).values()) == len(drawn.arrows)
    labels = [label for label, _ in read_mermaid(draw_mermaid(graph, "t")).nodes]
    assert sorted(label.partition("\n")[0] for label in labels) == sorted(map(printable, graph))


def test_dot_escapes_backslash_and_quotation_mark() -> None:
    drawn = read_dot(draw_dot(build_graph(lock_of([runs('to"rch', "a\\")])), "t"))
    assert drawn.arrows == [('to"rch', "a\\", True)]


def test_svg_shows_every_node_and_edge() -> None:
    graph = build_graph(
        lock_of([runs("apex", "torch"), builds("apex", "ninja", declared=False)], built=["apex"])
    )
    text = draw_svg(graph, "For lumi-g")
    root = ET.fromstring(text)
    kinds = Counter(group.attrib.get("class") for group in root.iter(f"{SVG}g"))
    assert (kinds["node"], kinds["edge"]) == (3, 2)
    shown = {"".join(element.itertext()) for element in root.iter(f"{SVG}text")}
    assert shown >= {"apex", "torch", "ninja", "built", "run", "build, undeclared", "For lumi-g"}


@pytest.mark.parametrize("name", ODD)
def test_svg_is_well_formed_with_odd_names(name: str) -> None:
    root = ET.fromstring(draw_svg(build_graph(lock_of([runs(name, "torch")])), "<title>"))
    assert root.tag == f"{SVG}svg"


def test_svg_without_graphviz_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(EnvironmentLacksError) as failure:
        draw_svg(build_graph(lock_of([runs("apex", "torch")])), "t")
    assert failure.value.exit_code == 3
    assert "`dot` is not installed" in failure.value.message
    assert "graphviz" in failure.value.hint
    assert "--format dot" in failure.value.hint


LINE = re.compile(r"(\d+) *\|(?P<below>(?:│   |    )*)(?:[├└](?P<line>──|╌╌) )?(?P<rest>\S.*)")


@pytest.mark.slow
@EXAMPLES
@given(locks())
def test_tree_has_every_edge_and_subtree_once(lock: Resolution) -> None:
    graph = build_graph(lock)
    if not graph:
        return
    lines = draw_text(graph, "t").splitlines()
    tree = lines[3 : lines.index("", 3)]
    above: list[str] = []
    seen: list[tuple[str, str]] = []
    expanded: Counter[str] = Counter()
    generation = {name: number for number, group in enumerate(generations(graph), start=1) for name in group}
    for line in tree:
        match = LINE.fullmatch(f"{line[:4]}|{line[6:]}")  # the first column is as wide as its head
        assert match, line
        name = match["rest"].split()[0]
        assert int(match[1]) == generation[name]
        depth = len(match["below"]) // 4 + 1 if match["line"] else 0
        del above[depth:]
        if depth:
            edges = graph.edges[above[-1], name]["needs"]
            assert (match["line"] == "──") == any(edge.kind == "run" for edge in edges)
            assert ("undeclared" in line) == any(not edge.declared for edge in edges)
            seen.append((above[-1], name))
        above.append(name)
        if "(see above)" in line:
            assert graph[name]
            assert expanded[name]
        else:
            expanded[name] += 1
    assert Counter(seen) == Counter(list(graph.edges))
    assert all(count == 1 for name, count in expanded.items() if graph[name])


@FEWER
@given(locks())
def test_ascii_tree_equals_box_tree(lock: Resolution) -> None:
    graph = build_graph(lock)
    table = str.maketrans({"├": "|", "│": "|", "└": "`", "─": "-", "╌": "."})
    plain = draw_text(graph, "t", in_ascii=True)
    assert plain.isascii()
    assert plain == draw_text(graph, "t").translate(table)


@pytest.mark.slow
@FEWER
@given(locks((*PLAIN[:3], *ODD)))
def test_order_of_edges_does_not_change_drawings(lock: Resolution) -> None:
    other = replace(lock, picks=lock.picks[::-1], edges=lock.edges[::-1])
    for draw in (draw_text, draw_dot, draw_mermaid):
        assert draw(build_graph(lock), "t") == draw(build_graph(other), "t")


def test_text_escapes_control_characters() -> None:
    text = draw_text(build_graph(lock_of([runs("e\x1b[31mx", "two\nlines")])), "a\x07title")
    assert not any(character != "\n" and not character.isprintable() for character in text)
    assert r"e\x1b[31mx" in text
    assert r"two\nlines" in text


@pytest.mark.parametrize("draw", [draw_text, draw_dot, draw_mermaid])
def test_empty_graph_and_long_chain_are_drawn(draw: type) -> None:
    assert draw(build_graph(lock_of([])), "t")
    chain = [runs(f"p{number:04}", f"p{number + 1:04}") for number in range(1500)]
    assert "p1500" in str(draw(build_graph(lock_of(chain)), "t"))
