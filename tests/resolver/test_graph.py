"""The build graph of a lock: nodes, edges, generations and parts."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from resolver.answers.graph import build_graph, edges_of_graph, generations, pick_in, roots, with_needs
from resolver.answers.resolve import resolve
from resolver.errors import CycleError
from resolver.facts.catalog import Catalog
from resolver.model import Edge, Resolution
from tests.resolver.graphs import builds, lock_of, locks, runs
from tests.resolver.solve_helpers import ask
from tests.resolver.universe import EXAMPLES


@EXAMPLES
@given(locks())
def test_graph_has_every_distribution_and_edge_once(lock: Resolution) -> None:
    graph = build_graph(lock)
    names = {name for edge in lock.edges for name in (edge.subject, edge.object)}
    assert list(graph) == sorted({pick.name for pick in lock.picks} | names)
    assert set(edges_of_graph(graph)) == set(lock.edges)
    assert len(edges_of_graph(graph)) == len(lock.edges)


@pytest.mark.slow
@EXAMPLES
@given(locks())
def test_generation_is_one_more_than_highest_need(lock: Resolution) -> None:
    graph = build_graph(lock)
    groups = generations(graph)
    number = {name: count for count, group in enumerate(groups, start=1) for name in group}
    assert sorted(number) == list(graph)
    for name, count in number.items():
        assert count == 1 + max((number[needed] for needed in graph[name]), default=0)
    assert [list(group) for group in groups] == [sorted(group) for group in groups]


@EXAMPLES
@given(locks())
def test_roots_need_everything(lock: Resolution) -> None:
    graph = build_graph(lock)
    assert not {edge.object for edge in edges_of_graph(graph)} & set(roots(graph))
    assert set(with_needs(graph, roots(graph))) == set(graph)


@pytest.mark.slow
@EXAMPLES
@given(locks(), st.data())
def test_part_has_all_needs_and_keeps_generations(lock: Resolution, data: st.DataObject) -> None:
    graph = build_graph(lock)
    if not graph:
        return
    name = data.draw(st.sampled_from(sorted(graph)))
    part = with_needs(graph, [name])
    assert name in part
    edges = edges_of_graph(part)
    assert edges == [edge for edge in edges_of_graph(graph) if edge.subject in part]
    assert {edge.object for edge in edges} == set(part) - {name}
    whole = ([member for member in group if member in part] for group in generations(graph))
    assert [list(group) for group in generations(part)] == [group for group in whole if group]


def test_node_without_pick_is_left_to_pip() -> None:
    graph = build_graph(
        lock_of([builds("apex", "ninja"), runs("apex", "torch")], built=["apex"], published=["torch"])
    )
    picks = {name: pick_in(graph, name) for name in graph}
    assert {name: pick.pinned for name, pick in picks.items() if pick} == {
        "apex": "1.0+rocm6.4.torch2.9.1.gfx90a",
        "torch": "1.0",
    }
    assert picks["ninja"] is None


def test_equal_edges_are_merged_with_both_requirements() -> None:
    same = [
        builds("apex", "setuptools", "setuptools>=63", declared=False),
        builds("apex", "setuptools", "setuptools<80"),
        builds("apex", "setuptools", "setuptools<80", declared=False),
    ]
    assert edges_of_graph(build_graph(lock_of(same))) == [
        Edge("apex", "setuptools", "build", True, "setuptools<80, setuptools>=63")
    ]


def test_order_in_lock_does_not_matter() -> None:
    lock = replace(lock_of([runs("apex", "torch")]), order=(("apex",), ("torch",)))
    assert generations(build_graph(lock)) == (("torch",), ("apex",))


@pytest.mark.parametrize(("closing", "to_build"), [(runs("c", "a"), False), (builds("c", "a"), True)])
def test_cycle_is_an_error_with_its_path(closing: Edge, to_build: bool) -> None:
    with pytest.raises(CycleError) as failure:
        build_graph(lock_of([runs("a", "b"), runs("b", "c"), closing, runs("c", "d")]))
    path = failure.value.path
    assert path[0] == path[-1]
    assert sorted(path[1:]) == ["a", "b", "c"]
    assert " -> ".join(path) in failure.value.message
    assert failure.value.details == {"cycle": list(path)}
    assert ("needed to build" in failure.value.message) == to_build


def test_graph_of_resolution_has_its_order_and_edges(catalog: Catalog) -> None:
    resolution = resolve(catalog, ask(catalog, "apex deepspeed flash-attn bitsandbytes"))
    assert isinstance(resolution, Resolution)
    graph = build_graph(resolution)
    assert isinstance(graph, networkx.DiGraph)
    assert generations(graph) == resolution.order
    assert set(edges_of_graph(graph)) == set(resolution.edges)
    assert roots(graph) == ["apex", "bitsandbytes", "deepspeed", "flash-attn"]
    assert not {pick.name for pick in resolution.picks if pick.kind == "platform"} & set(graph)
