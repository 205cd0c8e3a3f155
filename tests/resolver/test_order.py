"""The build graph: edges, install order and cycles."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.answers.resolution import edges_of, generations
from resolver.answers.resolve import resolve
from resolver.compiling import compile_problem
from resolver.compiling.problem import Relation, RelationRow, Variable
from resolver.errors import CycleError
from resolver.facts.catalog import Catalog
from resolver.facts.schema import Recipe
from resolver.model import Candidate, Edge, Resolution
from tests.resolver.solve_helpers import ask
from tests.resolver.universe import EXAMPLES, FACT, candidate

NAMES = tuple("abcdefgh")


def _edge(subject: str, target: str) -> Edge:
    return Edge(subject, target, "build", declared=True)


@EXAMPLES
@given(st.permutations(NAMES), st.sets(st.sampled_from(list(combinations(range(len(NAMES)), 2)))))
def test_generations_are_the_earliest_order(names: list[str], pairs: set[tuple[int, int]]) -> None:
    edges = [_edge(names[later], names[earlier]) for earlier, later in pairs]
    groups = generations(NAMES, edges)
    rank = {name: number for number, group in enumerate(groups) for name in group}
    assert sorted(rank) == sorted(name for group in groups for name in group) == list(NAMES)
    assert [group for group in groups if list(group) != sorted(group)] == []
    for name in NAMES:
        needed = [rank[edge.object] for edge in edges if edge.subject == name]
        assert rank[name] == max(needed, default=-1) + 1


def test_names_and_edge_ends_are_all_installed() -> None:
    assert generations(["torch"], [_edge("apex", "ninja")]) == (("ninja", "torch"), ("apex",))
    assert generations([], []) == ()


@EXAMPLES
@given(st.permutations(NAMES), st.integers(1, len(NAMES)), st.booleans())
def test_cycle_is_named_as_path(names: list[str], length: int, more: bool) -> None:
    cycle = names[:length]
    edges = [_edge(subject, other) for subject, other in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
    extra = [_edge(name, cycle[0]) for name in names[length:]] if more else []
    with pytest.raises(CycleError) as failure:
        generations(NAMES, [*edges, *extra])
    path = failure.value.message.split(": ")[1].split(".")[0].split(" -> ")
    assert path[0] == path[-1]
    assert sorted(path[1:]) == sorted(cycle)
    assert {_edge(subject, other) for subject, other in pairwise(path)} == set(edges)
    assert failure.value.hint


@pytest.mark.parametrize(("kind", "to_build"), [("run", False), ("build", True)])
def test_cycle_names_the_kind_of_requirement(kind: Literal["run", "build"], to_build: bool) -> None:
    beside = Edge("e", "a", "build", declared=True)
    edges = [Edge("a", "b", "run", declared=True), Edge("b", "a", kind, declared=True), beside]
    with pytest.raises(CycleError) as failure:
        generations(NAMES, edges)
    assert failure.value.exit_code == 2
    assert ("needed to build" in failure.value.message) == to_build
    assert ("recipe" in failure.value.hint) == to_build


def _built(name: str, *, declared: tuple[str, ...] = (), undeclared: tuple[str, ...] = ()) -> Candidate:
    recipe = Recipe(
        package=name,
        backend="rocm",
        declared=declared,
        undeclared=undeclared,
        status="observed",
        source="here",
    )
    return Candidate(name, "1.0", "distribution", "build", FACT, recipe=recipe)


def test_build_requirements_become_edges() -> None:
    apex = _built(
        "apex", declared=("setuptools>=63",), undeclared=("torch", "Py_CPUinfo; python_version>'3'")
    )
    assert edges_of([apex, candidate("torch", "2.9.1")], []) == (
        Edge("apex", "py-cpuinfo", "build", False, "Py_CPUinfo; python_version>'3'"),
        Edge("apex", "setuptools", "build", True, "setuptools>=63"),
        Edge("apex", "torch", "build", False, ""),
    )


def test_published_wheel_has_no_build_edges() -> None:
    published = Candidate("apex", "1.0", "distribution", "published", FACT, recipe=_built("apex").recipe)
    assert edges_of([published], []) == ()


def test_relations_that_require_become_run_edges() -> None:
    apex, torch, rocm = candidate("apex", "1"), candidate("torch", "2"), _platform("rocm")
    variables = {name.name: Variable(name.name, [name]) for name in (apex, torch, rocm)}
    row = RelationRow(0b10, 0b10, FACT)
    needs = Relation(variables["apex"], variables["torch"], "run", [row])
    constrains = Relation(variables["torch"], variables["apex"], "run", [row], when_present=True)
    silent = Relation(variables["torch"], variables["apex"], "run", [])
    platform = Relation(variables["torch"], variables["rocm"], "run", [row])
    edges = edges_of([apex, torch, rocm], [needs, constrains, silent, platform])
    assert edges == (Edge("apex", "torch", "run", declared=True),)
    assert edges_of([apex], [needs]) == ()


def _platform(name: str) -> Candidate:
    return Candidate(name, "1", "platform", "site", FACT)


def test_edges_are_sorted() -> None:
    """A set of edges has a different order in every process, so edges are sorted by all their fields."""
    undeclared = tuple(f"{name}>={number}" for name in ("cmake", "ninja") for number in range(30))
    edges = edges_of([_built("apex", undeclared=undeclared)], [])
    assert len(edges) == 60
    assert list(edges) == sorted(
        edges, key=lambda edge: (edge.subject, edge.object, edge.kind, edge.requirement)
    )


def test_extensions_come_after_torch_and_triton(catalog: Catalog) -> None:
    requirements = "torch apex deepspeed flash-attn bitsandbytes"
    answer = resolve(catalog, ask(catalog, requirements, day="2026-03-01"))
    assert isinstance(answer, Resolution)
    rank = {name: number for number, group in enumerate(answer.order) for name in group}
    built = {pick.name for pick in answer.picks if pick.origin == "build"}
    assert built == {"apex", "deepspeed", "flash-attn"}
    assert rank["pytorch-triton-rocm"] < rank["torch"] < min(rank[name] for name in built)
    assert rank["ninja"] < rank["flash-attn"]
    hidden = {edge.object for edge in answer.edges if edge.subject == "flash-attn" and not edge.declared}
    assert hidden >= {"torch", "ninja", "psutil"}


@pytest.mark.parametrize(
    ("name", "version", "site", "expected"),
    [
        ("apex", "1.4.0", "lumi-g", ["", "dbda778", "e5a11e7", "ac13eaf"]),
        ("apex", "1.7.0a0", "lumi-g", ["e5f4a5ec", "ee8c524"]),
        ("causal-conv1d", "1.5.4", "lumi-g", ["22a4577", "67e0a9d"]),
        ("causal-conv1d", "1.5.4", "frontier", ["67e0a9d", "22a4577"]),
    ],
)
def test_commits_of_a_version_are_ordered_by_proof_and_day(
    catalog: Catalog, name: str, version: str, site: str, expected: list[str]
) -> None:
    """LUMI's set has 22a4577 of causal-conv1d, and a later image 67e0a9d."""
    problem = compile_problem(catalog, ask(catalog, name, site=site))
    found = [one.variant for one in problem.variables[name].candidates if one.version == version]
    assert found == expected
