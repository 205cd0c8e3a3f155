"""The rules of the packaging specifications, one small scenario each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from resolver.model import Conflict, Request, Resolution, Target
from resolver.requirements import parse_requirement
from resolver.resolve import resolve
from tests.resolver.open_universe import DAY, GLIBC, catalog_of_pythons, versions_of
from tests.support.indexes import FakeIndexes, FakeRelease

Projects = Mapping[str, Mapping[str, FakeRelease | Sequence[str]]]


def answer(
    projects: Projects | FakeIndexes,
    *requirements: str,
    constraints: Sequence[str] = (),
    overrides: Sequence[str] = (),
    pythons: tuple[str, ...] = ("3.12",),
    glibc: str | None = GLIBC,
    **options: Any,
) -> Resolution | Conflict:
    """Resolve for CPython 3.12 with glibc 2.36 on x86_64, without any catalog."""
    indexes = projects if isinstance(projects, FakeIndexes) else FakeIndexes(projects)
    request = Request(
        Target(site="here", date=DAY, backend="cpu", glibc=glibc),
        tuple(map(parse_requirement, requirements)),
        tuple(map(parse_requirement, constraints)),
        tuple(map(parse_requirement, overrides)),
        **options,
    )
    return resolve(catalog_of_pythons(pythons), request, indexes)


def chosen(projects: Projects | FakeIndexes, *requirements: str, **options: Any) -> dict[str, str]:
    """Return the versions of an answer; empty if there is none."""
    resolution = answer(projects, *requirements, **options)
    return versions_of(resolution) if isinstance(resolution, Resolution) else {}


def versions(*numbers: str, **fields: Any) -> dict[str, FakeRelease]:
    """Return alike releases."""
    return {number: FakeRelease(**fields) for number in numbers}


def test_release_that_requires_older_one_of_itself_is_skipped() -> None:
    assert chosen({"a": {"2": ["a<2"], "1": []}}, "a") == {"a": "1"}


def test_release_may_require_itself() -> None:
    assert chosen({"a": {"2": ["a>=2"], "1": []}}, "a") == {"a": "2"}


@pytest.mark.parametrize(
    ("offered", "requirement", "version"),
    [
        (["1", "2a1"], "a", "1"),
        (["1a1", "1.dev1"], "a", "1a1"),
        (["1", "2a1"], "a>=2a1", "2a1"),
        (["1", "2a1"], "a>=1a1", "2a1"),
        (["1", "2a1"], "a>1", "2a1"),
        (["1", "2+git.1b5"], "a", "2+git.1b5"),
        (["1", "2.post1"], "a", "2.post1"),
        (["1", "2.dev"], "a", "1"),
        (["1", "2RC"], "a", "1"),
    ],
)
def test_prerelease_is_chosen_if_named_or_nothing_else_fits(
    offered: list[str], requirement: str, version: str
) -> None:
    assert chosen({"a": versions(*offered)}, requirement) == {"a": version}


def test_prerelease_that_dependency_names_is_chosen() -> None:
    projects: Projects = {"a": {"1": ["b>=2a1"]}, "b": versions("1", "2a1")}
    assert chosen(projects, "a", "b") == {"a": "1", "b": "2a1"}


def test_prerelease_is_chosen_if_requirements_exclude_all_others() -> None:
    projects: Projects = {"a": {"1a1": [], "1": ["missing"]}}
    assert chosen(projects, "a") == {"a": "1a1"}


def test_override_replaces_requirements_of_request_and_releases() -> None:
    projects: Projects = {"a": {"1": ["b>=2"]}, "b": versions("1", "2", "3")}
    assert chosen(projects, "a", "b==3", overrides=["b==1"]) == {"a": "1", "b": "1"}


def test_override_whose_marker_is_false_removes_requirement() -> None:
    projects: Projects = {"a": {"1": ["b"]}, "b": versions("1")}
    assert chosen(projects, "a", overrides=["b; sys_platform == 'win32'"]) == {"a": "1"}


def test_override_replaces_extras() -> None:
    projects: Projects = {
        "a": {"1": FakeRelease(requires=["b; extra == 'x'"], extras=["x"])},
        "b": versions("1"),
    }
    assert chosen(projects, "a[x]", overrides=["a==1"]) == {"a": "1"}


def test_override_depends_on_python() -> None:
    projects: Projects = {
        "a": {"1": ["b"]},
        "b": {"1": FakeRelease(requires_python="<3.12"), "2": FakeRelease(requires_python="<3.12")},
    }
    overrides = ["b==1; python_version < '3.12'", "b==2; python_version >= '3.12'"]
    assert chosen(projects, "a", overrides=overrides, pythons=("3.12", "3.11")) == {"a": "1", "b": "1"}


def test_constraint_limits_dependency() -> None:
    projects: Projects = {"a": {"1": ["b"]}, "b": versions("1", "2")}
    assert chosen(projects, "a", constraints=["b<2"]) == {"a": "1", "b": "1"}


def test_constraint_without_requirement_does_nothing() -> None:
    assert chosen({"a": versions("1"), "b": versions("1")}, "a", constraints=["b<1"]) == {"a": "1"}


def test_constraint_whose_marker_is_false_does_nothing() -> None:
    constraints = ["a<2; python_version < '3.12'"]
    assert chosen({"a": versions("1", "2")}, "a", constraints=constraints) == {"a": "2"}
    assert chosen({"a": versions("1", "2")}, "a", constraints=constraints, pythons=("3.11",)) == {"a": "1"}


def test_yanked_release_needs_pin() -> None:
    projects: Projects = {"a": {"2": FakeRelease(yanked=""), "1": []}}
    assert chosen(projects, "a") == {"a": "1"}
    assert chosen(projects, "a>=1") == {"a": "1"}
    assert chosen(projects, "a==2") == {"a": "2"}


def test_requirement_that_depends_on_python_can_change_it() -> None:
    requirements = ["a==9; python_version >= '3.12'", "a"]
    assert chosen({"a": versions("1")}, *requirements, pythons=("3.12", "3.11")) == {"a": "1"}


def test_metadata_that_one_python_lacks_changes_python() -> None:
    old = FakeRelease(wheels=["cp311-cp311-manylinux_2_28_x86_64"], sdist=True, static=False)
    resolution = answer({"a": {"1": old}}, "a", pythons=("3.12", "3.11"), support="documented", glibc=None)
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("python") == "3.11"
