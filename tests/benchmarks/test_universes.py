"""All formats of a generated catalog agree with its kind."""

from __future__ import annotations

import dataclasses
import zipfile
from datetime import date
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement as Pep508
from packaging.specifiers import SpecifierSet

from benchmarks.pubgrub import Provider, as_range
from benchmarks.pubgrub import resolve as ask_nab
from benchmarks.universes import (
    KINDS,
    ROCM,
    TORCH,
    Kind,
    Universe,
    make,
    requirements,
    specifier,
    to_catalog,
    to_problem,
    write_index,
)
from resolver.answers.resolve import resolve
from resolver.facts.catalog import load
from resolver.model import Conflict, Request, Resolution, Target
from resolver.requirements import parse_requirement
from tests.resolver.solving import propagate, solve_preferred


def _ours(universe: Universe) -> dict[str, int] | None:
    problem = to_problem(universe)
    solution = solve_preferred(problem)
    if solution is None:
        return None
    return {name: int(problem.variables[name].candidate(bit).version) for name, bit in solution.items()}


def _judged(universe: Universe) -> dict[str, int] | None:
    needs = {
        which: {name: as_range(allowed) for name, allowed in needed.items()}
        for which, needed in universe.needs.items()
    }
    versions = {name: range(newest, 0, -1) for name, newest in universe.newest.items()}
    requested = {name: as_range(allowed) for name, allowed in universe.asked.items()}
    return ask_nab(Provider(versions, needs), requested)


@pytest.mark.parametrize("kind", KINDS)
def test_universe_matches_its_kind(kind: Kind) -> None:
    universe = make(12, 12, kind)
    assert universe == make(12, 12, kind)
    solution = _ours(universe)
    assert (solution is None) == (_judged(universe) is None) == (kind == "unsatisfiable")
    assert solution is None or universe.holds(solution)


def test_low_driver_allows_only_oldest_rocm() -> None:
    universe = make(12, 12, "low-driver")
    solution = _ours(universe)
    assert solution is not None
    (driver,) = universe.asked["a-driver"]
    allowed = [version for version in range(1, 13) if driver in universe.needs[ROCM, version]["a-driver"]]
    assert solution[ROCM] == min(allowed) < max(allowed)
    newer = dataclasses.replace(universe, asked=universe.asked | {ROCM: frozenset(allowed) - {min(allowed)}})
    assert _judged(newer) is None


@pytest.mark.parametrize("kind", KINDS)
def test_propagation_leaves_work_for_search(kind: Kind) -> None:
    """Without open choices the benchmark would not measure the search."""
    universe = make(12, 12, kind)
    problem = to_problem(universe)
    domains = propagate(problem)
    assert domains is not None
    assert domains[TORCH].bit_count() > 3


@pytest.mark.parametrize("kind", KINDS)
def test_catalog_of_universe_has_same_solution(kind: Kind, tmp_path: Path) -> None:
    universe = make(12, 12, kind)
    path = tmp_path / "universe.toml"
    path.write_text(to_catalog(universe), encoding="utf-8")
    parsed = map(parse_requirement, requirements(universe))
    target = Target(backend="cpu", site="local", date=date(2026, 11, 21), python="3.12", glibc="2.36")
    answer = resolve(load([path]), Request(target, tuple(parsed)))
    expected = _ours(universe)
    if expected is None:
        assert isinstance(answer, Conflict)
        return
    assert isinstance(answer, Resolution)
    solution = {pick.name: int(pick.version) for pick in answer.picks if pick.kind == "distribution"}
    assert solution == expected


def test_index_of_universe_has_same_requirements(tmp_path: Path) -> None:
    universe = make(4, 4, "satisfiable")
    write_index(universe, tmp_path)
    read: dict[tuple[str, int], dict[str, frozenset[int]]] = {}
    for path in tmp_path.glob("*/*.whl"):
        with zipfile.ZipFile(path) as wheel:
            assert wheel.testzip() is None
            (member,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
            content = wheel.read(member)
        assert path.with_name(f"{path.name}.metadata").read_bytes() == content
        assert path.name in (path.parent / "index.html").read_text(encoding="utf-8")
        metadata = message_from_bytes(content)
        needs = {}
        for text in metadata.get_all("Requires-Dist", []):
            requirement = Pep508(text)
            versions = range(1, universe.newest[requirement.name] + 1)
            needs[requirement.name] = frozenset(
                version for version in versions if str(version) in requirement.specifier
            )
        read[metadata["Name"], int(metadata["Version"])] = needs
    assert read == universe.needs


@pytest.mark.parametrize("versions", [{3}, {1, 2, 3}, {2, 3, 5, 9}, set()])
def test_specifier_allows_exactly_its_versions(versions: set[int]) -> None:
    allowed = SpecifierSet(specifier(frozenset(versions)))
    assert {version for version in range(1, 12) if str(version) in allowed} == versions
