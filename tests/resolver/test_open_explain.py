"""Explanations of conflicts and rejected versions with distributions outside the catalog."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec.structs import replace

from resolver.answers.explain import LinkGroup
from resolver.answers.rejected import Instead, rejected_versions, search_naming, working_version
from resolver.answers.resolve import resolve
from resolver.compiling.problem import Link
from resolver.errors import UsageError
from resolver.facts.catalog import Catalog
from resolver.model import Conflict, Prefer, Resolution
from resolver.requirements import is_for_cuda, parse_requirement
from tests.resolver.solve_helpers import ask, requirement
from tests.support.indexes import FakeIndexes, FakeRelease

Projects = dict[str, dict[str, Any]]

LIGHTNING: Projects = {
    "lightning": {"2.0.1": ["torch<2.2", "utils>1"], "2.1.0": ["torch<2.3", "utils"]},
    "utils": {"0.9": [], "1.5": [], "2.0": []},
}


def conflict(catalog: Catalog, text: str, projects: Projects) -> Conflict:
    answer = resolve(catalog, ask(catalog, text), FakeIndexes(projects))
    assert isinstance(answer, Conflict)
    return answer


def texts(answer: Conflict) -> list[str]:
    return [item.text for item in answer.core]


def test_conflict_between_request_and_metadata_names_both(catalog: Catalog) -> None:
    answer = conflict(catalog, "lightning==2.0.1 torch>=2.3", LIGHTNING)
    assert [(item.text, item.kind, item.source) for item in answer.core] == [
        ("you asked for lightning==2.0.1", "request", "the request"),
        ("you asked for torch>=2.3", "request", "the request"),
        ("lightning 2.0.1 requires torch<2.2", "fact", "its metadata file"),
    ]


def test_suggestions_of_conflict_resolve(catalog: Catalog) -> None:
    answer = conflict(catalog, "lightning==2.0.1 torch>=2.3", LIGHTNING)
    changes = [suggestion.change for suggestion in answer.suggestions]
    assert changes[0].startswith("any version of lightning instead of lightning==2.0.1") or changes[
        0
    ].startswith("any version of torch instead of torch>=2.3 (gives torch 2.1.2")
    for suggestion in answer.suggestions:
        assert isinstance(resolve(catalog, suggestion.request, FakeIndexes(LIGHTNING)), Resolution)


def test_cuda_is_refused_with_its_chain(catalog: Catalog) -> None:
    projects = {"wants": {"1": ["cudalib"]}, "cudalib": {"1.0": ["nvidia-cublas-cu12"]}}
    answer = conflict(catalog, "wants", projects)
    assert texts(answer) == [
        "you asked for wants",
        "wants 1 requires cudalib",
        "cudalib 1.0 requires nvidia-cublas-cu12, which is for CUDA",
    ]
    (warning,) = answer.warnings
    assert "`nvidia-cublas-cu12; sys_platform == 'never'`" in warning


@pytest.mark.parametrize(("extra", "required"), [("cuda12", "jax-cuda12-plugin"), ("gpu", "cupy-cuda12x")])
def test_extra_for_cuda_is_refused_in_one_line(catalog: Catalog, extra: str, required: str) -> None:
    releases = {f"{n}.0": [f"{required}<={n}.9,>={n}.1; extra == '{extra}'"] for n in range(1, 9)}
    answer = conflict(catalog, f"wants[{extra}]", {"wants": releases})
    assert texts(answer) == [
        f"you asked for wants[{extra}]",
        f"every wants[{extra}] requires {required}, which is for CUDA",
    ]
    (warning,) = answer.warnings
    assert f"Write wants without [{extra}], which is for CUDA." in warning


@pytest.mark.parametrize("name", ["nvidia-dali-cuda120", "cupy-cuda12x", "jax-cuda12-plugin", "rmm-cu12"])
def test_requested_name_for_cuda_is_an_error(catalog: Catalog, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is for CUDA and does not run on AMD GPUs"):
        resolve(catalog, ask(catalog, name), FakeIndexes({name: {"1.0": []}}))


def test_error_about_a_name_for_cuda_says_what_takes_its_place(catalog: Catalog) -> None:
    names = {row.name.replace("*", "12"): row for row in catalog.replaces.values() if not row.conda}
    names = {name: row for name, row in names.items() if is_for_cuda(name)}
    assert any(row.effect == "cpu" for row in names.values())
    for name, row in names.items():
        with pytest.raises(UsageError) as on_amd:
            resolve(catalog, ask(catalog, name), FakeIndexes({name: {"1.0": []}}))
        hint = on_amd.value.hint
        assert row.note in hint
        assert all(f"Write {by} instead" in hint for by in row.by)
        assert ("runs on the CPU" in hint) == (row.effect == "cpu")
        with pytest.raises(UsageError, match="does not run on CPUs") as on_cpu:
            resolve(
                catalog, ask(catalog, name, site="local", backend="cpu"), FakeIndexes({name: {"1.0": []}})
            )
        assert all((by in on_cpu.value.hint) == (row.effect == "cpu") for by in row.by)


def test_bindings_of_nvidia_are_allowed(catalog: Catalog) -> None:
    answer = resolve(catalog, ask(catalog, "nvidia-ml-py"), FakeIndexes({"nvidia-ml-py": {"13.0": []}}))
    assert isinstance(answer, Resolution)


def test_warning_names_newer_release_that_requires_cuda(catalog: Catalog) -> None:
    projects = {"boost": {"3.2": ["nvidia-nccl-cu12"], "3.1": ["nvidia-nccl-cu12"], "2.0": []}}
    answer = resolve(catalog, ask(catalog, "boost"), FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    (warning,) = (text for text in answer.warnings if "CUDA" in text)
    assert warning.startswith("boost 2.0 was chosen because newer releases, such as 3.2, require nvidia-nccl")
    (never,) = re.findall("`(.*)`", warning)
    request = replace(ask(catalog, "boost"), overrides=(parse_requirement(never),))
    answer = resolve(catalog, request, FakeIndexes(projects))
    assert isinstance(answer, Resolution)
    assert "boost 3.2" in map(str, answer.distributions)
    assert not [text for text in answer.warnings if "CUDA" in text]


def test_conflict_with_platform_cites_its_facts(catalog: Catalog) -> None:
    answer = conflict(catalog, "lightning==2.0.1 apex deepspeed", LIGHTNING)
    assert "lightning 2.0.1 requires torch<2.2" in texts(answer)
    assert any(text.startswith("lumi-g offers base images with ROCm") for text in texts(answer))
    assert len(answer.core) <= 10
    assert all(item.source for item in answer.core)


@pytest.mark.parametrize("leave_out", range(3))
def test_core_without_any_one_item_resolves(catalog: Catalog, leave_out: int) -> None:
    requirements = ["lightning==2.0.1", "torch>=2.3", "utils<2"]
    kept = [text for number, text in enumerate(requirements) if number != leave_out]
    answer = resolve(catalog, ask(catalog, " ".join(kept)), FakeIndexes(LIGHTNING))
    assert isinstance(answer, Conflict) == (leave_out == 2)


def test_many_releases_make_one_sentence(catalog: Catalog) -> None:
    releases = {f"1.{minor}": ["torch<1"] for minor in range(40)}
    assert texts(conflict(catalog, "old torch", {"old": releases})) == [
        "you asked for old",
        "every old requires torch<1",
    ]


def test_python_of_no_release_is_part_of_conflict(catalog: Catalog) -> None:
    projects = {"new": {"1": FakeRelease(requires_python=">=3.99")}}
    answer = conflict(catalog, "new python==3.12", projects)
    assert texts(answer) == [
        "you asked for new",
        "you asked for python==3.12",
        "new 1 requires Python >=3.99",
    ]


def test_rejected_releases_cite_what_excludes_them(catalog: Catalog) -> None:
    indexes = FakeIndexes({"app": {"1.0": ["utils<2"]}, **LIGHTNING})
    request = ask(catalog, "app utils")
    chosen = resolve(catalog, request, indexes)
    assert isinstance(chosen, Resolution)
    rejected, more = rejected_versions(search_naming(catalog, request, indexes, "utils"), chosen, "utils")
    assert [(version.version, [item.text for item in version.core]) for version in rejected] == [
        ("2.0", ["you asked for app", "app 1.0 requires utils<2"])
    ]
    assert more == 0


def test_rejected_release_names_what_would_change(catalog: Catalog) -> None:
    indexes = FakeIndexes({"app": {"2.0": ["utils<2"], "1.0": ["utils"]}, **LIGHTNING})
    request = ask(catalog, "app utils")
    chosen = resolve(catalog, request, indexes)
    assert isinstance(chosen, Resolution)
    rejected, _ = rejected_versions(search_naming(catalog, request, indexes, "utils"), chosen, "utils")
    assert [(version.version, version.instead) for version in rejected] == [
        ("2.0", Instead("app", "2.0", "1.0"))
    ]


def test_rejected_base_images_name_what_would_change(catalog: Catalog) -> None:
    indexes = FakeIndexes(LIGHTNING)
    request = ask(catalog, "apex utils", day="2026-06-01")
    chosen = resolve(catalog, request, indexes)
    assert isinstance(chosen, Resolution)
    rejected, _ = rejected_versions(
        search_naming(catalog, request, indexes, "base-image"), chosen, "base-image"
    )
    assert rejected
    assert {version.instead for version in rejected} == {Instead("rocm", "6.4.4", "7.0.2")}
    image = rejected[0].version
    pinned = replace(request, target=replace(request.target, base_image=image))
    chosen = resolve(catalog, pinned, indexes)
    assert isinstance(chosen, Resolution)
    assert rejected_versions(search_naming(catalog, pinned, indexes, "base-image"), chosen, "base-image") == (
        [],
        0,
    )


def test_working_version_meets_further_requirement(catalog: Catalog) -> None:
    indexes = FakeIndexes(LIGHTNING)
    request = ask(catalog, "utils")
    chosen = resolve(catalog, request, indexes)
    assert isinstance(chosen, Resolution)
    assert working_version(
        search_naming(catalog, request, indexes, "utils"), chosen, requirement("utils<1.5")
    ) == ("0.9", ())
    pinned = ask(catalog, "lightning==2.0.1")
    assert working_version(
        search_naming(catalog, pinned, indexes, "utils"), chosen, requirement("utils<1")
    ) == ("", ())


@pytest.mark.parametrize(
    ("size", "text"), [(1, "one requires rocm 5.0.*"), (2, "every one requires rocm 5.0.*")]
)
def test_statement_about_all_releases_names_none(size: int, text: str) -> None:
    link = Link("one", "rocm", "", "requires rocm 5.0.*", "its metadata")
    assert LinkGroup((link,), size).item().text == text


@pytest.mark.parametrize("prefer", ["advised", "newest", "oldest", "proven"])
def test_every_preference_explains_a_conflict_with_metadata(catalog: Catalog, prefer: Prefer) -> None:
    request = replace(ask(catalog, "lightning==2.0.1 torch>=2.3"), prefer=prefer)
    answer = resolve(catalog, request, FakeIndexes(LIGHTNING))
    assert isinstance(answer, Conflict)
    assert "you asked for lightning==2.0.1" in texts(answer)
    assert any("lightning 2.0.1 requires torch" in text for text in texts(answer))


def test_release_without_wheel_is_rejected_for_its_wheel(catalog: Catalog) -> None:
    source = FakeRelease(wheels=(), sdist=True)
    indexes = FakeIndexes({"lib": {"1": FakeRelease(), "2": source, "3": source}})
    request = ask(catalog, "lib", site="frontier", python="3.12")
    chosen = resolve(catalog, request, indexes)
    assert isinstance(chosen, Resolution)
    rejected, _ = rejected_versions(search_naming(catalog, request, indexes, "lib"), chosen, "lib")
    assert [(row.version, row.preferred) for row in rejected] == [
        ("2", "1 has a wheel for the target"),
        ("3", "1 has a wheel for the target"),
    ]
