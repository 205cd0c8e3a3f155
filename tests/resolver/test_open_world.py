"""The rules of the packaging specifications, one small scenario each."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from resolver.answers import explain
from resolver.answers import resolve as resolve_module
from resolver.answers.resolve import resolve
from resolver.errors import MatrixError, SourceError, TooLargeError, UsageError
from resolver.facts.catalog import Catalog, load
from resolver.indexes import File, Metadata
from resolver.model import Conflict, Preinstalled, Request, Resolution, Target
from resolver.requirements import parse_requirement
from resolver.solving import projects as projects_module
from resolver.solving import session
from tests.resolver.open_universe import DAY, GLIBC, catalog_of_pythons, open_universe, versions_of
from tests.resolver.solve_helpers import ask
from tests.support.indexes import FakeIndexes, FakeRelease, ListedRelease

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
    """Return releases with the same fields."""
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
        (["1", "2+git.1b5"], "a", "2+git.1b5"),
        (["1", "2.post1"], "a", "2.post1"),
        (["1", "2.dev"], "a", "1"),
        (["1", "2RC"], "a", "1"),
    ],
)
def test_prerelease_is_chosen_if_named_or_project_has_nothing_else(
    offered: list[str], requirement: str, version: str
) -> None:
    assert chosen({"a": versions(*offered)}, requirement) == {"a": version}


@pytest.mark.parametrize(
    ("projects", "requirements", "named"),
    [
        ({"a": versions("1", "2a1")}, ["a>1"], {"a": "2a1"}),
        ({"a": {"1": ["b>=2a1"]}, "b": versions("1", "2a1")}, ["a", "b"], {"a": "1", "b": "2a1"}),
        ({"a": {"1a1": [], "1": ["missing"]}}, ["a"], {"a": "1a1"}),
        (
            {"a": {"2rc1": [], "1": FakeRelease(requires_python="<3.12")}},
            ["a"],
            {"a": "2rc1"},
        ),
    ],
    ids=["range", "dependency", "requirements", "python"],
)
def test_prerelease_that_request_does_not_name_is_refused(
    projects: Projects, requirements: list[str], named: dict[str, str]
) -> None:
    assert chosen(projects, *requirements) == {}
    name, version = next((name, version) for name, version in named.items() if not version.isdecimal())
    assert chosen(projects, *requirements, f"{name}>={version}") == named


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


class _YankedFile(FakeIndexes):
    """Indexes that have yanked files whose name ends so, and not the rest of their release (PEP 592)."""

    def __init__(self, projects: Projects, ending: str) -> None:
        super().__init__(projects)
        for name, project in self._projects.items():
            (release,) = project.releases
            files = (
                replace(file, yanked="broken") if file.name.endswith(ending) else file
                for file in release.files
            )
            self._projects[name] = replace(project, releases=(ListedRelease(release.version, tuple(files)),))


@pytest.mark.parametrize(
    ("ending", "left"),
    [
        ("cp312-manylinux_2_28_x86_64.whl", ["h5py-3.9-py3-none-any.whl"]),
        ("py3-none-any.whl", ["h5py-3.9-cp312-cp312-manylinux_2_28_x86_64.whl"]),
        (".whl", ["h5py-3.9.tar.gz"]),
    ],
)
@pytest.mark.parametrize("text", ["h5py", "h5py==3.9"])
def test_yanked_file_is_left_out_of_a_release_that_has_others(
    ending: str, left: list[str], text: str
) -> None:
    wheels = ["cp312-cp312-manylinux_2_28_x86_64", "py3-none-any"]
    projects: Projects = {"h5py": {"3.9": FakeRelease(wheels=wheels, sdist=True)}}
    resolution = answer(_YankedFile(projects, ending), text)
    assert isinstance(resolution, Resolution)
    (pick,) = resolution.distributions
    installed = [file.name for file in pick.files]
    assert installed[: len(left)] == left
    assert not any(name.endswith(ending) for name in installed)


def test_requirement_that_depends_on_python_can_change_it() -> None:
    requirements = ["a==9; python_version >= '3.12'", "a"]
    assert chosen({"a": versions("1")}, *requirements, pythons=("3.12", "3.11")) == {"a": "1"}


def test_metadata_that_one_python_lacks_changes_python() -> None:
    old = FakeRelease(wheels=["cp311-cp311-manylinux_2_28_x86_64"], sdist=True, static=False)
    indexes = WheelMetadata({"a": {"1": old}})
    resolution = answer(indexes, "a", pythons=("3.12", "3.11"), glibc=None)
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("python") == "3.11"


def with_extras(**requires: Sequence[str]) -> FakeRelease:
    """Return a release with extras, each with its requirements."""
    texts = [f"{text}; extra == '{extra}'" for extra, names in requires.items() for text in names]
    return FakeRelease(requires=texts, extras=list(requires))


PAIR = versions("1", "2")


@pytest.mark.parametrize("name", ["My_Project", "my.project", "MY--project"])
def test_names_are_normalized(name: str) -> None:
    projects: Projects = {"my-project": {"1": []}, "a": {"1": [name]}}
    assert chosen(projects, name, "a") == {"my-project": "1", "a": "1"}


def test_extra_brings_its_requirements() -> None:
    projects: Projects = {"a": {"1": with_extras(x=["b<2"])}, "b": PAIR}
    assert chosen(projects, "a") == {"a": "1"}
    assert chosen(projects, "A[X]") == {"a": "1", "b": "1"}


@pytest.mark.parametrize("marker", ["", "; python_version >= '3.8'", "; os_name == 'posix' or extra == 'x'"])
def test_requirement_with_and_without_an_extra_is_one_fact(marker: str) -> None:
    """Without its extra, it belongs to the project, and the extra says nothing new."""
    release = FakeRelease(requires=[f"b>=1{marker}", "c; extra == 'x'"], extras=["x"])
    resolution = answer({"a": {"1": release}, "b": PAIR, "c": PAIR}, "a[x]")
    assert isinstance(resolution, Resolution)
    pick = resolution.pick("b")
    assert pick is not None
    assert [fact.text for fact in pick.facts if "requires" in fact.text] == ["a 1 requires b>=1"]


def test_unknown_extra_is_ignored() -> None:
    assert chosen({"a": {"1": with_extras(x=["b"])}, "b": PAIR}, "a[y]") == {"a": "1"}


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ("a", {"a": "3"}),
        ("a[x]", {"a": "2", "b": "2"}),
        ("a[y]", {"a": "1", "c": "2"}),
        ("a[z]", {"a": "3"}),
        ("a[x]==3", {"a": "3"}),
        ("a[x]>2", {}),
        ("a[x,y]", {}),
        ("d", {"d": "1", "a": "3"}),
    ],
)
def test_requested_extra_is_a_requirement(requested: str, expected: dict[str, str]) -> None:
    """It is one if some release has it, unless a release is pinned; a project's own requirement is not."""
    releases = {"3": FakeRelease(), "2": with_extras(x=["b"]), "1": with_extras(y=["c"])}
    projects: Projects = {"a": releases, "b": PAIR, "c": PAIR, "d": {"1": ["a[x]"]}}
    assert chosen(projects, requested) == expected


def test_release_after_the_day_does_not_provide_an_extra() -> None:
    later = FakeRelease(requires=["b; extra == 'x'"], extras=["x"], uploaded="2027-01-01")
    assert chosen({"a": {"2": later, "1": FakeRelease()}, "b": PAIR}, "a[x]") == {"a": "1"}


def test_extra_refers_to_extras_of_itself() -> None:
    release = with_extras(all=["a[x,y]"], x=["b"], y=["c"])
    assert chosen({"a": {"1": release}, "b": PAIR, "c": PAIR}, "a[all]") == {"a": "1", "b": "2", "c": "2"}


def test_extra_of_dependency_counts() -> None:
    projects: Projects = {"a": {"1": ["b[x]"]}, "b": {"1": with_extras(x=["c"])}, "c": PAIR}
    assert chosen(projects, "a") == {"a": "1", "b": "1", "c": "2"}


def test_conflict_in_extra_changes_release_of_its_project() -> None:
    projects: Projects = {"a": {"2": with_extras(x=["b>2"]), "1": with_extras(x=["b"])}, "b": PAIR}
    assert chosen(projects, "a[x]") == {"a": "1", "b": "2"}
    assert chosen(projects, "a") == {"a": "2"}


@pytest.mark.parametrize(
    ("marker", "applies"),
    [
        ("python_version == '3.12'", True),
        ("python_version < '3.9'", False),
        ("python_version < '3.2'", False),
        ("python_full_version >= '3.12.4'", True),
        ("sys_platform == 'linux' and platform_machine == 'x86_64'", True),
        ("platform_system == 'Windows'", False),
        ("platform_system == 'Darwin' and platform_machine == 'arm64'", False),
        ("implementation_name == 'pypy' or platform_python_implementation == 'PyPy'", False),
        ("platform_python_implementation == 'CPython'", True),
        ("os_name == 'nt'", False),
        ("'linux' in sys_platform", True),
        ("python_version not in '3.11, 3.12'", False),
        ("extra == 'x'", False),
        ("extra == 'x' or os_name == 'posix'", True),
    ],
)
def test_marker_decides_requirement(marker: str, applies: bool) -> None:
    projects: Projects = {"a": {"1": [f"b; {marker}"]}, "b": PAIR}
    assert chosen(projects, "a") == ({"a": "1", "b": "2"} if applies else {"a": "1"})


@pytest.mark.parametrize(
    ("marker", "applies"),
    [
        ("extra == 'x' and python_version >= '3.8'", True),
        ("extra == 'x' and sys_platform == 'win32'", False),
        ("(extra == 'y' or extra == 'x') and os_name == 'posix'", True),
        ("extra == 'X'", True),
    ],
)
def test_extra_is_combined_with_other_markers(marker: str, applies: bool) -> None:
    projects: Projects = {"a": {"1": FakeRelease(requires=[f"b; {marker}"], extras=["x", "y"])}, "b": PAIR}
    assert chosen(projects, "a[x]") == ({"a": "1", "b": "2"} if applies else {"a": "1"})


@pytest.mark.parametrize(
    ("requires_python", "version"),
    [
        (">=3.13", "1"),
        ("<3.12", "1"),
        (">=3.12.3", "1"),
        ("!=3.12.*", "1"),
        (">=3.6,<4", "2"),
        ("nonsense", "2"),
    ],
)
def test_requires_python_excludes_releases(requires_python: str, version: str) -> None:
    projects: Projects = {"a": {"2": FakeRelease(requires_python=requires_python), "1": []}}
    assert chosen(projects, "a") == {"a": version}


def test_release_for_newer_patch_releases_is_the_last_choice() -> None:
    assert chosen({"a": versions("1", requires_python=">=3.12.3")}, "a") == {"a": "1"}


def test_requires_python_of_old_releases_does_not_help() -> None:
    projects: Projects = {
        "a": {"2": FakeRelease(requires_python=">=3.13"), "1": FakeRelease(requires_python="<3.8")}
    }
    conflict = answer(projects, "a")
    assert isinstance(conflict, Conflict)
    assert any("requires Python >=3.13" in item.text for item in conflict.core)


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("cp312-cp312-manylinux_2_36_x86_64", True),
        ("cp312-cp312-manylinux_2_37_x86_64", False),
        ("cp312-cp312-manylinux2014_x86_64", True),
        ("cp312-cp312-linux_x86_64", True),
        ("cp312-cp312-manylinux_2_17_aarch64", False),
        ("cp311-cp311-manylinux_2_17_x86_64", False),
        ("cp313-cp313t-manylinux_2_17_x86_64", False),
        ("cp39-abi3-manylinux_2_17_x86_64", True),
        ("cp313-abi3-manylinux_2_17_x86_64", False),
        ("py2.py3-none-any", True),
        ("py2-none-any", False),
        ("py3-none-manylinux_2_17_x86_64", True),
        ("py312-none-any", True),
        ("cp312-none-any", True),
        ("cp312-cp312-macosx_11_0_arm64", False),
        ("cp312-cp312-win_amd64", False),
        ("cp312-cp312-musllinux_1_2_x86_64", False),
        ("pp310-pypy310_pp73-manylinux_2_17_x86_64", False),
    ],
)
def test_tags_decide_which_wheel_fits(tag: str, fits: bool) -> None:
    projects: Projects = {"a": {"2": FakeRelease(wheels=[tag]), "1": []}}
    assert chosen(projects, "a") == {"a": "2" if fits else "1"}


def test_best_wheel_comes_first() -> None:
    tags = ["py3-none-any", "cp312-cp312-manylinux_2_17_x86_64", "cp311-cp311-manylinux_2_17_x86_64"]
    resolution = answer({"a": {"1": FakeRelease(wheels=tags, sdist=True)}}, "a")
    assert isinstance(resolution, Resolution)
    (pick,) = resolution.distributions
    assert [file.name.split("-", 2)[2] for file in pick.files] == [f"{tags[1]}.whl", f"{tags[0]}.whl"]


def test_sdist_with_static_metadata_can_be_chosen() -> None:
    sdist = FakeRelease(wheels=(), sdist=True, requires=["b<2"])
    resolution = answer({"a": {"1": sdist}, "b": PAIR}, "a")
    assert isinstance(resolution, Resolution)
    assert versions_of(resolution) == {"a": "1", "b": "1"}
    assert resolution.distributions[1].origin == "build"


def test_sdist_without_static_metadata_is_skipped_and_reported() -> None:
    projects: Projects = {
        "a": {
            "2": FakeRelease(wheels=(), sdist=True, static=False),
            "1": FakeRelease(wheels=(), sdist=True),
        }
    }
    resolution = answer(WheelMetadata(projects), "a", glibc=None)
    assert isinstance(resolution, Resolution)
    assert versions_of(resolution) == {"a": "1"}
    assert any(warning.startswith("a 2 was skipped") for warning in resolution.warnings)


@pytest.mark.parametrize("requirement", ["b>=x", "not a requirement", "b; nonsense == 'x'", "b[", "b ~= 1"])
def test_release_with_invalid_requirement_is_skipped_and_reported(requirement: str) -> None:
    resolution = answer({"a": {"2": [requirement], "1": []}, "b": PAIR}, "a")
    assert isinstance(resolution, Resolution)
    assert versions_of(resolution) == {"a": "1"}
    assert any(warning.startswith("a 2 was skipped") for warning in resolution.warnings)


def test_release_without_hashes_can_be_chosen() -> None:
    assert chosen({"a": versions("1", hashed=False)}, "a") == {"a": "1"}


@pytest.mark.parametrize(
    ("specifier", "version"),
    [
        (">=1", "1!0.1"),
        ("<1!0", "2.1.post1"),
        ("==2.1", "2.1+local"),
        ("===2.1", "2.1"),
        ("===2.1+local", "2.1+local"),
        ("!=1!0.1,!=2.1.*", "2.0"),
        ("~=2.0", "2.1.post1"),
        ("~=2.0.0", "2.0"),
        ("==2.*", "2.1.post1"),
        ("==2.1.post1", "2.1.post1"),
        ("<2.1", "2.0"),
        (">2.1,<3", ""),
        (">2.0,<=2.1", "2.1+local"),
        ("==02.1.00", "2.1+local"),
    ],
)
def test_specifiers_choose_versions(specifier: str, version: str) -> None:
    projects: Projects = {
        "a": versions("1!0.1", "2.1.post1", "2.1+local", "2.1", "2.0"),
        "b": {"1": [f"a{specifier}"]},
    }
    assert chosen(projects, "b").get("a", "") == version


def test_cycle_is_allowed() -> None:
    projects: Projects = {"a": {"1": ["b"], "2": ["b>2"]}, "b": {"1": ["a"], "2": ["a<2"]}}
    assert chosen(projects, "a") == {"a": "1", "b": "2"}


def test_two_ranges_of_request_are_both_met() -> None:
    assert chosen({"a": versions("1", "2", "3")}, "a>1", "a<3") == {"a": "2"}


def test_date_excludes_later_uploads() -> None:
    projects: Projects = {
        "a": {
            "3": FakeRelease(uploaded="2026-11-22T00:00:01Z"),
            "2": FakeRelease(uploaded="2026-11-21T23:00:00Z"),
        },
        "b": {"2": FakeRelease(uploaded="2027-01-01T00:00:00Z"), "1": []},
    }
    assert chosen(projects, "a", "b") == {"a": "2", "b": "1"}


@pytest.mark.parametrize("dated", [True, False])
def test_release_without_a_day_is_named_in_the_answer_for_a_day(catalog: Catalog, dated: bool) -> None:
    indexes = FakeIndexes({"a": {"1": []}, "b": {"1": FakeRelease(uploaded="2026-01-01T00:00:00Z")}})
    request = replace(ask(catalog, "a b", site="local"), dated=dated)
    lock = resolve(catalog, request, indexes)
    assert isinstance(lock, Resolution)
    said = [text for text in lock.warnings if "days of a 1 are not known" in text]
    assert len(said) == dated


def test_project_that_no_index_has_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"No index has the project 'missing'.*index\.example"):
        answer({}, "missing")


def test_release_that_requires_missing_project_is_skipped() -> None:
    assert chosen({"a": {"2": ["missing"], "1": []}}, "a") == {"a": "1"}


def test_release_that_requires_cuda_is_rejected_with_its_chain() -> None:
    projects: Projects = {
        "a": {"2": ["b"], "1": []},
        "b": {"1": ["nvidia-cublas-cu12"]},
        "nvidia-cublas-cu12": PAIR,
    }
    assert chosen(projects, "a") == {"a": "1"}
    conflict = answer(projects, "a>=2")
    assert isinstance(conflict, Conflict)
    texts = " ".join(item.text for item in conflict.core)
    assert "a 2 requires b" in texts
    assert "b 1 requires nvidia-cublas-cu12" in texts


def test_preinstalled_release_stays() -> None:
    preinstalled = Preinstalled("environment", {"a": "1", "b": "0.5"})
    projects: Projects = {"a": PAIR, "c": {"2": ["b>=1"], "1": ["b", "a"]}}
    resolution = answer(projects, "c", preinstalled=preinstalled)
    assert isinstance(resolution, Resolution)
    assert versions_of(resolution) == {"a": "1", "b": "0.5", "c": "1"}
    origins = {pick.name: (pick.origin, bool(pick.files)) for pick in resolution.distributions}
    assert origins["a"] == origins["b"] == ("preinstalled", False)
    assert origins["c"] == ("published", True)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ("b==1", "you asked for b==1, but the base image contains b 0.5"),
        ("c==2", "c 2 requires b>=1, but the base image contains b 0.5"),
    ],
)
def test_what_contradicts_a_preinstalled_release_is_a_conflict_unless_it_is_replaced(
    asked: str, text: str
) -> None:
    projects: Projects = {"a": PAIR, "b": PAIR, "c": {"2": ["b>=1"], "1": ["b", "a"]}}
    kept = Preinstalled("environment", {"a": "1", "b": "0.5"})
    conflict = answer(projects, asked, preinstalled=kept)
    assert isinstance(conflict, Conflict)
    assert text in [item.text for item in conflict.core]
    assert any("b" in getattr(one.request.preinstalled, "replaced", ()) for one in conflict.suggestions)
    kept_too = [one for one in conflict.suggestions if one.request.preinstalled == kept]
    nearest = [
        answer(projects, *(each.text for each in one.request.requirements), preinstalled=kept)
        for one in kept_too
    ]
    assert {"b": "b 0.5", "c": "c 1"}[asked[0]] in [
        f"{pick.name} {pick.version}"
        for found in nearest
        if isinstance(found, Resolution)
        for pick in found.distributions
    ]
    replaced = Preinstalled("environment", {"a": "1"}, ("b",))
    resolution = answer(projects, asked, preinstalled=replaced)
    assert isinstance(resolution, Resolution)
    assert [pick.origin for pick in resolution.distributions if pick.name == "b"] == ["published"]


def test_python_changes_if_package_requires_it() -> None:
    projects: Projects = {"a": {"1": ["b"]}, "b": versions("1", requires_python="<3.12")}
    resolution = answer(projects, "a", pythons=("3.13", "3.12", "3.11"))
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("python") == "3.11"


def test_torch_of_catalog_changes_if_package_requires_it(catalog: Catalog) -> None:
    indexes = FakeIndexes({"lightning": {"2.0.1": ["torch<2.2"]}, "torch": versions("2.9.1", "2.1.2")})
    resolution = resolve(catalog, ask(catalog, "lightning", backend="cpu", site="local"), indexes)
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("torch").startswith("2.1.")
    assert resolution.version_of("torch").endswith("+cpu")


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"overrides": ["torch==2.5.1"]}, "2.5."),
        ({"constraints": ["torch<2.10; python_version >= '3.0'"]}, "2.9."),
        ({"constraints": ["torch<2.6; python_version < '3.0'"]}, "2.1"),
    ],
)
def test_limits_on_torch_of_catalog(catalog: Catalog, fields: dict[str, list[str]], line: str) -> None:
    request = ask(catalog, "torch>=2.9", backend="cpu", site="local")
    limits = {name: tuple(map(parse_requirement, texts)) for name, texts in fields.items()}
    resolution = resolve(catalog, replace(request, **limits), FakeIndexes({}))
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("torch").startswith(line)


def count(projects: Projects, *requirements: str) -> tuple[dict[str, str], int]:
    """Return the versions of an answer, and the number of metadata files that were read."""
    indexes = FakeIndexes(projects)
    return chosen(indexes, *requirements), len(indexes.read)


@pytest.mark.slow
def test_many_requirements_are_read_once() -> None:
    names = [f"p{number}" for number in range(1000)]
    picks, read = count(dict.fromkeys(names, PAIR), *names)
    assert len(picks) == 1000
    assert read == 1000


def test_project_with_many_files_is_searched_without_reading_them() -> None:
    releases = {
        f"1.{number}": FakeRelease(wheels=[f"cp3{tag}-none-any" for tag in range(10, 20)])
        for number in range(1000)
    }
    assert count({"a": releases}, "a<1.500") == ({"a": "1.499"}, 1)


def test_deep_chain_is_followed() -> None:
    projects: Projects = {
        f"p{number}": {"1": [f"p{number + 1}"] if number < 499 else ["p0"]} for number in range(500)
    }
    picks, read = count(projects, "p0")
    assert (len(picks), read) == (500, 500)


def test_conflict_at_end_of_deep_chain_is_proved() -> None:
    projects: Projects = {
        f"p{number}": {"1": [f"p{number + 1}"] if number < 149 else ["p0>1"]} for number in range(150)
    }
    picks, read = count(projects, "p0")
    assert picks == {}
    assert read <= 300  # once to find the conflict, once to explain it


def test_hundreds_of_conflicting_releases_are_left_behind() -> None:
    releases = {f"1.{number}": ["b>=2" if number >= 1500 else "b"] for number in range(1800)}
    picks, read = count({"a": releases, "b": versions("1")}, "a", "b")
    assert picks == {"a": "1.1499", "b": "1"}
    assert read <= 302


@pytest.mark.slow
def test_prefetched_pages_do_not_change_answer() -> None:
    """Work for the cache runs at once, later in other threads, or never: the lock is the same."""
    for seed in range(40):
        universe = open_universe(random.Random(seed))
        locks = set()
        for indexes in (FakeIndexes, Prefetching, Threaded):
            try:
                picks = resolve(universe.catalog, universe.request, indexes(universe.projects))
                locks.add(msgspec.json.encode(picks, enc_hook=str))
            except UsageError as error:
                locks.add(error.message.encode())
        assert len(locks) == 1, seed


class Prefetching(FakeIndexes):
    """Indexes that run submitted work at once."""

    def is_cached(self, name: str) -> bool:  # noqa: ARG002  no project is cached
        return False

    def submit(self, work: Callable[[], object]) -> None:
        with suppress(MatrixError):
            work()


class Threaded(Prefetching):
    """Indexes that start a thread for submitted work."""

    def submit(self, work: Callable[[], object]) -> None:
        threading.Thread(target=super().submit, args=(work,)).start()


@pytest.mark.parametrize(
    ("on", "versions", "keys", "resolves"),
    [
        ("gfx", "gfx90a", "", False),
        ("gfx", "gfx90a", "partial = true", True),
        ("gfx", "gfx942", "", True),
        ("glibc", ">=2.35", "", True),
        ("glibc", ">=2.99", "", False),
        ("kernel-driver", ">=6.2", "", True),
        ("kernel-driver", ">=6.4", "", False),
    ],
)
def test_facts_of_catalog_about_files_and_systems(
    on: str, versions: str, keys: str, overlay: Callable[[str], Path], *, resolves: bool
) -> None:
    known = 'status = "observed"\nsource = "somewhere"\n'
    rows = (
        f'[[package]]\nname = "openext"\ntitle = "x"\npypi = "same"\n{known}'
        f'[[release]]\npackage = "openext"\nversion = "1.0"\npypi = true\n{known}'
        f'[[requires]]\npackage = "openext"\non = "{on}"\nversions = ["{versions}"]\n{keys}\n{known}'
    )
    catalog = load([overlay(rows)])
    request = ask(
        catalog,
        "openext",
        site="local",
        backend="rocm",
        gfx=["gfx942"],
        driver="6.3",
        glibc="2.39",
    )
    outcome = resolve(catalog, request, FakeIndexes({"openext": {"1.0": FakeRelease()}}))
    assert isinstance(outcome, Resolution) is resolves


def test_facts_of_the_catalog_limit_distributions_outside_it(overlay: Callable[[str], Path]) -> None:
    head = '[[requires]]\npackage = "mpi4py"\non = "numpy"\nstatus = "documented"\nsource = "here"\n'
    of_build, of_rocm = 'versions = ["<1"]\nkind = "build"\n', 'versions = ["<1"]\nbackend = "rocm"\n'
    rows = [head + 'versions = ["<2"]\n', head + of_build, head + of_rocm]
    catalog = load([overlay("".join(rows))])
    request = ask(catalog, "mpi4py", site="local", backend="cpu", python="3.12")
    indexes = FakeIndexes({"numpy": {"2.0": [], "1.5": [], "0.5": []}})
    resolution = resolve(catalog, request, indexes)
    assert isinstance(resolution, Resolution)
    assert resolution.version_of("numpy") == "1.5"


@pytest.mark.parametrize(("version", "warned"), [("2.0", True), ("0.9", False)])
def test_version_of_a_later_index_is_named(version: str, warned: bool) -> None:
    """Another project may have the name on one of the indexes (dependency confusion)."""
    urls = "https://first.example/simple", "https://second.example/simple"
    releases = {"1.0": FakeRelease(index=urls[0]), version: FakeRelease(index=urls[1])}
    alone = {"alone": {"1.0": FakeRelease(index=urls[1])}}
    resolution = answer(FakeIndexes({"both": releases, **alone}, urls=urls), "both", "alone")
    assert isinstance(resolution, Resolution)
    text = "comes from https://second.example/simple, and https://first.example/simple also has a project "
    assert [text in warning for warning in resolution.warnings if "comes from" in warning] == [True] * warned


# Strangers' releases without end


def test_endless_chain_of_requirements_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projects_module, "_MOST_PROJECTS", 50)
    chain = {f"p{number}": {"1": [f"p{number + 1}"]} for number in range(1000)}
    indexes = FakeIndexes(chain)
    with pytest.raises(TooLargeError, match="stopped after 50 projects and extras without an answer, at p50"):
        answer(indexes, "p0")
    assert len(set(indexes.asked)) <= 51


def test_search_has_a_limit_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resolve_module, "_LONGEST", 0.0)
    with pytest.raises(TooLargeError, match="time limit"):
        answer({"a": {"1": []}}, "a")


def test_large_conflict_is_explained_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    projects = {"a": {f"{number}": [f"missing-{number}"] for number in range(1, 40)}}
    whole = answer(projects, "a", "a>1")
    monkeypatch.setattr(session, "_MOST_TRIED", 100)
    of_proof = answer(projects, "a", "a>1")
    monkeypatch.setattr(session, "_MOST_TRIED_OF_PROOF", 0)
    limited = answer(projects, "a", "a>1")
    for conflict in (whole, of_proof, limited):
        assert isinstance(conflict, Conflict)
        assert any("missing-39" in item.text for item in conflict.core)
        assert any("you asked for a" in item.text for item in conflict.core)


def test_release_that_requires_a_project_with_a_broken_page_is_not_chosen() -> None:
    projects: Projects = {"a": {"2": ["b"], "1": []}, "b": {"1": []}}

    class Broken(FakeIndexes):
        def project(self, name: str) -> Any:
            if name == "b":
                msg = "The page of b cannot be used: it is nested too deeply."
                raise SourceError(msg, hint="")
            return super().project(name)

    assert chosen(Broken(projects), "a") == {"a": "1"}
    conflict = answer(Broken(projects), "a==2")
    assert isinstance(conflict, Conflict)
    assert "nested too deeply" in " ".join(item.text for item in conflict.core)
    with pytest.raises(SourceError, match="nested too deeply"):
        answer(Broken(projects), "b")


class WheelMetadata(FakeIndexes):
    """Indexes without metadata of sdists that a build may change."""

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        found = (super(WheelMetadata, self).metadata([file], listed) for file in files)
        return next((metadata for metadata in found if metadata and not metadata.dynamic), None)


class Unreadable(FakeIndexes):
    """Indexes with releases whose metadata is broken: the reason follows from the version."""

    def __init__(self, projects: Projects, reason: Callable[[str], str]) -> None:
        super().__init__(projects)
        self.reason = reason

    def metadata(self, files: Sequence[File], listed: str = "") -> Metadata | None:
        metadata = super().metadata(files, listed)
        if metadata is None or metadata.name != "a":
            return metadata
        msg = f"The metadata of {files[0].name} (a on {files[0].index}) cannot be used."
        raise SourceError(msg) from ValueError(self.reason(metadata.version))


def test_broken_releases_with_one_reason_are_one_line() -> None:
    conflict = answer(Unreadable({"a": versions(*"12345678")}, lambda _: "it has no name"), "a")
    assert isinstance(conflict, Conflict)
    texts = [item.text for item in conflict.core]
    assert "a 8, 7, 6, 5 and 4 have broken metadata: it has no name" in texts
    assert " ".join(texts).count("it has no name") == 1
    assert len(texts) == 3


@pytest.mark.parametrize(
    "requirement",
    [lambda n: f"missing{n}", lambda n: f"b=={n}.{n}", lambda n: f"b not {n}", lambda n: f"nvidia-x{n}"],
    ids=["missing projects", "missing releases", "invalid requirements", "CUDA"],
)
def test_hundreds_of_releases_with_their_own_reasons_are_few_short_lines(
    requirement: Callable[[int], str],
) -> None:
    releases = {str(number): FakeRelease(requires=[requirement(number)]) for number in range(1, 301)}
    conflict = answer({"a": releases, "b": versions("1")}, "a")
    assert isinstance(conflict, Conflict)
    assert len(conflict.core) <= explain.MAX_CORE_ITEMS
    assert sum(len(item.text) for item in conflict.core) < 1000
    whole = " ".join(one for item in conflict.core for one in item.statements or (item.text,))
    assert all(re.search(rf"\b{number}\b", whole) for number in range(1, 301))


def test_hundreds_of_conflicting_projects_are_few_short_lines() -> None:
    """A chain of projects, each of which requires the next, and the last one too much of the first."""
    chain: dict[str, Mapping[str, FakeRelease | Sequence[str]]] = {
        f"p{number}": {"1": [f"p{number + 1}>=1"]} for number in range(200)
    }
    conflict = answer(chain | {"p200": {"1": ["p0>=2"]}}, "p0")
    assert isinstance(conflict, Conflict)
    assert len(conflict.core) == explain.MAX_CORE_ITEMS
    assert max(len(item.text) for item in conflict.core) < 600
    assert any(" similar statements" in item.text for item in conflict.core)
    whole = [one for item in conflict.core for one in item.statements or (item.text,)]
    assert {f"p{number} 1 requires p{number + 1}>=1" for number in range(200)} <= {*whole}
