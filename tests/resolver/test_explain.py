"""A conflict is a minimal proof with sources, and its suggestions resolve."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from resolver.answers.explain import MAX_CORE_ITEMS, core_items
from resolver.answers.resolve import resolve
from resolver.answers.suggest import MAX_SUGGESTIONS
from resolver.compiling import compile_problem
from resolver.compiling.problem import Demand, Problem, Relation, RelationRow, Variable
from resolver.facts.catalog import Catalog, load
from resolver.model import Conflict, Fact, Request, Resolution
from resolver.solving.session import Session
from tests.resolver.solve_helpers import ask, without_dates
from tests.resolver.solving import minimal_core, restricted, solve, solve_preferred
from tests.resolver.universe import EXAMPLES, Limit, Link, Universe, candidate, universes


def _part(universe: Universe, problem: Problem, core: tuple[list[Demand], list[Relation]]) -> list[Universe]:
    """Return the universe of a core, then the universes without one of its items."""
    demands = [universe.limits[problem.demands.index(demand)] for demand in core[0]]
    relations = [universe.links[problem.relations.index(relation)] for relation in core[1]]
    without = [(demands[:i] + demands[i + 1 :], relations) for i in range(len(demands))]
    without += [(demands, relations[:i] + relations[i + 1 :]) for i in range(len(relations))]
    return [
        dataclasses.replace(universe, limits=tuple(limits), links=tuple(links))
        for limits, links in [(demands, relations), *without]
    ]


@pytest.mark.slow
@EXAMPLES
@given(universes().filter(lambda universe: not universe.solvable()))
def test_core_is_minimal(universe: Universe) -> None:
    problem = universe.problem()
    core, *fewer = _part(universe, problem, minimal_core(problem))
    event(f"items: {len(fewer)}")
    assert not core.solvable()
    assert [smaller for smaller in fewer if not smaller.solvable()] == []


@pytest.mark.slow
@EXAMPLES
@given(
    universes().filter(lambda universe: not universe.solvable()),
    st.lists(st.sets(st.integers(0, 5), min_size=1), min_size=1, max_size=8),
)
@example(
    Universe(
        {"torch": 2, "apex": 2},
        (Limit("torch", frozenset({0}), False), Limit("apex", frozenset({0}), False)),
        (Link("apex", "torch", ((frozenset({0}), frozenset({1})),), False),),
    ),
    [{0}, {1}, {0, 1}],
)
def test_remembered_proofs_change_no_answer(universe: Universe, trials: list[set[int]]) -> None:
    problem = universe.problem()
    session = Session(problem)
    for left_out in [set[int](), *trials]:
        demands = [demand for number, demand in enumerate(problem.demands) if number not in left_out]
        solution = session.solve(demands) if session.is_solvable(demands) else None
        event(f"solved: {solution is not None}")
        assert solution == solve_preferred(restricted(problem, demands, problem.relations))


def _conflict(catalog: Catalog, request: Request) -> Conflict:
    answer = resolve(catalog, request)
    assert isinstance(answer, Conflict)
    return answer


CONFLICTS: dict[str, Callable[[Catalog], Request]] = {
    "ROCm above the driver": lambda c: ask(c, "rocm==7.1.*", day="2026-02-15"),
    "Python above torch": lambda c: ask(c, "torch==2.4.* python==3.13"),
    "Apex and torch": lambda c: ask(c, "apex==1.8.0 torch==2.9.1", day="2026-04-01"),
    "bitsandbytes and ROCm": lambda c: ask(c, "bitsandbytes>=0.49 rocm==6.0.3", day="2026-02-01"),
    "two pins of torch": lambda c: ask(c, "torch==2.5.1 torch==2.9.1"),
    "a pin three steps away": lambda c: ask(c, "torchvision==0.18.1 rocm>=6.2 apex"),
    "an image of another ROCm": lambda c: ask(c, "torch==2.9.1 apex", base_image="lumi-rocm-rocm-6.2.4.sif"),
    "a target without code": lambda c: ask(c, "xformers torch", gfx=["gfx1100"], driver="6.4"),
    "a driver that was named": lambda c: ask(c, "torch==2.9.1", driver="5.7"),
    "right in 2025": lambda c: ask(c, "torch==2.1.2 rocm==5.6.* apex", day="2026-03-01"),
    "the CPU": lambda c: ask(
        c, "torch==2.13.0 deepspeed==0.9.5", site="local", python="3.11", glibc="2.36", day="2026-11-21"
    ),
    "an old glibc": lambda c: ask(c, "torch>=2.7 glibc", site="local", python="3.11", glibc="2.17"),
    "the oldest preferred": lambda c: ask(c, "apex==1.8.0 torch==2.9.1", prefer="oldest", day="2026-04-01"),
    "proven sets preferred": lambda c: ask(c, "apex==1.8.0 torch==2.9.1", prefer="proven", day="2026-04-01"),
}


@pytest.fixture(scope="module", params=list(CONFLICTS.values()), ids=list(CONFLICTS))
def clash(request: pytest.FixtureRequest, catalog: Catalog) -> tuple[Request, Conflict]:
    """Return each request with its conflict."""
    made: Request = request.param(catalog)
    return made, _conflict(catalog, made)


def test_conflict_is_short_cited_and_minimal(clash: tuple[Request, Conflict], catalog: Catalog) -> None:
    request, conflict = clash
    core = conflict.core
    assert 0 < len(core) <= 10
    kinds = [item.kind for item in core]
    assert kinds == sorted(kinds, key=["request", "fact"].index)
    assert [item for item in core if not (item.text.strip() and item.source.strip())] == []
    assert len({item.text for item in core}) == len(core)

    problem = compile_problem(catalog, request)
    demands, relations = minimal_core(problem)
    assert len(demands) + len(relations) == len(core)
    assert solve(restricted(problem, demands, relations)) is None
    for item in demands:
        rest = [demand for demand in demands if demand is not item]
        assert solve(restricted(problem, rest, relations)) is not None, item.text
    for link in relations:
        others = [relation for relation in relations if relation is not link]
        assert solve(restricted(problem, demands, others)) is not None, link.rows[0].fact.text


def _chain(length: int) -> Problem:
    """Build a problem whose only core has a given length: each component decides the next."""
    names = [f"c{number}" for number in range(length)]
    chain = [Variable(name, [candidate(name, "2"), candidate(name, "1")]) for name in names]
    relations = [
        Relation(left, right, "run", [RelationRow(bit, bit, fact) for bit in (0b10, 0b100)])
        for left, right in pairwise(chain)
        for fact in [Fact(f"{left.name} goes with {right.name}", "documented", f"page {left.name}")]
    ]
    first, last = chain[0], chain[-1]
    demands = [
        Demand(last, 0b100, "the driver is old", "fact", "page last"),
        Demand(first, 0b10, f"you asked for {first.name}==2", "request", "the request"),
    ]
    return Problem({variable.name: variable for variable in chain}, demands, relations)


@pytest.mark.parametrize("length", [2, 8, 9, 10, 11, 12, 17, 30])
def test_long_core_is_joined_to_ten_items(length: int) -> None:
    problem = _chain(length)
    items = core_items(Session(problem), problem.demands)
    assert len(items) == min(MAX_CORE_ITEMS, length + 1) <= 10
    assert items[0].text == "you asked for c0==2"
    texts = "\n".join(item.text for item in items)
    sources = {source for item in items for source in item.source.split(" ; ")}
    for relation in problem.relations:
        assert relation.rows[0].fact.text in texts
        assert relation.rows[0].fact.source in sources
    assert "the driver is old" in texts


def test_joined_core_keeps_all_sources(catalog: Catalog) -> None:
    catalog = without_dates(catalog)  # its releases of 2023 have a shorter core
    request = ask(catalog, "numpy>=2 cupy torchvision python==3.14", day="2023-09-01")
    problem = compile_problem(catalog, request)
    demands, relations = minimal_core(problem)
    assert len(demands) + len(relations) > MAX_CORE_ITEMS
    items = core_items(Session(problem), problem.demands)
    assert len(items) == MAX_CORE_ITEMS
    cited = {source for item in items for source in item.source.split(" ; ")}
    for fact in relations:
        assert cited & {source for row in fact.rows for source in row.fact.source.split(" ; ")}


PAIRS = st.tuples(
    st.sets(
        st.sampled_from(
            [
                "deepspeed==0.14.2",
                "cupy",
                "torchvision",
                "python==3.14",
                "numpy>=2",
                "vllm",
                "aiter",
                "torch<2",
            ]
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["2023-09-01", "2025-06-01", "2026-06-01"]),
    st.sampled_from(["gfx1100", "gfx90a", "gfx906"]),
)


@pytest.mark.slow
@EXAMPLES
@given(PAIRS)
@example(({"vllm", "aiter", "python==3.14"}, "2026-06-01", "gfx90a"))
def test_conflict_starts_with_requirements(catalog: Catalog, pair: tuple[set[str], str, str]) -> None:
    requirements, day, gfx = pair
    problem = compile_problem(catalog, ask(catalog, " ".join(sorted(requirements)), day=day, gfx=[gfx]))
    if solve_preferred(problem) is not None:
        return
    items = core_items(Session(problem), problem.demands)
    assert len(items) <= MAX_CORE_ITEMS
    assert items[0].text.startswith("you asked for ")
    requested = [item.text.startswith("you asked for ") for item in items if item.kind == "request"]
    assert requested == sorted(requested, reverse=True)


def test_conflict_names_other_gpu_architectures(catalog: Catalog) -> None:
    texts = [
        item.text for item in _conflict(catalog, ask(catalog, "transformer-engine", gfx=["gfx906"])).core
    ]
    assert "every transformer-engine requires GPU architectures other than gfx906" in texts


def test_suggestions_resolve_as_written(clash: tuple[Request, Conflict], catalog: Catalog) -> None:
    request, conflict = clash
    suggestions = conflict.suggestions
    assert len(suggestions) <= MAX_SUGGESTIONS
    assert len({suggestion.request for suggestion in suggestions}) == len(suggestions)
    for suggestion in suggestions:
        changed = suggestion.request
        assert changed != request
        answer = resolve(catalog, changed)
        assert isinstance(answer, Resolution), suggestion.change
        if "(gives " in suggestion.change:
            promised = suggestion.change.rpartition("(gives ")[2].removesuffix(")").split(" and ")
            assert set(promised) <= set(map(str, answer.picks)), suggestion.change


@pytest.mark.parametrize(
    ("requirements", "day", "parts", "change"),
    [
        (
            "rocm==7.1.*",
            "2026-02-15",
            [
                "rocm==7.1.*",
                "ROCm 7.1 is supported on kernel drivers 6.4",
                "has kernel driver 6.3 on 2026-02-15",
            ],
            "any version of rocm instead of rocm==7.1.*",
        ),
        (
            "torch==2.4.0 python==3.13",
            "2026-03-01",
            ["torch==2.4.0", "python==3.13", "published for Python 3.8, 3.9"],
            "any version of torch instead of torch==2.4.0",
        ),
        (
            "apex==1.8.0 torch==2.9.1",
            "2026-04-01",
            ["apex==1.8.0", "torch==2.9.1", "apex 1.8.0 requires torch 2.8.*"],
            "any version of apex instead of apex==1.8.0",
        ),
        (
            "bitsandbytes>=0.49 rocm==6.0.3",
            "2026-02-01",
            ["bitsandbytes>=0.49", "rocm==6.0.3", "require rocm 6.2.0"],
            "any version of rocm instead of rocm==6.0.3",
        ),
        (
            "torch==2.5.1 torch==2.9.1",
            "2026-03-01",
            ["you asked for torch==2.5.1", "you asked for torch==2.9.1"],
            "any version of torch instead of torch==2.5.1",
        ),
    ],
)
def test_conflict_names_reasons_and_smallest_change(
    requirements: str, day: str, parts: list[str], change: str, catalog: Catalog
) -> None:
    conflict = _conflict(catalog, ask(catalog, requirements, day=day))
    texts = [item.text for item in conflict.core]
    assert len(texts) == len(parts)
    assert [part for part, text in zip(parts, texts, strict=True) if part not in text] == []
    assert [suggestion.change for suggestion in conflict.suggestions][:1] != []
    assert conflict.suggestions[0].change.startswith(change)


def test_conflict_cites_driver_and_table(catalog: Catalog) -> None:
    first, table, driver = _conflict(catalog, ask(catalog, "rocm==7.1.*", day="2026-02-15")).core
    assert first.source == "the request"
    assert driver.source == catalog.windows_of("lumi-g")[-1].source
    assert table.source in {row.source for row in catalog.driver.values() if "7.1" in row.supports}


@pytest.mark.parametrize("requirements", ["torch==2.9.1 rocm==6.4.4", "torch==2.9.1 apex==1.9.0"])
def test_other_day_is_suggested(requirements: str, catalog: Catalog) -> None:
    request = ask(catalog, requirements, day="2025-12-31")
    (other,) = [
        suggestion
        for suggestion in _conflict(catalog, request).suggestions
        if "(driver " in suggestion.change
    ]
    assert "driver 6.3" in other.change
    changed = other.request
    assert (changed.target.date.year, changed.requirements) == (2026, request.requirements)


@pytest.mark.parametrize("name", ["torch-cluster", "torch-sparse", "torch-spline-conv"])
def test_another_distribution_of_the_module_is_suggested(name: str, catalog: Catalog) -> None:
    conflict = _conflict(catalog, ask(catalog, f"{name} rocm==7.0.*", site="frontier", day="2026-11-22"))
    text = f"with {name}-rocm, which installs the same module, instead of {name}"
    (other,) = [one for one in conflict.suggestions if one.change.startswith(text)]
    assert {one.name for one in other.request.requirements} == {f"{name}-rocm", "rocm"}


def test_conflict_cites_overlay(overlay: Callable[[str], Path]) -> None:
    path = overlay(
        '[[requires]]\npackage = "deepspeed"\non = "python"\nversions = ["==3.8"]\n'
        'status = "observed"\nsource = "our own notebook"\n'
    )
    core = _conflict(load([path]), ask(load([path]), "deepspeed python==3.12")).core
    assert "our own notebook" in [item.source for item in core]


@pytest.mark.parametrize(
    "requirements",
    [
        "apex==1.8.0 torch==2.9.1 bitsandbytes>=0.49 rocm==6.0.3 python==3.8",
        "transformer-engine==2.8.0 flash-attn==2.8.4 numpy<1.25 python==3.13 vllm==0.20.1 deepspeed==0.12.3",
    ],
)
def test_several_conflicts_still_have_suggestions(requirements: str, catalog: Catalog) -> None:
    request = ask(catalog, requirements, day="2026-06-01")
    conflict = _conflict(catalog, request)
    assert conflict.suggestions
    for suggestion in conflict.suggestions:
        assert isinstance(resolve(catalog, suggestion.request), Resolution), suggestion.change


@pytest.mark.parametrize(
    ("requirements", "options", "change"),
    [
        ("megablocks", {"site": "archer2"}, "for dardel"),
        ("xformers", {"gfx": ["gfx906"]}, "for gfx90a, which lumi-g has"),
        ("apex", {"backend": "cpu"}, "for gfx90a, which lumi-g has"),
        (
            "torch",
            {"site": "local", "backend": "rocm", "gfx": ["gfx950"], "driver": "6.4"},
            "kernel driver 30.10",
        ),
    ],
)
def test_smallest_resolving_change_comes_first(
    requirements: str, options: dict[str, Any], change: str, catalog: Catalog
) -> None:
    names = ("adastra", "archer2", "archer2-cpu", "dardel", "local", "lumi-g")  # another may come first
    catalog = msgspec.structs.replace(catalog, site={name: catalog.site[name] for name in names})
    request = ask(catalog, requirements, **({"day": "2026-11-21"} | options))
    suggestions = _conflict(catalog, request).suggestions
    assert suggestions[0].change.startswith(change)
    for suggestion in suggestions:
        assert isinstance(resolve(catalog, suggestion.request), Resolution), suggestion.change


@pytest.mark.parametrize("requirements", ["aiter", "aiter python==3.10", "aiter torch==2.9.*"])
def test_suggestions_only_name_architectures_of_a_site(requirements: str, catalog: Catalog) -> None:
    """AITER is not for gfx90a, the only architecture of LUMI-G."""
    conflict = _conflict(catalog, ask(catalog, requirements, day="2026-11-21"))
    for suggestion in conflict.suggestions:
        target = suggestion.request.target
        assert target.gfx
        assert set(target.gfx) <= set(catalog.site[target.site].gfx)


@pytest.mark.slow
@EXAMPLES
@given(
    st.sets(
        st.sampled_from(
            [
                "aiter",
                "apex==1.10.0",
                "bitsandbytes",
                "megablocks",
                "xformers",
                "cupy",
                "python==3.9",
                "numpy<2",
            ]
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from(["lumi-g", "archer2", "archer2-cpu"]),
)
def test_suggestions_resolve_and_leave_nothing_out(
    catalog: Catalog, requirements: set[str], site: str
) -> None:
    request = ask(catalog, " ".join(sorted(requirements)), site=site, day="2026-11-21")
    answer = resolve(catalog, request)
    if isinstance(answer, Resolution):
        return
    event(f"suggestions: {len(answer.suggestions)}")
    modules = {name: row.import_name or name for name, row in catalog.package.items()}
    names = {modules.get(requirement.name, requirement.name) for requirement in request.requirements}
    for suggestion in answer.suggestions:
        changed = suggestion.request
        assert isinstance(resolve(catalog, changed), Resolution), suggestion.change
        assert {modules.get(one.name, one.name) for one in changed.requirements} == names
