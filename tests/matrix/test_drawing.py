"""Drawings of random build graphs, read back: everything there once, well formed, the same every time."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from msgspec.structs import replace

from matrix.drawing.dot import draw_dot
from matrix.drawing.mermaid import draw_mermaid
from matrix.drawing.svg import draw_svg
from matrix.drawing.text import ASCII, BOX, draw_text
from matrix.drawing.words import visible
from resolver.graph import BuildGraph, graph_of_lock
from resolver.model import Resolution
from tests.matrix.drawn import Drawn, read_dot, read_mermaid
from tests.resolver.graphs import ODD, PLAIN, builds, lock_of, locks, runs
from tests.resolver.universe import EXAMPLES, FEWER

SVG = "{http://www.w3.org/2000/svg}"


def _wanted(graph: BuildGraph) -> Counter[tuple[str, str, bool]]:
    return Counter((edge.subject, edge.object, edge.kind == "run") for edge in graph.edges)


def _check(drawn: Drawn, graph: BuildGraph, box: str) -> None:
    labels = {label.partition("\n")[0]: (label, where) for label, where in drawn.nodes}
    assert len(drawn.nodes) == len(labels) == len(graph.nodes)
    for node in graph.nodes:
        label, where = labels[node.name]
        assert where == f"{box}{node.generation}"
        word = {"build": "built", "published": "published", "pip": "left to pip"}[node.origin]
        assert label.split("\n") == [part for part in (node.name, node.pinned, word) if part]
    assert Counter(drawn.arrows) == _wanted(graph)
    hidden = sum("undeclared" in words for words in drawn.words)
    assert hidden == sum(not edge.declared for edge in graph.edges)


@EXAMPLES
@given(locks())
def test_dot_has_every_node_in_its_generation_and_every_edge_once(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    _check(read_dot(draw_dot(graph, "a title")), graph, "cluster_")


@EXAMPLES
@given(locks())
def test_mermaid_has_every_node_in_its_generation_and_every_edge_once(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    _check(read_mermaid(draw_mermaid(graph, "a title")), graph, "g")


@FEWER
@given(locks(ODD))
def test_names_with_odd_characters_stay_apart_and_mean_nothing_to_dot_and_mermaid(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    for drawn in (read_dot(draw_dot(graph, ODD[0])), read_mermaid(draw_mermaid(graph, "%%{x}%%"))):
        assert len(drawn.nodes) == len(graph.nodes)
        assert sum(_wanted(graph).values()) == len(drawn.arrows)
    labels = [label for label, _ in read_mermaid(draw_mermaid(graph, "t")).nodes]
    assert sorted(one.partition("\n")[0] for one in labels) == sorted(visible(n.name) for n in graph.nodes)


def test_a_backslash_and_a_quotation_mark_come_back_from_dot_as_they_were() -> None:
    drawn = read_dot(draw_dot(graph_of_lock(lock_of([runs('to"rch', "a\\")])), "t"))
    assert drawn.arrows == [('to"rch', "a\\", True)]


def _parsed(graph: BuildGraph, title: str = "a title") -> ET.Element:
    return ET.fromstring(draw_svg(graph, title))


@EXAMPLES
@given(locks())
def test_svg_has_a_box_for_every_node_in_the_row_of_its_generation_and_a_line_for_every_edge(
    lock: Resolution,
) -> None:
    graph = graph_of_lock(lock)
    root = _parsed(graph)
    heights: dict[str, float] = {}
    spans: dict[float, list[tuple[float, float]]] = {}
    for group in root.iter(f"{SVG}g"):
        rect, name = group[0], group[1].text
        assert name is not None
        assert name not in heights
        x, y, width = (float(rect.attrib[key]) for key in ("x", "y", "width"))
        heights[name] = y
        spans.setdefault(y, []).append((x, x + width))
        assert 0 <= x < x + width <= float(root.attrib["width"])
        assert 0 <= y < y + float(rect.attrib["height"]) <= float(root.attrib["height"])
    assert sorted(heights) == [node.name for node in graph.nodes]
    assert len({(node.generation, heights[node.name]) for node in graph.nodes}) == len(graph.generations)
    for edge in graph.edges:
        assert heights[edge.subject] < heights[edge.object]
    for row in spans.values():
        row.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(row))
    lines = [path for path in root.iter(f"{SVG}path") if path.find(f"{SVG}title") is not None]
    assert Counter(_said(path) for path in lines) == Counter(
        (f"{edge.subject} needs {edge.object}", edge.kind, not edge.declared) for edge in graph.edges
    )


def _said(path: ET.Element) -> tuple[str, str, bool]:
    title = path.findtext(f"{SVG}title", "")
    classes = path.attrib["class"].split()
    assert ("undeclared" in title) == ("undeclared" in classes)
    return title.partition(":")[0], classes[1], "undeclared" in classes


@FEWER
@given(locks(PLAIN))
def test_svg_draws_no_line_through_a_box_and_no_two_lines_at_one_point_of_a_box(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    root = _parsed(graph)
    boxes = [group[0].attrib for group in root.iter(f"{SVG}g")]
    ends = []
    for path in root.iter(f"{SVG}path"):
        if path.find(f"{SVG}title") is None:
            continue
        numbers = [float(one) for one in re.findall(r"-?[\d.]+", path.attrib["d"])]
        ends += [("from", *numbers[:2]), ("to", *numbers[-2:])]
        for x, top in re.findall(r"([-\d.]+),([-\d.]+) V", path.attrib["d"]):
            for box in boxes:
                left, width = float(box["x"]), float(box["width"])
                assert float(box["y"]) != float(top) or not left <= float(x) <= left + width
    assert len(set(ends)) == len(ends)


@FEWER
@given(locks(ODD))
def test_svg_with_odd_names_is_xml_that_says_them(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    root = _parsed(graph, "<&>\x00")
    assert [group[1].text for group in root.iter(f"{SVG}g")] == [visible(n.name) for n in graph.nodes]
    assert root.findtext(f"{SVG}title") == r"<&>\x00"


def test_svg_needs_nothing_else_and_says_in_words_what_it_shows() -> None:
    graph = graph_of_lock(lock_of([runs("apex", "torch"), builds("apex", "ninja", declared=False)]))
    text = draw_svg(graph, "For lumi-g")
    root = ET.fromstring(text)
    assert root[0].tag == f"{SVG}title"
    assert root[0].text == "For lumi-g"
    assert root.attrib["aria-labelledby"].split() == [root[0].attrib["id"], root[1].attrib["id"]]
    described = root.findtext(f"{SVG}desc", "")
    assert "apex needs ninja (build, undeclared)" in described
    assert "1: ninja, torch; 2: apex" in described
    assert "href" not in text
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


LINE = re.compile(r"(\d+) *\|(?P<below>(?:│   |    )*)(?:[├└](?P<line>──|╌╌) )?(?P<rest>\S.*)")


@EXAMPLES
@given(locks())
def test_the_tree_has_every_need_once_and_every_subtree_once(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    if not graph.nodes:
        return
    lines = draw_text(graph, "t", BOX).splitlines()
    tree = lines[3 : lines.index("", 3)]
    above: list[str] = []
    seen: list[tuple[str, str]] = []
    expanded: Counter[str] = Counter()
    needs = graph.needs()
    for line in tree:
        match = LINE.fullmatch(f"{line[:4]}|{line[6:]}")  # the first column is as wide as its head
        assert match, line
        name = match["rest"].split()[0]
        node = graph.node(name)
        assert node is not None
        assert int(match[1]) == node.generation
        depth = len(match["below"]) // 4 + 1 if match["line"] else 0
        del above[depth:]
        if depth:
            edges = needs[above[-1]][name]
            assert (match["line"] == "──") == any(edge.kind == "run" for edge in edges)
            assert ("undeclared" in line) == any(not edge.declared for edge in edges)
            seen.append((above[-1], name))
        above.append(name)
        if "(see above)" in line:
            assert needs[name]
            assert expanded[name]
        else:
            expanded[name] += 1
    assert Counter(seen) == Counter((one, other) for one, found in needs.items() for other in found)
    assert all(count == 1 for name, count in expanded.items() if needs[name])


@FEWER
@given(locks())
def test_the_ascii_tree_is_the_same_tree_in_ascii(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    table = str.maketrans({"├": "|", "│": "|", "└": "`", "─": "-", "╌": "."})
    plain = draw_text(graph, "t", ASCII)
    assert plain.isascii()
    assert plain == draw_text(graph, "t", BOX).translate(table)


@FEWER
@given(locks((*PLAIN[:3], *ODD)))
def test_the_order_in_which_a_lock_has_its_edges_changes_no_drawing(lock: Resolution) -> None:
    other = replace(lock, picks=lock.picks[::-1], edges=lock.edges[::-1])
    for draw in (draw_text, draw_dot, draw_mermaid, draw_svg):
        assert draw(graph_of_lock(lock), "t") == draw(graph_of_lock(other), "t")


def test_no_control_character_reaches_a_terminal() -> None:
    text = draw_text(graph_of_lock(lock_of([runs("e\x1b[31mx", "two\nlines")])), "a\x07title")
    assert not any(one != "\n" and not one.isprintable() for one in text)
    assert r"e\x1b[31mx" in text
    assert r"two\nlines" in text


@pytest.mark.parametrize("draw", [draw_text, draw_dot, draw_mermaid, draw_svg])
def test_an_empty_graph_and_a_long_chain_can_be_drawn(draw: type) -> None:
    assert draw(graph_of_lock(lock_of([])), "t")
    chain = [runs(f"p{number:04}", f"p{number + 1:04}") for number in range(1500)]
    assert "p1500" in str(draw(graph_of_lock(lock_of(chain)), "t"))
