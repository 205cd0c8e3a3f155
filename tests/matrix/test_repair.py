"""Environments for CUDA, and the nearest request that resolves."""

from __future__ import annotations

import datetime
import random
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from packaging.specifiers import SpecifierSet

from matrix.judging.repair import Change, Nearest, changed_versions, replaced, requirement_of
from matrix.reading.items import Item
from resolver.answers.resolve import Search
from resolver.compiling.names import replacement
from resolver.facts.catalog import Catalog, load
from resolver.facts.schema import Replaces
from resolver.model import Conflict, Request, Resolution, Target
from resolver.requirements import is_for_cuda
from tests.resolver.open_universe import DAY, GLIBC, catalog_of_pythons
from tests.support.indexes import FakeIndexes, FakeRelease

CATALOG = load()
LUMI = Request(Target(site="lumi-g", date=datetime.date(2026, 11, 20), backend="rocm", gfx=("gfx90a",)))
HERE = Request(Target(site="here", date=DAY, backend="cpu", glibc=GLIBC))
Projects = Mapping[str, Mapping[str, FakeRelease | Sequence[str]]]


def repaired(
    projects: Projects, pins: Mapping[str, str], request: Request = HERE, catalog: Catalog | None = None
) -> tuple[Resolution | Conflict, dict[str, str], list[Change]]:
    """Return the answer to the nearest request, its requirements by name, and the changed versions."""
    catalog = catalog or catalog_of_pythons(("3.12",))
    wanted = [Item(name=name, version=version) for name, version in pins.items()]
    indexes = FakeIndexes(projects)
    found = Nearest(catalog, request, wanted, indexes)
    if conflict := found.relax():
        return conflict, {}, []
    requirements, reasons = found.requirements, found.reasons
    answer = Search(catalog, replace(request, requirements=requirements), indexes).answer
    assert isinstance(answer, Resolution)
    changes = list(changed_versions(answer, wanted, reasons))
    return answer, {item.name: item.text for item in requirements}, changes


def test_environment_that_resolves_is_not_changed() -> None:
    _, requirements, changes = repaired(
        {"a": {"2": [], "1": ["b<2"]}, "b": {"2": [], "1": []}}, {"a": "1", "b": "1"}
    )
    assert requirements == {"a": "a==1", "b": "b==1"}
    assert changes == []


def test_wheel_that_we_built_from_an_sdist_is_that_release() -> None:
    """No index has its label, and the catalog does not know it."""
    projects: Projects = {"a": {"2": FakeRelease(sdist=True, wheels=()), "1": []}}
    answer, requirements, changes = repaired(projects, {"a": "2+cpu.notorch"})
    assert isinstance(answer, Resolution)
    assert (requirements, changes, answer.built()[0].pinned) == ({"a": "a==2"}, [], "2+cpu.notorch")


@pytest.mark.parametrize(
    ("published", "requirement", "version"),
    [
        (["1.2.4", "1.3.0", "2.0"], "a==1.2.*", "1.2.4"),
        (["1.1.0", "1.3.0", "2.0"], "a==1.*", "1.3.0"),
        (["0.9", "2.0", "3.0"], "a", "3.0"),
    ],
    ids=["patch", "minor", "major"],
)
def test_missing_version_is_relaxed_step_by_step(
    published: list[str], requirement: str, version: str
) -> None:
    answer, requirements, (change,) = repaired({"a": {number: [] for number in published}}, {"a": "1.2.3"})
    assert requirements == {"a": requirement}
    assert (change.before, change.after) == ("a 1.2.3", version)
    assert change.reason == "No release of a matches 'a==1.2.3'"
    assert isinstance(answer, Resolution)


def test_conflicting_pin_is_relaxed_with_its_reason() -> None:
    projects: Projects = {"a": {"1.0.0": ["b>=1.1"]}, "b": {"1.0.0": [], "1.1.0": [], "2.0.0": []}}
    _, requirements, (change,) = repaired(projects, {"b": "1.0.0", "a": "1.0.0"})
    assert requirements["a"] == "a==1.0.0"
    assert (change.before, change.after) == ("b 1.0.0", "1.1.0")
    assert change.reason == "a 1.0.0 requires b>=1.1"


def test_conflict_that_no_pin_causes_remains() -> None:
    answer, _, _ = repaired({"a": {"1": ["b>1"]}, "b": {"1": []}}, {"a": "1"})
    assert isinstance(answer, Conflict)


def random_universe(chance: random.Random) -> tuple[dict[str, dict[str, list[str]]], dict[str, str]]:
    """Return projects that require one another, and pins of some of them."""
    versions = ("1.0.0", "1.0.1", "1.1.0", "2.0.0")
    names = ("a", "b", "c", "d")
    projects = {
        name: {
            version: [
                f"{chance.choice(names)}{chance.choice(['<', '>=', '==', '!='])}{chance.choice(versions)}"
                for _ in range(chance.choice([0, 1, 1, 2]))
            ]
            for version in chance.sample(versions, 3)
        }
        for name in names
    }
    return projects, {name: chance.choice(versions) for name in chance.sample(names, 3)}


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed % 6 else []) for seed in range(150)]
)
def test_no_relaxed_pin_of_a_conflict_can_be_restored_alone(seed: int) -> None:
    """Judged by solving once more with the exact version of each change."""
    projects, pins = random_universe(random.Random(seed))
    catalog, indexes = catalog_of_pythons(("3.12",)), FakeIndexes(projects)
    wanted = [Item(name=name, version=version) for name, version in pins.items()]
    found = Nearest(catalog, HERE, wanted, indexes)
    free = replace(HERE, requirements=tuple(requirement_of(item, 4) for item in wanted))
    if found.relax():
        assert not isinstance(Search(catalog, free, indexes).answer, Resolution)
        return
    requirements, reasons = found.requirements, found.reasons
    by_name = {item.name: item for item in requirements}
    answer = Search(catalog, replace(HERE, requirements=tuple(by_name.values())), indexes).answer
    assert isinstance(answer, Resolution)
    chosen = {pick.name: pick.version for pick in answer.distributions}
    changes = {change.before.split()[0] for change in changed_versions(answer, wanted, reasons)}
    assert changes == {name for name, version in pins.items() if chosen[name] != version}
    for name in changes:
        if pins[name] in projects[name]:
            exact = {**by_name, name: requirement_of(Item(name=name, version=pins[name]), 0)}
            restored = Search(catalog, replace(HERE, requirements=tuple(exact.values())), indexes).answer
            assert not isinstance(restored, Resolution)


def test_torch_for_cuda_keeps_its_version_where_rocm_has_it() -> None:
    wanted = [Item(name="torch", version="2.5.1+cu124"), Item(name="torchvision", version="0.20.1+cu124")]
    found = Nearest(CATALOG, LUMI, wanted, None)
    assert found.relax() is None
    requirements, reasons = found.requirements, found.reasons
    answer = Search(CATALOG, replace(LUMI, requirements=requirements), None).answer
    assert isinstance(answer, Resolution)
    first, second = changed_versions(answer, wanted, reasons)
    assert (first.before, first.for_cuda, second.for_cuda) == ("torch 2.5.1+cu124", True, True)
    assert first.after.startswith("2.5.1+rocm")
    assert second.after.startswith("0.20.1+rocm")


def test_torch_that_rocm_does_not_have_is_relaxed_to_the_nearest() -> None:
    found = Nearest(CATALOG, LUMI, [Item(name="torch", version="2.5.9+cu118")], None)
    assert found.relax() is None
    requirements, reasons = found.requirements, found.reasons
    assert str(requirements[0]) == "torch==2.5.*"
    assert reasons["torch"].text == "No known version of torch matches 'torch==2.5.9'"


def test_python_is_pinned_to_its_release_line() -> None:
    found = Nearest(
        CATALOG, LUMI, [Item(name="python", version="3.11.9"), Item(name="torch", version="2.5.1")], None
    )
    assert found.relax() is None
    assert str(found.requirements[0]) == "python==3.11.*"


@pytest.mark.parametrize("row", CATALOG.replaces.values(), ids=lambda row: row.title)
def test_every_row_replaces_what_it_names(row: Replaces) -> None:
    name = row.name.replace("*", "12x" if row.name.endswith(("-cu*", "cuda*")) else "x")
    kept, (change,) = replaced(
        CATALOG, [Item(name=name, version="1.0", installer="conda" if row.conda else "pip")]
    )
    assert [item.name for item in kept] == list(row.by)
    assert change.before == f"{name} 1.0"
    assert change.source == row.source
    assert change.needed == (row.effect == "none")
    assert bool(row.by) == (row.effect in {"rocm", "cpu"})


@pytest.mark.parametrize("name", ["nvidia-ml-py", "nvtx", "cufflinks", "tritonclient", "spconv"])
def test_pattern_applies_only_to_what_is_for_cuda(name: str) -> None:
    assert replacement(CATALOG, name) is None
    assert not is_for_cuda(name)


def test_unknown_distribution_for_cuda_is_not_left_out_in_silence() -> None:
    kept, (change,) = replaced(
        CATALOG, [Item(name="unheard-cu12", version="1.0"), Item(name="requests", version="2.32.3")]
    )
    assert [item.name for item in kept] == ["requests"]
    assert change.needed
    assert change.for_cuda


def test_dropped_distribution_needs_no_replacement() -> None:
    kept, (change,) = replaced(CATALOG, [Item(name="natten", version="0.21")], drop=["natten"])
    assert (kept, change.needed) == ([], False)


def test_of_two_lines_the_one_with_a_version_counts() -> None:
    kept, _ = replaced(
        CATALOG, [Item(name="pytorch", installer="conda"), Item(name="torch", version="2.5.1+cu124")]
    )
    assert kept == [Item(name="torch", version="2.5.1+cu124")]


def test_torch_moves_last() -> None:
    """Either could move by a minor release: torch to 2.8, or torchvision to 0.24."""
    for pins in ({"torch": "2.9.1", "torchvision": "0.23.0"}, {"torchvision": "0.23.0", "torch": "2.9.1"}):
        answer, _, changes = repaired({}, pins, LUMI, CATALOG)
        assert isinstance(answer, Resolution)
        assert answer.version_of("torch").startswith("2.9.1")
        assert [(change.before, change.after[:4]) for change in changes] == [("torchvision 0.23.0", "0.24")]


def test_order_of_the_pins_does_not_decide_what_moves() -> None:
    projects: Projects = {
        "base": {"2.9.1": [], "2.9.0": []},
        "ext": {"1.0.1": ["base==2.9.1"], "1.0.0": ["base==2.9.0"]},
    }
    pins = {"base": "2.9.1", "ext": "1.0.0"}
    first, second = (repaired(projects, dict(order)) for order in (pins.items(), reversed(pins.items())))
    assert first[1:] == second[1:]
    assert len(first[2]) == 1


NUMBER = st.integers(0, 2030).map(str)
RELEASE = st.lists(NUMBER, min_size=1, max_size=5).map(".".join)
VERSION = st.tuples(
    st.sampled_from(["", "1!"]),
    RELEASE,
    st.sampled_from(["", "a1", "b2", "rc0"]),
    st.sampled_from(["", ".post1"]),
    st.sampled_from(["", ".dev3"]),
    st.sampled_from(["", "+rocm6.4", "+git0123abc"]),
).map("".join)


@given(VERSION, st.integers(0, 4))
def test_each_version_can_be_relaxed(version: str, level: int) -> None:
    """A pin of 0.66b2 (opentelemetry) became ==0.66b2.*, which is no specifier, and nothing was judged."""
    requirement = requirement_of(Item(name="some", version=version), level)
    allowed = SpecifierSet(str(requirement.specifier or ""), prereleases=True)
    assert allowed.contains(version) or (level > 1 and allowed.contains(version.partition("+")[0]))
