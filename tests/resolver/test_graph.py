"""The build graph of a lock: nodes, edges and generations, parts of it, and edges from elsewhere."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.errors import CycleError
from resolver.facts.catalog import Catalog
from resolver.graph import BuildGraph, graph_of_lock
from resolver.model import Edge, Resolution
from resolver.resolve import resolve
from tests.resolver.asking import ask
from tests.resolver.graphs import builds, lock_of, locks, runs
from tests.resolver.universe import EXAMPLES


def _triples(edges: object) -> set[tuple[str, str, str]]:
    assert isinstance(edges, tuple)
    return {(edge.subject, edge.object, edge.kind) for edge in edges}


@EXAMPLES
@given(locks())
def test_every_distribution_and_every_edge_of_a_lock_is_there_once(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    names = [node.name for node in graph.nodes]
    named = {name for edge in lock.edges for name in (edge.subject, edge.object)}
    assert names == sorted({pick.name for pick in lock.picks} | named)
    assert _triples(graph.edges) == _triples(lock.edges)
    assert len(graph.edges) == len(lock.edges)


@EXAMPLES
@given(locks())
def test_a_generation_is_one_more_than_the_highest_of_what_is_needed(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    number = {node.name: node.generation for node in graph.nodes}
    for name, count in number.items():
        assert count == 1 + max((number[e.object] for e in graph.edges if e.subject == name), default=0)
        assert name in graph.generations[count - 1]
    assert sum(len(group) for group in graph.generations) == len(graph.nodes)


@EXAMPLES
@given(locks())
def test_everything_hangs_below_a_root_and_nothing_above_one(lock: Resolution) -> None:
    graph = graph_of_lock(lock)
    assert not {edge.object for edge in graph.edges} & set(graph.roots())
    assert graph.part(graph.roots()).nodes == graph.nodes


@EXAMPLES
@given(locks(), st.data())
def test_a_part_is_what_is_needed_and_keeps_its_generations(lock: Resolution, data: st.DataObject) -> None:
    graph = graph_of_lock(lock)
    if not graph.nodes:
        return
    name = data.draw(st.sampled_from([node.name for node in graph.nodes]))
    part = graph.part([name], ["asked"])
    kept = {node.name for node in part.nodes}
    assert name in kept
    assert all(graph.node(node.name) == node for node in part.nodes)
    assert set(part.edges) == {edge for edge in graph.edges if edge.subject in kept}
    assert {edge.object for edge in part.edges} == kept - {name}
    assert part.requested == ("asked",)
    assert {one for group in part.generations for one in group} == kept


def test_what_has_no_pick_is_left_to_pip_and_a_built_wheel_is_pinned_by_its_label() -> None:
    graph = graph_of_lock(
        lock_of([builds("apex", "ninja"), runs("apex", "torch")], built=["apex"], published=["torch"])
    )
    said = [(node.name, node.origin, node.pinned) for node in graph.nodes]
    assert said == [
        ("apex", "build", "1.0+rocm6.4.torch2.9.1.gfx90a"),
        ("ninja", "pip", ""),
        ("torch", "published", "1.0"),
    ]


def test_edges_that_say_the_same_become_one_with_both_requirements() -> None:
    same = [
        builds("apex", "setuptools", "setuptools>=63", declared=False),
        builds("apex", "setuptools", "setuptools<80"),
        builds("apex", "setuptools", "setuptools<80", declared=False),
    ]
    (edge,) = graph_of_lock(lock_of(same)).edges
    assert edge == Edge("apex", "setuptools", "build", True, "setuptools<80, setuptools>=63")


def test_the_order_that_stands_in_a_lock_does_not_count() -> None:
    lock = msgspec.structs.replace(lock_of([runs("apex", "torch")]), order=(("apex",), ("torch",)))
    assert graph_of_lock(lock).generations == (("torch",), ("apex",))


def test_a_circle_is_an_error_that_has_it_as_a_path() -> None:
    with pytest.raises(CycleError) as failure:
        graph_of_lock(lock_of([runs("a", "b"), builds("b", "c"), runs("c", "a"), runs("c", "d")]))
    path = failure.value.path
    assert path[0] == path[-1]
    assert sorted(path[1:]) == ["a", "b", "c"]
    assert " -> ".join(path) in failure.value.message


@pytest.fixture
def resolved(catalog: Catalog) -> Resolution:
    answer = resolve(catalog, ask(catalog, "apex deepspeed flash-attn bitsandbytes"))
    assert isinstance(answer, Resolution)
    return answer


def test_the_graph_of_a_resolution_is_that_of_its_lock_and_has_its_order(resolved: Resolution) -> None:
    graph = graph_of_lock(resolved)
    assert isinstance(graph, BuildGraph)
    assert graph.generations == resolved.order
    assert set(graph.edges) == set(resolved.edges)
    assert graph.roots() == ("apex", "bitsandbytes", "deepspeed", "flash-attn")
    platform = {pick.name for pick in resolved.picks if pick.kind == "platform"}
    assert not platform & {node.name for node in graph.nodes}
