"""Trees of random build graphs: read back, they have every edge and subtree once."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given
from msgspec.structs import replace

from matrix.show.graph_text import draw_text
from resolver.answers.graph import build_graph, generations
from resolver.model import Resolution
from tests.resolver.graphs import ODD, PLAIN, lock_of, locks, runs
from tests.resolver.universe import EXAMPLES, FEWER

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
    assert draw_text(build_graph(lock), "t") == draw_text(build_graph(other), "t")


def test_text_escapes_control_characters() -> None:
    text = draw_text(build_graph(lock_of([runs("e\x1b[31mx", "two\nlines")])), "a\x07title")
    assert not any(character != "\n" and not character.isprintable() for character in text)
    assert r"e\x1b[31mx" in text
    assert r"two\nlines" in text


def test_empty_graph_and_long_chain_are_drawn() -> None:
    assert draw_text(build_graph(lock_of([])), "t")
    chain = [runs(f"p{number:04}", f"p{number + 1:04}") for number in range(1500)]
    assert "p1500" in draw_text(build_graph(lock_of(chain)), "t")
